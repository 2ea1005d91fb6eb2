"""Line styles: a method has the same colour in every figure, and dashes and a marker that distinguish it in grey."""

from collections import Counter
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
    """Returns a style per label. Labels "name (setting = value)" with the same name share its colour and differ in
    dashes and marker."""
    found: dict[str, Style] = {}
    same_name: Counter[str] = Counter()
    for label in labels:
        name = label.partition(" (")[0]
        style, steps = _style_of(name), same_name[name]
        same_name[name] += 1
        dashes, marker = _shifted(DASHES, style.dashes, steps), _shifted(MARKERS, style.marker, steps)
        found[label] = Style(style.colour, dashes, marker)
    return found


def _style_of(name: str) -> Style:
    """A fixed style for a known name, otherwise one derived from its checksum."""
    code = crc32(name.encode())
    derived = _style(code % len(COLOURS), code // 10 % len(DASHES), code // 100 % len(MARKERS))
    return KNOWN.get(name, derived)


def _shifted(values: Sequence[T], value: T, steps: int) -> T:
    return values[(values.index(value) + steps) % len(values)]
