"""Fixtures of the tests that download: a web server on loopback, and nothing else that can be reached."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cabafl.data import sources, transfer
from tests.data.web import Web, serving


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", Path("/nowhere"))
    with serving() as server:
        yield server
