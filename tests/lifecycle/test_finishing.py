"""`finish` of runs whose folder, data or process are not as they should be; see `test_ending` for the usual case."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl import UserError, finish, load_experiment, simulate
from cabafl.files import lock
from cabafl.lifecycle import finishing
from cabafl.lifecycle.ending import REQUEST
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from tests.cli.program import refused
from tests.runs import settings

pytestmark = pytest.mark.usefixtures("no_pixels")


def paused(folder: Path, *more: str, data: object = None) -> Path:
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("fedavg", "run.workers=0", *more)), folder, until=20, data=data)
    return folder


def test_a_process_that_does_not_answer_is_spoken_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = paused(tmp_path / "run")
    monkeypatch.setattr(finishing, "FIRST_NOTICE", 0.5)
    said: list[str] = []
    with (folder / "events.jsonl").open("r+b") as other:
        lock(other, "free")

        def hear(text: str) -> None:
            said.append(text)
            assert (folder / REQUEST).exists()
            other.close()  # the process ends

        assert finish(folder, warn=hear)["ended_by"] == "finish"
    assert len(said) == 1
    assert said[0].startswith(f"{folder}: asked the process that writes this run ")
    assert not (folder / REQUEST).exists()


def test_data_that_were_handed_in_are_handed_in_again(tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((120, 4), dtype=np.float32)
    data = {"x_train": x, "y_train": (x[:, 0] > 0.5) * 1, "x_test": x[:40], "y_test": (x[:40, 0] > 0.5) * 1}
    own = ["data.devices=4", "fleet.slots=2", "model.name=mlp", "method.name=fedavg", "run.virtual_time=60"]
    with pytest.raises(Paused):
        simulate(
            load_experiment(None, [*own, "data.partition=iid", "run.workers=0"]), tmp_path / "run", None, None, 20, data
        )
    with pytest.raises(UserError, match=r"^data.dataset = 'given:.*': handed in from Python; accepted: .* data="):
        finish(tmp_path / "run")
    with pytest.raises(UserError, match=r"but the run has given:.*; accepted: the data that it began with"):
        finish(tmp_path / "run", data=data | {"x_train": 2 * x})
    assert finish(tmp_path / "run", data=data)["ended_by"] == "finish"


DAMAGE: dict[str, list[bytes | None]] = {
    "environment.json": [None, b"{", b"[]", b"\xff", b'{"metric": 3}', b'{"metric": {"name": "mse"}}'],
    "metrics.csv": [b"", b"time,version\n1,2\n", b"\xff" * 9999],
    "checkpoint.json": [b"", b"[]", b"\xff"],
}


@pytest.mark.parametrize(("name", "content"), [(name, each) for name, all_ in DAMAGE.items() for each in all_])
def test_a_damaged_folder_is_one_line_and_stays_as_it_is(
    name: str,
    content: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = paused(tmp_path / "run")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for words in (["finish"], ["resume"]):
        assert str(folder) in refused([*words, str(folder)], monkeypatch, capsys)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    if name == "metrics.csv":
        refused(["report", "--unfinished", str(folder), "--out", str(tmp_path / "report")], monkeypatch, capsys)


@pytest.mark.parametrize("end", [-1, None, "x", 10**9, 17])
@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv"])
def test_wrong_positions_are_found(name: str, end: object, tmp_path: Path) -> None:
    folder = paused(tmp_path / "run")
    about = json.loads((folder / "checkpoint.json").read_text())
    about["positions"][name] = end
    if end is None:
        del about["positions"][name]
    (folder / "checkpoint.json").write_text(json.dumps(about))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if (name, end) == ("events.jsonl", 17):
        return  # within a line: nobody reads it back
    for go_on in (finish, resume):
        with pytest.raises(UserError, match=str(folder)) as error:
            go_on(folder)
        assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("path", [None, 3, b"run", ["run"]])
def test_a_path_of_another_type(path: object) -> None:
    for function in (finish, resume):
        with pytest.raises(UserError, match=r"^path = .*: accepted: the path of a run folder$"):
            function(path)  # type: ignore[arg-type]
    for wrong in ("run.workers=2", [3]):
        with pytest.raises(UserError, match=r"not a run folder|^settings = .*: accepted: a list of section.key=value$"):
            resume("nowhere", settings=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experiment": {"seed": 1}}, "experiment = {'seed': 1}: accepted: what load_experiment returns"),
        ({"experiment": "file.toml"}, "experiment = 'file.toml': accepted: what load_experiment returns"),
        ({"out": 3}, "out = 3: accepted: the path of a folder, or None"),
        ({"until": "20"}, "until = '20': accepted: a virtual time in seconds"),
    ],
)
def test_a_simulation_with_arguments_of_another_type(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"experiment": load_experiment(None, settings("fedavg")), "out": tmp_path / "run"}
    with pytest.raises(UserError, match=f"^{message}"):
        simulate(**(usual | arguments))
    assert not (tmp_path / "run").exists()


def test_settings_of_another_type(tmp_path: Path) -> None:
    folder = paused(tmp_path / "run")
    for wrong in ("run.workers=2", [3]):
        with pytest.raises(UserError, match=r"^settings = .*: accepted: a list of section.key=value$"):
            resume(folder, settings=wrong)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"run.virtual_time=90: cannot be changed on a run that has begun; accepted: data.r"
    ):
        finish(folder, settings=["run.virtual_time=90"])


def test_a_damaged_summary_is_not_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = paused(tmp_path / "run")
    (folder / "summary.json").write_text("{")
    line = refused(["finish", str(folder)], monkeypatch, capsys)
    assert f"{folder}/summary.json: cannot be read: " in line
    assert (folder / "summary.json").read_text() == "{"
