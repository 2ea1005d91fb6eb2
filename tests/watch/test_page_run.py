"""The page of one run: replay, method, fleet, a metric of which less is better."""

import json
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page, expect

from tests.watch.browser import needs_browser, served, tab
from tests.watch.reference import replay
from tests.watch.site import append, make_run

pytestmark = needs_browser


def slide(page: Page, share: float) -> None:
    """Moves the time slider."""
    expect(page.locator(".replay")).to_be_visible()
    page.evaluate(
        "share => { const slider = document.querySelector('.replay input[type=range]');"
        " slider.value = Math.round(share * 1000); slider.dispatchEvent(new Event('input')); }",
        share,
    )


def shown(page: Page, name: str, value: str) -> None:
    """Waits until a figure has this value."""
    of_run = page.locator(".figures").first
    expect(of_run.locator("div", has=page.get_by_text(name, exact=True)).locator("dd")).to_have_text(value)


def picture(page: Page, canvas: str) -> str:
    """What the first such canvas shows."""
    drawn: str = page.locator(canvas).first.evaluate("canvas => canvas.toDataURL()")
    return drawn


def test_a_finished_run_is_replayed(browser: Browser, finished: Path) -> None:
    half = json.loads((finished / "events.jsonl").read_text().splitlines()[-1])["time"] / 2
    with served([finished]) as server, tab(browser) as opened:
        page, run = opened.page, server.run("run")
        page.goto(f"{server.url}#/run/{run}/fleet")
        expect(page.locator(".legend li", has_text="training")).to_be_visible()
        then = page.request.get(f"{server.url}api/runs/{run}/at?time={half}").json()
        end = page.request.get(f"{server.url}api/runs/{run}").json()
        assert 0 < then["uploads"] < end["uploads"]
        training = len(replay(finished, half).busy)
        slide(page, 0.5)
        shown(page, "uploads", f"{then['uploads']:,}")
        shown(page, "version", f"{then['version']:,}")
        shown(page, "training", str(training))
        expect(page.locator(".legend li", has_text="training")).to_have_text(f"training {training}")
        page.get_by_role("navigation").get_by_role("link", name="Curves").click()
        expect(page.locator(".chart .u-wrap").first).to_be_visible()
        marked = picture(page, ".chart canvas")
        page.get_by_role("button", name="End").click()
        page.wait_for_timeout(200)
        assert picture(page, ".chart canvas") != marked  # the line at the time of the replay is gone
        shown(page, "uploads", f"{end['uploads']:,}")
        page.get_by_label("Whole run in").select_option("10")
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        first = float(page.locator(".replay input[type=range]").input_value())
        page.wait_for_timeout(700)
        assert first < float(page.locator(".replay input[type=range]").input_value()) < 1000
        page.get_by_role("button", name="Pause").click()
        still = page.locator(".replay output").inner_text()
        page.wait_for_timeout(300)
        assert page.locator(".replay output").inner_text() == still


def test_the_page_of_cabafl_shows_each_model(browser: Browser, finished: Path) -> None:
    state = replay(finished, 30.0)
    with served([finished]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(f"{server.url}#/run/{server.run('run')}/method")
        models = page.locator(".model")
        expect(models).to_have_count(4)
        end = json.loads((finished / "events.jsonl").read_text().splitlines()[-1])["time"]
        slide(page, 30.0 / end)
        expect(page.locator(".replay output")).to_contain_text("30")
        for slot in range(4):
            cache = state.cache.get(slot)
            expect(models.nth(slot)).to_contain_text(f"trained {cache['trained'] if cache else 0} of 3")
            if cache:
                expect(models.nth(slot)).to_contain_text("L1 accepted" if cache["accepted"] else "L1 refused")
        where = {event["slot"]: device for device, event in state.busy.items()}
        for slot in range(4):
            expect(models.nth(slot)).to_contain_text(f"on device {where[slot]}" if slot in where else "waits")
        expect(page.locator(".card", has_text="Weights of the last").locator(".bars li")).to_have_count(4)


def test_a_method_of_the_users_own_gets_a_page(browser: Browser, tmp_path: Path) -> None:
    events: list[dict[str, object]] = []
    for job in range(12):
        at = 5.0 * job
        events.append(
            {
                "time": at,
                "event": "dispatch",
                "job": job,
                "device": job % 5,
                "slot": 0,
                "version": job // 4,
                "due": at + 4,
            }
        )
        events.append(
            {"time": at + 4, "event": "upload", "job": job, "device": job % 5, "slot": 0, "version": 0, "staleness": 0}
        )
        events.append({"time": at + 4, "event": "mood", "warmth": job / 10, "why": "sunshine"})
        if job % 4 == 3:
            events.append({"time": at + 4, "event": "publish", "version": job // 4 + 1, "shares": [0.1, 0.2, 0.7]})
    events.append({"time": 60.0, "event": "dispatch", "job": 12, "device": 4, "slot": 0, "version": 3, "due": 64.0})
    make_run(
        tmp_path / "own", *events, settings='seed = 1\n[data]\ndevices = 5\n[method]\nname = "mine:Method"\nzeal = 3\n'
    )
    with served([tmp_path]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(f"{server.url}#/run/{server.run('own')}/method")
        expect(page.locator(".card", has_text="Uploads in each version").locator(".bars li")).to_have_count(3)
        expect(page.locator(".card", has_text="The last publication").locator(".bars li")).to_have_count(3)
        expect(page.locator(".card", has_text="Newest notes")).to_contain_text("why sunshine")
        expect(page.locator(".card", has_text="Settings of the method")).to_contain_text("zeal")
        expect(page.get_by_role("option", name="mood: warmth")).to_have_count(1)
        expect(page.locator(".chart .legend li")).to_contain_text("1.1")
        slide(page, 0.5)
        shown(page, "uploads", "6")
        expect(page.locator(".card", has_text="Since the last publication")).to_contain_text("2 uploads")


def test_a_metric_of_which_less_is_better(browser: Browser, tmp_path: Path) -> None:
    settings = 'seed = 1\n[data]\ndevices = 2\n[task]\nname = "regression"\n[method]\nname = "fedavg"\n'
    for name, last in (("worse", 0.9), ("better", 0.2)):
        metrics = (
            f"time,version,rmse,loss,transfers,bytes,joules\n0.0,0,2.5,3.0,0,0,0.0\n10.0,1,{last},0.5,4,4000,20.0\n"
        )
        run = make_run(tmp_path / "runs" / name, settings=settings, metrics=metrics)
        (run / "environment.json").write_text(
            json.dumps({"clock": "virtual", "metric": {"name": "rmse", "more_is_better": False, "percent": False}})
        )
        append(run / "events.jsonl", {"time": 10.0, "event": "publish", "version": 1})
    with served([tmp_path / "runs"]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(server.url)
        page.get_by_role("button", name="Metric").click()  # best first
        expect(page.locator(".runs tbody tr").first).to_contain_text("better")
        expect(page.locator(".runs tbody tr").first.locator(".value")).to_have_text("0.2 rmse ↓")
        page.goto(f"{server.url}#/run/{server.run('better')}")
        chart = page.locator(".chart").first
        expect(chart.locator("h2")).to_have_text("Rmse")
        expect(chart).to_contain_text("less is better")
        expect(page.get_by_text("accuracy")).to_have_count(0)


def test_one_device_in_detail(browser: Browser, finished: Path) -> None:
    end = replay(finished)
    with served([finished]) as server, tab(browser) as opened:
        page = opened.page
        page.goto(f"{server.url}#/run/{server.run('run')}/fleet")
        grid = page.locator(".surface").first
        expect(page.locator(".legend li").first).to_be_visible()
        grid.hover(position={"x": 5, "y": 5})
        expect(page.locator(".tip").first).to_contain_text("device 0 ")
        grid.click(position={"x": 5, "y": 5})
        panel = page.locator(".device")
        expect(panel).to_contain_text("Device 0")
        expect(panel.locator("dl")).to_contain_text(str(end.selections[0]))
        page.keyboard.press("ArrowRight")
        expect(panel).to_contain_text("Device 1")
        drawn = {picture(page, ".surface canvas")}
        for name in ("Model", "Selections", "Energy", "Losses"):
            page.get_by_role("button", name=name, exact=True).click()
            page.wait_for_timeout(400)
            drawn.add(picture(page, ".surface canvas"))
        assert len(drawn) == 5  # each colours the cells in its own way
