"""The user's own function as a data set (``data.dataset = "my_module:load"``): the same in a simulation, on a server
and on a device (``data`` in ``device.toml``).

* A function that takes a device's number returns the training samples ``x, y`` of that device; for None it returns the
  test samples. It is for data that only the device has. A simulation calls it for every device, a server for None.
* A function without arguments returns everything, with users: whatever ``simulate(data=...)`` accepts. A device takes
  its part of it. On a device it may also return that device's ``x, y``.

A server knows the test samples only. The classes and the normalisation of images are therefore theirs.
"""

import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.arrays import (
    Complaint,
    Targets,
    check_lengths,
    check_part,
    from_targets,
    moments,
    stored_inputs,
    targets_of,
)
from cabafl.data.catalogue import HubOptions
from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import failure, one_line
from cabafl.data.given import array_of, dataset_from, is_pair, renamed
from cabafl.data.text import is_text, symbols, text_dataset
from cabafl.errors import UserError

Function = Callable[..., Any]
MOST_CLASSES = 1_000_000


class Loader(NamedTuple):
    """A function of the user; ``key`` is the setting that names it."""

    key: str
    name: str
    function: Function
    takes_device: bool

    @classmethod
    def find(cls, name: str, key: str = "data.dataset") -> "Loader":
        """Imports ``package.module:function``; raises `UserError` if that fails."""
        module, colon, attribute = name.partition(":")
        try:
            if not colon:
                raise ImportError("accepted: package.module:function")
            function = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # also one that the user's module raises
            raise UserError(f"{key} = {name!r}: cannot be used: {_reason(error)}") from None
        if not callable(function):
            raise UserError(f"{key} = {name!r}: is a {type(function).__name__}; accepted: a function")
        return cls(key, name, function, _takes_device(function))

    def error(self, reason: object) -> UserError:
        """The error for data that cannot be used."""
        return UserError(f"{self.key} = {self.name!r}: cannot be used: {' '.join(str(reason).split())}")

    def call(self, *arguments: int | None) -> Any:
        """What the function returns; raises `UserError` if it fails, MemoryError if memory does not suffice, which is a
        matter of the machine."""
        try:
            return self.function(*arguments)
        except (Exception, SystemExit) as error:
            if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error)):
                raise MemoryError(_reason(error)) from None
            raise self.error(_reason(error)) from None

    def whole(self, options: HubOptions) -> Dataset:
        """The data set of a function without arguments."""
        found = self.call()
        if is_pair(found):
            raise self.error(
                "it returns x, y, the samples of one device; accepted here: x_train, y_train, user_train, x_test and "
                "y_test as a mapping, or a function of the device's number"
            )
        return renamed(dataset_from(found, options, self.error), self.name)

    def own(self, device: int | None) -> dict[str, NDArray[Any]]:
        """``x`` and ``y`` of a device, or the test samples, of a function that takes the number of the device."""
        found = self.call(device)
        if not is_pair(found) or len(found) != 2:
            raise self.error(f"for device {device} it returns a {type(found).__name__}; accepted: arrays x, y")
        part = {key: array_of(value, key, self.error) for key, value in zip(("x", "y"), found, strict=True)}
        if any(array.ndim == 0 for array in part.values()) or len(part["x"]) != len(part["y"]):
            shapes = ", ".join(f"{key} of shape {array.shape}" for key, array in part.items())
            raise self.error(f"for device {device} it returns {shapes}; accepted: one target per sample")
        return part


def read(name: str, devices: int | None, partition: str, options: HubOptions) -> Dataset:
    """All samples, for a simulation; raises `UserError` if the function or what it returns cannot be used."""
    loader = Loader.find(name)
    if not loader.takes_device:
        return _in_memory(loader, lambda: loader.whole(options))
    if partition != "natural":
        raise UserError(f"data.partition = {partition!r}: {name} gives each device its own samples; accepted: natural")
    if devices is None:
        raise UserError(f"data.devices = 'auto': {name} takes the number of a device; accepted: how many there are")
    return _in_memory(loader, lambda: _read_each(loader, devices, options.tokens))


def _read_each(loader: Loader, devices: int, tokens: bool) -> Dataset:
    found = [loader.own(device) for device in range(devices)]
    users = np.repeat(np.arange(devices), [len(part["x"]) for part in found])
    filled = [part for part in found if len(part["x"])]
    if not filled:
        raise loader.error("no device has samples")
    train = {f"{key}_train": _stacked([part[key] for part in filled], key, loader.error) for key in ("x", "y")}
    return _of_devices(loader, train | {"user_train": users}, tokens)


def read_test(name: str, options: HubOptions) -> Dataset:
    """What a server needs: the test samples, and no training samples if the devices have their own."""
    loader = Loader.find(name)
    if not loader.takes_device:
        return _in_memory(loader, lambda: loader.whole(options))
    return _in_memory(loader, lambda: _of_devices(loader, {}, options.tokens))


def _in_memory(loader: Loader, work: Callable[[], Dataset]) -> Dataset:
    try:
        return work()
    except MemoryError as error:
        raise loader.error(error) from None


def read_own(loader: Loader, device: int, names: tuple[str, ...], options: HubOptions) -> Split | Dataset:
    """On a device: its own samples, or a data set of which it takes its part. ``names`` are the server's classes."""
    if loader.takes_device:
        return _own_split(loader, loader.own(device), names, options.tokens)
    found = loader.call()
    if is_pair(found):
        pair = {key: array_of(value, key, loader.error) for key, value in zip(("x", "y"), found, strict=False)}
        return _own_split(loader, pair, names, options.tokens)
    return renamed(dataset_from(found, options, loader.error), loader.name)


def _own_split(loader: Loader, found: dict[str, NDArray[Any]], names: tuple[str, ...], tokens: bool) -> Split:
    if not found["x"].size:
        raise loader.error("the device has no samples")
    check_part(found, loader.error)
    if tokens and is_text(found["x"]):
        return Split(*(torch.from_numpy(symbols(key, found[key], loader.error)) for key in ("x", "y")))
    _, x = stored_inputs("x", found["x"], loader.error)
    y = _class_numbers(found["y"], names, loader.error)
    return Split(torch.from_numpy(x), torch.from_numpy(y))


def _of_devices(loader: Loader, train: dict[str, NDArray[Any]], tokens: bool) -> Dataset:
    """Training samples of the devices, if any, and the test samples, whose classes and normalisation count."""
    test = loader.own(None)
    arrays = {"x_test": test["x"], "y_test": test["y"], **train}
    if tokens and is_text(test["x"]):
        return text_dataset(loader.name, arrays, loader.error, of_test=True)
    check_lengths(arrays, loader.error)
    targets = _targets(arrays, loader.error)
    kind, x = stored_inputs("x_test", test["x"], loader.error)
    if kind == "image":
        mean, deviation = moments(x)
        arrays |= {"mean": np.array(mean), "deviation": np.array(deviation)}
    return from_targets(loader.name, arrays, targets, loader.error)


def _targets(arrays: dict[str, NDArray[Any]], complain: Complaint) -> Targets:
    """Class numbers are taken as they are; text is numbered in the order of the test samples' sorted labels."""
    test = _column(arrays["y_test"])
    train = _column(arrays["y_train"]) if "y_train" in arrays else test[:0]
    if test.dtype.kind not in "iubUS" or train.dtype.kind not in "iubUS" or test.ndim == 2:
        return targets_of({key: values for key, values in arrays.items() if key[0] == "y"}, complain)
    names = tuple(str(each) for each in np.unique(test.astype(np.str_))) if test.dtype.kind in "US" else ()
    numbered = _class_numbers(test, names, complain)
    classes = len(names) or int(numbered.max()) + 1
    if numbered.min() < 0 or not 2 <= classes <= MOST_CLASSES:
        raise complain(
            f"the labels of the test samples are from {test.min()} to {test.max()}; accepted: two classes or more, as "
            f"text or as numbers from 0 to {MOST_CLASSES - 1:,}"
        )
    train = _class_numbers(train, names, complain)
    if len(train) and not 0 <= train.min() <= train.max() < classes:
        raise complain(
            f"labels from {train.min()} to {train.max()}, but those of the test samples end at {classes - 1}"
        )
    return Targets(train, numbered, classes, names)


def _class_numbers(y: NDArray[Any], names: tuple[str, ...], complain: Complaint) -> NDArray[Any]:
    """Text as the numbers of the classes ``names``, integers as they are, other numbers as float32."""
    y = _column(y)
    if y.dtype.kind in "US":
        places = {name: place for place, name in enumerate(names)}
        strange = next((str(each) for each in y.astype(np.str_) if str(each) not in places), None)
        if strange is not None:
            raise complain(f"label {strange!r} is not a class of the test samples; accepted: {', '.join(names) or '-'}")
        return np.array([places[str(each)] for each in y.astype(np.str_)], dtype=np.int64)
    if y.dtype.kind in "iub" and y.ndim == 1:
        return y.astype(np.int64)
    return targets_of({"y_test": y}, complain).test


def _column(y: NDArray[Any]) -> NDArray[Any]:
    return y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y


def _stacked(parts: list[NDArray[Any]], key: str, complain: Complaint) -> NDArray[Any]:
    shapes = {(part.shape[1:], part.dtype.kind) for part in parts}
    if len(shapes) > 1:
        raise complain(f"{key} has not the same shape and type on all devices; found: {sorted(map(str, shapes))[:3]}")
    return np.concatenate(parts)


def _takes_device(function: Function) -> bool:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _reason(error: BaseException) -> str:
    """The error, and where in the user's code it comes from."""
    plain = isinstance(error, ImportError | AttributeError | OSError)
    text = one_line(error) if plain else failure(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "importlib" not in frame.filename]
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text
