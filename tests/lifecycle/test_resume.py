"""Resumed runs end in the same bytes; damaged checkpoints and full disks lose nothing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.engine.checkpoint import load_checkpoint
from cabafl.engine.tensors import write_tensors
from cabafl.errors import RunStopped, UserError
from cabafl.lifecycle.run import Saver
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Stopped
from cabafl.state import Decoder, Encoder, State
from tests.runs import ALL_METHODS, AUTO, METHODS, same_bytes, settings

pytestmark = pytest.mark.usefixtures("no_pixels")

CABAFL = [sys.executable, "-m", "cabafl"]
INLINE = ["run.workers=0", "run.checkpoint_every=0.05"]


class StopAt:
    """A listener that sends this process a signal after a number of events."""

    def __init__(self, events: int) -> None:
        self.left = events

    def __call__(self, event: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


LIARS = ["fleet.faults.attack=noise", "fleet.faults.attack_share=0.3", "run.defence.update_clip=2"]
LIARS += ["run.defence.feature_clip=2", "run.defence.sample_quantile=0.7", "fleet.idle_watts=1.7"]


CASES = [
    *((method, []) for method in ALL_METHODS),
    *((method, LIARS) for method in (*METHODS, "evenkeel", "scaffold")),
    ("cabafl", AUTO),
    ("cabafl", LIARS + AUTO),
    ("tests.engine.orders_method:Everything", []),
]


@pytest.mark.parametrize(("method", "more"), CASES)
def test_a_run_stopped_again_and_again_ends_in_the_same_bytes(method: str, more: list[str], tmp_path: Path) -> None:
    experiment = load_experiment(None, settings(method, *INLINE, *more))
    simulate(experiment, tmp_path / "whole")
    with pytest.raises(Stopped) as stopped:
        simulate(experiment, tmp_path / "parts", StopAt(25))
    assert stopped.value.signal == signal.SIGTERM
    for events in (1, 37, 20):
        with pytest.raises(Stopped):
            resume(tmp_path / "parts", StopAt(events))
    assert not (tmp_path / "parts" / "summary.json").exists()
    result = resume(tmp_path / "parts")
    assert result is not None
    same_bytes(tmp_path / "whole", tmp_path / "parts")
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "parts"))
    assert {k: v for k, v in one.items() if k != "wall_seconds"} == {
        k: v for k, v in other.items() if k != "wall_seconds"
    }
    assert len(list((tmp_path / "parts").glob("checkpoint-*"))) == 1  # the state at the end
    assert resume(tmp_path / "parts") is None  # complete


def start(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    command = ["resume", str(folder)] if folder.exists() else ["run", *words, "--out", str(folder)]
    return subprocess.Popen([*CABAFL, *command, "--quiet"], stderr=subprocess.DEVNULL)


def wait_for_size(process: "subprocess.Popen[bytes]", path: Path, size: float) -> None:
    """Waits until a file is longer than ``size`` or its writer has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.stat().st_size > size:
            return
        time.sleep(0.005)


@pytest.mark.parametrize("method", METHODS)
def test_sigkill_at_random_moments(method: str, tmp_path: Path) -> None:
    """Real processes with a worker each, killed without warning, also while a checkpoint is being written."""
    kills = int(os.environ.get("CABAFL_KILLS", "2"))
    words = settings(method, "run.workers=1", "run.checkpoint_every=0.01", f"run.virtual_time={100 * kills}")
    simulate(load_experiment(None, [*words, "run.workers=0"]), tmp_path / "whole")
    length = (tmp_path / "whole" / "events.jsonl").stat().st_size
    draw = random.Random(method)
    unfinished = 0
    for number in range(kills):
        process = start(tmp_path / "parts", *words)
        wait_for_size(process, tmp_path / "parts" / "events.jsonl", length * (number + draw.random()) / (kills + 0.5))
        time.sleep(draw.uniform(0.0, 0.1))
        process.kill()
        process.wait()
        unfinished += not (tmp_path / "parts" / "summary.json").exists()
    assert unfinished >= kills / 2  # else the run was over before it was killed
    assert (tmp_path / "parts" / "checkpoint.json").exists()  # else nothing was continued
    resume(tmp_path / "parts", settings=["run.workers=0"])
    same_bytes(tmp_path / "whole", tmp_path / "parts")


def interrupted(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        simulate(load_experiment(None, settings("cabafl", *INLINE)), folder, StopAt(200))
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_byte(folder: Path) -> None:
    path = next(folder.glob("checkpoint-*.safetensors"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    path = next(folder.glob("checkpoint-*.safetensors"))
    path.write_bytes(path.read_bytes()[:100])


def lose_arrays(folder: Path) -> None:
    next(folder.glob("checkpoint-*.safetensors")).unlink()


def foreign(folder: Path) -> None:
    path = folder / "experiment.toml"
    path.write_text(path.read_text().replace("seed = 1", "seed = 2"))


def garbage(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("[]")


def wrong_format(folder: Path) -> None:
    about = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps({**about, "format": 99}))


def escape(folder: Path) -> None:
    about = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps({**about, "file": "../../etc/passwd"}))


def short_record(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(b"")


def short_metrics(folder: Path) -> None:
    (folder / "metrics.csv").write_bytes(b"")
    with (folder / "events.jsonl").open("ab") as events:
        events.write(b"after the checkpoint")


@pytest.mark.parametrize(
    "damage", [flip_byte, truncate, lose_arrays, foreign, garbage, wrong_format, escape, short_record, short_metrics]
)
def test_a_damaged_or_foreign_checkpoint_is_refused_and_nothing_is_overwritten(damage: object, tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    damage(folder)  # type: ignore[operator]
    before = snapshot(folder)
    with pytest.raises(UserError) as refused:
        resume(folder)
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)
    assert snapshot(folder) == before


def test_a_run_without_checkpoint_starts_again(tmp_path: Path) -> None:
    words = settings("fedavg", "run.workers=0")
    simulate(load_experiment(None, words), tmp_path / "whole")
    folder = tmp_path / "parts"
    shutil.copytree(tmp_path / "whole", folder)
    for name in ("summary.json", "model.safetensors", "curve.png"):
        (folder / name).unlink()
    resume(folder)
    same_bytes(tmp_path / "whole", folder)


def test_resume_needs_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        resume(tmp_path)


def test_two_processes_do_not_write_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.recording.folder.PATIENCE", 0.2)
    folder = interrupted(tmp_path)
    before = snapshot(folder)

    stop = StopAt(2)

    def resume_once_more(event: object) -> None:
        with pytest.raises(UserError, match="another process writes this run"):
            resume(folder)
        stop(event)

    with pytest.raises(Stopped):
        resume(folder, resume_once_more)
    assert (folder / "events.jsonl").read_bytes().startswith(before["events.jsonl"])
    simulate(load_experiment(None, settings("cabafl", *INLINE)), tmp_path / "whole")
    resume(folder)
    same_bytes(tmp_path / "whole", folder)


def test_two_resumes_at_once_finish_the_run_once(tmp_path: Path) -> None:
    simulate(load_experiment(None, settings("cabafl", *INLINE)), tmp_path / "whole")
    folder = interrupted(tmp_path)
    both = [start(folder) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    same_bytes(tmp_path / "whole", folder)


def test_a_checkpoint_is_never_pickle(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    names = {path.name.rstrip("0123456789") for path in folder.glob("checkpoint*")}
    assert all(name.endswith((".json", ".safetensors")) for name in names)
    assert load_checkpoint(folder, (folder / "experiment.toml").read_text()) is not None


FULL = """
import resource, signal, sys
from cabafl.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
main()
"""


def test_a_full_disk_stops_the_run_with_a_message_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk; the event log reaches it."""
    words = settings("cabafl", "run.workers=0", "run.checkpoint_every=0.2")
    simulate(load_experiment(None, words), tmp_path / "whole")
    size = (tmp_path / "whole" / "events.jsonl").stat().st_size
    limit = str(max(2 * size // 3, 900_000) if size > 1_000_000 else 2 * size // 3)
    model = (tmp_path / "whole" / "model.safetensors").stat().st_size
    assert int(limit) < model * 40
    command = [sys.executable, "-c", FULL, limit, "run", *words, "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert "cannot be recorded" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "summary.json").exists()
    resume(tmp_path / "run")
    same_bytes(tmp_path / "whole", tmp_path / "run")


def test_a_full_disk_at_a_checkpoint_keeps_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = settings("cabafl", "run.workers=0", "run.checkpoint_every=0.001")
    simulate(load_experiment(None, words), tmp_path / "whole")
    calls = 0

    def full_at_the_second(path: Path, *rest: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return write_tensors(path, *rest)

    monkeypatch.setattr("cabafl.engine.checkpoint.write_tensors", full_at_the_second)
    monkeypatch.setattr("cabafl.lifecycle.run.CHECKPOINT_SHARE", 1e6)  # as often as asked
    begin = Saver.begin

    def begin_and_wait(saver: Saver, *given: Any) -> None:  # else a busy machine might write only one
        begin(saver, *given)
        while not saver.written:
            time.sleep(0.001)

    monkeypatch.setattr(Saver, "begin", begin_and_wait)
    with pytest.raises(RunStopped, match="cannot be recorded: the disk is full"):
        simulate(load_experiment(None, words), tmp_path / "run")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1.safetensors"]
    resume(tmp_path / "run")
    same_bytes(tmp_path / "whole", tmp_path / "run")


class Node(State):
    def __init__(self) -> None:
        self.shared = np.arange(3, dtype=np.float32)
        self.same = self.shared
        self.table = {1: [0.1, None, True], "x": (1, "two", float("inf"))}
        self.tensor = torch.ones(2)


def test_state_round_trip_keeps_kinds_and_sharing() -> None:
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode([Node(), {}])))
    node, empty = Decoder(encoder.arrays).decode(tree)
    assert isinstance(node, Node)
    assert node.shared is node.same
    assert node.table == {1: [0.1, None, True], "x": (1, "two", float("inf"))}
    assert torch.equal(node.tensor, torch.ones(2))
    assert empty == {}
    assert len(encoder.arrays) == 2


def test_only_states_are_made_from_a_checkpoint() -> None:
    with pytest.raises(TypeError):
        Encoder().encode(object())
    with pytest.raises(KeyError):
        Decoder({}).decode(["state", "os:system", {}])
    with pytest.raises(ValueError, match="unknown kind"):
        Decoder({}).decode(["call", "os:system"])
