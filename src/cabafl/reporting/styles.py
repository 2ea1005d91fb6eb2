"""How a method is drawn: the same colour in every picture, told apart in grey by dashes and markers."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")

# Hues of Okabe and Ito and of Paul Tol that stay apart for colour-blind readers.
COLOURS = ("#D55E00", "#000000", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#999933", "#7F7F7F")
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 3), (4, 1.5, 1.5, 1.5, 1.5, 1.5))  # in line widths
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


class Style(NamedTuple):
    """Colour, dashes (none: a solid line) and marker."""

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
    "conf1": _style(2, 1, 3),
    "conf2": _style(3, 2, 4),
    "conf3": _style(1, 3, 1),
    "conf4": _style(5, 4, 6),
    "conf5": _style(6, 5, 7),
    "hard-labels": _style(4, 1, 5),
}


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """One style each. "name (setting = value)" keeps the colour of its name and gets dashes and a marker of its own."""
    given: dict[str, Style] = {}
    alike: dict[str, int] = {}
    for label in labels:
        name = label.partition(" (")[0]
        own, number = _of(name), alike.get(name, 0)
        alike[name] = number + 1
        given[label] = (
            own
            if number == 0
            else own._replace(dashes=_after(DASHES, own.dashes, number), marker=_after(MARKERS, own.marker, number))
        )
    return given


def _of(name: str) -> Style:
    code = crc32(name.encode())
    other = _style(code % len(COLOURS), code // 10 % len(DASHES), code // 100 % len(MARKERS))
    return KNOWN.get(name, other)


def _after(values: Sequence[T], value: T, steps: int) -> T:
    return values[(values.index(value) + steps) % len(values)]
