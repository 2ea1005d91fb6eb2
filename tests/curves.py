"""Learning curves without their pixels, for tests in which nobody looks at them."""

from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from cabafl.reporting import curve

PIXELS = b"\x89PNG, without pixels"


def as_png(figure: Figure) -> bytes:
    """Stands for `cabafl.reporting.curve.as_png`, which takes longer than a short run."""
    assert figure.axes
    return PIXELS


def leave_pixels_out() -> None:
    """As `no_pixels`, for good: in another process."""
    curve.as_png = as_png


@pytest.fixture(scope="module")
def no_pixels() -> Iterator[None]:
    """Runs make the figure of their learning curve and write the file, but nobody paints it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "as_png", as_png)
        yield
