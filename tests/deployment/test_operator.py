"""What an operator does while a run goes on: stop, set, export, status."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cabafl.deployment.messages import TrainingJob
from cabafl.deployment.server import driver
from cabafl.deployment.server.export import export_stopped
from cabafl.deployment.server.operator import Command, CommandBox, read_status
from cabafl.engine.inputs import Changed
from cabafl.engine.journal import Journal
from cabafl.errors import UserError
from cabafl.lifecycle.stopping import Stopped
from cabafl.recording.events import Event, Noted
from tests.deployment.fleet_runs import DEVICES, FEDASYNC, JOBS, FleetRun, after_uploads, fleet_run, terminate
from tests.deployment.memory_broker import MemoryDevice

__all__ = ["fleet_run"]
LONG = [*(line for line in FEDASYNC if "max_dispatches" not in line), "run.wall_time=600"]


def noted(kind: str, what: Callable[[], None]) -> Callable[[Event], None]:
    """A listener that does something at every note of a kind."""

    def listen(event: Event) -> None:
        if isinstance(event, Noted) and event.kind == kind:
            what()

    return listen


# Stop


@pytest.mark.parametrize("at_once", [False, True])
def test_stop_ends_the_run_with_model_and_summary(fleet_run: FleetRun, at_once: bool) -> None:
    """Two jobs are in flight: their devices answer as soon as they hear of the stop, or are told to give up."""
    held: list[tuple[MemoryDevice, TrainingJob]] = []

    def order() -> None:
        for device in fleet_run.broker.devices:
            device.train = partial(hold, held, device)  # type: ignore[method-assign]
        fleet_run.order("stop", at_once=at_once)

    def release() -> None:
        for device, job in held:
            MemoryDevice.train(device, job)

    uploads = after_uploads(5, order)
    stops = noted("stop", lambda: None if at_once else release())
    summary = fleet_run.serve(settings=LONG, listener=lambda event: (uploads(event), stops(event))[0])
    assert summary is not None
    ok, text = fleet_run.answer("stop")
    assert ok
    assert (text == "stops at once") == at_once
    assert at_once or text.startswith("stops after 2 jobs")
    assert (fleet_run.out / "model.safetensors").exists()
    assert fleet_run.status["state"] == "complete"
    assert len(held) == 2
    assert summary["uploads"] == sum(len(device.trained) for device in fleet_run.broker.devices)
    assert summary["wall_seconds"] < 60


def hold(held: list[tuple[MemoryDevice, TrainingJob]], device: MemoryDevice, job: TrainingJob) -> None:
    held.append((device, job))


def test_what_the_operator_ordered_is_on_disk_before_the_answer(
    fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server killed right after the answer must not forget the order."""
    pending: list[int] = []
    answer = CommandBox.answer

    def answering(self: CommandBox, command: Command, ok: bool, text: str) -> None:
        [journal] = journals
        pending.append(len(journal._pending))
        answer(self, command, ok, text)

    journals: list[Journal] = []
    made = Journal.__init__

    def remember(self: Journal, *words: Any, **more: Any) -> None:
        made(self, *words, **more)
        journals.append(self)

    monkeypatch.setattr(Journal, "__init__", remember)
    monkeypatch.setattr(CommandBox, "answer", answering)
    fleet_run.serve(settings=LONG, listener=after_uploads(5, partial(fleet_run.order, "stop", at_once=True)))
    assert pending == [0]


def test_commands_before_the_run_has_started_are_refused(fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet_run.broker.devices.pop()
    fleet_run.broker.retained.clear()
    looks = 0

    def take(self: CommandBox) -> list[Command]:
        nonlocal looks
        looks += 1
        if looks == 3:
            terminate()()
        return [Command("stop", "stop", {})] if looks == 1 else []

    monkeypatch.setattr(CommandBox, "take", take)
    monkeypatch.setattr(driver, "PROGRESS_INTERVAL", 0.0)
    with pytest.raises(Stopped):
        fleet_run.serve(settings=LONG)
    assert fleet_run.answer("stop") == (
        False,
        "stop: the run has not started yet; stop the server with Ctrl-C or SIGTERM",
    )
    assert fleet_run.said("waits for devices: 3 of 4 have joined")


def test_the_server_looks_for_commands_every_now_and_then(fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[CommandBox] = []

    def take(self: CommandBox) -> list[Command]:
        looks.append(self)
        return []

    monkeypatch.setattr(CommandBox, "take", take)
    monkeypatch.setattr(driver, "CHECK_INTERVAL", 3600.0)
    fleet_run.completes()
    assert len(looks) == 2  # at the start and at the end


# Set


def test_set_changes_a_running_experiment_all_or_none(fleet_run: FleetRun) -> None:
    orders = [
        after_uploads(3, partial(fleet_run.order, "set", settings=["run.max_dispatches=12", "run.evaluate_every=9"])),
        after_uploads(4, lambda: orders_of(fleet_run, "set-2", ["run.slot_timeout=50", "training.epochs=2"])),
        after_uploads(5, lambda: orders_of(fleet_run, "set-3", ["run.wall_time=none", "run.max_dispatches=none"])),
        after_uploads(6, lambda: orders_of(fleet_run, "set-4", [])),
    ]

    def listen(event: Event) -> None:
        for order in orders:
            order(event)

    summary = fleet_run.serve("deploy.keep_journal=true", settings=LONG, listener=listen)
    assert summary is not None
    assert summary["uploads"] == JOBS
    assert fleet_run.answer("set") == (True, "run.max_dispatches = 12, run.evaluate_every = 9.0")
    ok, text = fleet_run.answer("set-2")
    assert not ok
    assert text.startswith("'training.epochs=2': cannot change in a running experiment")
    ok, text = fleet_run.answer("set-3")
    assert not ok
    assert "the run would not end" in text
    assert fleet_run.answer("set-4") == (False, "set: no settings; accepted: KEY=VALUE, e.g. run.wall_time=7200")
    journaled = [given for _, given in Journal(fleet_run.out, keep=True).inputs() if isinstance(given, Changed)]
    assert {given.key: given.value for given in journaled} == {"run.max_dispatches": 12, "run.evaluate_every": 9.0}


def orders_of(run: FleetRun, name: str, settings: list[str]) -> None:
    """Several commands of one kind need different names."""
    text = json.dumps({"kind": "set", "values": {"settings": settings}})
    (run.path / "commands" / f"{name}.command.json").write_text(text)


def test_a_change_survives_a_restart(fleet_run: FleetRun) -> None:
    def order() -> None:
        fleet_run.order("set", settings=["run.max_dispatches=12"])

    uploads = after_uploads(3, order)
    changes = noted("change", terminate())
    with pytest.raises(Stopped):
        fleet_run.serve(settings=LONG, listener=lambda event: (uploads(event), changes(event))[0])
    fleet_run.completes(settings=LONG)


def test_a_shorter_time_than_has_passed_ends_the_run(fleet_run: FleetRun) -> None:
    order = partial(fleet_run.order, "set", settings=["run.wall_time=0.001"])
    summary = fleet_run.serve(settings=LONG, listener=after_uploads(3, order))
    assert summary is not None
    assert fleet_run.answer("set") == (True, "run.wall_time = 0.001")
    assert summary["uploads"] < 50


# Export


def test_export_while_the_run_goes_on(fleet_run: FleetRun) -> None:
    listener = after_uploads(5, partial(fleet_run.order, "export"))
    summary = fleet_run.serve(settings=FEDASYNC, listener=listener)
    assert summary is not None
    ok, text = fleet_run.answer("export")
    assert ok
    assert text == f"version {int(text.split()[1])} at 0 s"
    assert 5 <= int(text.split()[1]) < summary["versions"]
    now = load_file(fleet_run.path / "commands/export.attachment")
    final = load_file(fleet_run.out / "model.safetensors")
    assert now.keys() == final.keys()
    assert any(not np.array_equal(now[name], final[name]) for name in now)


def test_what_an_operator_has_done_is_in_the_journal_and_the_events(fleet_run: FleetRun) -> None:
    """Also after a restart, which replays the journal."""

    def order() -> None:
        fleet_run.order("export")
        fleet_run.order("removed", devices=[2, "no number", 1])

    stop = after_uploads(12, terminate())
    orders = after_uploads(5, order)
    with pytest.raises(Stopped):
        fleet_run.serve(settings=FEDASYNC, listener=lambda event: (orders(event), stop(event))[0])
    assert fleet_run.answer("removed") == (True, "removed: 2, 1")
    fleet_run.completes(settings=FEDASYNC)
    lines = [json.loads(line) for line in (fleet_run.out / "events.jsonl").read_text().splitlines()]
    done = [(line["action"], line.get("device")) for line in lines if line["event"] == "operator"]
    assert done == [("export", None), ("remove", 2), ("remove", 1)]


def test_export_of_a_run_that_does_not_go_on(fleet_run: FleetRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model yet; accepted: a run with a checkpoint"):
        export_stopped(fleet_run.out, tmp_path / "early.safetensors")
    with pytest.raises(Stopped):
        fleet_run.serve(settings=FEDASYNC, listener=after_uploads(5, terminate()))
    text = export_stopped(fleet_run.out, tmp_path / "stopped.safetensors")
    assert text.startswith("version ")
    assert text.endswith(f"from the last checkpoint: {tmp_path / 'stopped.safetensors'}")
    fleet_run.completes(settings=FEDASYNC)
    assert export_stopped(fleet_run.out, tmp_path / "final.safetensors").startswith("the final model: ")
    stopped, final = load_file(tmp_path / "stopped.safetensors"), load_file(tmp_path / "final.safetensors")
    assert stopped.keys() == final.keys()
    assert any(not np.array_equal(stopped[name], final[name]) for name in final)


def test_a_model_that_cannot_be_written_is_an_answer(fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(driver, "save_model", full)
    assert fleet_run.serve(listener=after_uploads(5, partial(fleet_run.order, "export"))) is not None
    assert fleet_run.answer("export") == (False, "export: [Errno 28] No space left on device")


# Nonsense


def test_a_file_that_is_no_command_and_an_unknown_one_are_refused(fleet_run: FleetRun) -> None:
    def order() -> None:
        (fleet_run.path / "commands" / "broken.command.json").write_text("{")
        fleet_run.order("reboot")

    assert fleet_run.serve(listener=after_uploads(5, order)) is not None
    assert fleet_run.answer("broken") == (False, "file that is not a command: unknown command")
    assert fleet_run.answer("reboot") == (False, "reboot: unknown command")


def test_a_command_that_comes_at_the_end_is_refused(fleet_run: FleetRun) -> None:
    assert fleet_run.serve(listener=after_uploads(JOBS, partial(fleet_run.order, "stop"))) is not None
    assert fleet_run.answer("stop") == (False, "stop: the server has ended")


# Status and progress


def test_the_status_says_what_each_device_does(fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.deployment.server.operator.STATUS_INTERVAL", 0.0)
    found: list[dict[str, Any]] = []
    lazy = fleet_run.broker.devices[3]
    lazy.train = lambda job: None  # type: ignore[method-assign]
    begun = time.time()
    uploads = after_uploads(8, lambda: found.append(fleet_run.status))
    ends = after_uploads(9, partial(fleet_run.order, "stop", at_once=True))
    fleet_run.serve(settings=LONG, listener=lambda event: (uploads(event), ends(event))[0])
    [now] = found
    assert now["state"] == "running"
    assert begun <= now["updated"] <= time.time()
    assert (now["run"], now["method"], now["wall_time"]) == (str(fleet_run.out), "fedasync", 600.0)
    assert (now["online"], now["losses"], now["quarantined"]) == (DEVICES, {}, 0)
    assert 0 < now["in_flight"] <= 2
    assert now["since_upload"] < 60
    line = now["devices"][3]
    assert line["online"]
    assert line["samples"] > 0
    assert line["declined"] is None
    assert line["job"] is not None
    assert line["since"] is not None
    assert line["jobs"] == 1
    assert [other["faults"] for other in now["devices"]] == [0] * DEVICES
    assert fleet_run.status["state"] == "complete"


def test_a_line_of_progress_and_a_warning_when_no_upload_comes(
    fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PROGRESS_INTERVAL", 0.0)
    monkeypatch.setattr(driver, "QUIET_AFTER", -1.0)
    monkeypatch.setattr(driver, "QUIET_JOBS", 0.0)
    fleet_run.serve()
    assert fleet_run.said("info    progress seconds=")
    assert fleet_run.said("no upload for a long time; see `cabafl deploy status`")


def test_a_status_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no server has run here yet"):
        read_status(tmp_path / "status.json")
    for text, line in (("{", "cannot be read"), ("[]", "not a status file")):
        (tmp_path / "status.json").write_text(text)
        with pytest.raises(UserError, match=line):
            read_status(tmp_path / "status.json")
