"""What an operator does with a fleet of real devices: the commands of `cabafl deploy`, over HTTP."""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cabafl.deployment.server.operator import COMMANDS, LOCK, CommandKind, is_running, record_removal, send_command
from cabafl.errors import UserError
from cabafl.watch.entrance import json_body
from cabafl.watch.guard import refusal
from cabafl.watch.overview import as_json
from cabafl.watch.shelf import Shelf
from cabafl.watch.standing import WatchedFleet

EXPORT_TIMEOUT = 300.0  # seconds for the model of a run that does not go on
_exporting = threading.Lock()  # one process with torch at a time
Act = Callable[[WatchedFleet, dict[str, Any]], Response]


def action_routes(shelf: Shelf) -> list[BaseRoute]:
    """The addresses of fleets. `guard.Guard` has checked who asks."""

    def show(request: Request) -> Response:
        fleet = shelf.fleets.get(request.path_params["fleet"])
        if fleet is None:
            return refusal(404, "fleet: there is none of this id")
        run = shelf.run_of(fleet)
        return Response(as_json(fleet.described(None if run is None else run.id)), media_type="application/json")

    def action(act: Act) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            if (await json_body(request)).get("confirm") is not True:
                raise UserError("confirm: missing; accepted: true")
            fleet = shelf.fleets.get(request.path_params["fleet"])
            if fleet is None or not fleet.place.exists():
                return refusal(404, "fleet: there is none of this id")
            try:
                return await run_in_threadpool(act, fleet, request.path_params)
            except UserError as error:
                return refusal(409, " ".join(str(error).split()))

        return serve

    base = "/api/fleets/{fleet}"
    return [
        Route(base, show),
        Route(f"{base}/model", action(_model), methods=["POST"]),
        Route(f"{base}/stop", action(_stop), methods=["POST"]),
        Route(f"{base}/devices/{{device:int}}/remove", action(_remove), methods=["POST"]),
    ]


def _command(fleet: WatchedFleet, kind: CommandKind, values: dict[str, Any], out: Path | None = None) -> str:
    return send_command(fleet.folder().state / COMMANDS, kind, values, out)


def _running(fleet: WatchedFleet) -> bool:
    return is_running(fleet.folder().state / LOCK)


def _stop(fleet: WatchedFleet, _: dict[str, Any]) -> Response:
    """No more jobs; the run ends when those in flight are back."""
    if not _running(fleet):
        raise UserError("stop: no server runs on this fleet")
    return JSONResponse({"text": _command(fleet, "stop", {"at_once": False})})


def _model(fleet: WatchedFleet, _: dict[str, Any]) -> Response:
    """The current global model; of a run that does not go on, what `cabafl deploy export` finds."""
    folder = Path(tempfile.mkdtemp(prefix="cabafl-watch-"))
    out = folder / "model.safetensors"
    try:
        if _running(fleet):
            _command(fleet, "export", {}, out)
        else:
            _export_stopped(fleet.place.path, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    forget = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    name = f"model-{fleet.id}.safetensors"
    return FileResponse(out, media_type="application/octet-stream", filename=name, background=forget)


def _export_stopped(path: Path, out: Path) -> None:
    """In a process of its own: a checkpoint needs torch, and the memory for it."""
    command = [sys.executable, "-P", "-m", "cabafl", "deploy", "export", str(path), "--out", str(out)]
    if not _exporting.acquire(blocking=False):
        raise UserError("model: another one is being written; try again when it is there")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=EXPORT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UserError(f"model: not written within {EXPORT_TIMEOUT:g} s") from None
    finally:
        _exporting.release()
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UserError(f"model: {lines[-1].removeprefix('error: ')[:500] if lines else 'cannot be written'}")


def _remove(fleet: WatchedFleet, values: dict[str, Any]) -> Response:
    """Shuts a device out for good; a server that runs writes it to the journal."""
    device, folder = int(values["device"]), fleet.folder()
    from cabafl.deployment.folder.membership import remove_devices  # certificates: a page beside a run needs none

    change = remove_devices(folder, [device])
    record_removal(folder.state, [device])
    said = [f"device {device} is shut out"]
    if not change.listed:
        said.append("not on the revocation list, because ca.key is elsewhere: use --remove there too")
    if not change.reloaded:
        said.append("no broker runs from this folder: copy acl and crl.pem to its machine and reload it")
    return JSONResponse({"text": "; ".join(said)})
