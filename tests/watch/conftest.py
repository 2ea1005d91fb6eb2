"""Runs that are watched."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'cabafl[watch]'")

from cabafl.config import load_experiment
from cabafl.lifecycle.simulate import simulate
from tests.runs import settings
from tests.watch.site import Visit, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CaBaFL with faults of every kind, and an average. Do not change it."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    simulate(
        load_experiment(None, settings("cabafl", "run.average=polynomial", "run.slot_timeout=5.5", "run.workers=0")),
        folder,
    )
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, in a folder of its own."""
    copy = Path(shutil.copytree(finished, tmp_path / "runs" / "one"))
    (copy / "events.jsonl").touch()  # written just now
    return copy


@pytest.fixture
def visited(run: Path) -> Iterator[Visit]:
    """A server that watches the copy, on loopback."""
    with visit([run.parent]) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """One browser for all tests of the page."""
    from tests.watch.browser import chromium

    with chromium() as found:
        yield found
