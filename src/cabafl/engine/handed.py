"""What a method may hand to an engine: anything else ends the run in one line that names the method and the time."""

import numpy as np

from cabafl.engine.defence import LARGEST_MODEL
from cabafl.errors import UserError
from cabafl.methods.base import Method, Objective, Weights
from cabafl.state import Encoder, attributes

MODEL_SQUARE = LARGEST_MODEL**2


class UnusableModel(UserError):
    """A method publishes or sends something that is not a model. A server of real devices puts the input that led to it
    aside; a simulation ends."""


def is_vector(found: object, like: Weights) -> bool:
    """Whether it is an array of the shape of ``like``."""
    return isinstance(found, np.ndarray) and found.shape == like.shape


def check_published(found: Weights, like: Weights, who: str) -> None:
    """Raises `UnusableModel` unless it is a vector of finite numbers; ``who`` begins the line."""
    check_vector(found, like, who)
    if not np.isfinite(found).all():
        raise UnusableModel(
            f"{who} a model with numbers that are not finite; what helps: a smaller training.learning_rate, "
            "smaller steps of the method, run.defence.update_clip=3"
        )


def check_vector(found: object, like: Weights, who: str) -> None:
    """Raises `UnusableModel` unless it is an array of the shape of ``like``."""
    if not is_vector(found, like):
        what = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise UnusableModel(f"{who} {what}; accepted: an array of shape {like.shape}")


def check_correction(found: Weights, like: Weights, who: str) -> None:
    """Raises `UnusableModel` unless it is a vector of finite float32 numbers."""
    right = is_vector(found, like) and found.dtype == np.float32
    if not right or not float(found.dot(found)) <= MODEL_SQUARE:
        kind = f"shape {found.shape} and type {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
        raise UnusableModel(f"{who} a correction of {kind}; accepted: finite numbers, float32, of shape {like.shape}")


def check_objective(found: object, who: str) -> None:
    """Raises `UserError` for anything but an `Objective`: fields that it does not have would change nothing."""
    if type(found) is not Objective:
        raise UserError(f"{who} with an objective of type {type(found).__name__}; accepted: cabafl.Objective")


def check_attributes(method: Method) -> None:
    """Raises `UserError` if an attribute of the method cannot be stored in a checkpoint."""
    for name, value in attributes(method).items():
        try:
            if name != "parameters":
                Encoder().encode(value)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"method.name = {method.name!r}: its attribute {name!r}: {reason}") from None
