"""Objects as plain data: what checkpoints and journals store. No pickle, and no storage code in the objects themselves.

A value becomes a JSON tree plus a table of arrays. In the tree, numbers, strings, booleans and None stand for
themselves; everything else is a list that starts with its kind::

    ["array", name]   ["frozen", name]   ["tensor", name]   a read-only array is "frozen" and comes back read-only
    ["floats", name]                     an `array.array` of type "d"
    ["list", item, ...]                  ["tuple", item, ...]
    ["dict", [key, value], ...]          ["state", "module:Class", {attribute: value}]
"""

import dataclasses
import sys
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch  # not loaded for commands that need none

Arrays = dict[str, npt.NDArray[Any]]
Array = TypeVar("Array", bound=npt.NDArray[Any])
PACKAGE = "cabafl."

_PLAIN = frozenset({type(None), bool, str, int, float})


def frozen(values: Array) -> Array:
    """Makes an array read-only and returns it. A checkpoint shares such an array with the run instead of copying it."""
    values.flags.writeable = False
    return values


def raw(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array; shared, not copied, if the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class State:
    """Base of classes whose instances can be stored: their attributes are their whole state.

    Attributes hold numbers, strings, None, NumPy arrays, torch tensors, arrays of type "d", lists, tuples, dictionaries
    and other states. Long rows of floats belong into arrays: 100,000 take 0.03 ms to encode, 7 ms as a list. A
    dataclass is rebuilt through its constructor, and fields that are not parameters of it are set afterwards; any other
    class is rebuilt without calling ``__init__``. A class that keeps more than its attributes defines ``state()``,
    which returns a dictionary, and ``restore(dictionary)``.
    """


class Encoder:
    """Turns values into JSON trees and collects their arrays in `arrays`. Shared arrays are stored once.

    Args:
        shares: Which arrays are collected as they are; all others are copied. None: no array is copied.
    """

    def __init__(self, shares: Callable[[npt.NDArray[Any]], bool] | None = None) -> None:
        self.arrays: Arrays = {}
        self._shares = shares
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps the arrays alive, so that their ids stay unique

    def encode(self, value: Any) -> Any:
        """The tree of a value. Raises TypeError for a type that cannot be stored, at any depth."""
        kind = type(value)
        if kind in _PLAIN or isinstance(value, str):
            return value
        if isinstance(value, np.ndarray):
            return ["array" if value.flags.writeable else "frozen", self._name(value, value)]
        if _is_tensor(value):
            return ["tensor", self._name(value, value.numpy())]
        if kind in (list, tuple):  # not subclasses: a NamedTuple would come back as a tuple
            return [kind.__name__, *map(self.encode, value)]
        if kind is array and value.typecode == "d":
            return ["floats", self._add(value, np.array(value))]
        if isinstance(value, dict):
            return ["dict", *([self.encode(k), self.encode(v)] for k, v in value.items())]
        if isinstance(value, State):
            return ["state", name_of(kind), {k: self.encode(v) for k, v in attributes(value).items()}]
        raise TypeError(
            f"a checkpoint cannot store a {kind.__name__}: {value!r}; accepted: plain numbers, strings, arrays, "
            "lists, tuples, dictionaries and subclasses of cabafl.state.State"
        )

    def _name(self, owner: Any, values: npt.NDArray[Any]) -> str:
        name = self._names.get(id(owner))
        if name is not None:
            return name
        return self._add(owner, values if self._shares is None or self._shares(values) else values.copy())

    def _add(self, owner: Any, values: npt.NDArray[Any]) -> str:
        name = self._names[id(owner)] = str(len(self.arrays))
        self.arrays[name] = values
        self._kept.append(owner)
        return name


class Decoder:
    """Rebuilds values from the trees of an `Encoder`. Arrays that were shared are shared again.

    The data may be untrusted: it can only create instances of subclasses of `State` that are already imported.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._tensors: dict[str, torch.Tensor] = {}
        self._classes = {name_of(cls): cls for cls in _descendants(State)}

    def decode(self, tree: Any) -> Any:
        """The value of a tree. Raises KeyError, ValueError or TypeError for a tree that no `Encoder` writes."""
        if not isinstance(tree, list):
            return tree
        kind, *rest = tree
        if kind == "array":
            return self._arrays[rest[0]]
        if kind == "frozen":
            return frozen(self._arrays[rest[0]])
        if kind == "floats":
            return array("d", self._arrays[rest[0]].tobytes())
        if kind == "tensor":
            import torch

            return self._tensors.setdefault(rest[0], torch.from_numpy(self._arrays[rest[0]]).clone())
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(map(self.decode, rest))
        if kind == "dict":
            return {self.decode(key): self.decode(value) for key, value in rest}
        if kind == "state":
            values = {key: self.decode(value) for key, value in rest[1].items()}
            return _rebuild(self._class(rest[0]), values)
        raise ValueError(f"unknown kind {kind!r}")

    def _class(self, name: str) -> type[Any]:
        """In the package a class name occurs once: a class that has moved to another module since is found by it."""
        if name not in self._classes and str(name).startswith(PACKAGE):
            moved = [known for known in self._classes if known.startswith(PACKAGE)]
            name = next((known for known in moved if known.split(":")[1] == name.partition(":")[2]), name)
        return self._classes[name]


def _is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; there is none unless torch is loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def name_of(cls: type) -> str:
    """The name of a class in stored data, ``module:Class``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def attributes(value: Any) -> dict[str, Any]:
    """The state of an object by attribute name; not a copy of the values."""
    if hasattr(type(value), "restore"):
        own: dict[str, Any] = value.state()
        return own
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value))


def _rebuild(cls: type[Any], values: dict[str, Any]) -> Any:
    if dataclasses.is_dataclass(cls) and not hasattr(cls, "restore"):
        names = [field.name for field in dataclasses.fields(cls) if not field.init and field.name in values]
        later = {name: values.pop(name) for name in names}
        made = cls(**values)
        for name, value in later.items():
            object.__setattr__(made, name, value)  # it may be frozen
        return made
    rebuilt = object.__new__(cls)
    if hasattr(cls, "restore"):
        rebuilt.restore(values)
    else:
        vars(rebuilt).update(values)
    return rebuilt


def _descendants(cls: type[Any]) -> list[type[Any]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _descendants(child)
    return found
