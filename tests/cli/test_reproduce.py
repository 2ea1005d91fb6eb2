"""`cabafl reproduce` as a user types it."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from cabafl import load_experiment, simulate
from cabafl.cli import main
from cabafl.paper import definitions
from tests.cli.program import CABAFL, cabafl, cabafl_here
from tests.runs import same_bytes

OUT = "reproduction-smoke"


def test_a_figure_and_a_table_from_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 15 and Table III share the run of FedAvg. Runs have half their length."""
    monkeypatch.setitem(definitions.settings().scale["smoke"].keys["run"], "virtual_time", 120)
    first = cabafl_here("reproduce", "fig15", "--only", "FedAvg", "--jobs", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "1 runs, 0 of them finished" in first.stdout
    assert "Figure 15" in first.stdout
    assert (tmp_path / OUT / "fig15" / "figure.png").exists()
    [file] = (tmp_path / OUT / "runs").glob("*/experiment.toml")
    assert load_experiment(file).run.virtual_time == 120
    words = ["reproduce", "Table 3", "--methods", "fedavg,cabafl", "--jobs", "1"]
    second = cabafl_here(*words, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "2 runs, 1 of them finished" in second.stdout
    assert "0.37" in second.stdout
    page = (tmp_path / OUT / "index.html").read_text()
    assert "Table III" in page
    assert "Figure 15" in page
    again = cabafl_here("reproduce", "table3", "--no-run", cwd=tmp_path)
    assert again.returncode == 0
    assert "2 of 7 cells" in (tmp_path / OUT / "index.html").read_text()
    assert "…" in (tmp_path / OUT / "table3" / "table.md").read_text()


def test_two_parts_are_joined(tmp_path: Path) -> None:
    words = ["reproduce", "table7", "--only", "activity", "--methods", "fedavg,fedasync", "--jobs", "1"]
    for part in ("1/2", "2/2"):
        done = cabafl_here(*words, "--part", part, "--out", part[0], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "1 of 2 cells have no finished run" in done.stdout
    joined = cabafl(*words, "--out", "1", "--runs", "2", cwd=tmp_path)
    assert joined.returncode == 0, joined.stderr
    assert "2 runs, 2 of them finished" in joined.stdout
    assert "no finished run" not in joined.stdout


def test_a_killed_reproduction_continues(tmp_path: Path) -> None:
    words = ["reproduce", "table7", "--only", "activity", "--methods", "fedasync,cabafl", "--jobs", "1"]
    process = subprocess.Popen([*CABAFL, *words, "--out", "out", "--quiet"], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("runs/*/metrics.csv")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None  # else it was over before it was killed
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "index.html").exists()
    again = cabafl_here(*words, "--out", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    runs = [path.parent for path in (tmp_path / "out" / "runs").glob("*/summary.json")]
    assert len(runs) == 2
    for run in runs:
        experiment = load_experiment(run / "experiment.toml", ["run.workers=0"])
        simulate(experiment, tmp_path / "whole" / "runs" / run.name)
        same_bytes(tmp_path / "whole" / "runs" / run.name, run)
    whole = cabafl_here(*words, "--out", "whole", cwd=tmp_path)
    assert (whole.returncode, "2 runs, 2 of them finished" in whole.stdout) == (0, True), whole.stderr
    one, other = ((tmp_path / folder / "table7" / "table.md").read_bytes() for folder in ("whole", "out"))
    assert one == other


def test_figures_without_runs(tmp_path: Path) -> None:
    done = cabafl_here("reproduce", "fig3", "table5", "fig12", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 runs" in done.stdout
    assert "pairs of digits" in done.stdout
    assert "4 NVIDIA Jetson Nano" in done.stdout
    assert len(list((tmp_path / OUT / "runs").glob("observe-*.json"))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "NAME = 'tabel1': unknown, did you mean 'table1'?"),
        (["fig4"], "NAME = 'fig4': unknown"),
        (["list", "table1"], "NAME = 'list table1': accepted: list alone"),
        (["table3", "--scale", "desc"], "--scale = 'desc': unknown, did you mean 'desk'?"),
        (["table3", "--part", "3/2"], "--part = '3/2': accepted"),
        (["table3", "--part", "0/2"], "--part = '0/2': accepted"),
        (["table3", "--part", "half"], "--part = 'half': accepted"),
        (["table3", "--methods", "fedavgg"], "did you mean 'fedavg'?"),
        (["table3", "--only", "mars"], "--only = 'mars': matches no row or column"),
        (["table4", "--only", "iid"], "accepted: all of it: it has no runs"),
        (["table3", "--methods", "not_here:Mine"], "method.name = 'not_here:Mine': cannot be used: No module named"),
        (["table3", "--device", "gpu"], "run.device = 'gpu'"),
        (["table3", "--device", "cuda"], "run.device = 'cuda': torch finds no such GPU"),
        (["table3", "--jobs", "0"], "--jobs = '0': accepted"),
        (["table3", "--data", "cifar10"], "--data = 'cifar10': accepted: NAME=PATH"),
        (["table3", "--data", "cifer10=/"], "did you mean 'cifar10'?"),
        (["table3", "--data", "cifar10=/no/such"], "there is no such file or folder"),
        (["table3", "--runs", "missing"], "--runs = missing: not a folder"),
        (["table3", "--out", "file/below"], "--out = file/below: cannot be written"),
        (["table3", "--scale", "desk"], "data set cifar10 is missing; get it with `cabafl data fetch cifar10`"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["cabafl", "reproduce", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_only_leaves_out_is_named(tmp_path: Path) -> None:
    done = cabafl_here("reproduce", "table3", "fig8", "--only", "iid", "--no-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "table3: --only = 'iid' matches no row or column of it" in done.stderr + done.stdout
    assert "fig8: --only" not in done.stderr + done.stdout


def test_the_rest_that_can_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "file").touch()
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    done = cabafl_here("reproduce", "table1", "--scale", "desk", cwd=tmp_path)
    assert done.returncode == 2
    assert "without it: --only cifar10-" in done.stderr


def test_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without the large networks, whose measurement takes some seconds."""
    small = {name: definitions.artefacts()[name] for name in ("table4", "fig8")}
    monkeypatch.setattr(definitions, "artefacts", lambda: small)
    monkeypatch.setattr(definitions, "SCALES", ("desk", "smoke"))
    monkeypatch.setattr("sys.argv", ["cabafl", "reproduce", "list", "--scale", "desk"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("fig8" in line and line.count("5: ") == 2 for line in lines)
    assert any("table4" in line and line.count("-") == 2 for line in lines)
    assert list(tmp_path.iterdir()) == []
