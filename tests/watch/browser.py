"""A real browser on a real server: what the tests of the page share."""

import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from cabafl.watch import shelf as shelf_module
from cabafl.watch import stream
from cabafl.watch.access import Gate, Secret
from cabafl.watch.app import Site, make_app
from cabafl.watch.overview import Overview
from cabafl.watch.shelf import Shelf
from tests.watch.site import SECRET

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 20_000.0  # milliseconds; a loaded machine
expect.set_options(timeout=PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, without a window."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Served:
    """A server that follows folders, and its address."""

    site: Site
    url: str

    def run(self, name: str) -> str:
        """The id of the run of this name."""
        return next(run.id for run in self.site.shelf.runs.values() if run.place.name == name)


@contextmanager
def served(roots: Sequence[Path], login_required: bool = False, port: int = 0) -> Iterator[Served]:
    """A server on a port of loopback, which looks at the folders as it does for a user, only more often."""
    with often():
        yield from _served(roots, login_required, port)


@contextmanager
def often() -> Iterator[None]:
    """Inside the context, nobody waits long for a server to notice something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf_module, "LOOK_INTERVAL", 0.2)
        patch.setattr(shelf_module, "QUIET_LOOK_INTERVAL", 1.0)
        patch.setattr(shelf_module, "SEARCH_INTERVAL", 0.5)
        patch.setattr(stream, "INTERVAL", 0.2)
        yield


def _served(roots: Sequence[Path], login_required: bool, port: int) -> Iterator[Served]:
    shelf = Shelf(roots)
    site = Site(shelf, Overview(shelf), Gate(Secret(SECRET, password=False)), login_required, encrypted=False)
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(make_app(site), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    shelf.start()
    thread.start()
    try:
        yield Served(site, f"http://127.0.0.1:{listener.getsockname()[1]}/")
    finally:
        site.closing = server.should_exit = True
        thread.join()
        shelf.close()
        listener.close()


@dataclass
class Tab:
    """One page of the browser, and everything that went wrong in it."""

    page: Page
    wrong: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()  # parts of messages that the test expects

    def check(self) -> None:
        """Fails if a script failed, the content-security policy refused something, or an error was logged."""
        assert [text for text in self.wrong if not any(part in text for part in self.allowed)] == []


@contextmanager
def tab(browser: Browser, dark: bool = False, width: int = 1280, height: int = 900) -> Iterator[Tab]:
    """A page with an empty memory; nothing may go wrong in it."""
    context = browser.new_context(color_scheme="dark" if dark else "light", viewport={"width": width, "height": height})
    context.set_default_timeout(PATIENCE)
    found = Tab(context.new_page())
    found.page.on("pageerror", lambda error: found.wrong.append(str(error)))
    found.page.on("console", lambda said: found.wrong.append(said.text) if said.type == "error" else None)
    yield found
    context.close()
    found.check()
