"""`cabafl config`: what it prints is a valid experiment file."""

from pathlib import Path

from tests.cli.program import cabafl, cabafl_here


def test_printed_configuration_is_a_working_file(tmp_path: Path) -> None:
    done = cabafl("config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "all.toml").write_text(done.stdout)
    again = cabafl_here("config", "all.toml", cwd=tmp_path)
    assert again.stdout == done.stdout
    changed = cabafl_here("config", "all.toml", "method.k=7", 'fleet.tiers="config2"', cwd=tmp_path)
    assert "k = 7" in changed.stdout
    assert 'tiers = "config2"' in changed.stdout


def test_the_settings_of_the_paper_come_with_the_package(tmp_path: Path) -> None:
    done = cabafl_here("config", "--paper", "cifar10-cnn-beta0.1", "seed=7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'dataset = "cifar10"' in done.stdout
    assert "beta = 0.1" in done.stdout
    assert done.stdout.startswith("seed = 7")
    wrong = cabafl_here("config", "--paper", "cifar10-cnn-beta0.2", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert "did you mean 'cifar10-cnn-beta" in wrong.stderr
    both = cabafl_here("config", "--paper", "cifar10-cnn-iid", "mine.toml", cwd=tmp_path)
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    assert "not together with the file mine.toml" in both.stderr


def test_a_key_set_to_none_is_written_and_read_back(tmp_path: Path) -> None:
    done = cabafl_here("config", "run.max_dispatches=5", cwd=tmp_path)
    assert 'virtual_time = "none"' in done.stdout
    (tmp_path / "all.toml").write_text(done.stdout)
    again = cabafl_here("config", "seed=1", "all.toml", cwd=tmp_path)
    assert again.stdout == done.stdout
