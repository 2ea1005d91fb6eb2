"""The page with a log-in, a fleet of real devices and an operator, and a fleet of 100,000."""

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from playwright.sync_api import Browser, expect

from cabafl.deployment.folder.layout import FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.watch.access import FAILURES
from tests.watch.browser import needs_browser, served, tab
from tests.watch.site import SECRET, make_run

pytestmark = needs_browser
HOSTILE = "<img src=x onerror=\"document.title='owned'\">battery</td>"
DEVICES = 100_000
LONGEST_FRAME = 200.0  # milliseconds
TRIES = 4  # the machine may be busy with something else


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of three devices, as its server left it. Tests shut devices out of it."""
    folder = tmp_path_factory.mktemp("fleets") / "fleet"
    make_fleet(folder, FleetSettings(ip=("127.0.0.1",)), 3)
    lines: list[dict[str, object]] = [
        {
            **{"device": device, "online": device != 1, "samples": 100, "job": None, "slot": None, "since": None},
            **{"seen": time.time() - 4000 * device, "jobs": 5, "faults": device, "clipped": 0},
            "declined": HOSTILE if device == 2 else None,
        }
        for device in range(3)
    ]
    (folder / "state").mkdir(exist_ok=True)
    status = {
        "state": "running",
        "updated": time.time(),
        "seconds": 60.0,
        "version": 3,
        "uploads": 14,
        "devices": lines,
    }
    (folder / "state" / "status.json").write_text(json.dumps({**status, "losses": {"crash": 1}, "online": 2}))
    return folder


def test_a_log_in_refused_and_granted(browser: Browser, finished: Path) -> None:
    with served([finished], login_required=True) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("401",)
        page.goto(server.url)
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        assert page.locator("script").count() == 0
        page.get_by_label("Token or password").fill("something else")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the token or password")
        page.get_by_label("Token or password").fill(SECRET)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".runs tbody tr")).to_have_count(1)
        assert page.evaluate("document.cookie") == ""  # no script reads it
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token or password")).to_be_visible()


def test_a_session_that_ends_asks_again_and_goes_on(browser: Browser, finished: Path) -> None:
    with served([finished], login_required=True) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("401",)
        page.goto(server.url)
        page.get_by_label("Token or password").fill(SECRET)
        page.get_by_role("button", name="Log in").click()
        page.locator(".runs .name a").click()
        expect(page.locator(".chart .u-wrap").first).to_be_visible()
        address = page.url
        server.site.gate._sessions.clear()
        form = page.get_by_role("dialog")  # the stream has ended
        expect(form).to_have_count(1)
        form.get_by_label("Token or password").fill(SECRET)
        form.get_by_role("button", name="Log in").click()
        expect(form).to_have_count(0)
        page.get_by_role("navigation").get_by_role("link", name="Method").click()
        expect(page.locator(".model").first).to_be_visible()
        expect(page.locator(".live")).to_have_text("live")
        assert page.url == f"{address}/method"


def test_who_cancels_a_log_in_is_not_asked_again_and_again(browser: Browser, finished: Path) -> None:
    with served([finished], login_required=True) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("401",)
        page.goto(server.url)
        page.get_by_label("Token or password").fill(SECRET)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".live")).to_have_text("live")
        server.site.gate._sessions.clear()
        expect(page.get_by_role("dialog")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.locator("#notices")).to_contain_text("connection to the server is lost")
        page.wait_for_timeout(3500)  # two more tries of the stream
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("dialog").get_by_label("Token or password").fill(SECRET)
        page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        expect(page.locator(".live")).to_have_text("live")


def test_too_many_wrong_secrets(browser: Browser, finished: Path) -> None:
    with served([finished]) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("401", "429")
        page.goto(server.url)
        page.get_by_role("button", name="Log in").click()
        form = page.get_by_role("dialog")
        for _ in range(FAILURES + 1):
            form.get_by_label("Token or password").fill("wrong")
            form.get_by_role("button", name="Log in").click()
            expect(form.get_by_role("button", name="Log in")).to_be_enabled()
            expect(form.get_by_label("Token or password")).to_have_value("")
        expect(form.get_by_role("alert")).to_contain_text("too many")
        page.keyboard.press("Escape")
        expect(form).to_have_count(0)


def test_an_operator_shuts_a_device_out(browser: Browser, fleet: Path) -> None:
    with served([fleet.parent]) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("401", "409")
        page.goto(server.url)
        page.locator("a.fleet").click()
        rows = page.locator(".devices tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(1)).to_contain_text("away")
        expect(rows.nth(1)).to_contain_text("1 h ago")
        expect(rows.nth(2)).to_contain_text(HOSTILE)
        assert page.locator("main img").count() == 0
        expect(page.get_by_role("button", name="Stop the run")).to_be_disabled()  # no server runs
        rows.nth(1).get_by_role("button", name="Shut out").click()
        form = page.get_by_role("dialog")
        form.get_by_label("Token or password").fill(SECRET)
        form.get_by_role("button", name="Log in").click()
        question = page.get_by_role("dialog")
        expect(question).to_contain_text("Device 1 is shut out of fleet for good")
        question.get_by_role("button", name="Cancel").click()
        page.wait_for_timeout(300)
        assert list((fleet / "revoked").iterdir()) == []
        rows.nth(1).get_by_role("button", name="Shut out").click()
        page.get_by_role("dialog").get_by_role("button", name="Shut device 1 out").click()
        expect(page.locator("#notices")).to_contain_text("device 1 is shut out")
        expect(rows.nth(1)).to_contain_text("shut out")
        assert [found.name for found in (fleet / "revoked").iterdir()] == ["001"]
        page.get_by_role("button", name="Shut out", exact=True).click()
        expect(rows).to_have_count(1)


def crowd(folder: Path) -> Path:
    """A run with 100,000 devices of which 5,000 train."""
    settings = f"seed = 1\n[data]\ndataset = 'synthetic'\ndevices = {DEVICES}\n[method]\nname = 'fedbuff'\n"
    sent = {"event": "dispatch", "slot": 0, "version": 0, "due": 99.0}
    events = [{**sent, "time": job / 1000, "job": job, "device": job * 19 % DEVICES} for job in range(5000)]
    return make_run(folder, *events, settings=settings)


SCROLL = """
async (step) => {
  const box = document.querySelector('.surface');
  box.scrollTop = 0;
  const frames = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < 60; i++) {
    box.scrollTop += step;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return [Math.max(...frames), box.scrollTop];
}
"""


def test_a_hundred_thousand_devices_scroll(browser: Browser, tmp_path: Path) -> None:
    crowd(tmp_path / "crowd")
    with served([tmp_path]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(f"{server.url}#/run/{server.run('crowd')}/fleet")
        expect(page.locator(".legend li", has_text="training")).to_have_text("training 5,000")
        assert page.locator("main *").count() < 600  # no element per device
        for larger in (0, 3):  # all at once, then cells of some size, of which many rows are out of sight
            for _ in range(larger):
                page.get_by_role("button", name="Larger cells").click()
            for _ in range(TRIES):
                longest, reached = page.evaluate(SCROLL, 20 + 200 * larger)
                if longest < LONGEST_FRAME:
                    break
            assert longest < LONGEST_FRAME
            assert reached > 200
        page.locator(".surface").first.hover(position={"x": 50, "y": 50})
        expect(page.locator(".tip").first).to_contain_text("device ")
