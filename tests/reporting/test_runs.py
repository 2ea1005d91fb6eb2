"""Reading run folders: which are found, how they are labelled, and what is refused."""

import json
from pathlib import Path

import pytest

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.reporting.measures import measure
from cabafl.reporting.runs import by_label, load_runs
from cabafl.reporting.trace import count_events, read_first_seconds
from tests.reporting.sample_runs import write_run


def labels(*folders: Path) -> list[str]:
    return list(by_label(load_runs(folders)))


def test_runs_are_found_at_any_depth_once_and_in_the_order_of_the_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "machine1/deep/a", "fedavg")
    write_run(tmp_path / "machine1/b", "my_package.module:Mine")
    write_run(tmp_path / "machine2/c", "cabafl", seed=2)
    runs = load_runs([tmp_path / "machine1", tmp_path / "machine2", tmp_path / "machine1/b"])
    assert [(run.label, run.seed) for run in runs] == [("cabafl", 2), ("fedavg", 1), ("Mine", 1)]


def test_folders_are_paths_or_strings_one_or_several(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=2)
    for folders in (tmp_path, str(tmp_path), [one, two], [str(one), str(two)], (one, str(two))):
        assert [run.folder for run in load_runs(folders)] == [one, two]
    assert load_runs(str(one), {str(one): "mine"})[0].label == "mine"


def test_unfinished_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "stopped", finished=False)
    warnings: list[str] = []
    assert len(load_runs([tmp_path], warn=warnings.append)) == 1
    assert warnings == [f"{tmp_path / 'stopped'}: not finished (it has no summary.json); left out"]


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings="[data]\nbeta = 0.1")
    write_run(tmp_path / "b", settings="[data]\nbeta = 0.5", seed=2)
    write_run(tmp_path / "c", "cabafl")
    assert labels(tmp_path) == ["cabafl", "fedavg (beta = 0.1)", "fedavg (beta = 0.5)"]


def test_settings_that_change_no_result_do_not_separate_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings="[run]\nworkers = 4")
    write_run(tmp_path / "b", settings='[data]\nroot = "elsewhere"', seed=2)
    assert labels(tmp_path) == ["fedavg"]


def test_another_npz_file_is_another_data_set(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings='[data]\ndataset = "npz"\nroot = "one.npz"')
    write_run(tmp_path / "b", settings='[data]\ndataset = "npz"\nroot = "two.npz"', seed=2)
    assert labels(tmp_path) == ["fedavg (root = one.npz)", "fedavg (root = two.npz)"]


def test_variants_are_labelled_with_the_folder_names_of_a_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "cabafl-seed1", "cabafl", settings='selection = "balanced"')
    write_run(tmp_path / "conf3-seed1", "cabafl", settings='selection = "random"')
    assert labels(tmp_path) == ["cabafl", "conf3"]


def test_variants_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    for folder, k in zip("abcd", (20, 5, 100, 10), strict=True):
        write_run(tmp_path / folder, "cabafl", settings=f"k = {k}")
    assert labels(tmp_path) == [f"cabafl (k = {k})" for k in (5, 10, 20, 100)]
    for beta in ("1.0", "0.5", "0.05", "0.1"):
        write_run(tmp_path / "more" / f"beta{beta}-seed1", "fedavg", settings=f"[data]\nbeta = {beta}")
    assert labels(tmp_path / "more") == [f"fedavg (beta = {beta})" for beta in ("0.05", "0.1", "0.5", "1.0")]


def test_given_labels_are_used(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    runs = load_runs([one, two], {one: "first", two: "second"})
    assert [run.label for run in runs] == ["first", "second"]


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    warnings: list[str] = []
    assert len(load_runs([tmp_path], warn=warnings.append)) == 1
    assert "the same label and seed" in warnings[0]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", '{"method": "fedavg"}'),
        ("metrics.csv", "time\n1,2,3\n"),
        ("metrics.csv", "time\n"),
        ("metrics.csv", None),
        ("events.jsonl", None),
        ("experiment.toml", "seed = -1"),
        ("experiment.toml", "seed ="),
    ],
)
def test_broken_folder_is_one_line(tmp_path: Path, file: str, content: str | None) -> None:
    path = write_run(tmp_path / "run") / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_runs([tmp_path])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", [b'{"time":1.0,"event":"dispatch"', b'{"time":1,"event":"upload","job":"x"}', b'{"event":"upload"\xff']
)
def test_broken_event_log_is_one_line_that_names_the_file(tmp_path: Path, line: bytes) -> None:
    path = write_run(tmp_path / "run") / "events.jsonl"
    path.write_bytes(line)
    with pytest.raises(UserError, match=r"events\.jsonl: not an event"):
        count_events(path)


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no finished run found; accepted: .*, unfinished ones with --unfinished"):
        load_runs([tmp_path])
    with pytest.raises(UserError, match="not a folder"):
        load_runs([tmp_path / "missing"])


def test_totals_of_an_event_log(tmp_path: Path) -> None:
    run = load_runs([write_run(tmp_path / "run", jobs=14)])[0]
    assert sum(run.counts.selections.values()) == 14
    assert sum(run.counts.staleness.values()) == 12
    assert run.counts.longest == 3
    assert run.counts.never_heard == set()  # every device with a lost job also has an upload


def test_devices_that_are_always_restarted_are_counted(tmp_path: Path) -> None:
    """FedSA with a staleness bound of 1 and a buffer of 1 restarts every device that takes longer than two uploads of
    the others."""
    words = ["data.dataset=synthetic", "data.devices=6", "model.name=mlp", "fleet.tiers=config4", "fleet.slots=3"]
    method = ["method.name=fedsa", "method.tau0=1", "method.buffer=1", "run.virtual_time=200", "run.workers=0"]
    simulate(load_experiment(None, [*words, *method]), tmp_path / "run")
    run = load_runs([tmp_path / "run"])[0]
    lines = [json.loads(line) for line in run.events.read_text().splitlines()]
    restarted = {line["device"] for line in lines if line["event"] == "restart"}
    uploaded = {line["device"] for line in lines if line["event"] == "upload"}
    assert run.counts.never_heard == restarted - uploaded != set()
    assert measure([run]).rows[0].values["never_heard"] == len(restarted - uploaded)


def test_first_seconds_end_at_the_given_second(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", jobs=14) / "events.jsonl"
    first = read_first_seconds(path, 13.0)
    assert max(job.end for job in first.jobs) == 13.0
    assert sum(job.end - job.start for job in first.jobs) == pytest.approx(2 * 13.0 - 1.0)  # one is lost 1 s early
    assert [job.lost for job in first.jobs if job.lost] == ["crash"]
    assert first.published == [3, 6, 9, 12]
