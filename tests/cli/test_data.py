"""`cabafl data list`, `fetch` and `show`."""

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from cabafl.cli.data import list_
from tests.cli.program import cabafl_here
from tests.data.archive_files import CIFAR100_FILES, activity_files, tar_of, zip_of
from tests.data.web import Web, serving


def test_data_show_draws_the_partition(tmp_path: Path) -> None:
    done = cabafl_here("data", "show", "mnist5k", "data.beta=0.3", "data.devices=20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4,000 of 4,000 training samples" in done.stdout
    assert (tmp_path / "partition-mnist5k.png").read_bytes().startswith(b"\x89PNG")


def test_samples_without_classes_are_not_drawn(tmp_path: Path) -> None:
    done = cabafl_here("data", "show", "synthetic", "task.name=regression", "data.partition=natural", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "synthetic: has no classes to draw; its 100 devices have 10 to 30 samples" in done.stderr


def test_data_list_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path))
    screen = io.StringIO()
    monkeypatch.setattr("cabafl.cli.data.console", Console(file=screen, width=400))
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "femnist.npz").touch()
    list_()
    rows = {words[0]: words for line in screen.getvalue().splitlines() if (words := line.replace("│", " ").split())}
    assert rows["femnist"][-5:] == ["cabafl", "data", "fetch", "femnist", "yes"]
    assert rows["shakespeare"][-5:] == ["cabafl", "data", "fetch", "shakespeare", "no"]
    assert rows["mnist5k"][-1] == rows["synthetic"][-1] == "yes"
    assert rows["npz"][-1] == "-"
    assert "hf:NAME" in rows


def test_data_fetch_from_an_incomplete_archive(tmp_path: Path) -> None:
    (tmp_path / "har.zip").write_bytes(zip_of(activity_files()))
    done = cabafl_here("data", "fetch", "activity", "--root", "new", "--from", "har.zip", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --from har.zip is not a complete activity: ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["har.zip"]


ARCHIVE = tar_of(*CIFAR100_FILES.items())
PROGRAM = """
import sys
from cabafl.cli import main
from cabafl.data import prepare, sources, verify
sources.SOURCES["cifar100"] = (sources.web(sys.argv.pop(1), prepare.CIFAR100, sys.argv.pop(1)),)
verify.CENSUS["cifar100"] = verify.Census((0, 1, 1), (0, 1, 1))
main()
"""


def start(web: Web, cwd: Path) -> "subprocess.Popen[str]":
    words = [f"{web.home}/c.tar.gz", hashlib.sha256(ARCHIVE).hexdigest(), "data", "fetch", "cifar100", "--root", "new"]
    environment = os.environ | {"no_proxy": "127.0.0.1"}
    command = [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-c",
        PROGRAM,
        *words,
    ]  # a job in the background ignores it
    return subprocess.Popen(command, cwd=cwd, text=True, env=environment, stdout=-1, stderr=-1)


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_data_fetch_stopped_and_repeated(tmp_path: Path, kill: signal.Signals) -> None:
    with serving() as web:
        web.files["/c.tar.gz"], web.stalls = ARCHIVE, [150]
        first = start(web, tmp_path)
        give_up = time.monotonic() + 60
        while not any(path.stat().st_size == 150 for path in tmp_path.rglob("*.part")):
            assert first.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        first.send_signal(kill)
        _, errors = first.communicate(timeout=60)
        assert first.returncode == (130 if kill == signal.SIGINT else -kill)
        assert "Traceback" not in errors
        assert [path.name for path in tmp_path.iterdir()] == [".new.download"]
        web.resume.set()
        again = start(web, tmp_path)
        output, errors = again.communicate(timeout=60)
        assert again.returncode == 0, errors
        assert output.splitlines()[-2:] == ["verified: 2 + 2 samples, 100 classes", "cifar100: new"]
        assert [asked for _, asked in web.requests] == ["", "bytes=150-"]
        assert [path.name for path in tmp_path.iterdir()] == ["new"]
