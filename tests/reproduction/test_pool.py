"""Which runs are planned, shared, divided and found again."""

from pathlib import Path

import pytest

from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.paper.definitions import artefacts, layout
from cabafl.reproduction.plan import Request, folder_name, layouts, missing_data, plan_runs
from cabafl.reproduction.pool import RunPool
from cabafl.reproduction.similarities import observation_path
from cabafl.reproduction.work import Reproduction
from tests.reproduction.made_up import write_artefact, write_experiment


def request(out: Path, *names: str, **more: object) -> Request:
    return Request([artefacts()[name] for name in names], "smoke", out, **more)  # type: ignore[arg-type]


def planned(out: Path, *names: str, **more: object) -> list[str]:
    asked = request(out, *names, **more)
    return [run.folder.name for run in plan_runs(asked, layouts(asked))]


def test_artefacts_share_runs(tmp_path: Path) -> None:
    both = planned(tmp_path, "table1", "fig5")
    assert both == planned(tmp_path, "table1")
    assert set(planned(tmp_path, "fig5")) <= set(both)
    assert set(planned(tmp_path, "fig10")) == set(planned(tmp_path, "table8"))
    assert len(planned(tmp_path, *artefacts())) < 200


def test_names_are_readable_and_differ_with_every_setting_that_matters() -> None:
    base = load_experiment(None, ["data.beta=0.1"])
    assert folder_name(base).startswith("mnist5k-cnn-beta0.1-cabafl-")
    assert folder_name(base).endswith("-seed1")
    same = load_experiment(None, ["data.beta=0.1", "run.workers=3", "data.devices=100", "method.k=10"])
    assert folder_name(same) == folder_name(base)
    for change in ("method.k=11", "run.virtual_time=77", "fleet.compute_watts=3", "seed=2", "run.evaluate_every=3"):
        assert folder_name(load_experiment(None, ["data.beta=0.1", change])) != folder_name(base)


def test_parts_are_disjoint_and_complete(tmp_path: Path) -> None:
    whole = planned(tmp_path, "table8", seeds=2)
    parts = [planned(tmp_path, "table8", seeds=2, part=(i, 3)) for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert len(whole) == 48


def test_the_processor_changes_no_name(tmp_path: Path) -> None:
    asked = request(tmp_path, "fig8", device="cuda:1")
    runs = plan_runs(asked, layouts(asked))
    assert {run.experiment.run.device for run in runs} == {"cuda:1"}
    assert [run.folder.name for run in runs] == planned(tmp_path, "fig8")


def test_only_keeps_matching_rows_or_columns(tmp_path: Path) -> None:
    rows = layouts(request(tmp_path, "table1", only="cifar10-cnn"))[0]
    assert [row.id for row in rows.rows] == [f"cifar10-cnn-{s}" for s in ("beta0.1", "beta0.5", "beta1.0", "iid")]
    assert {(cell.row, cell.column) for cell in rows.cells} == {(i, j) for i in range(4) for j in range(7)}
    columns = layouts(request(tmp_path, "table6", only="Config2"))[0]
    assert ([column.id for column in columns.columns], len(columns.cells)) == (["config2"], 7)
    assert [table.artefact.name for table in layouts(request(tmp_path, "table1", "table6", only="config2"))] == [
        "table6"
    ]
    with pytest.raises(UserError, match="--only = 'cifar11': matches no row or column"):
        layouts(request(tmp_path, "table1", only="cifar11"))


def test_methods_can_be_chosen_and_added(tmp_path: Path) -> None:
    table = layouts(request(tmp_path, "table3", methods=["cabafl", "fedbuff"]))[0]
    assert [column.label for column in table.columns] == ["CaBaFL", "FedBuff"]
    assert ("cifar10-resnet18-beta0.5", "cabafl") in table.published


def test_finished_runs_are_found_by_their_settings_anywhere(tmp_path: Path) -> None:
    """A folder of `cabafl compare` with any name, the same settings in other words, an execution key."""
    table = layout(artefacts()["table3"], "smoke")
    experiment = table.cells[0].experiment
    other = experiment.model_copy(
        update={"run": experiment.run.model_copy(update={"workers": 2, "checkpoint_every": 5.0})}
    )
    write_experiment(tmp_path / "elsewhere" / "deep" / "any name", other)
    work = Reproduction(request(tmp_path / "out", "table3"), [tmp_path / "elsewhere"])
    missing, total = work.runs(work.pool())
    assert (len(missing), total) == (6, 7)
    assert work.pool().runs(experiment)[0].folder.name == "any name"


def test_joined_parts_leave_nothing_to_do(tmp_path: Path) -> None:
    table = layout(artefacts()["table3"], "smoke")
    for cell in table.cells:
        home = tmp_path / ("one" if cell.column % 2 else "two")
        write_experiment(home / "runs" / folder_name(cell.experiment), cell.experiment)
    work = Reproduction(request(tmp_path / "one", "table3"), [tmp_path / "two"])
    assert work.runs(work.pool()) == ([], 7)
    assert work.results()[0].gaps == 0


def test_what_cannot_be_used_is_not_counted(tmp_path: Path) -> None:
    table = layout(artefacts()["table3"], "smoke")
    folders = [write_experiment(tmp_path / str(i), cell.experiment) for i, cell in enumerate(table.cells[:5])]
    (folders[0] / "summary.json").unlink()  # not finished
    (folders[1] / "summary.json").write_text('{"clock": "wall"}')  # real devices
    (folders[2] / "experiment.toml").write_text("seed = ")
    (folders[3] / "experiment.toml").write_text('[method]\nname = "not_here:Mine"')
    pool = RunPool([tmp_path])
    assert [pool.find(cell.experiment) for cell in table.cells[:5]] == [None, None, None, None, folders[4]]


def test_all_seeds_that_are_there_are_used(tmp_path: Path) -> None:
    write_artefact(tmp_path, "table3", lambda *_: 0.5, seeds=3)
    work = Reproduction(request(tmp_path, "table3"))
    assert work.runs(work.pool())[0] == []
    assert "Means over 3 seeds" in " ".join(work.results()[0].caption)


def test_only_figures_of_events_need_the_event_log(tmp_path: Path) -> None:
    for name in ("table3", "fig15"):
        write_artefact(tmp_path, name, lambda *_: 0.5)
    for log in tmp_path.glob("runs/*/events.jsonl"):
        log.unlink()
    table, figure = Reproduction(request(tmp_path, "table3", "fig15")).results()
    assert (table.gaps, figure.gaps > 0) == (0, True)


def test_similarities_from_elsewhere_count_without_new_runs(tmp_path: Path) -> None:
    path = observation_path(artefacts()["fig2"], "smoke", tmp_path / "other" / "runs", {})
    path.parent.mkdir(parents=True)
    path.write_text('{"splits": []}')
    for folders in ([], [tmp_path / "other"]):
        work = Reproduction(request(tmp_path / "out", "fig2"), folders)
        work.observe(print, measure=False)
        assert (tmp_path / "out" / "runs" / path.name).exists() is bool(folders)


def test_data_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "file").touch()
    asked = Request([artefacts()[name] for name in ("table1", "fig3", "fig8")], "desk", tmp_path)
    assert missing_data(asked, layouts(asked)) == {"cifar100": ["table1", "fig3"], "femnist": ["table1"]}


def test_a_folder_of_runs_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a folder; accepted: folders that contain run folders"):
        Reproduction(request(tmp_path, "table3"), [tmp_path / "missing"])


def test_an_npz_file_takes_the_place_of_a_data_set() -> None:
    table = layout(artefacts()["table7"], "desk", None, {"activity": "/data/windows.npz"})
    data = {cell.experiment.data.dataset for cell in table.cells}
    assert data == {"npz", "shakespeare"}


def test_runs_of_an_older_version_whose_numbers_have_changed_are_named(tmp_path: Path) -> None:
    """Before `fleet.forward_share`, collections took longer; FedAvg has none, so its runs count."""
    table = layout(artefacts()["table3"], "smoke")
    cells = {cell.experiment.method.name: cell.experiment for cell in table.cells}
    for method in ("cabafl", "wkafl", "fedavg"):
        path = write_experiment(tmp_path / method, cells[method]) / "experiment.toml"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("forward_share")]
        path.write_text("\n".join(lines))
    pool = RunPool([tmp_path])
    assert pool.find(cells["fedavg"]) == tmp_path / "fedavg"
    assert pool.outdated == [tmp_path / "cabafl", tmp_path / "wkafl"]
