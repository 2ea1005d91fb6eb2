"""Snapshots: what happens after one was taken does not show in it, and models are not copied for it."""

import hashlib
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from cabafl.engine import tensors
from cabafl.engine.checkpoint import Checkpoint, Snapshot, load_checkpoint, take_snapshot, write_snapshot
from cabafl.engine.core import Limits
from cabafl.engine.tensors import Abandoned, write_tensors
from cabafl.engine.wall import WallEngine
from cabafl.methods.base import Weights
from cabafl.state import Arrays, frozen
from tests.fleet_play import CABAFL_AUTO, DEVICES, FEATURES, INITIAL, SIZES, Play, method_named, trained, wall_engine
from tests.runs import ALL_METHODS
from tests.scripted import World, fleet

ARRAYS: Arrays = {
    "floats": np.linspace(0, 1, 1001),
    "model": np.arange(7, dtype=np.float32),
    "table": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flags": np.array([True, False, True]),
    "none": np.zeros((3, 0), dtype=np.float32),
    "one": np.array(5, dtype=np.int64),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def taken(state: dict[str, Any]) -> Snapshot:
    return take_snapshot(Checkpoint(1, state, {"events.jsonl": 3, "metrics.csv": 5}, 1.5))


def content(snapshot: Snapshot) -> str:
    """Everything in a snapshot as one checksum."""
    digest = hashlib.sha256(repr(snapshot.tree).encode())
    for name, array in snapshot.arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_the_file_is_one_of_safetensors_in_pieces_of_any_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "PIECE", size)
    monkeypatch.setattr(tensors, "SMALL", size)
    digest = write_tensors(tmp_path / "file", ARRAYS, {"state": "ü"})
    assert digest == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    with safe_open(tmp_path / "file", framework="numpy") as file:
        assert file.metadata() == {"state": "ü"}
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_arrays_without_a_name_in_the_format_are_refused(tmp_path: Path) -> None:
    for array in (np.zeros(2, dtype=complex), np.zeros(2, dtype=">f4")):
        with pytest.raises(TypeError, match="cannot store an array of"):
            write_tensors(tmp_path / "file", {"x": array}, {})


def test_an_abandoned_checkpoint_leaves_the_previous_one(tmp_path: Path) -> None:
    state = {"now": 1.0, "model": np.zeros(4, dtype=np.float32)}
    write_snapshot(tmp_path, taken(state), "x = 1")
    with pytest.raises(Abandoned):
        write_snapshot(tmp_path, take_snapshot(Checkpoint(2, state, {}, 2.0)), "x = 1", lambda: True)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["checkpoint-1.safetensors"]
    checkpoint = load_checkpoint(tmp_path, "x = 1")
    assert checkpoint is not None
    assert (checkpoint.number, checkpoint.wall_seconds) == (1, 1.5)
    assert checkpoint.positions == {"events.jsonl": 3, "metrics.csv": 5}


def test_models_and_read_only_arrays_are_shared_and_all_others_copied() -> None:
    model, other = np.zeros(50, dtype=np.float32), np.zeros(50, dtype=np.float32)
    update, changing = frozen(np.zeros(50)), np.zeros(50)
    view = frozen(changing[:10])  # read-only, but its owner is not
    sent = np.frombuffer(bytes(80), dtype=np.float64)
    table = torch.zeros(2, 3)
    state = {"now": 0.0, "model": model, "rest": [other, update, changing, view, sent, table]}
    snapshot = taken(state)
    shared = [any(kept is array for kept in snapshot.arrays.values()) for array in (model, other, update, sent)]
    assert shared == [True] * 4
    changing += 1
    table += 1
    assert len(snapshot.arrays) == 7
    assert not any(array.any() for array in snapshot.arrays.values())


def moments(engine: WallEngine, kept: list[tuple[Snapshot, str]], run: Play) -> None:
    """Takes a snapshot after every input of a run."""
    handle = engine.handle

    def watched(given: Any) -> None:
        handle(given)
        if engine.started:
            snapshot = taken(engine.state())
            kept.append((snapshot, content(snapshot)))

    engine.handle = watched  # type: ignore[method-assign]
    run.run()


@pytest.mark.parametrize("method", [*ALL_METHODS, CABAFL_AUTO])
def test_a_run_on_real_devices_does_not_change_its_snapshots(method: str) -> None:
    engine = wall_engine(method, lambda event: None)
    kept: list[tuple[Snapshot, str]] = []
    moments(engine, kept, Play(engine, 1))
    assert len(kept) > 30
    assert len({before for _, before in kept}) > 30
    assert all(content(snapshot) == before for snapshot, before in kept)


@pytest.mark.parametrize("method", [*ALL_METHODS, CABAFL_AUTO])
def test_a_simulation_does_not_change_its_snapshots(method: str) -> None:
    world = simulation(method)
    world.engine.start()
    kept = []
    while world.engine.step():
        snapshot = taken(world.engine.state())
        kept.append((snapshot, content(snapshot)))
    assert len(kept) > 30
    assert all(content(snapshot) == before for snapshot, before in kept)


def simulation(method: str) -> World:
    return World(
        method_named(method),
        fleet([1.0 + 0.3 * device for device in range(DEVICES)], SIZES),
        lambda job: trained(job.number, job.weights),
        initial=INITIAL,
        slots=3,
        limits=Limits(seconds=60.0, evaluate_every=7.0),
        features=FEATURES,
    )


@pytest.mark.parametrize("method", [*ALL_METHODS, CABAFL_AUTO])
def test_no_method_changes_a_model_in_place(method: str) -> None:
    """Every model is made read-only as soon as the engine or the method has it."""
    world = simulation(method)
    engine = world.engine
    train, publish, dispatch = world.executor.train, engine.publish, engine.dispatch
    world.executor.train = lambda job: frozen(train(job))

    def publishing(weights: Weights, /, **facts: Any) -> None:
        publish(frozen(weights), **facts)

    def dispatching(device: int, weights: Weights, *rest: Any, **more: Any) -> int | None:
        return dispatch(device, frozen(weights), *rest, **more)

    engine.publish, engine.dispatch = publishing, dispatching  # type: ignore[method-assign]
    engine.run()
    assert engine.version > 5
    assert engine.ledger.uploads > 30


def test_a_thread_that_writes_leaves_the_interpreter_to_others(tmp_path: Path) -> None:
    """Python code in this thread gets on while the other one writes 100 MB: at no time does it do nothing for as long
    as half of the write takes."""
    arrays = {str(i): np.ones(2_500_000, dtype=np.float32) for i in range(10)}
    writer = threading.Thread(target=write_tensors, args=(tmp_path / "file", arrays, {}))
    moments = [time.perf_counter()]
    writer.start()
    while writer.is_alive():
        moments.append(time.perf_counter())
    longest = max(after - before for before, after in pairwise(moments))
    assert longest < (moments[-1] - moments[0]) / 2
