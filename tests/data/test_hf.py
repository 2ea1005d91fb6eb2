"""Data sets in Hugging Face form, saved by the test: folders of `save_to_disk` and of Parquet files."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.data import HubOptions, hf, hub_access, load
from cabafl.errors import UserError
from cabafl.samples import make_data

datasets = pytest.importorskip("datasets", reason="the package datasets (extra hf) is not installed")
huggingface_hub = pytest.importorskip("huggingface_hub")
datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CABAFL_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def images(count: int, mode: str = "L", size: tuple[int, int] = (5, 4), seed: int = 1) -> list[Image.Image]:
    shape = (count, size[1], size[0], 3) if mode == "RGB" else (count, size[1], size[0])
    pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    return [Image.fromarray(image) for image in pixels]


def picture_set(count: int, mode: str = "L", seed: int = 1) -> Any:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "character": datasets.ClassLabel(names=["x", "y", "z"]),
        }
    )
    columns = {
        "image": images(count, mode, seed=seed),
        "writer_id": [f"w{row % 4}" for row in range(count)],
        "character": [row % 2 for row in range(count)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def saved(folder: Path, **splits: Any) -> str:
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return f"hf:{folder}"


def test_grey_images_with_class_labels_and_users(tmp_path: Path) -> None:
    name = saved(tmp_path / "set", train=picture_set(12), test=picture_set(4, seed=2))
    data = load(name, hub=HubOptions(user_column="writer_id"))
    assert (data.kind, data.classes, data.input_shape) == ("image", 3, (1, 4, 5))  # class z does not occur
    assert np.array_equal(data.train.x[:, 0], np.stack([np.asarray(image) for image in images(12)]))
    assert data.train.y.tolist() == [row % 2 for row in range(12)]
    assert data.train.users is not None
    assert data.train.users.tolist() == [row % 4 for row in range(12)]
    assert data.test.users is not None
    assert data.mean[0] == pytest.approx(float(data.train.x.double().mean()) / 255)


def test_colour_images_in_parquet_files(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    for split, count in (("train", 6), ("validation", 2)):
        picture_set(count, "RGB").to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    data = load(f"hf:{tmp_path / 'set'}")
    assert data.input_shape == (3, 4, 5)
    assert np.array_equal(data.train.x.permute(0, 2, 3, 1), np.stack([np.asarray(image) for image in images(6, "RGB")]))
    assert (len(data.test), data.train.users) == (2, None)


def test_grey_and_colour_images_together_become_colour(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    mixed = [*images(1), *images(1, "RGB"), images(1)[0].convert("P"), images(1)[0].convert("LA")]
    part = datasets.Dataset.from_dict({"image": mixed, "label": [5, 9, 5, 9]}, features=features)
    data = load(saved(tmp_path / "set", train=part, test=part))
    assert data.input_shape == (3, 4, 5)
    assert np.array_equal(data.train.x[0, 2], np.asarray(images(1)[0]))
    assert data.train.y.tolist() == [0, 1, 0, 1]  # integers in sorted order


def test_vectors_with_text_labels(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict(
        {"sensor": [[1, 2.5], [3, 4], [5, 6]], "label": ["b", "a", "c"], "note": ["t"] * 3}
    )
    data = load(saved(tmp_path / "set", train=part, test=part))
    assert (data.kind, data.classes, data.input_shape) == ("vector", 3, (2,))
    assert data.train.x.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert data.train.y.tolist() == [1, 0, 2]


def test_windows_of_several_channels(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict({"x": np.ones((3, 8, 2)).tolist(), "y": [1, 2, 3]})
    assert load(saved(tmp_path / "set", train=part, test=part)).input_shape == (8, 2)


def test_a_single_split_is_cut_for_testing(tmp_path: Path) -> None:
    picture_set(40).save_to_disk(str(tmp_path / "set"))
    name = f"hf:{tmp_path / 'set'}"
    data = load(name, hub=HubOptions(user_column="writer_id", test_share=0.2))
    assert data.test.users is not None
    assert np.bincount(data.test.users.numpy()).tolist() == [2, 2, 2, 2]
    assert len(data.train) == 32
    again = load(name, hub=HubOptions(user_column="writer_id", test_share=0.2))
    assert np.array_equal(again.test.x, data.test.x)
    assert len(load(name, hub=HubOptions(test_share=0.5)).test) == 20
    with pytest.raises(UserError, match=r"data\.test_share = 0\.001: leaves no"):
        load(name, hub=HubOptions(test_share=0.001))


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = saved(tmp_path / "set", train=picture_set(6), test=picture_set(2))
    first = load(name)
    with monkeypatch.context() as patch:
        patch.setattr(hf._Reader, "_pixels", None)
        assert np.array_equal(load(name).train.x, first.train.x)
    for file in (tmp_path / "home" / hf.CACHE).iterdir():  # a damaged file is made again
        file.write_bytes(b"damaged")
    assert np.array_equal(load(name).train.x, first.train.x)
    saved(tmp_path / "other", train=picture_set(6, seed=3), test=picture_set(2))
    assert not np.array_equal(load(f"hf:{tmp_path / 'other'}").train.x, first.train.x)


def test_nowhere_to_keep_decoded_images(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert len(load(saved(tmp_path / "set", train=picture_set(6), test=picture_set(2))).train) == 6


def vectors(x: Sequence[Any] = ([1.0], [2.0]), y: Sequence[Any] = (0, 1), **more: Any) -> Any:
    return datasets.Dataset.from_dict({"x": list(x), "y": list(y), **more})


@pytest.mark.parametrize(
    ("train", "test", "options", "reason"),
    [
        (lambda: vectors(), None, {}, "has no split named test or validation; set data.test_split to one of train"),
        (lambda: vectors(), lambda: vectors(), {"train_split": "tarin"}, "data.train_split = 'tarin'.*accepted: train"),
        (lambda: vectors(), lambda: vectors(), {"input_column": "z"}, "data.input_column = 'z'.*accepted: x, y"),
        (lambda: vectors(), lambda: vectors(), {"user_column": "z"}, "data.user_column = 'z'"),
        (lambda: vectors(w=[[1], [2]]), lambda: vectors(), {}, "data.input_column is not set.*several.*accepted: x, w"),
        (lambda: vectors(["a", "b"]), lambda: vectors(), {}, "data.input_column is not set.*no column.*accepted: x, y"),
        (lambda: vectors(["a", "b"]), lambda: vectors(), {"input_column": "x"}, "must have images, or numbers"),
        (lambda: vectors([[1.0], [1.0, 2.0]]), lambda: vectors(), {}, "'x' must have images, or numbers of one shape"),
        (lambda: vectors([[1.0], None]), lambda: vectors(), {}, "'x' has a row without numbers"),
        (lambda: vectors([[], []]), lambda: vectors(), {"input_column": "x"}, "'x' must have images, or numbers"),
        (lambda: vectors([], []), lambda: vectors(), {"input_column": "x"}, "empty"),
        (lambda: vectors(y=[0, None]), lambda: vectors(), {}, "'y' must have integers or text as labels, found None"),
        (lambda: vectors(y=[0.5, 1.0]), lambda: vectors(), {}, "integers or text as labels, found 0.5"),
        (lambda: vectors(), lambda: vectors(y=[0, 7]), {}, "label 7 is not one of the 2 classes"),
        (lambda: vectors([[1.0], [float("nan")]]), lambda: vectors(), {}, "only finite numbers"),
        (lambda: vectors(), lambda: vectors([[1.0, 2.0]] * 2), {}, r"shape \(2, 1\) but x_test is"),
    ],
)
def test_sets_that_cannot_be_used(tmp_path: Path, train: Any, test: Any, options: dict[str, Any], reason: str) -> None:
    splits = {"train": train()} | ({"test": test()} if test else {})
    with pytest.raises(UserError, match=reason) as caught:
        load(saved(tmp_path / "set", **splits), hub=HubOptions(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda: [*images(1), *images(1, size=(9, 9))], "has images of 5x4 and 9x9; one size accepted"),
        (lambda: [images(1)[0], None], "a row without an image"),
        (lambda: [{"bytes": b"no image", "path": None}] * 2, "cannot be decoded"),
        (lambda: [images(1)[0].convert("F").convert("I")] * 2, "has images of type I; accepted: 8 bits"),
    ],
)
def test_images_that_cannot_be_used(tmp_path: Path, broken: Any, reason: str) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    part = datasets.Dataset.from_dict({"image": broken(), "label": [0, 1]}, features=features)
    with pytest.raises(UserError, match=reason) as caught:
        load(saved(tmp_path / "set", train=part, test=part))
    assert "\n" not in str(caught.value)


def test_labels_of_test_sets_without_labels(tmp_path: Path) -> None:
    hidden = picture_set(2).cast_column("character", datasets.Value("int64")).remove_columns("character")
    hidden = hidden.add_column("character", [-1, -1]).cast_column("character", picture_set(1).features["character"])
    with pytest.raises(UserError, match="label -1 is not one of the 3 classes"):
        load(saved(tmp_path / "set", train=picture_set(4), test=hidden))


def test_two_label_columns_need_a_choice(tmp_path: Path) -> None:
    part = picture_set(4)
    part = part.add_column("coarse", [0, 0, 1, 1]).cast_column("coarse", datasets.ClassLabel(names=["c", "d"]))
    name = saved(tmp_path / "set", train=part, test=part)
    with pytest.raises(UserError, match=r"data\.label_column is not set.*several.*accepted: character, coarse"):
        load(name)
    assert load(name, hub=HubOptions(label_column="coarse")).train.y.tolist() == [0, 0, 1, 1]


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "dataset_dict.json").write_text("{")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "train.parquet").write_text("PAR1")
    for name, reason in {
        "missing": "is not a folder; accepted: hf:FOLDER, hf:NAME",
        "file": "is not a folder",
        "empty": "neither Parquet files nor a data set written by save_to_disk",
        "broken": "cannot be used",
        "torn": "cannot be used",
    }.items():
        with pytest.raises(UserError, match=reason) as caught:
            load(f"hf:{tmp_path / name}")
        assert "\n" not in str(caught.value)


@pytest.fixture
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Hub does not answer; what asked it is in the list."""
    asked: list[str] = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            asked.append(url)
            raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    monkeypatch.setattr(hub_access, "PAUSE", 0.0)
    return asked


def test_a_hub_that_cannot_be_reached_is_asked_twice(nobody_there: list[str], caplog: pytest.LogCaptureFixture) -> None:
    endpoint, before = huggingface_hub.constants.ENDPOINT, huggingface_hub.constants.HF_HUB_OFFLINE
    with pytest.raises(UserError) as caught:
        load("hf:somebody/something")
    assert str(caught.value) == (
        f"data set hf:somebody/something cannot be loaded from the Hub: {endpoint} does not answer "
        "(Name or service not known), and it was not downloaded before"
    )
    assert nobody_there == [endpoint, endpoint]
    assert not caplog.records  # the notices of the library
    assert before is huggingface_hub.constants.HF_HUB_OFFLINE is datasets.config.HF_HUB_OFFLINE is False


def test_without_a_network_a_set_is_read_as_it_was_downloaded(tmp_path: Path, nobody_there: list[str]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        vectors().to_parquet(str(folder / f"{split}.parquet"))
    datasets.load_dataset("parquet", data_dir=str(folder))
    (made,) = (tmp_path / "cache" / "parquet").glob("*/*/*/")
    kept = tmp_path / "cache" / "somebody___something" / "default" / "0.0.0" / made.name
    kept.parent.mkdir(parents=True)
    made.rename(kept)
    for file in kept.glob("parquet-*"):
        file.rename(kept / file.name.replace("parquet-", "something-"))
    assert len(load("hf:somebody/something").train) == 2
    assert nobody_there
    with pytest.raises(UserError, match=r"does not answer .*, .*other"):
        load("hf:somebody/something", hub=HubOptions(subset="other"))


def test_a_hub_that_answers_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    session = SimpleNamespace(head=lambda url, timeout: asked.append(url))
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)

    def found(name: str, subset: str | None) -> Any:
        assert not datasets.config.HF_HUB_OFFLINE
        return datasets.DatasetDict(train=vectors(), test=vectors())

    monkeypatch.setattr(datasets, "load_dataset", found)
    assert len(load("hf:somebody/something").train) == 2
    assert len(asked) == 1


def test_no_network_by_setting(tmp_path: Path) -> None:
    code = (
        "from cabafl.data import load\n"
        "try: load('hf:somebody/something')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout == (
        "UserError data set hf:somebody/something cannot be loaded from the Hub: $HF_HUB_OFFLINE is set, and it was "
        "not downloaded before\n"
    )


def settings(name: str, *more: str) -> list[str]:
    return [f"data.dataset={name}", "data.user_column=writer_id", "data.partition=natural", "data.min_samples=1", *more]


def test_a_run_on_users_of_a_saved_set(tmp_path: Path) -> None:
    name = saved(tmp_path / "set", train=picture_set(40), test=picture_set(8))
    words = settings(
        name, "model.name=mlp", "fleet.slots=2", "run.virtual_time=20", "run.workers=0", "method.name=fedavg"
    )
    result = simulate(load_experiment(None, words), tmp_path / "run")
    assert len(result.metrics) > 1
    _, partition = make_data(load_experiment(None, words))
    assert partition.sizes.tolist() == [10, 10, 10, 10]


def test_data_root_is_read_instead_of_the_name(tmp_path: Path) -> None:
    saved(tmp_path / "set", train=picture_set(8), test=picture_set(4))
    words = settings("hf:somebody/something", f"data.root={tmp_path / 'set'}")
    assert len(make_data(load_experiment(None, words))[0].test) == 4
