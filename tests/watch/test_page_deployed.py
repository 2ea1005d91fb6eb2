"""The page in a real browser, on a fleet of real processes: an operator at work."""

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from playwright.sync_api import Browser, Page, expect
from safetensors.numpy import load_file

from cabafl.deployment.broker import find_mosquitto
from tests.deployment.bed import read_events
from tests.deployment.test_local import DEVICES, local, started, status, wait
from tests.watch.browser import needs_browser, served, tab
from tests.watch.site import SECRET

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

pytestmark = [needs_browser, pytest.mark.deploy]


def answer(page: Page, button: str) -> None:
    """Confirms what the page asks."""
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def test_an_operator_at_the_page(browser: Browser, tmp_path: Path) -> None:
    """Sees the devices, takes the model, shuts a device out, ends the run."""
    out, log = tmp_path / "bed", tmp_path / "local.log"
    with started(local(out), log) as process, served([tmp_path]) as server, tab(browser) as opened:
        wait("uploads", lambda: status(out)["uploads"] > 4, log)
        page = opened.page
        page.goto(server.url)
        expect(page.locator(".badge")).to_have_text("running")
        page.locator("a.fleet").click()
        rows = page.locator(".devices tbody tr")
        expect(rows).to_have_count(DEVICES)
        expect(page.locator(".figures")).to_contain_text(f"{DEVICES} of {DEVICES}")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("dialog").get_by_label("Token or password").fill(SECRET)
        answer(page, "Log in")
        page.get_by_role("button", name="Download the current model").click()
        with page.expect_download() as found:
            answer(page, "Download")
        assert load_file(found.value.path())
        rows.nth(2).get_by_role("button", name="Shut out").click()
        answer(page, "Shut device 2 out")
        expect(rows.nth(2)).to_contain_text("shut out")
        page.get_by_role("button", name="Stop the run").click()
        answer(page, "Stop the run")
        expect(page.locator("#notices")).to_contain_text("stops after")
        assert process.wait(60) == 0, log.read_text()
        expect(page.get_by_role("button", name="Stop the run")).to_be_disabled()
        page.get_by_role("link", name="Curves, fleet and method").click()
        expect(page.locator(".badge")).to_have_text("finished")
    done = [(event["event"], event.get("action")) for event in read_events(out / "run")]
    assert [entry for entry in done if entry[0] in ("operator", "stop")] == [
        ("operator", "export"),
        ("operator", "remove"),
        ("stop", None),
    ]
