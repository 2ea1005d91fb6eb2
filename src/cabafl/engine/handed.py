"""What a method may hand to an engine: anything else ends the run in one line that names the method and the time."""

import math
import operator
from dataclasses import fields
from typing import Any

import numpy as np

from cabafl.engine.defence import LARGEST_MODEL
from cabafl.engine.tensors import check_type
from cabafl.errors import UserError
from cabafl.methods.base import Method, Objective, Weights
from cabafl.state import Encoder, attributes

MODEL_SQUARE = LARGEST_MODEL**2
LARGEST_NUMBER = 2**63 - 1  # of what an array of whole numbers can hold: records are read into such arrays
_values = operator.attrgetter(*(field.name for field in fields(Objective)))
_PLAIN = {(kind, float, float, bool, bool, bool) for kind in (int, type(None))}  # types of the values


class UnusableModel(UserError):
    """A method publishes or sends something that is not a model. A server of real devices puts the input that led to it
    aside; a simulation ends."""


def finite_vector(found: object, like: Weights, who: str) -> Weights:
    """`usable_vector` of finite numbers; raises `UnusableModel` if some are not. ``who`` begins the line."""
    vector = usable_vector(found, like, who)
    if not np.isfinite(vector).all():
        raise UnusableModel(
            f"{who} a model with numbers that are not finite; what helps: a smaller training.learning_rate, "
            "smaller steps of the method, run.defence.update_clip=3"
        )
    return vector


def usable_vector(found: object, like: Weights, who: str) -> Weights:
    """The numbers as a plain vector of the type of ``like``, as devices get them; raises `UnusableModel` for anything
    but an array of numbers of that shape."""
    if not isinstance(found, np.ndarray) or found.shape != like.shape:
        what = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise UnusableModel(f"{who} {what}; accepted: an array of shape {like.shape}")
    if found.dtype.kind not in "fiu":
        raise UnusableModel(f"{who} an array of type {found.dtype}; accepted: numbers of type {like.dtype}")
    with np.errstate(over="ignore"):  # a number beyond the type becomes infinite
        return np.asarray(found, dtype=like.dtype)


def usable_query(found: object, timeout: Any, like: Weights, who: str) -> tuple[Weights, float | None]:
    """The model and the timeout of a feature collection; raises `UserError` for anything else."""
    unlimited = timeout is None or timeout == math.inf
    return usable_vector(found, like, f"{who} of"), None if unlimited else amount(timeout, f"{who} with timeout")


def check_correction(found: Weights, like: Weights, who: str) -> None:
    """Raises `UnusableModel` unless it is a vector of finite float32 numbers."""
    right = isinstance(found, np.ndarray) and found.shape == like.shape and found.dtype == np.float32
    if not right or not float(found.dot(found)) <= MODEL_SQUARE:
        kind = f"shape {found.shape} and type {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise UnusableModel(f"{who} a correction of {kind}; accepted: finite numbers, float32, of shape {like.shape}")


def usable_objective(found: object, method: Method, who: str) -> Objective:
    """The objective in plain numbers, itself if it has no others. Raises `UserError` for anything but an `Objective`,
    since fields that it does not have would change nothing, and for numbers that no device accepts."""
    if type(found) is not Objective:
        raise UserError(f"{who} with an objective of type {type(found).__name__}; accepted: cabafl.Objective")
    if found.hold and type(method).on_ready is Method.on_ready:
        raise UserError(f"{who} with Objective.hold, but has no on_ready; accepted: a method that has one")
    values = epochs, scale, prox, *wishes = _values(found)
    plain = tuple(map(type, values)) in _PLAIN and (epochs is None or epochs >= 1)
    if plain and 0 <= scale < math.inf and 0 <= prox < math.inf:
        return found
    return Objective(
        None if epochs is None else whole(epochs, f"{who} with Objective.epochs", 1),
        amount(scale, f"{who} with Objective.lr_scale"),
        amount(prox, f"{who} with Objective.prox"),
        *map(bool, wishes),
    )


def whole(found: Any, who: str, least: int = -LARGEST_NUMBER) -> int:
    """A whole number of any type, such as NumPy's, as an `int`; raises `UserError` for anything else."""
    try:
        number = operator.index(found)
    except TypeError:
        number = None
    if number is None or not least <= number <= LARGEST_NUMBER:
        bound = "" if least < 0 else f", at least {least}"
        raise UserError(f"{who} = {_shown(found)}; accepted: a whole number{bound}")
    return number


def amount(found: Any, who: str) -> float:
    """A finite number of any type that is not negative, as a `float`; raises `UserError` for anything else."""
    try:
        if math.isfinite(found) and found >= 0:
            return float(found)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"{who} = {_shown(found)}; accepted: a finite number, at least 0")


def _shown(found: object) -> str:
    return " ".join(f"{found!r:.80}".split())


def check_attributes(method: Method) -> None:
    """Raises `UserError` if an attribute of the method cannot be stored in a checkpoint."""
    for name, value in attributes(method).items():
        try:
            if name != "parameters":
                encoder = Encoder()
                encoder.encode(value)
                for array in encoder.arrays.values():
                    check_type(array)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"method.name = {method.name!r}: its attribute {name!r}: {reason}") from None
