"""Several methods on one fleet: their order, what an interruption leaves, and what the report is told."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.comparison.grid import GridRun
from cabafl.comparison.study import LOCAL, STUDY, Study, check_same, make_study, run_study, slow_boards, stored_study
from cabafl.comparison.variants import method_variants
from cabafl.config import load_experiment
from cabafl.deployment.folder.layout import DEVICE, FleetFolder, FleetSettings
from cabafl.deployment.log import Log
from cabafl.deployment.testbed.testbed import OpenFleet
from cabafl.errors import UserError
from cabafl.lifecycle.run import Listener
from cabafl.lifecycle.stopping import Stopped
from tests.deployment.fleet_runs import DEVICES, FEDASYNC, JOBS, FleetRun, after_uploads, terminate
from tests.deployment.fleet_runs import fleet_run as fleet_run

SETTINGS = FEDASYNC[:-1]


class Scene:
    """A study on a fleet in this process."""

    def __init__(self, fleet: FleetRun) -> None:
        self.fleet, self.out = fleet, fleet.path / "study"
        folder = FleetFolder(fleet.path / "folder", FleetSettings(ip=("192.0.2.7",)))
        folder.state.mkdir(parents=True)
        self.open = OpenFleet(folder)
        self.served: list[str] = []

    def runs(
        self, methods: str = "fedasync,fedavg", *more: str, seeds: int = 1, own: Sequence[str] = ()
    ) -> list[GridRun]:
        base = load_experiment(None, [*SETTINGS, *more])
        return make_study(base, method_variants(methods, base, own), range(1, 1 + seeds), self.out, DEVICES)

    def carry_out(self, runs: list[GridRun], listeners: dict[str, Listener] | None = None) -> None:
        @contextmanager
        def outputs(run: GridRun) -> Iterator[tuple[Listener | None, Log]]:
            self.served.append(f"{run.label}-{run.seed}")
            yield (listeners or {}).get(run.label), Log(file=self.fleet)  # type: ignore[arg-type]

        run_study(runs, self.open, self.fleet.fleet, outputs)

    def uploads(self, run: GridRun) -> list[int]:
        events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
        return [event["job"] for event in events if event["event"] == "upload"]


@pytest.fixture
def scene(fleet_run: FleetRun) -> Scene:
    return Scene(fleet_run)


def test_every_method_with_one_seed_then_with_the_next(scene: Scene) -> None:
    runs = scene.runs(seeds=2)
    assert not scene.out.exists(), "nothing is written before the first run"
    scene.carry_out(runs)
    assert scene.served == ["fedasync-1", "fedavg-1", "fedasync-2", "fedavg-2"]
    for run in runs:
        assert run.done
        assert sorted(scene.uploads(run)) == list(range(JOBS)), "each job of its own run, once"
    assert len(scene.fleet.fleet.carriers) == 4
    scene.served.clear()
    more = scene.runs("fedasync,fedavg,fedbuff")
    scene.carry_out(more)
    assert scene.served == ["fedbuff-1"], "a method that is added later"


def test_an_interrupted_study_continues_where_it_was(scene: Scene) -> None:
    runs = scene.runs()
    with pytest.raises(Stopped):
        scene.carry_out(runs, {"fedavg": after_uploads(4, terminate())})
    first, second = runs
    assert first.done
    assert not second.done
    before = scene.uploads(second)
    assert 4 <= len(before) < JOBS
    stamp = (first.folder / "summary.json").stat().st_mtime_ns
    scene.carry_out(scene.runs())
    assert scene.served == ["fedasync-1", "fedavg-1", "fedavg-1"]
    assert (first.folder / "summary.json").stat().st_mtime_ns == stamp
    after = scene.uploads(second)
    assert after[: len(before)] == before, "from its journal, not from the beginning"
    assert sorted(after) == list(range(JOBS))


def test_a_method_that_fails_does_not_stop_the_others(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_study.py").write_text(
        "from cabafl.methods.fedavg import FedAvg\n"
        "class Faulty(FedAvg):\n"
        "    def choose(self, server):\n"
        "        raise ValueError('my mistake')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runs = scene.runs("faulty_study:Faulty,fedasync")
    scene.carry_out(runs)
    assert [run.done for run in runs] == [False, True]
    assert runs[0].failure is not None
    assert "my mistake" in runs[0].failure
    assert "\n" not in runs[0].failure
    assert "choose" in runs[0].log.read_text(), "where it happened"


def test_what_does_not_fit_is_found_before_anything_is_written(scene: Scene) -> None:
    dp = ["privacy.dp_clip=1.0", "privacy.dp_noise=1.0"]
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: scene.runs("fedasync", "fleet.slots=9"), "fleet.slots = 9: at most the number of devices, 4"),
        (
            lambda: scene.runs("fedasync,wkafl", *dp, own=["wkafl.stage_rule=loss"]),
            "privacy.dp_noise: devices then report no training loss",
        ),
        (lambda: scene.runs("cabafl", "model.feature_layer=nowhere"), "feature_layer = 'nowhere'"),
    ]
    for call, message in cases:
        with pytest.raises(UserError, match=message):
            call()
    base = load_experiment(None, ["model.name=mlp"])
    with pytest.raises(UserError, match=r"run\.wall_time: missing"):
        make_study(base, {"fedavg": {"name": "fedavg"}}, [1], scene.out, DEVICES)
    assert not scene.out.exists()


def test_a_run_with_other_settings_is_not_overwritten(scene: Scene) -> None:
    scene.carry_out(scene.runs("fedasync"))
    with pytest.raises(UserError, match="holds a run with other settings"):
        scene.runs("fedasync", "training.epochs=2")


# The folder


def test_the_folder_of_a_study(tmp_path: Path) -> None:
    out, study = tmp_path / "out", Study(LOCAL, 10, 5.0)
    assert stored_study(out) is None
    check_same(out, study)
    assert not out.exists()
    out.mkdir()
    (out / ".lock").touch()
    check_same(out, study)
    study.store(out)
    check_same(out, study)
    for other, message in (
        (replace(study, devices=4), "--devices = 4: the study in .* has 10; accepted: the same, or another --out"),
        (replace(study, time_scale=1.0), "--time-scale = 1.0: the study in .* has 5.0"),
        (Study("/opt/fleet", 10), "--fleet = /opt/fleet: the study in .* has local"),
    ):
        with pytest.raises(UserError, match=message):
            check_same(out, other)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"fleet": "local"}', '{"who": 1}', "\udcff"])
def test_a_damaged_study_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / STUDY).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"study\.json: damaged") as caught:
        stored_study(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(UserError, match="holds something else"):
        stored_study(tmp_path)
    with pytest.raises(UserError, match="cannot be read: Not a directory"):
        stored_study(tmp_path / "letters.txt")


# Boards that this machine cannot imitate


def test_a_machine_that_is_too_slow_is_named(scene: Scene) -> None:
    for number, pace in ((0, 2.0), (1, 4.0)):
        folder = scene.open.folder.path / "devices" / f"{number:03}"
        folder.mkdir(parents=True)
        (folder / DEVICE).write_text(f'server = "x:1"\nid = {number}\npartition-id = 0\npace = {pace}\n')
    slow, fine, unfinished = (
        GridRun(label, 1, load_experiment(None), scene.out / label) for label in ("slow", "fine", "unfinished")
    )
    for run, seconds in ((slow, (6.0, 8.1)), (fine, (2.0, 4.1)), (unfinished, (9.0, 9.0))):
        run.folder.mkdir(parents=True)
        jobs = [{"time": 0.0, "event": "dispatch", "job": job, "device": job, "due": 1.0} for job in (0, 1)]
        answers = [{"time": 9.0, "event": "answer", "job": j, "seconds": s} for j, s in enumerate(seconds)]
        (run.folder / "events.jsonl").write_text(
            "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in [*jobs, *answers])
        )
    for run in (slow, fine):
        (run.folder / "summary.json").touch()
    [line] = slow_boards([slow, fine, unfinished], scene.open.folder)
    assert line.startswith("slow, seed 1: a job took 2.5 times as long (median) as on the imitated board")
