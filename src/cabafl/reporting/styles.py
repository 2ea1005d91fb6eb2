"""Line styles: a method has the same colour in every figure, and dashes and a marker that distinguish it in grey."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")

# From the palettes of Okabe and Ito and of Paul Tol, which colour-blind readers can distinguish.
COLOURS = (
    "#D55E00",
    "#000000",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#882255",
    "#999933",
    "#7F7F7F",
    "#332288",
)
# In an order in which those that follow each other differ most, for variants of one method.
DISTINCT = tuple(COLOURS[place] for place in (2, 3, 6, 4, 1, 5, 7, 8, 10, 9, 0))
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 3), (4, 1.5, 1.5, 1.5, 1.5, 1.5))  # in line widths
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


class Style(NamedTuple):
    """Colour, dashes in line widths (empty: a solid line) and matplotlib marker."""

    colour: str
    dashes: tuple[float, ...]
    marker: str


def _style(colour: int, dashes: int, marker: int) -> Style:
    return Style(COLOURS[colour], DASHES[dashes], MARKERS[marker])


KNOWN = {
    "cabafl": _style(0, 0, 0),
    "fedavg": _style(1, 1, 1),
    "fedprox": _style(9, 2, 2),
    "fedasync": _style(2, 0, 3),
    "fedsa": _style(3, 3, 4),
    "safa": _style(4, 1, 5),
    "wkafl": _style(5, 2, 6),
    "fedbuff": _style(6, 4, 7),
    "ca2fl": _style(7, 3, 8),
    "gitfl": _style(8, 5, 9),
    "evenkeel": _style(10, 0, 9),
    "scaffold": _style(1, 4, 0),
    "fedac": _style(3, 5, 1),
    "periodic": _style(5, 0, 2),
    "fadas": _style(6, 1, 3),
    "port": _style(4, 4, 6),
    "pisces": _style(7, 0, 5),
    "asyncfeded": _style(2, 3, 8),
    "area": _style(8, 2, 4),
    "fedat": _style(9, 5, 7),
    "conf1": _style(2, 1, 3),
    "conf2": _style(3, 2, 4),
    "conf3": _style(1, 3, 1),
    "conf4": _style(5, 4, 6),
    "conf5": _style(6, 5, 7),
    "hard-labels": _style(4, 1, 5),
}


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Returns a style per label. The first of several labels "name (setting = value)" has the style of its name; the
    others have a colour, dashes and a marker that no other label has, as long as there are such."""
    firsts = {name: label for label in reversed(labels) for name in [label.partition(" (")[0]]}
    found = {label: _style_of(name) for name, label in firsts.items()}
    used = {style.colour for style in found.values()}
    free = [colour for colour in DISTINCT if colour not in used] or list(DISTINCT)
    later = [label for label in labels if label not in found]
    for place, label in enumerate(later):
        dashes, marker = _unlike(list(found.values()), found[firsts[label.partition(" (")[0]]], place + 1)
        found[label] = Style(free[place % len(free)], dashes, marker)
    return {label: found[label] for label in labels}


def _unlike(others: Sequence[Style], first: Style, steps: int) -> tuple[tuple[float, ...], str]:
    """Dashes and a marker, so many steps from those of ``first``, that none of the others has if that can be."""
    taken = {style[1:] for style in others}
    for more in range(len(DASHES) * len(MARKERS)):
        step = steps + more
        pair = _shifted(DASHES, first.dashes, step), _shifted(MARKERS, first.marker, step + step // len(MARKERS))
        if pair not in taken:
            return pair
    return pair


def _style_of(name: str) -> Style:
    """A fixed style for a known name, otherwise one derived from its checksum."""
    code = crc32(name.encode())
    derived = _style(code % len(COLOURS), code // 10 % len(DASHES), code // 100 % len(MARKERS))
    return KNOWN.get(name, derived)


def _shifted(values: Sequence[T], value: T, steps: int) -> T:
    return values[(values.index(value) + steps) % len(values)]
