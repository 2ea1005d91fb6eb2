"""Whole runs with devices in the same process: run folder, stopping and continuing, refusals, quarantine."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.folder.layout import SERVER, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import TrainingJob
from cabafl.deployment.mqtt import carrier, fleet
from cabafl.deployment.mqtt.fleet import MqttFleet
from cabafl.deployment.mqtt.link import RUN_TOPIC, down_topic, here_topic
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.deployment.server.serve import for_devices
from cabafl.engine.inputs import Arrived, Joined, Started
from cabafl.engine.journal import Journal
from cabafl.engine.quarantine import Quarantine
from cabafl.errors import RunStopped, UserError
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Stopped
from cabafl.recording.events import Dispatched, Event
from cabafl.recording.folder import RunFolder, read_metrics
from tests.deployment.fleet_runs import (
    DEVICES,
    FEDASYNC,
    JOBS,
    SETTINGS,
    FleetRun,
    after_uploads,
    fleet_run,
    terminate,
)
from tests.deployment.fragile import SOUR
from tests.deployment.memory_broker import MemoryBroker, MemoryDevice

__all__ = ["fleet_run"]

FAILS_AT = {"Timed": "timer 3", "Impatient": "the timeout of job 0", "Unfinished": "the end of the run"}


def test_a_run_leaves_a_run_folder_behind(fleet_run: FleetRun) -> None:
    summary = fleet_run.serve()
    assert summary is not None
    assert (summary["clock"], summary["uploads"], summary["losses"]) == ("wall", JOBS, {})
    assert {path.name for path in fleet_run.out.iterdir()} == {
        "curve.png",
        "environment.json",
        "events.jsonl",
        "experiment.toml",
        "metrics.csv",
        "model.safetensors",
        "summary.json",
        "task.json",
    }
    assert read_metrics(fleet_run.out)[-1].uploads == JOBS
    assert sorted(fleet_run.uploaded) == list(range(JOBS))
    assert RUN_TOPIC not in fleet_run.broker.retained, "devices hear that the run is over"
    assert all(device.session.run == "" for device in fleet_run.broker.devices)
    assert fleet_run.serve() is None, "already complete"


def test_a_run_of_another_task_is_judged_by_its_metric(fleet_run: FleetRun) -> None:
    summary = fleet_run.serve("task.name=regression", "data.partition=natural", "run.average=polynomial")
    assert summary is not None
    assert summary["metric"] == {"name": "mse", "more_is_better": False, "percent": False}
    last = read_metrics(fleet_run.out)[-1]
    assert (last.metric.name, last.value, last.averaged_value) == (
        "mse",
        summary["final_mse"],
        summary["averaged"]["final_mse"],
    )
    assert {"mae", "r2"} <= {name for name, _ in last.more}
    assert "final_accuracy" not in summary


def test_a_second_run_follows_on_the_same_devices(fleet_run: FleetRun) -> None:
    fleet_run.serve()
    fleet_run.out = fleet_run.path / "second"
    fleet_run.completes("data.dataset=mnist5k", settings=FEDASYNC)
    assert not any(device.complaints for device in fleet_run.broker.devices)


def test_a_job_reveals_nothing_about_earlier_devices(fleet_run: FleetRun) -> None:
    """A job has exactly these fields, whichever devices had the model before; none of them names a device or a slot."""
    fleet_run.serve()
    jobs = []
    for number in range(DEVICES):
        for packet in fleet_run.broker.payloads(down_topic(number)):
            content = wire.Assembler(1 << 30).add(packet)
            assert content is not None
            size = int.from_bytes(content[:4], "little")
            jobs.append(json.loads(bytes(content[4 : 4 + size])))
    assert len(jobs) == JOBS
    for values in jobs:
        assert values.keys() == {
            "kind",
            "run",
            "job",
            "epochs",
            "lr_scale",
            "prox",
            "report_loss",
            "report_square",
            "hold",
            "correction",
            "model",
        }
        assert (values["epochs"], values["lr_scale"], values["prox"]) == (-1, 1.0, 0.0)
        assert re.fullmatch(r"|fleet/all/model/[0-9a-f]{16}", values["model"]), "a random name"
    assert len({values["run"] for values in jobs}) == 1


# Stopping and continuing


def test_a_stopped_run_continues_and_counts_each_job_once(fleet_run: FleetRun) -> None:
    with pytest.raises(Stopped):
        fleet_run.serve(listener=after_uploads(5, terminate()))
    assert not (fleet_run.out / "summary.json").exists()
    assert fleet_run.status["state"] == "stopped"
    assert RUN_TOPIC in fleet_run.broker.retained, "devices keep what they have loaded"
    with pytest.raises(UserError, match="a run on real devices; continue it with `cabafl deploy server`"):
        resume(fleet_run.out)
    before = fleet_run.uploaded
    assert 5 <= len(before) < JOBS
    fleet_run.completes()
    assert fleet_run.uploaded[: len(before)] == before
    trained = [job.number for device in fleet_run.broker.devices for job in device.trained]
    assert sorted(trained) == list(range(JOBS)), "no device trains a job twice"


def test_a_run_stopped_before_it_started_keeps_the_devices_that_joined(fleet_run: FleetRun) -> None:
    late = [fleet_run.broker.devices.pop() for _ in range(2)]
    for device in late:
        del fleet_run.broker.retained[here_topic(device.session.device)]
    first = fleet_run.broker.devices[0].worker
    join = first.join

    def join_and_stop(greeting: Greeting) -> int:
        terminate()()
        return join(greeting)

    first.join = join_and_stop  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        fleet_run.serve()
    assert not (fleet_run.out / "checkpoint.json").exists()
    assert [line["online"] for line in fleet_run.status["devices"]] == [True, True, False, False]
    first.join = join  # type: ignore[method-assign]
    fleet_run.broker.devices += late
    for device in late:
        device.take(RUN_TOPIC, fleet_run.broker.retained[RUN_TOPIC])
    fleet_run.completes()


def test_a_second_signal_stops_at_once_and_the_run_continues_from_the_journal(fleet_run: FleetRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        fleet_run.serve(listener=after_uploads(5, terminate(2)))
    assert not (fleet_run.out / "checkpoint.json").exists()
    fleet_run.completes()


def test_an_exception_closes_the_folder_the_journal_and_the_network(fleet_run: FleetRun) -> None:
    def fail() -> None:
        raise MemoryError("a bug")

    with pytest.raises(MemoryError, match="a bug") as caught:
        fleet_run.serve(listener=after_uploads(5, fail))
    assert fleet_run.status["state"] == "stopped"
    assert fleet_run.broker.clients[SERVER].link is None
    fleet_run.completes()  # would wait for the lock of the folder, as `caught` keeps open files alive
    del caught


def test_the_journal_is_deleted_after_the_summary_is_written(
    fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(RunFolder, "finish", fail)
        with pytest.raises(RunStopped, match="the disk is full"):
            fleet_run.serve()
    assert fleet_run.status["state"] == "stopped"
    assert list((fleet_run.out / "journal").glob("*.log"))
    fleet_run.completes()
    assert not (fleet_run.out / "journal").exists()


def test_a_journal_that_is_kept_holds_the_whole_run(fleet_run: FleetRun) -> None:
    keep = "deploy.keep_journal=true"
    with pytest.raises(Stopped):
        fleet_run.serve(keep, listener=after_uploads(5, terminate()))
    fleet_run.completes(keep)
    inputs = [given for _, given in Journal(fleet_run.out, keep=True).inputs()]
    assert sorted(given.job for given in inputs if isinstance(given, Arrived)) == list(range(JOBS))
    assert sum(isinstance(given, Joined) for given in inputs) == DEVICES
    assert sum(isinstance(given, Started) for given in inputs) == 1


def hold(held: list[tuple[MemoryDevice, TrainingJob]], device: MemoryDevice, job: TrainingJob) -> None:
    held.append((device, job))


def test_what_arrives_while_the_server_is_away_is_counted_when_it_is_back(fleet_run: FleetRun) -> None:
    held: list[tuple[MemoryDevice, TrainingJob]] = []
    for device in fleet_run.broker.devices:
        device.train = partial(hold, held, device)  # type: ignore[method-assign]
    sent = 0

    def listen(event: Event) -> None:
        nonlocal sent
        sent += isinstance(event, Dispatched)
        if isinstance(event, Dispatched) and sent == 2:
            terminate()()

    with pytest.raises(Stopped):
        fleet_run.serve(settings=FEDASYNC, listener=listen)
    assert len(held) == 2
    for device in fleet_run.broker.devices:
        del device.train
    for device, job in held:
        device.train(job)
    assert fleet_run.broker.clients[SERVER].unconfirmed
    fleet_run.completes(settings=FEDASYNC)


# Refusals


def test_the_folder_of_another_experiment_is_left_alone(fleet_run: FleetRun) -> None:
    with pytest.raises(Stopped):
        fleet_run.serve(listener=after_uploads(2, terminate()))
    with pytest.raises(UserError, match="holds the run of another experiment"):
        fleet_run.serve("seed=2")
    fleet_run.completes()


def test_settings_that_do_not_fit_a_fleet(fleet_run: FleetRun) -> None:
    with pytest.raises(UserError, match=r"run.wall_time: missing; accepted: the seconds the run lasts"):
        fleet_run.serve(settings=SETTINGS[:4])
    with pytest.raises(UserError, match=r"data.devices = 3: the fleet has a device 3; accepted: 4 or more"):
        fleet_run.serve("data.devices=3")
    with pytest.raises(UserError, match=r"fleet.slots = 9: at most the number of devices, 4"):
        for_devices(load_experiment(None, ["fleet.slots=9"]), 4)
    fleet_run.fleet.devices = []
    with pytest.raises(UserError, match="devices: the fleet has none"):
        fleet_run.serve()
    assert not fleet_run.out.exists()


def test_a_device_that_is_added_to_a_run_without_a_place_for_it(fleet_run: FleetRun) -> None:
    with pytest.raises(Stopped):
        fleet_run.serve(listener=after_uploads(2, terminate()))
    fleet_run.fleet.devices = range(DEVICES + 1)
    MemoryDevice(fleet_run.broker, DEVICES, fleet_run.broker.devices[0].worker)
    fleet_run.completes()
    assert fleet_run.said("is not admitted: the run takes 4 devices")


def test_one_server_per_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    monkeypatch.setattr(carrier, "Link", broker.link)
    monkeypatch.setattr(fleet, "LOCK_PATIENCE", 0.2)
    folder = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 2)
    run = RunOnFleet("run", "greeting", 4, lambda kind: 2, 60.0)
    first, second = MqttFleet(folder), MqttFleet(folder)
    assert list(first.devices) == [0, 1]
    first.open(run, Log())
    for _ in range(2):
        with pytest.raises(UserError, match="another server runs on this fleet; accepted: one at a time"):
            second.open(run, Log())
    first.open(run, Log())  # the same server again, after a quarantine


def test_the_model_of_a_stopped_run_is_exported_by_another_process(fleet_run: FleetRun) -> None:
    """The process has not imported the engine, whose objects are in the checkpoint."""
    with pytest.raises(Stopped):
        fleet_run.serve(listener=after_uploads(5, terminate()))
    out = fleet_run.path / "model.safetensors"
    program = (
        f"from pathlib import Path\nfrom cabafl.deployment.server.export import export_stopped\n"
        f"export_stopped(Path({str(fleet_run.out)!r}), Path({str(out)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert out.exists()


# Inputs that make the method fail


@pytest.mark.parametrize("checkpoints", ["60", "0.001"])
def test_a_device_whose_inputs_make_the_method_fail_is_excluded_and_the_run_goes_on(
    fleet_run: FleetRun, checkpoints: str
) -> None:
    method = ["method.name=tests.deployment.fragile:Fragile", f"run.checkpoint_every={checkpoints}"]
    summary = fleet_run.serve(*method, "deploy.keep_journal=true", settings=FEDASYNC)
    assert summary is not None
    assert summary["uploads"] + sum(summary["losses"].values()) == JOBS
    assert SOUR not in {event["device"] for event in fleet_run.events if event["event"] == "upload"}
    assert fleet_run.status["quarantined"] == 3
    assert summary["losses"] == {"left": 1}
    assert fleet_run.said("an input of device 2 made the run fail: ZeroDivisionError: sour milk; the run goes on")
    assert len(fleet_run.fleet.carriers) == 4, "a new connection after each: the rest is delivered again"
    quarantine = json.loads((fleet_run.out / "journal/quarantine.json").read_text())
    assert quarantine["quarantined"] == 3
    assert quarantine["offences"] == {str(SOUR): 3}


def test_a_server_killed_before_it_could_mark_the_input(fleet_run: FleetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    method = "method.name=tests.deployment.fragile:Fragile"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Quarantine, "add_input", die)
        with pytest.raises(KeyboardInterrupt):
            fleet_run.serve(method, settings=FEDASYNC)
    summary = fleet_run.serve(method, settings=FEDASYNC)
    assert summary is not None
    assert fleet_run.status["quarantined"] == 3
    assert len(set(fleet_run.uploaded)) == len(fleet_run.uploaded) == JOBS - 1


def test_a_device_stays_excluded_after_a_restart(fleet_run: FleetRun) -> None:
    method = "method.name=tests.deployment.fragile:Fragile"
    table = fleet_run.out / "journal/quarantine.json"
    stop = after_uploads(1, terminate())

    def listen(event: Event) -> None:
        if table.exists() and json.loads(table.read_text())["quarantined"] == 3:
            stop(event)

    with pytest.raises(Stopped):
        fleet_run.serve(method, settings=FEDASYNC, listener=listen)
    assert fleet_run.serve(method, settings=FEDASYNC) is not None
    assert fleet_run.status["quarantined"] == 3, "it is not tried again"


@pytest.mark.parametrize("kind", ["Timed", "Impatient", "Unfinished"])
@pytest.mark.parametrize("checkpoints", ["60", "0.001"])
def test_a_method_that_fails_at_an_alarm_is_not_told_of_it_again(
    fleet_run: FleetRun, kind: str, checkpoints: str
) -> None:
    words = [f"method.name=tests.deployment.fragile:{kind}", f"run.checkpoint_every={checkpoints}"]
    if kind == "Impatient":
        words.append("run.slot_timeout=0.001")
    summary = fleet_run.serve(*words, "deploy.keep_journal=true", settings=FEDASYNC)
    assert summary is not None
    assert [event["alarm"] for event in fleet_run.events if event["event"] == "skip"] == [FAILS_AT[kind]]
    assert fleet_run.said(f"the method fails at {FAILS_AT[kind]}: ZeroDivisionError: ")
    assert fleet_run.status["quarantined"] == 1
    assert json.loads((fleet_run.out / "journal/quarantine.json").read_text())["offences"] == {}


def test_a_method_that_fails_at_every_alarm_ends_the_run(fleet_run: FleetRun) -> None:
    with pytest.raises(RunStopped, match="it is not the first: the method itself fails"):
        fleet_run.serve("method.name=tests.deployment.fragile:Hopeless", settings=FEDASYNC)


def test_a_method_that_fails_by_itself_ends_the_run(fleet_run: FleetRun) -> None:
    with pytest.raises(RunStopped, match="without that device too: the method itself fails"):
        fleet_run.serve("method.name=tests.deployment.fragile:Broken", settings=FEDASYNC)
    fleet_run.out = fleet_run.path / "second"
    with pytest.raises(ZeroDivisionError, match="ill"):
        fleet_run.serve("method.name=tests.deployment.fragile:Sick", settings=FEDASYNC)
    assert fleet_run.status["state"] == "stopped"
