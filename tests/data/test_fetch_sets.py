"""FEMNIST, Shakespeare, activity and CIFAR-100 in the exact forms of their sources, over loopback and with --from."""

import gzip
import hashlib
import io
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.data import load, prepare, sources, verify
from cabafl.data.fetch import fetch
from cabafl.data.verify import Census, Minimum
from cabafl.errors import UserError
from tests.data.archive_files import (
    CIFAR100_FILES,
    activity_files,
    cifar100_batch,
    png,
    small_cifar100,
    tar_of,
    zip_of,
)
from tests.data.leaf_files import write_leaf
from tests.data.web import Web


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declares the small data sets of these tests complete."""
    small_cifar100(monkeypatch)
    monkeypatch.setitem(verify.CENSUS, "activity", Census((1, 1, 1), (1, 1, 1), (1, 1)))
    monkeypatch.setitem(verify.MINIMUM, "femnist", Minimum(2, 2))
    monkeypatch.setitem(verify.MINIMUM, "shakespeare", Minimum(100, 2))


def fetched(name: str, target: Path, given: Path | None = None) -> tuple[Any, list[str]]:
    messages: list[str] = []
    fetch(name, target, lambda text, done, total: messages.append(text), given)
    assert [path for path in target.parent.iterdir() if path.name.startswith(".")] == []
    return load(name, root=target), messages


# activity


def test_activity_from_the_archive_in_the_archive(
    monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path
) -> None:
    inner = zip_of(activity_files())
    web.files["/240/human+activity.zip"] = zip_of({"UCI HAR Dataset.zip": inner, "UCI HAR Dataset.names": b"text"})
    web.lengths = False  # as the UCI archive answers
    sources_of_set = tuple(
        sources.web(f"{web.home}/{path}", prepare.ACTIVITY) for path in ("gone", "240/human+activity.zip")
    )
    monkeypatch.setitem(sources.SOURCES, "activity", sources_of_set)
    data, messages = fetched("activity", tmp_path / "activity")
    assert data.input_shape == (561,)
    assert data.train.x[:, 0].tolist() == pytest.approx([0, 0.1, 0.2])
    assert data.train.y.tolist() == [0, 1, 2]
    assert [text.split()[0] for text in messages if " " in text] == ["activity", "failed:", "activity", "verified:"]
    found = {str(path.relative_to(tmp_path / "activity")) for path in (tmp_path / "activity").rglob("*.txt")}
    assert "UCI HAR Dataset/README.txt" in found
    assert not any("Inertial" in name or "MACOSX" in name for name in found)


@pytest.mark.parametrize("form", ["folder", "inner folder", "archive"])
def test_activity_from_what_is_there(small: None, tmp_path: Path, form: str) -> None:
    given = tmp_path / "mine"
    for name, content in activity_files().items():
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_bytes(content)
    if form == "archive":
        given = tmp_path / "UCI HAR Dataset.zip"
        given.write_bytes(zip_of(activity_files()))
    elif form == "inner folder":
        given = given / "UCI HAR Dataset"
    data, _ = fetched("activity", tmp_path / "target", given)
    assert len(data.test) == 3
    assert given.exists()


def test_activity_that_is_not_whole(tmp_path: Path) -> None:
    given = tmp_path / "har.zip"
    given.write_bytes(zip_of(activity_files()))  # three windows instead of 7,352
    with pytest.raises(UserError, match=r"--from .*har\.zip is not a complete activity: .*expected 7,352 \+ 2,947"):
        fetch("activity", tmp_path / "target", given=given)
    files = activity_files()
    del files["UCI HAR Dataset/test/subject_test.txt"]
    given.write_bytes(zip_of(files))
    with pytest.raises(UserError, match=r"does not contain test/subject_test\.txt"):
        fetch("activity", tmp_path / "target", given=given)
    assert list(tmp_path.iterdir()) == [given]


# Shakespeare

PLAY = "\n".join(
    f"  {role}. {'Words of ' + role + ' in act ' + str(act) + ', '}\n    {'and they go on and on ' * 3}"
    for act in range(8)
    for role in ("ROMEO", "JULIET")
)
EDITION = (
    f"Etext\n\nTHE SONNETS\n\nby William Shakespeare\n\n1595\n\nTHE PLAY\n\nby William Shakespeare\n\n{PLAY}\nTHE END\n"
)


def test_shakespeare_from_project_gutenberg(
    monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path
) -> None:
    web.files["/old/old/1994-01-100.zip"] = zip_of({"100.txt": EDITION.encode("latin-1")})
    offered = tuple(
        sources.web(f"{web.home}/{path}/1994-01-100.zip", prepare.SHAKESPEARE) for path in ("old", "old/old")
    )
    monkeypatch.setitem(sources.SOURCES, "shakespeare", offered)
    data, messages = fetched("shakespeare", tmp_path / "shakespeare")
    assert data.kind == "text"
    assert messages[-1].endswith("80 classes, 2 users for training and 2 for testing")
    roles = json.loads(gzip.decompress((tmp_path / "shakespeare" / "shakespeare_roles.json.gz").read_bytes()))
    assert list(roles) == ["THE_PLAY_JULIET", "THE_PLAY_ROMEO"]
    assert roles["THE_PLAY_ROMEO"][:2] == [
        "Words of ROMEO in act 0,",
        "and they go on and on " * 2 + "and they go on and on",
    ]


@pytest.mark.parametrize("form", ["100.txt", "roles", "my roles", "leaf"])
def test_shakespeare_from_what_is_there(small: None, tmp_path: Path, form: str) -> None:
    given = tmp_path / "mine"
    given.mkdir()
    if form == "100.txt":
        given = given / "100.txt"
        given.write_text(EDITION)
    elif form == "my roles":
        given = given / "mine.json.gz"
        given.write_bytes(gzip.compress(json.dumps({"p__A": ["word " * 200]}).encode()))
    elif form == "roles":
        (given / "shakespeare_roles.json").write_text(json.dumps({"p__A": ["word " * 200]}))
    else:
        write_leaf(given / "data" / "train", {"A": (["ab" * 40], ["a"])})
        write_leaf(given / "data" / "test", {"A": (["ab" * 40], ["a"])})
    data, _ = fetched("shakespeare", tmp_path / "target", given)
    assert len(data.test) >= 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [("by William Shakespeare", "has no plays"), ("another book", r"train/\*\.json"), (EDITION, "incomplete: ")],
)
def test_shakespeare_from_another_text(
    monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path, text: str, reason: str
) -> None:
    web.files["/100.txt"] = text.encode()
    monkeypatch.setitem(sources.SOURCES, "shakespeare", (sources.web(f"{web.home}/100.txt", prepare.SHAKESPEARE),))
    with pytest.raises(UserError, match=reason):
        fetch("shakespeare", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


# FEMNIST


def test_femnist_from_leaf_files(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_leaf(tmp_path / "leaf" / "data" / part, {"w1": ([[0.0] * 784], [3]), "w2": ([[1.0] * 784], [61])})
    data, messages = fetched("femnist", tmp_path / "target", tmp_path / "leaf")
    assert data.train.y.tolist() == [3, 61]
    assert messages[-1] == "verified: 2 + 2 samples, 62 classes, 2 users for training and 2 for testing"


def test_femnist_arrays_are_checked(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        f"{key}_{part}": np.zeros(2, np.int64) for key in ("y", "user") for part in ("train", "test")
    }
    arrays |= {"x_train": np.zeros((2, 28, 28), np.uint8), "x_test": np.zeros((1, 28, 28))}
    np.savez(tmp_path / "femnist.npz", allow_pickle=False, **arrays)
    with pytest.raises(UserError, match="x_test must be uint8 images 28x28"):
        load("femnist", root=tmp_path)


def nist_files() -> dict[str, bytes]:
    """Two writers, a digit and two letters of each, in both archives of NIST Special Database 19."""
    draw = np.random.default_rng(1)
    by_class: dict[str, bytes] = {"by_class/35/hsf_0.mit": b"text"}
    by_write: dict[str, bytes] = {}
    for number, (code, kind) in enumerate((c, k) for _ in range(2) for c, k in (("35", "d"), ("4a", "u"), ("7a", "l"))):
        content = png(draw.integers(2, size=(128, 128)).astype(bool))
        writer = f"f000{number // 3}_14"
        by_class[f"by_class/{code}/hsf_0/hsf_0_0000{number}.png"] = content
        by_class[f"by_class/30/train_30/train_30_0000{number}.png"] = content  # of no account
        by_write[f"by_write/hsf_0/{writer}/{kind}000{number // 3}_14/{kind}000{number // 3}_14_00000.png"] = content
    by_write["by_write/hsf_0/f0001_14/c0001_14/c0001_14_00000.png"] = png(np.zeros((128, 128), bool))  # in no class
    return {"/SD19/by_class.zip": zip_of(by_class), "/SD19/by_write.zip": zip_of(by_write)}


def test_femnist_from_nist(monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path) -> None:
    web.files |= nist_files()
    source = sources.Source("NIST", partial(sources._femnist_nist, f"{web.home}/SD19"))
    monkeypatch.setitem(sources.SOURCES, "femnist", (source,))
    data, _ = fetched("femnist", tmp_path / "target")
    labels = sorted([*data.train.y.tolist(), *data.test.y.tolist()])
    assert labels == [5, 5, 19, 19, 61, 61]  # 5, J, z
    assert np.bincount(data.train.users.numpy()).tolist() == [2, 2]
    assert 100 < data.train.x.float().mean() < 150
    (tmp_path / "mine").mkdir()
    for name, content in nist_files().items():
        (tmp_path / "mine" / Path(name).name).write_bytes(content[:-30] if "write" in name else content)
    with pytest.raises(UserError, match=r"by_write\.zip cannot be read"):
        fetch("femnist", tmp_path / "again", given=tmp_path / "mine")


def parquet(columns: dict[str, Any], features: Any = None) -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="the package pyarrow (extra hf) is not installed")
    import pyarrow.parquet as files

    note = json.dumps({"info": {"features": features or {}}})
    table = pyarrow.table(columns).replace_schema_metadata({"huggingface": note})
    buffer = io.BytesIO()
    files.write_table(table, buffer)
    return buffer.getvalue()


def offer_on_hub(
    monkeypatch: pytest.MonkeyPatch, web: Web, repository: str, branch: str, files: dict[str, bytes]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", web.home)
    entries: list[dict[str, Any]] = [{"type": "directory", "path": "data"}, {"type": "file", "path": "README.md"}]
    for path, content in files.items():
        entries.append({"type": "file", "path": path, "lfs": {"oid": hashlib.sha256(content).hexdigest()}})
        web.files[f"/datasets/{repository}/resolve/{branch}/{path}"] = content
    web.files[f"/api/datasets/{repository}/tree/{branch}?recursive=true"] = json.dumps(entries).encode()


def femnist_rows(seed: int, rows: int) -> tuple[Any, list[str], list[int]]:
    draw = np.random.default_rng(seed)
    x = draw.integers(256, size=(rows, 28, 28), dtype=np.uint8)
    return x, [f"f{row % 3:04d}_14" for row in range(rows)], [row % 62 for row in range(rows)]


def femnist_parquet(x: Any, writers: list[str], y: list[int]) -> bytes:
    images = [{"bytes": png(image), "path": None} for image in x]
    return parquet({"image": images, "writer_id": writers, "hsf_id": [0] * len(y), "character": y})


def test_femnist_from_the_hub(monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path) -> None:
    x, writers, y = femnist_rows(1, 60)
    halves = {f"data/train-0000{i}-of-00002.parquet": slice(30 * i, 30 * i + 30) for i in range(2)}
    files = {path: femnist_parquet(x[part], writers[part], y[part]) for path, part in halves.items()}
    offer_on_hub(monkeypatch, web, "flwrlabs/femnist", "main", files)
    web.cuts = [10_000_000, 500]  # the list in full, the first file cut
    data, _ = fetched("femnist", tmp_path / "femnist")
    assert len(data.train) == 54
    assert np.bincount(data.test.users.numpy()).tolist() == [2, 2, 2]  # a tenth of each writer's samples
    seen = {
        (int(label), image.numpy().tobytes())
        for s in (data.train, data.test)
        for image, label in zip(s.x, s.y, strict=True)
    }
    assert seen == {(label, image.tobytes()) for image, label in zip(x, y, strict=True)}
    # The same samples in another order and one file give the same arrays.
    order = np.random.default_rng(2).permutation(60)
    given = tmp_path / "given.parquet"
    given.write_bytes(femnist_parquet(x[order], [writers[i] for i in order], [y[i] for i in order]))
    again, _ = fetched("femnist", tmp_path / "again", given)
    assert np.array_equal(again.train.x, data.train.x)
    assert np.array_equal(again.test.users, data.test.users)


def test_a_hub_file_that_is_not_the_listed_one(
    monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path
) -> None:
    offer_on_hub(monkeypatch, web, "flwrlabs/femnist", "main", {"data/a.parquet": femnist_parquet(*femnist_rows(1, 6))})
    web.files["/datasets/flwrlabs/femnist/resolve/main/data/a.parquet"] += b"x"
    with pytest.raises(UserError, match=r"a\.parquet has SHA-256"):
        fetch("femnist", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        (b"<html>", "not a list of files"),
        (b"{}", "no Parquet files"),
        (b"[]", "no Parquet files"),
        (b'[{"type": "file", "path": "../evil.parquet", "lfs": {"oid": "0"}}]', "no Parquet files with usable names"),
        (b'[{"type": "file", "path": "a.parquet"}]', "not a list of files"),
    ],
)
def test_a_bad_list_of_files(
    monkeypatch: pytest.MonkeyPatch, web: Web, tmp_path: Path, listing: bytes, reason: str
) -> None:
    pytest.importorskip("pyarrow", reason="the package pyarrow (extra hf) is not installed")
    offer_on_hub(monkeypatch, web, "flwrlabs/femnist", "main", {})
    web.files["/api/datasets/flwrlabs/femnist/tree/main?recursive=true"] = listing
    with pytest.raises(UserError, match=reason):
        fetch("femnist", tmp_path / "target")


def test_bad_parquet_files(tmp_path: Path) -> None:
    given = tmp_path / "a.parquet"
    cases = [
        (parquet({"image": [1], "character": [1]}), "no column writer_id; found: image, character"),
        (femnist_parquet(*femnist_rows(1, 6))[:-30], r"a\.parquet is not a Parquet file"),
        (femnist_parquet(np.zeros((1, 9, 9), np.uint8), ["w"], [1]), "an image is 9x9, expected 28x28"),
        (parquet({"image": [{"bytes": b"no image"}], "writer_id": ["w"], "character": [1]}), "cannot be decoded"),
        (femnist_parquet(np.zeros((2, 28, 28), np.uint8), ["w", "w"], [1, 62]), r"label \d is 62; accepted: 0\.\.61"),
    ]
    for content, reason in cases:
        given.write_bytes(content)
        with pytest.raises(UserError, match=reason):
            fetch("femnist", tmp_path / "target", given=given)
        assert list(tmp_path.iterdir()) == [given]


def test_shakespeare_from_the_hub_is_joined_to_texts(
    monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path
) -> None:
    text = {role: f"{role} speaks " + "of this and that, " * 30 for role in ("PLAY_A", "PLAY_B")}
    rows = [(role, t[i : i + 80], t[i + 80]) for role, t in text.items() for i in range(len(t) - 80)]
    content = parquet({key: [row[i] for row in rows] for i, key in enumerate(("character_id", "x", "y"))})
    away = sources.web(f"{web.home}/gone.zip", prepare.SHAKESPEARE)
    monkeypatch.setitem(sources.SOURCES, "shakespeare", (away, sources.SOURCES["shakespeare"][-1]))
    offer_on_hub(
        monkeypatch, web, "flwrlabs/shakespeare", "refs/convert/parquet", {"default/train/0000.parquet": content}
    )
    fetched("shakespeare", tmp_path / "target")
    roles = json.loads(gzip.decompress((tmp_path / "target" / "shakespeare_roles.json.gz").read_bytes()))
    assert roles == {role: [t] for role, t in text.items()}


# CIFAR-100


def test_cifar100_from_the_hub_has_the_form_of_the_published_files(
    monkeypatch: pytest.MonkeyPatch, small: None, web: Web, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(1).integers(256, size=(2, 32, 32, 3), dtype=np.uint8)
    features = {f"{level}_label": {"names": [level, "b"]} for level in ("fine", "coarse")}
    images = [{"bytes": png(image), "path": None} for image in pixels]
    content = parquet({"img": images, "fine_label": [1, 2], "coarse_label": [3, 4]}, features)
    away = sources.web(f"{web.home}/gone.tar.gz", prepare.CIFAR100)
    monkeypatch.setitem(sources.SOURCES, "cifar100", (away, sources.SOURCES["cifar100"][-1]))
    files = {f"cifar100/{part}-00000-of-00001.parquet": content for part in ("train", "test")}
    offer_on_hub(monkeypatch, web, "uoft-cs/cifar100", "main", files)
    data, _ = fetched("cifar100", tmp_path / "target")
    assert np.array_equal(data.train.x.permute(0, 2, 3, 1), pixels)
    with (tmp_path / "target" / "cifar-100-python" / "train").open("rb") as file:
        found = pickle.load(file, encoding="latin1")
    assert set(found) == {"filenames", "batch_label", "fine_labels", "coarse_labels", "data"}
    with (tmp_path / "target" / "cifar-100-python" / "meta").open("rb") as file:
        assert pickle.load(file)["fine_label_names"] == ["fine", "b"]


@pytest.mark.parametrize("form", ["archive", "folder", "inner folder"])
def test_cifar100_from_what_is_there(small: None, tmp_path: Path, form: str) -> None:
    given = tmp_path / "cifar-100-python.tar.gz"
    given.write_bytes(tar_of(*CIFAR100_FILES.items()))
    if form != "archive":
        given = tmp_path / "cifar-100-python"
        given.mkdir()
        for name in ("train", "test"):
            (given / name).write_bytes(cifar100_batch())
        given = given if form == "inner folder" else tmp_path / "."
    data, _ = fetched("cifar100", tmp_path / "target" / "cifar100", given)
    assert data.train.y.tolist() == [1, 2]


def test_from_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--from .*nowhere does not exist; accepted: an archive, a file or a folder"):
        fetch("cifar100", tmp_path / "target", given=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
