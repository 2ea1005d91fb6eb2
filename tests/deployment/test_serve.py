"""Whole runs with devices in the same process: run folder, stopping and continuing, network failures, refusals."""

import json
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from cabafl.deployment.flower.superlink import SuperLink
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from typer.testing import CliRunner

from cabafl.cli.main import app
from cabafl.cli.run import warn
from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.flower.app import Answers
from cabafl.deployment.folder.layout import Device, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.server import driver
from cabafl.deployment.server.carrier import Forgotten, TemporaryFailure
from cabafl.deployment.server.serve import for_devices, serve
from cabafl.deployment.server.status import STATUS
from cabafl.errors import RunStopped, UserError
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Stopped
from cabafl.recording.events import Event, Uploaded
from cabafl.recording.folder import RunFolder, read_metrics

DEVICES = 4
SETTINGS = [
    "data.train_limit=200",
    "data.test_limit=50",
    "model.name=mlp",
    "training.epochs=1",
    "fleet.slots=2",
    "run.workers=0",
    "run.evaluate_every=0.5",
    "run.max_dispatches=12",
    "method.k=2",
]


class Network:
    """Transport, grid and devices in one. Answers are available at once and fetched once."""

    def __init__(self, path: Path) -> None:
        own = (Participant(Device(path, "here:1", number, number)) for number in range(DEVICES))
        self.devices = {100 + number: Answers(each) for number, each in enumerate(own)}
        self.mail: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.forget_at: int | None = None
        self.fail_at: int | None = None
        self.run = SimpleNamespace(run_id=1)
        self.opened = 0
        self.finished: bool | None = None

    def nodes(self) -> Mapping[int, int]:
        return {number: 100 + number for number in range(DEVICES)}

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> "Network":
        self.opened += 1
        self.run = SimpleNamespace(run_id=2 if again else 1)
        return self

    def interrupt(self) -> None: ...

    def close(self, finished: bool) -> None:
        self.finished = finished

    def get_node_ids(self) -> list[int]:
        return [*self.devices]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_src_node_id"] = 1
            message.metadata.__dict__["_run_id"] = 1
            node = message.metadata.dst_node_id
            self.sent.append(message)
            self.mail[name] = self.devices[node](message, Context(1, node, {}, RecordDict(), {}))
            names.append(name)
        if len(self.sent) == self.forget_at:
            self.mail.clear()
            raise Forgotten
        if len(self.sent) == self.fail_at:
            self.fail_at = None
            raise TemporaryFailure("status 500")
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        gone = [name for name in message_ids if name not in self.mail]
        lost = [Message(Error(3, "gone"), reply_to=self.sent[int(name[1:])]) for name in gone]
        return [self.mail.pop(name) for name in message_ids if name in self.mail] + lost


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower needs these globals to create messages; `RunConnection` sets them in a real server."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def run(network: Network, out: Path, *more: str, **options: Any) -> dict[str, Any] | None:
    return serve(load_experiment(None, [*SETTINGS, *more]), network, out, warn=lambda text: None, **options)


def events_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_run_folder_behind(tmp_path: Path) -> None:
    network = Network(tmp_path)
    summary = run(network, tmp_path / "run", status=tmp_path / "status.json")
    assert summary is not None
    assert network.finished
    assert (summary["clock"], summary["uploads"], summary["losses"]) == ("wall", 12, {})
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "curve.png",
        "environment.json",
        "events.jsonl",
        "experiment.toml",
        "metrics.csv",
        "model.safetensors",
        "summary.json",
    }
    assert (tmp_path / "run/metrics.csv").read_text().startswith("time,version,")
    assert read_metrics(tmp_path / "run")[-1].uploads == 12
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], len(status["devices"]), status["uploads"]) == ("complete", DEVICES, 12)
    assert run(network, tmp_path / "run") is None, "already complete"


def test_a_job_reveals_nothing_about_earlier_devices(tmp_path: Path) -> None:
    """A job has exactly these fields, whichever devices had the model before; none of them names a device or a slot."""
    network = Network(tmp_path)
    run(network, tmp_path / "run")
    jobs = [message for message in network.sent if message.metadata.message_type == wire.TRAIN]
    assert len(jobs) == 12
    for message in jobs:
        assert set(message.content) == {"values"}
        values = dict(message.content["values"])
        numbers = values.pop("numbers")
        assert isinstance(numbers, bytes)
        assert set(values) == {"number", "epochs", "lr_scale", "prox", "report_loss"}
        assert (values["epochs"], values["lr_scale"], values["prox"]) == (-1, 1.0, 0.0)
        assert message.metadata.group_id == ""


def test_a_stopped_run_continues_and_counts_each_job_once(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with pytest.raises(Stopped):
        run(network, tmp_path / "run", listener=stopping_after(5))
    assert network.finished is False
    assert not (tmp_path / "run/summary.json").exists()
    with pytest.raises(UserError, match="a run on real devices; accepted: `cabafl deploy server`"):
        resume(tmp_path / "run")
    before = [event for event in events_of(tmp_path / "run") if event["event"] == "upload"]
    assert 5 <= len(before) < 12
    summary = run(network, tmp_path / "run")
    assert summary is not None
    assert summary["uploads"] == 12
    after = [event for event in events_of(tmp_path / "run") if event["event"] == "upload"]
    assert after[: len(before)] == before
    assert sorted(event["job"] for event in after) == list(range(12))


def test_a_run_stopped_before_it_started_keeps_the_devices_that_joined(tmp_path: Path) -> None:
    network, out = Network(tmp_path), tmp_path / "run"
    network.get_node_ids = lambda: [100, 101]  # type: ignore[method-assign]

    def pull(message_ids: Iterable[str]) -> list[Message]:
        signal.raise_signal(signal.SIGTERM)
        return Network.pull_messages(network, message_ids)

    network.pull_messages = pull  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run(network, out, status=tmp_path / "status.json")
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], [line["online"] for line in status["devices"]]) == ("stopped", [True, True, False, False])
    assert not (out / "checkpoint.json").exists()
    network = Network(tmp_path)
    assert_completes(network, out)
    assert network.opened == 1


def test_a_second_signal_stops_at_once_and_the_run_continues_from_the_journal(tmp_path: Path) -> None:
    network, out = Network(tmp_path), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(network, out, listener=stopping_after(5, signals=2))
    assert network.finished is False
    assert not (out / "checkpoint.json").exists()
    assert_completes(network, out)


def test_an_exception_closes_the_folder_the_journal_and_the_network(tmp_path: Path) -> None:
    network, out = Network(tmp_path), tmp_path / "run"
    uploads = 0

    def listen(event: Event) -> None:
        nonlocal uploads
        uploads += isinstance(event, Uploaded)
        if uploads == 5:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug") as caught:
        run(network, out, status=tmp_path / "status.json", listener=listen)
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"
    assert network.finished is False
    assert_completes(network, out)  # would wait for the lock of the folder, as `caught` keeps open files alive
    del caught


def test_the_journal_is_deleted_after_the_summary_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, out = Network(tmp_path), tmp_path / "run"

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(RunFolder, "finish", fail)
        with pytest.raises(RunStopped, match="the disk is full"):
            run(network, out, status=tmp_path / "status.json")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"
    assert network.finished is False
    assert list((out / "journal").glob("*.log"))
    assert_completes(network, out)
    assert not (out / "journal").exists()


def assert_completes(network: Network, out: Path) -> None:
    """The run in ``out`` continues to its end and counts each job once."""
    summary = run(network, out)
    assert summary is not None
    assert (summary["uploads"], summary["losses"]) == (12, {})
    assert network.finished
    assert sorted(event["job"] for event in events_of(out) if event["event"] == "upload") == list(range(12))


def stopping_after(uploads: int, signals: int = 1) -> Callable[[Event], None]:
    """A listener that sends SIGTERM to this process, as systemd does, after some uploads."""
    left = uploads

    def listen(event: Event) -> None:
        nonlocal left
        left -= isinstance(event, Uploaded)
        if left == 0:
            left = -1
            for _ in range(signals):
                signal.raise_signal(signal.SIGTERM)

    return listen


def test_jobs_are_sent_again_to_a_network_that_has_forgotten_the_run(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.forget_at = DEVICES * 2 + 6
    summary = run(network, tmp_path / "run")
    assert summary is not None
    assert network.opened == 2
    assert (summary["uploads"], summary["losses"]) == (12, {})


def test_a_failed_call_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RETRY_DELAY", 0.01)
    network = Network(tmp_path)
    network.fail_at = DEVICES * 2 + 6
    warnings: list[str] = []
    summary = serve(load_experiment(None, SETTINGS), network, tmp_path / "run", warn=warnings.append)
    assert summary is not None
    assert (summary["uploads"], summary["losses"]) == (12, {})
    assert warnings == ["a network call failed: status 500; trying again"]


def test_a_network_that_forgets_the_run_while_it_resumes(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with pytest.raises(Stopped):
        run(network, tmp_path / "run", listener=stopping_after(5))
    network.forget_at = len(network.sent) + 1  # the first greeting after the restart
    summary = run(network, tmp_path / "run")
    assert summary is not None
    assert network.opened == 3, "at first, when resuming, and after the network forgot the run"
    assert (summary["uploads"], summary["losses"]) == (12, {})


def test_more_devices_than_the_run_accepts(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with pytest.raises(Stopped):
        run(network, tmp_path / "run", listener=stopping_after(2))
    more = Network(tmp_path)
    more.nodes = lambda: {number: 100 + number for number in range(DEVICES + 1)}  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"data.devices = 4: the fleet has a device 4; accepted: 5 or more, set when"):
        run(more, tmp_path / "run")
    network.nodes = lambda: {number: 100 + number for number in range(DEVICES - 1)}  # type: ignore[method-assign]
    summary = run(network, tmp_path / "run")
    assert summary is not None
    assert summary["uploads"] + sum(summary["losses"].values()) == 12, "one device was banned, the others continue"


def test_the_folder_of_another_experiment_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(Network(tmp_path), tmp_path / "run", listener=stopping_after(2))
    with pytest.raises(UserError, match="holds the run of another experiment"):
        run(Network(tmp_path), tmp_path / "run", "seed=2")


def test_settings_that_do_not_fit_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run.wall_time: missing; accepted: the seconds the run lasts"):
        serve(load_experiment(None, []), Network(tmp_path), tmp_path / "run", warn=print)
    with pytest.raises(UserError, match=r"data.devices = 3: the fleet has a device 3; accepted: 4 or more"):
        run(Network(tmp_path), tmp_path / "run", "data.devices=3")
    nobody = Network(tmp_path)
    nobody.nodes = dict  # type: ignore[method-assign]
    with pytest.raises(UserError, match="devices: the fleet has none"):
        run(nobody, tmp_path / "run")
    with pytest.raises(UserError, match=r"fleet.slots = 9: at most the number of devices, 4"):
        for_devices(load_experiment(None, ["fleet.slots=9"]), 4)
    assert not (tmp_path / "run").exists()


def test_status_and_refusals_of_the_commands(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 2)
    command = CliRunner()
    missing = command.invoke(app, ["deploy", "status", str(fleet.path)])
    assert isinstance(missing.exception, UserError)
    assert "no server has run here yet" in str(missing.exception)
    stranger = command.invoke(app, ["deploy", "device", str(fleet.path), "--id", "7"])
    assert str(stranger.exception) == "--id = 7: no such device; accepted: 0, 1"
    run(Network(tmp_path), tmp_path / "run", status=fleet.state / STATUS)
    shown = command.invoke(app, ["deploy", "status", str(fleet.path)])
    assert shown.exit_code == 0
    assert "cabafl: complete" in shown.output
    as_json = command.invoke(app, ["deploy", "status", str(fleet.path), "--json"])
    assert json.loads(as_json.output)["uploads"] == 12


def test_texts_of_devices_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    warn("device 3: job 7 lost: [/foo] [red]")
    assert "[/foo] [red]" in capsys.readouterr().err


def test_one_server_per_fleet(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", FleetSettings(ip=("192.0.2.7",)), 1)
    first, second = SuperLink(fleet), SuperLink(fleet)
    first._take_lock()
    with pytest.raises(UserError, match="another server runs on this fleet"):
        second._take_lock()
