"""The page in a real browser: overview, a run that goes on, a record that changes under it, hostile names."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page, expect

from tests.watch.browser import needs_browser, served, tab
from tests.watch.site import age, append, make_run

pytestmark = needs_browser
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'<"  # as a folder's name


@contextmanager
def held(run: Path) -> Iterator[None]:
    """A process works on the run: this one."""
    with (run / "events.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def figure(page: Page, name: str) -> str:
    """A figure of a run, by its name."""
    return page.locator(".figures div", has=page.get_by_text(name, exact=True)).locator("dd").first.inner_text()


def part_of(finished: Path, folder: Path, share: float) -> tuple[Path, list[str], list[str]]:
    """A run that has come so far: the folder, and the events and evaluations that are still to come."""
    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    left = []
    for name in ("events.jsonl", "metrics.csv"):
        lines = (folder / name).read_text().splitlines()
        cut = int(len(lines) * share)
        (folder / name).write_text("".join(f"{line}\n" for line in lines[:cut]))
        left.append(lines[cut:])
    return folder, left[0], left[1]


def test_the_overview_lists_filters_sorts_and_overlays(browser: Browser, finished: Path, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        shutil.copytree(finished, tmp_path / "runs" / name)
    failed, _, _ = part_of(finished, tmp_path / "runs" / "gamma", 0.5)
    age(failed, 30)  # else it counts as running for a while, because it was just written
    with served([tmp_path / "runs"]) as server, tab(browser) as opened:
        page = opened.page
        with held(failed):
            page.goto(server.url)
            rows = page.locator(".runs tbody tr")
            expect(rows).to_have_count(3)
            expect(rows.first).to_contain_text("gamma")
            expect(rows.first.locator(".badge")).to_have_text("running")
            assert rows.first.locator(".badge path").get_attribute("d") != rows.nth(1).locator(
                ".badge path"
            ).get_attribute("d")
            expect(rows.nth(1)).to_contain_text("accuracy")
            assert len(rows.nth(1).locator(".spark path").get_attribute("d") or "") > 50
        expect(page.locator(".badge.failed")).to_have_count(1)  # nobody works on it any more
        page.get_by_role("button", name="Run", exact=True).click()
        expect(rows.first).to_contain_text("alpha")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(rows.first).to_contain_text("gamma")
        page.get_by_label("Filter").fill("seed 1 beta")
        expect(rows).to_have_count(1)
        page.get_by_label("Filter").fill("")
        page.get_by_role("button", name="finished 2").click()
        expect(rows).to_have_count(2)
        for box in rows.get_by_role("checkbox").all():
            box.check()
        page.get_by_role("button", name="Overlay 2 runs").click()
        lines = page.locator(".chart").first.locator(".legend li")
        expect(lines).to_have_count(2)  # the averaged models
        page.get_by_role("button", name="Both").click()
        expect(lines).to_have_count(4)
        for axis in ("Wall time", "Transfers", "Energy"):
            page.get_by_role("button", name=axis).click()
            expect(page.locator(".chart .u-wrap").first).to_be_visible()


def test_a_run_that_goes_on_is_drawn_as_it_grows(browser: Browser, finished: Path, tmp_path: Path) -> None:
    run, events, rows = part_of(finished, tmp_path / "runs" / "one", 0.3)
    with served([run.parent]) as server, tab(browser) as opened, held(run):
        page = opened.page
        page.goto(f"{server.url}#/run/{server.run('one')}")
        expect(page.locator(".badge")).to_have_text("running")
        expect(page.locator(".chart .u-wrap").first).to_be_visible()
        before = int(figure(page, "uploads").replace(",", ""))
        value = page.locator(".chart").first.locator(".legend b").first.inner_text()
        append(run / "events.jsonl", *events)
        append(run / "metrics.csv", *rows)
        uploads = page.locator(".figures div", has=page.get_by_text("uploads", exact=True)).locator("dd")
        expect(uploads).not_to_have_text(f"{before:,}")
        assert int(figure(page, "uploads").replace(",", "")) > before
        expect(page.locator(".chart").first.locator(".legend b").first).not_to_have_text(value)


def test_a_run_that_is_rewound_deleted_and_restored(browser: Browser, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "runs" / "one"))
    with served([run.parent]) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("404",)
        page.goto(f"{server.url}#/run/{server.run('one')}")
        expect(page.locator(".chart .u-wrap").first).to_be_visible()
        whole = int(figure(page, "uploads").replace(",", ""))
        for name in ("events.jsonl", "metrics.csv"):
            lines = (run / name).read_text().splitlines(keepends=True)
            (run / name).write_text("".join(lines[: len(lines) // 3]))
        (run / "summary.json").unlink()
        expect(page.locator("#notices")).to_contain_text("rewound, truncated or replaced")
        uploads = page.locator(".figures div", has=page.get_by_text("uploads", exact=True)).locator("dd")
        expect(uploads).not_to_have_text(f"{whole:,}")
        shutil.rmtree(run)
        expect(page.locator("#notices")).to_contain_text("folder is gone")
        shutil.copytree(finished, run)
        expect(page.locator("#notices")).to_contain_text("folder is back")
        expect(uploads).to_have_text(f"{whole:,}")


def test_a_server_that_is_away_and_comes_back(browser: Browser, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "runs" / "one")
    with tab(browser) as opened:
        page, opened.allowed = opened.page, ("ERR_",)
        with served([tmp_path / "runs"]) as server:
            page.goto(server.url)
            expect(page.locator(".runs tbody tr")).to_have_count(1)
        expect(page.locator("#notices")).to_contain_text("connection to the server is lost")
        expect(page.locator(".live")).to_have_text("not connected")
        expect(page.locator(".runs tbody tr")).to_have_count(1)  # the last state stays
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        with served([tmp_path / "runs"], port=port):
            expect(page.locator(".live")).to_have_text("live")
            expect(page.locator("#notices")).to_contain_text("Connected again")


def test_names_are_text(browser: Browser, tmp_path: Path) -> None:
    settings = f"seed = 1\n[data]\ndataset = '''{HOSTILE}'''\n[method]\nname = 'own'\n[model]\nname = '<b onclick=1>'\n"
    hostile = {"event": "<i>note</i>", "time": 2.0, "<b>field</b>": "<script>document.title='owned'</script>", "x": 1.5}
    folder = HOSTILE.replace("/", "")
    make_run(tmp_path / "runs" / folder, *({**hostile, "time": 2.0 + i} for i in range(5)), settings=settings)
    with served([tmp_path / "runs"]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(server.url)
        expect(page.locator(".runs .name a")).to_have_text(folder)
        run = server.run(folder)
        for part in ("", "/fleet", "/method", "/events", "/settings"):
            page.goto(f"{server.url}#/run/{run}{part}")
            expect(page.locator("h1")).to_have_text(folder)
            expect(page.locator(".tab > div")).to_be_visible()
            if part in ("/method", "/events"):
                expect(page.locator(".tab td", has_text="<i>note</i>").first).to_be_visible()
        expect(page.locator(".tab")).to_contain_text("<b onclick=1>")
        assert page.locator("main img, main script, main i:not([class]), main b[onclick]").count() == 0
        assert "owned" not in page.title()[: len("owned")]


def test_the_policy_refuses_scripts_from_elsewhere(browser: Browser, finished: Path) -> None:
    with served([finished]) as server, tab(browser) as opened:
        page, opened.allowed = opened.page, ("Content Security Policy", "404")
        page.goto(server.url)
        expect(page.locator(".runs tbody tr")).to_have_count(1)
        page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
            " document.body.append(s); const d = document.createElement('div');"
            " d.innerHTML = '<img src=x onerror=\"window.owned = 2\">'; document.body.append(d); }"
        )
        page.wait_for_timeout(200)
        assert page.evaluate("window.owned") is None


def test_colours_keyboard_and_a_phone(browser: Browser, finished: Path) -> None:
    with served([finished]) as server, tab(browser, dark=True, width=390, height=800) as opened:
        page = opened.page
        page.goto(server.url)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Light colours").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.reload()
        expect(page.get_by_role("button", name="Dark colours")).to_be_visible()  # it is remembered
        link = page.locator(".runs .name a")
        link.focus()
        page.keyboard.press("Enter")
        for name in ("Curves", "Fleet", "Method", "Events", "Settings"):
            tabs = page.get_by_role("navigation").get_by_role("link", name=name)
            tabs.focus()
            page.keyboard.press("Enter")
            expect(tabs).to_have_attribute("aria-current", "page")
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
