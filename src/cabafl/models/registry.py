"""Builds networks by name, for a given data kind, input shape and number of classes."""

import inspect
from typing import Any

from torch import nn

from cabafl.errors import UserError
from cabafl.models.catalogue import NETWORKS
from cabafl.models.cnn import cifar_cnn, digit_cnn
from cabafl.models.lstm import CharLSTM
from cabafl.models.mlp import mlp
from cabafl.models.resnet import ResNet18
from cabafl.models.vgg import vgg16
from cabafl.own_code import find_own, reason
from cabafl.validation import unknown

_CONVOLUTIONAL = {"resnet18": ResNet18, "vgg16": vgg16}  # of pictures with 32 by 32 pixels
_WIDE = ("lstm", *_CONVOLUTIONAL)  # networks with a width
_SMALLEST_CNN_SIDE = 16  # pixels; smaller images shrink to nothing in two convolutions and poolings


def build(name: str, kind: str, input_shape: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """A network with random initial weights from torch's global generator, which the caller seeds.

    ``width`` scales the channels or units of networks that have one.
    """
    if ":" in name:
        return _custom(name, input_shape, classes, width)
    if name not in NETWORKS:
        raise unknown("model.name", name, [*NETWORKS, "package.module:Class"])
    _check_kind(name, kind)
    if width != 1.0 and name not in _WIDE:
        raise _no_width(name, width)
    if name in _CONVOLUTIONAL:
        return _padded(name, input_shape, classes, width)
    if name == "lstm":
        return CharLSTM(classes, width)
    if name == "mlp":
        return mlp(input_shape, classes)
    return _cnn(input_shape, classes)


def default_feature_layer(name: str, model: nn.Module) -> str | None:
    """The feature layer if ``model.feature_layer`` is not set; None if a custom network declares none."""
    if ":" in name:
        layer = getattr(model, "feature_layer", None)
        return layer if isinstance(layer, str) else None
    if name == "cnn":
        return "flatten" if hasattr(model, "fc2") else "relu3"
    return NETWORKS[name].feature


def _check_kind(name: str, kind: str) -> None:
    accepted = [n for n, network in NETWORKS.items() if _takes(network.takes, kind)]
    if name not in accepted:
        raise UserError(
            f"model.name = {name!r}: does not take {kind} data (data.dataset); accepted: {', '.join(accepted)}"
        )


def _takes(takes: str, kind: str) -> bool:
    return takes == kind or (takes == "any numbers" and kind != "text")


def _cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    side = min(input_shape[1:])
    if side < _SMALLEST_CNN_SIDE:
        raise UserError(f"model.name = 'cnn': images of {input_shape} are too small; accepted: sides from 16, or mlp")
    return (digit_cnn if side <= 28 else cifar_cnn)(input_shape, classes)


def _padded(name: str, input_shape: tuple[int, ...], classes: int, width: float) -> nn.Module:
    channels, height, breadth = input_shape
    missing = 32 - height
    if height != breadth or missing < 0 or missing % 2:
        raise UserError(
            f"model.name = {name!r}: images of {height}x{breadth}; accepted: 32x32, or smaller squares with even sides"
        )
    return _CONVOLUTIONAL[name](channels, classes, missing // 2, width)


def _no_width(name: str, width: float) -> UserError:
    return UserError(
        f"model.width = {width}: model.name = {name!r} has no width; accepted: 1.0, or {', '.join(_WIDE)} or your "
        "own class that takes width"
    )


def _custom(name: str, input_shape: tuple[int, ...], classes: int, width: float) -> nn.Module:
    """Calls ``Class(input_shape, classes)``, or ``Class()`` if it does not accept two arguments; with ``width=...`` if
    that is not 1."""
    factory = find_own("model.name", name)
    more = {} if width == 1.0 else {"width": width}
    if more and not _takes_width(factory):
        raise _no_width(name, width)
    arguments = _arguments(factory, (input_shape, classes), more)
    try:
        network = factory(*arguments, **more)
    except (Exception, SystemExit) as error:
        text = f"cannot be built with the arguments {arguments}: {reason(error)}"
        raise UserError(f"model.name = {name!r}: {text}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"model.name = {name!r}: is a {type(network).__name__}; accepted: a torch.nn.Module")
    return network


def _takes_width(factory: Any) -> bool:
    try:
        return "width" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _arguments(factory: Any, both: tuple[Any, ...], more: dict[str, float]) -> tuple[Any, ...]:
    try:
        inspect.signature(factory).bind(*both, **more)
    except (TypeError, ValueError):
        return ()
    return both
