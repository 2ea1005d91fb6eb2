"""The server's addresses; docs/watch-api.md describes them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from cabafl.errors import UserError
from cabafl.watch import method_page, views
from cabafl.watch.access import SESSION_SECONDS, Gate
from cabafl.watch.actions import action_routes
from cabafl.watch.entrance import Entrance
from cabafl.watch.fleet_views import FleetView
from cabafl.watch.guard import Guard, Identity, refusal
from cabafl.watch.moment import FIELDS
from cabafl.watch.overview import Overview, as_json
from cabafl.watch.prometheus import CONTENT_TYPE, exposition
from cabafl.watch.queries import Query
from cabafl.watch.shelf import Shelf
from cabafl.watch.stream import changes
from cabafl.watch.watched import WatchedRun

STATIC = Path(__file__).parent / "static"
MOST_STREAMS = 100  # open at the same time
MOST_POINTS = 20_000
MOST_EVENTS = 500


@dataclass
class Site:
    """What the addresses share."""

    shelf: Shelf
    overview: Overview
    gate: Gate
    login_required: bool
    encrypted: bool
    static: Path = STATIC
    closing: bool = False
    streams: int = 0


def make_app(site: Site, cookie: str = "cabafl_watch", metrics_only: bool = False) -> ASGIApp:
    """The server's application; ``metrics_only``: nothing but ``/metrics``."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        site.closing = True

    routes = [Route("/metrics", _Metrics(site).answer)] if metrics_only else _routes(site, cookie)
    guard = Middleware(Guard, gate=site.gate, login_required=site.login_required, cookie=cookie)
    handlers: Any = {HTTPException: _http_error, UserError: _user_error, Exception: _broken}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers, lifespan=lifespan)


def _routes(site: Site, cookie: str) -> list[BaseRoute]:
    pages, entrance = _Pages(site), Entrance(site.gate, cookie, site.encrypted, SESSION_SECONDS)
    run = "/api/runs/{run}"
    return [
        Route("/", pages.start),
        Route("/metrics", _Metrics(site).answer),
        Route("/login", entrance.form, methods=["GET", "POST"]),
        Route("/api/login", entrance.login, methods=["POST"]),
        Route("/api/logout", entrance.logout, methods=["POST"]),
        Route("/api/session", pages.session),
        Route("/api/runs", pages.runs),
        Route("/api/stream", pages.stream),
        Route(run, pages.of_run(lambda run, query: views.run_page(run) | {"fleet": pages.fleet_id(run)})),
        Route(f"{run}/curves", pages.of_run(_curves)),
        Route(f"{run}/activity", pages.of_run(_activity)),
        Route(f"{run}/events", pages.of_run(_events)),
        Route(f"{run}/at", pages.of_run(lambda run, query: pages.fleet_view(run, query).at())),
        Route(f"{run}/fleet", pages.of_run(pages.fleet)),
        Route(f"{run}/timeline", pages.of_run(pages.timeline)),
        Route(f"{run}/device/{{device:int}}", pages.of_run(pages.device)),
        Route(f"{run}/method", pages.of_run(lambda run, query: _method(run, query).page())),
        Route(f"{run}/series", pages.of_run(_series)),
        *action_routes(site.shelf),
        Mount("/static", _Files(directory=site.static, check_dir=False)),
    ]


class _Files(StaticFiles):
    """The files of the page; a browser asks each time whether they have changed."""

    def file_response(self, *args: Any, **keywords: Any) -> Response:
        response = super().file_response(*args, **keywords)
        response.headers["Cache-Control"] = "no-cache"
        return response


def answer(value: Any) -> Response:
    """An answer in JSON, or one that is bytes already."""
    if isinstance(value, bytes):
        return Response(value, media_type="application/octet-stream")
    return Response(as_json(value), media_type="application/json")


class _Pages:
    """The addresses that only read."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def start(self, request: Request) -> Response:
        path = self.site.static / "index.html"
        if not path.is_file():
            return refusal(404, "index.html: not installed")
        return FileResponse(path, headers={"Cache-Control": "no-cache"})

    def session(self, request: Request) -> Response:
        site, identity = self.site, request.state.identity
        assert isinstance(identity, Identity)
        return answer(
            {
                "version": version("cabafl"),
                "login_required": site.login_required,
                "operator": identity.operator,
                "csrf": None if identity.session is None else identity.session.csrf,
                "roots": [root.name for root in site.shelf.roots],
                "encrypted": site.encrypted,
                "truncated": site.shelf.truncated,
            }
        )

    def runs(self, request: Request) -> Response:
        self.site.overview.refresh()
        found = self.site.overview.changes(-1)
        found.pop("removed")
        return answer({"at": time.time(), **found})

    async def stream(self, request: Request) -> Response:
        site, identity = self.site, request.state.identity
        if site.streams >= MOST_STREAMS:
            return refusal(503, f"streams: at most {MOST_STREAMS} at the same time")
        runs = [name for name in request.query_params.getlist("run") if name in site.shelf.runs][:100]
        cookies = request.cookies.values()

        def goes_on() -> bool:
            logged_in = identity.session is None or any(site.gate.session(cookie) for cookie in cookies)
            return not site.closing and logged_in

        async def counted() -> AsyncIterator[bytes]:
            site.streams += 1
            try:
                async for piece in changes(site.overview, runs, goes_on):
                    yield piece
            finally:
                site.streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    # One run

    def of_run(self, view: Callable[[WatchedRun, Query], Any]) -> Callable[[Request], Response]:
        """The address of a view: finds the run, and holds its lock while the view is made."""

        def serve(request: Request) -> Response:
            run = self.site.shelf.runs.get(request.path_params["run"])
            if run is None:
                return refusal(404, "run: there is none of this id")
            self.site.shelf.open(run)
            with run.lock:
                found = view(run, Query(request))
                return refusal(404, "there is nothing of this name") if found is None else answer(found)

        return serve

    def fleet_id(self, run: WatchedRun) -> str | None:
        fleet = self.site.shelf.fleet_of(run)
        return None if fleet is None else fleet.id

    def fleet_view(self, run: WatchedRun, query: Query) -> FleetView:
        return FleetView(run, query.time(), self.site.shelf.fleet_of(run))

    def fleet(self, run: WatchedRun, query: Query) -> bytes:
        return self.fleet_view(run, query).packed(query.names("fields", FIELDS))

    def timeline(self, run: WatchedRun, query: Query) -> dict[str, Any]:
        return self.fleet_view(run, query).timeline(
            query.number("seconds", None, 0.0, 1e12),
            query.whole("first", 0, 0, 1 << 30),
            query.whole("devices", None, 1, 1 << 30),
            query.whole("limit", 4000, 1, MOST_POINTS),
        )

    def device(self, run: WatchedRun, query: Query) -> dict[str, Any] | None:
        return self.fleet_view(run, query).device(query.request.path_params["device"])


def _curves(run: WatchedRun, query: Query) -> dict[str, Any]:
    return views.curves(run, query.whole("since", 0, 0, 1 << 40), query.whole("points", 2000, 2, MOST_POINTS))


def _activity(run: WatchedRun, query: Query) -> dict[str, Any]:
    return views.activity(run, query.whole("points", 240, 1, 2000))


def _events(run: WatchedRun, query: Query) -> dict[str, Any]:
    before = query.whole("before", None, 0, 1 << 40)
    kinds = query.request.query_params.getlist("kind")
    return views.events(run, kinds, before, query.whole("limit", 100, 1, MOST_EVENTS), query.time())


def _method(run: WatchedRun, query: Query) -> method_page.MethodView:
    return method_page.MethodView(run, query.time())


def _series(run: WatchedRun, query: Query) -> dict[str, Any] | None:
    points = query.whole("points", 1000, 2, MOST_POINTS)
    return _method(run, query).series(query.text("kind"), query.text("field"), query.text("by", ""), points)


class _Metrics:
    """``/metrics``"""

    def __init__(self, site: Site) -> None:
        self.site = site

    def answer(self, request: Request) -> Response:
        return Response(exposition(self.site.shelf), headers={"Content-Type": CONTENT_TYPE})


async def _http_error(request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, str(error.detail))


async def _user_error(request: Request, error: UserError) -> Response:
    return refusal(400, " ".join(str(error).split()))


async def _broken(request: Request, error: Exception) -> Response:
    return refusal(500, "a mistake of the server; its log has more")
