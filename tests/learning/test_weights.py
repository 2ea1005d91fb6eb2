"""Weights to start from: both formats, and files that do not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.learning.task import FlatModel
from cabafl.learning.weights import start_from
from cabafl.lifecycle.simulate import simulate


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


class Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("hacked"),)  # type: ignore[return-value]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_both_formats(tmp_path: Path, suffix: str, old: bool) -> None:
    trained, fresh = normed(), FlatModel(normed())
    trained.train()(torch.randn(9, 4))  # statistics and a counter of its own
    path = tmp_path / f"model.{suffix}"
    if suffix == "pt":
        torch.save(trained.state_dict(), path, _use_new_zipfile_serialization=not old)
    else:
        save_file(trained.state_dict(), path)
    start_from(fresh, path)
    np.testing.assert_array_equal(fresh.save(), FlatModel(trained).save())
    assert int(fresh.network.state_dict()["1.num_batches_tracked"]) == 1


def changed(change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    tensors = normed().state_dict()
    change(tensors)
    return tensors


BAD = {
    "missing": (changed(lambda t: (t.pop("0.weight"), t.pop("0.bias"))), "has no '0.weight' and 1 more; accepted: all"),
    "more": (changed(lambda t: t.update(head=torch.ones(2))), "the network has no 'head'; accepted: its tensors only"),
    "shape": (
        changed(lambda t: t.update({"2.bias": torch.ones(5)})),
        r"'2.bias' has the shape \(5,\); accepted: \(3,\)",
    ),
    "nan": (changed(lambda t: t["2.bias"].fill_(torch.nan)), "numbers that are not finite"),
    "list": ([torch.ones(2)], "is not a state dictionary"),
    "nested": ({"epoch": 3, "state_dict": {"a": torch.ones(2)}}, "not a state dictionary; .*; save its 'state_dict'"),
    "numbers as names": ({0: torch.ones(2)}, r"has no '0.weight' and \d+ more"),
    "none": (None, "is not a state dictionary"),
    "complex": (changed(lambda t: t.update({"2.bias": torch.ones(3) * 1j})), "'2.bias' is a complex tensor"),
    "sparse": (changed(lambda t: t.update({"2.bias": torch.ones(3).to_sparse()})), "'2.bias' is a sparse tensor"),
    "large": (changed(lambda t: t.update({"2.bias": torch.full((3,), 1e300, dtype=torch.float64)})), "not finite"),
    "code": ({"0.weight": Hostile()}, "cannot be read; accepted: a safetensors file"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_do_not_fit(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = BAD[case]
    torch.save(content, tmp_path / "model.pt")
    model = FlatModel(normed())
    before = model.save()
    with pytest.raises(UserError, match=f"^model.weights = .*model.pt.*{message}"):
        start_from(model, tmp_path / "model.pt")
    np.testing.assert_array_equal(model.save(), before)
    assert not Path("hacked").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"PK nothing", b"\x08\0\0\0\0\0\0\0{broken}", b"text"])
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read; accepted: a safetensors file, or a state dictionary"):
        start_from(FlatModel(normed()), tmp_path / "model")


def test_a_header_that_begins_like_a_pickle(tmp_path: Path) -> None:
    trained, fresh, path = normed(), FlatModel(normed()), tmp_path / "model"
    for length in range(0, 400, 8):
        save_file(trained.state_dict(), path, {"note": "x" * length})
        if path.read_bytes()[:2] == b"\x80\x02":
            start_from(fresh, path)
            np.testing.assert_array_equal(fresh.save(), FlatModel(trained).save())
            return
    raise AssertionError("no header of 640 bytes")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        start_from(FlatModel(normed()), tmp_path)


def test_a_run_starts_where_another_ended(tmp_path: Path) -> None:
    settings = ["data.dataset=synthetic", "data.devices=10", "model.name=mlp", "run.workers=0", "method.name=fedavg"]
    settings += ["run.virtual_time=40"]
    first = simulate(load_experiment(None, settings), tmp_path / "first")
    second = simulate(load_experiment(None, [*settings, f"model.weights={tmp_path / 'first/model.safetensors'}"]))
    assert second.metrics["loss"][0] == first.metrics["loss"].iloc[-1] < first.metrics["loss"][0]
