"""Objects as plain data: what a checkpoint stores, without pickle and without the objects' help."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Arrays = dict[str, npt.NDArray[Any]]


class State:
    """Marks classes whose attributes (numbers, strings, arrays, lists, dictionaries, other states) are all there is
    to know about their objects. One that is not like that has `state` and `restore`."""


class Encoder:
    """Turns values into JSON-able trees; arrays go into `arrays`, each once however often it is referred to."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps objects alive, so that ids stay unique

    def encode(self, value: Any) -> Any:
        """Numbers, strings and None as they are, everything else as a list that starts with its kind."""
        if value is None or isinstance(value, bool | str) or type(value) in (int, float):
            return value
        if isinstance(value, np.ndarray):
            return ["array", self._name(value, value)]
        if isinstance(value, torch.Tensor):
            return ["tensor", self._name(value, value.numpy())]
        if type(value) in (list, tuple):
            return [type(value).__name__, *map(self.encode, value)]
        if isinstance(value, dict):
            return ["dict", *([self.encode(k), self.encode(v)] for k, v in value.items())]
        if isinstance(value, State):
            return ["state", name_of(type(value)), {k: self.encode(v) for k, v in attributes(value).items()}]
        raise TypeError(f"a checkpoint cannot store a {type(value).__name__}: {value!r}")

    def _name(self, owner: Any, array: npt.NDArray[Any]) -> str:
        if id(owner) not in self._names:
            self._names[id(owner)] = str(len(self.arrays))
            self.arrays[self._names[id(owner)]] = array
            self._kept.append(owner)
        return self._names[id(owner)]


class Decoder:
    """The reverse of `Encoder`: arrays that were shared are shared again. Only subclasses of `State` are ever made."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._tensors: dict[str, torch.Tensor] = {}
        self._classes = {name_of(cls): cls for cls in _descendants(State)}

    def decode(self, tree: Any) -> Any:
        """Raises KeyError, ValueError or TypeError on anything an encoder would not have written."""
        if not isinstance(tree, list):
            return tree
        kind, *rest = tree
        if kind == "array":
            return self._arrays[rest[0]]
        if kind == "tensor":
            return self._tensors.setdefault(rest[0], torch.from_numpy(self._arrays[rest[0]]).clone())
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(map(self.decode, rest))
        if kind == "dict":
            return {self.decode(key): self.decode(value) for key, value in rest}
        if kind == "state":
            values = {key: self.decode(value) for key, value in rest[1].items()}
            return _revive(self._classes[rest[0]], values)
        raise ValueError(f"unknown kind {kind!r}")


def name_of(cls: type) -> str:
    """How a class is called in a checkpoint."""
    return f"{cls.__module__}:{cls.__qualname__}"


def attributes(value: Any) -> dict[str, Any]:
    """The state of an object."""
    if hasattr(value, "state"):
        own: dict[str, Any] = value.state()
        return own
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value))


def _revive(cls: type[Any], values: dict[str, Any]) -> Any:
    if dataclasses.is_dataclass(cls) and not hasattr(cls, "restore"):
        return cls(**values)
    revived = object.__new__(cls)
    if hasattr(revived, "restore"):
        revived.restore(values)
    else:
        vars(revived).update(values)
    return revived


def _descendants(cls: type[Any]) -> list[type[Any]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _descendants(child)
    return found
