"""Random changes of training samples, drawn anew for every step: shifted and mirrored images."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cabafl.errors import UserError
from cabafl.own_code import find_own, reason

_MARGIN = 8  # images are shifted by up to an eighth of their side


class Augmentation(Protocol):
    """Changes a batch of network inputs; all randomness comes from ``generator``, which follows from the job."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor: ...


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shifts each image by up to an eighth of its sides; what was outside is zero."""
    count, _, height, width = x.shape
    up, left = height // _MARGIN, width // _MARGIN
    padded = F.pad(x, (left, left, up, up))
    rows = torch.randint(2 * up + 1, (count, 1), generator=generator) + torch.arange(height)
    columns = torch.randint(2 * left + 1, (count, 1), generator=generator) + torch.arange(width)
    picture = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[picture, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors half of the images, left to right."""
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.to(x.device)[:, None, None, None], x.flip(3), x)


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Both."""
    return flip(crop(x, generator), generator)


_BUILT_IN: dict[str, Augmentation] = {"crop": crop, "flip": flip, "crop-flip": crop_flip}


def find_augmentation(name: str | None) -> Augmentation | None:
    """A built-in augmentation, or the user's own as ``package.module:function``."""
    if name is None or name in _BUILT_IN:
        return None if name is None else _BUILT_IN[name]
    found: Augmentation = find_own("training.augment", name)
    return found


def check_augmentation(name: str | None, x: Tensor) -> None:
    """Raises `UserError` if the augmentation does not suit inputs such as ``x``."""
    augment = find_augmentation(name)
    if augment is None:
        return
    if name in _BUILT_IN and x.dim() != 4:
        raise UserError(f"training.augment = {name!r}: is for images; accepted: package.module:function")
    try:
        changed = augment(x, generator=torch.Generator().manual_seed(0))
        fits = isinstance(changed, Tensor) and changed.shape == x.shape and changed.dtype == x.dtype
        problem = "" if fits else f"it returns {_form(changed)}"
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        problem = reason(error)
    if problem:
        raise UserError(f"training.augment = {name!r}: cannot be used: {problem}; accepted: what returns {_form(x)}")


def _form(x: object) -> str:
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
