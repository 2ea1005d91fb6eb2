"""`cabafl data convert`: tables, time series, pictures, and what is refused."""

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cabafl.assembly import assemble
from cabafl.cli.main import main
from cabafl.config import load_experiment
from cabafl.data import load
from cabafl.data.dataset import Dataset
from tests.cli.program import refused


def converted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[Dataset, list[str]]:
    """Runs the command in ``folder``; returns what the file has, and the lines printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["cabafl", "data", "convert", *words, "--out", "mine.npz"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    assert (ended.value.code, errors) == (0, ""), errors
    return load("npz", root=folder / "mine.npz"), output.splitlines()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: converted(tmp_path, monkeypatch, capsys, *words)


def people(rows: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(2)
    place = np.arange(rows)
    return pd.DataFrame(
        {
            "person": [f"p{each % 3}" for each in place],
            "heat": draw.random(rows) * 100,
            "count": place,
            "city": "Riga",
            "mood": [("low", "fair", "high")[each % 3 if each % 5 else 0] for each in place],
            "score": place / 7,
            "part": ["test" if each % 4 == 0 else "train" for each in place],
        }
    )


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.parquet"])
def test_a_table(name: str, tmp_path: Path, run: Any) -> None:
    frame = people()
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name else ",")
    data, lines = run(name, "--label", "mood", "--user", "person", "--features", "heat,count")
    assert (data.kind, data.classes, data.class_names) == ("vector", 3, ("fair", "high", "low"))
    assert data.feature_names == ("heat", "count")
    assert (len(data.train), len(data.test)) == (48, 12)
    assert np.bincount(data.test.users).tolist() == [4, 4, 4], "a fifth of each user's"
    inputs = data.inputs(data.train.x).numpy()
    assert np.allclose(inputs.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(inputs.std(axis=0), 1, atol=1e-5)
    assert lines == [
        "mine.npz: 48 training and 12 test samples of shape (2,)",
        "classes: 3 (fair, high, low)",
        "users: 3",
        "Next: cabafl run data.dataset=npz data.root=mine.npz data.partition=natural model.name=mlp",
    ]


def test_features_are_all_other_columns_with_numbers(tmp_path: Path, run: Any) -> None:
    people().to_csv(tmp_path / "t.csv", index=False)
    data, lines = run("t.csv", "--label", "mood", "--no-scale", "--test-share", "0.5")
    assert data.feature_names == ("heat", "count", "score")
    assert (data.mean, len(data.test)) == ((), 30)
    assert "left out, not numbers: person, city, part" in lines
    assert lines[-1].endswith("data.partition=iid data.devices=2 model.name=mlp")


def test_a_column_says_what_is_for_testing(tmp_path: Path, run: Any) -> None:
    people().assign(label=1, only=[each % 4 == 0 for each in range(60)]).to_csv(tmp_path / "t.csv", index=False)
    data, _ = run("t.csv", "--label", "mood", "--test-column", "part", "--no-scale")
    assert data.test.x[:, 1].tolist() == list(range(0, 60, 4))
    (tmp_path / "mine.npz").unlink()
    data, _ = run("t.csv", "--label", "mood", "--test-column", "only", "--no-scale")
    assert data.test.x[:, 1].tolist() == list(range(0, 60, 4))
    assert "only" not in data.feature_names


@pytest.mark.parametrize(
    ("words", "shape"),
    [(["--label", "score"], (48,)), (["--label", "count", "--numbers"], (48,)), (["--label", "heat,score"], (48, 2))],
)
def test_numbers_to_predict(tmp_path: Path, run: Any, words: list[str], shape: tuple[int, ...]) -> None:
    people().to_csv(tmp_path / "t.csv", index=False)
    data, lines = run("t.csv", *words)
    assert (data.classes, tuple(data.train.y.shape)) == (0, shape)
    assert lines[1] == f"numbers to predict: {len(shape)}"
    assert lines[-1].endswith("data.partition=iid data.devices=2 model.name=mlp task.name=regression")
    assert data.train.y.is_floating_point()


def test_labels_that_are_numbers_keep_their_names(tmp_path: Path, run: Any) -> None:
    pd.DataFrame({"a": range(20), "y": [7, 9] * 10}).to_csv(tmp_path / "t.csv", index=False)
    data, _ = run("t.csv")
    assert (data.classes, data.class_names, set(data.train.y.tolist())) == (2, ("7", "9"), {0, 1})


def test_a_column_without_a_name_is_no_input(tmp_path: Path, run: Any) -> None:
    """Row numbers, as pandas writes them, tell the order of the samples."""
    people().to_csv(tmp_path / "t.csv")
    data, lines = run("t.csv", "--label", "mood")
    assert data.feature_names == ("heat", "count", "score")
    assert "left out, without a name in the first line: Unnamed: 0" in lines
    (tmp_path / "mine.npz").unlink()
    assert run("t.csv", "--label", "mood", "--features", "Unnamed: 0")[0].feature_names == ("Unnamed: 0",)


def test_a_rare_label_is_for_training(tmp_path: Path, run: Any) -> None:
    frame = people()
    frame.loc[7, "mood"] = "unique"
    frame.to_csv(tmp_path / "t.csv", index=False)
    for share in ("0.2", "0.8"):
        data, _ = run("t.csv", "--label", "mood", "--test-share", share)
        assert data.class_names[3] == "unique"
        assert 3 in data.train.y.tolist()
        (tmp_path / "mine.npz").unlink()


def test_unicode_names_and_labels(tmp_path: Path, run: Any) -> None:
    frame = pd.DataFrame({"größe": range(20), "喜": ["да", "ні"] * 10})
    frame.to_csv(tmp_path / "t.csv", index=False, encoding="utf-8-sig")
    data, _ = run("t.csv", "--label", "喜")
    assert (data.feature_names, data.class_names) == (("größe",), ("да", "ні"))


@pytest.mark.parametrize("words", [["--label", "mood"], ["--label", "heat"], ["--label", "on,off"]])
def test_the_next_command_runs(
    tmp_path: Path,
    words: list[str],
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    frame = people().assign(on=[0, 1] * 30, off=[1, 0] * 30)
    frame.to_csv(folder / "t.csv", index=False)
    _, lines = converted(folder, monkeypatch, capsys, str(folder / "t.csv"), *words)
    assemble(load_experiment(None, shlex.split(lines[-1].removeprefix("Next: "))[2:]))


@pytest.mark.parametrize("rows", [6, 60, 150, 1000])
def test_the_next_command_suits_the_number_of_samples(rows: int, tmp_path: Path, run: Any) -> None:
    pd.DataFrame({"a": range(rows), "label": ["x", "y", "z"] * (rows // 3) + ["x"] * (rows % 3)}).to_csv(
        tmp_path / "t.csv", index=False
    )
    _, lines = run("t.csv", "--test-share", "0.34")
    assemble(load_experiment(None, shlex.split(lines[-1].removeprefix("Next: "))[2:]))


def test_spaces_around_names_and_labels_do_not_count(tmp_path: Path, run: Any) -> None:
    (tmp_path / "t.csv").write_text("a , label \n" + "1, x \n2,x\n3,y \n4, y\n" * 5)
    data, _ = run("t.csv")
    assert (data.feature_names, data.class_names) == (("a",), ("x", "y"))


def test_names_that_would_change_the_terminal_are_shown_as_text(tmp_path: Path, run: Any) -> None:
    (tmp_path / "t.csv").write_text("a,label\n" + "1,\x1b[31mred\n2,[bold]x\n" * 5)
    assert "classes: 2 ('\\x1b[31mred', [bold]x)" in run("t.csv")[1]


def test_huge_integers_are_numbers(tmp_path: Path, run: Any) -> None:
    (tmp_path / "t.csv").write_text("a,label\n" + f"{10**30},x\n2,y\n" * 5)
    assert run("t.csv")[0].train.x.max() == np.float32(1e30)


def series() -> pd.DataFrame:
    """Two recordings of 20 steps, shuffled; the class changes in the middle of the second."""
    rows: list[dict[str, Any]] = [
        {"who": "ann" if tape == "x" else "bob", "tape": tape, "at": step, "a": step, "b": 100 * (tape == "y") + step}
        | {"label": "up" if tape == "x" or step < 7 else "down"}
        | {"level": step / 2}
        for tape in ("x", "y")
        for step in range(20)
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=4)


def test_time_series_become_windows(tmp_path: Path, run: Any) -> None:
    series().to_csv(tmp_path / "t.csv", index=False)
    words = ["--features", "a,b", "--series", "tape", "--time", "at", "--window", "4", "--user", "who", "--no-scale"]
    data, lines = run("t.csv", *words)
    assert (data.kind, data.input_shape) == ("vector", (4, 2))
    starts = data.train.x[:, 0, 0].tolist()
    assert starts == [0, 4, 8, 12, 0, 7, 11], "16 of 20 steps; a window of recording y begins where its class changes"
    assert (data.train.x[:, 1:, 0] - data.train.x[:, :-1, 0] == 1).all()
    assert data.test.x[:, 0, 0].tolist() == [16, 16]
    assert data.class_names == ("down", "up")
    assert data.train.y.tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert lines[2] == "users: 2"
    (tmp_path / "mine.npz").unlink()
    data, _ = run("t.csv", *words[:-1], "--label", "level", "--stride", "2")
    assert data.train.y[:3].tolist() == [1.5, 2.5, 3.5], "the number at the last step"
    assert np.allclose(data.inputs(data.train.x).numpy().mean(axis=(0, 1)), 0, atol=1e-5), "scaled per channel"


def picture(path: Path, colour: Any = 7, size: tuple[int, int] = (6, 4), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_folders_of_pictures(tmp_path: Path, run: Any) -> None:
    for place in range(10):
        picture(tmp_path / "in" / "cat" / f"w{place % 2}-{place}.png", 10 + place)
        picture(tmp_path / "in" / "dog" / "more" / f"w{place % 2}-{place}.png", 100 + place)
    (tmp_path / "in" / "dog" / "notes.txt").write_text("no picture")
    data, lines = run("in", "--user", r"w(\d)-")
    assert (data.kind, data.input_shape, data.class_names) == ("image", (1, 4, 6), ("cat", "dog"))
    assert (len(data.train), len(data.test)) == (16, 4)
    assert all((data.train.x[:, 0, 0, 0] >= 100).long() == data.train.y)
    assert lines[2] == "users: 2"
    assert lines[-1].endswith("data.partition=natural")


def test_pictures_with_test_folders_sizes_and_colours(tmp_path: Path, run: Any) -> None:
    for part in ("train", "test"):
        picture(tmp_path / "in" / part / "a" / "1.png", 9)
        picture(tmp_path / "in" / part / "b" / "1.png", (1, 2, 3), (9, 9), "RGB")
    data, _ = run("in", "--size", "8x5")
    assert (data.input_shape, len(data.train), len(data.test)) == ((3, 5, 8), 2, 2)
    assert data.test.x[1, :, 0, 0].tolist() == [1, 2, 3]
    assert data.test.x[0, :, 0, 0].tolist() == [9, 9, 9]


BAD: dict[str, tuple[list[str], str]] = {
    "no source": (["none.csv"], "none.csv: not found; accepted: a folder of images, or a table (.csv, "),
    "ending": (["t.doc"], "t.doc: not a known ending; accepted: .csv, .tsv"),
    "no table": (["bad.csv"], "data file bad.csv cannot be used: "),
    "no rows": (["empty.csv"], "data file empty.csv cannot be used: it has no rows"),
    "no label": (["t.csv"], "no column is called label, labels, y, target, class; name the one to learn: person, heat"),
    "unknown label": (["t.csv", "--label", "moood"], "there is no column 'moood', did you mean 'mood'?; found: person"),
    "unknown user": (["t.csv", "--label", "mood", "--user", "persons"], "no column 'persons', did you mean 'person'?"),
    "text feature": (
        ["t.csv", "--label", "mood", "--features", "heat,city"],
        "column 'city' has text or dates (such as",
    ),
    "label as input": (
        ["t.csv", "--label", "score", "--features", "heat,score"],
        "column 'score' is to be learned and an",
    ),
    "text target": (["t.csv", "--label", "heat,mood"], "column 'mood' has text or dates"),
    "text number": (["t.csv", "--label", "mood", "--numbers"], "column 'mood' has text or dates"),
    "fractional user": (["t.csv", "--label", "mood", "--user", "heat"], "column 'heat' has fractional numbers"),
    "gaps": (["gaps.csv", "--label", "mood"], "column 'heat' has 1 missing values, the first in row 3; fill or drop"),
    "share": (["t.csv", "--label", "mood", "--test-share", "1.5"], "--test-share = 1.5: accepted: above 0 and below 1"),
    "no test": (["t.csv", "--label", "mood", "--test-share", "0.001"], "no test samples are left"),
    "both": (
        ["t.csv", "--label", "mood", "--test-share", "0.1", "--test-column", "part"],
        "not together with --test-col",
    ),
    "test words": (
        ["t.csv", "--label", "mood", "--test-column", "city"],
        "column 'city' has 'riga'; accepted: test and",
    ),
    "stride": (["t.csv", "--label", "mood", "--stride", "3"], "--stride = 3: needs --window"),
    "long window": (["t.csv", "--label", "mood", "--window", "99"], "no training window of 99 steps with one label"),
    "too many fields": (["shifted.csv"], "a row has more fields than the first line has names (3)"),
    "a field too many": (["longer.csv"], "Expected 3 fields in line 3, saw 4"),
    "a name twice": (["twice.csv"], "its first line has 'a' twice; accepted: a different name for each column"),
    "a feature twice": (["t.csv", "--label", "mood", "--features", "heat,heat"], "column 'heat' is there twice"),
    "an empty file": (["nothing.csv"], "data file nothing.csv cannot be used: No columns to parse from file"),
    "semicolons": (["semicolons.csv"], "its first line has ';' between names; accepted: ','"),
    "a word among numbers": (
        ["word.csv"],
        "column 'a' has numbers but for 'n.n.' in row 30; accepted: numbers, or other",
    ),
    "no rows in a window": (["t.csv", "--label", "mood", "--window", "0"], "--window = 0: accepted: 1 or more rows"),
    "two labels": (["both.csv"], "columns label and y are both there; name the one to learn"),
    "latin-1": (["latin.csv"], "codec can't decode byte"),
    "one class": (["one.csv"], "all labels are x; accepted: at least two classes"),
    "one row": (["single.csv"], "no test samples are left"),
    "labels that are numbers": (
        ["t.csv", "--label", "count"],
        "most labels occur once; is the label a number to predict",
    ),
    "huge numbers": (["huge.csv"], "x_train[0, 0] is inf; only finite numbers are accepted"),
    "times of several types": (
        ["times.csv", "--window", "1", "--time", "at"],
        "column 'at' has text and numbers (such as '2'); one expected",
    ),
    "numbers of pictures": (["in", "--numbers"], "--numbers: only for tables; in is a folder of images"),
    "scale of pictures": (["in", "--no-scale"], "--no-scale: only for tables; in is a folder of images"),
    "time with gaps": (
        ["gaps.csv", "--label", "mood", "--features", "count", "--window", "1", "--time", "heat"],
        "missing val",
    ),
    "no time": (["t.csv", "--label", "mood", "--window", "2", "--time", "at"], "there is no column 'at'"),
    "size of a table": (["t.csv", "--label", "mood", "--size", "3x3"], "--size: only for folders of images"),
    "size": (["in", "--size", "3"], "--size = '3': accepted: width x height in pixels, e.g. 32x32"),
    "label of pictures": (["in", "--label", "mood"], "--label: only for tables; in is a folder of images"),
    "pattern": (["in", "--user", "("], "--user = '(': not a regular expression"),
    "no match": (["in", "--user", "w(\\d)"], "does not match a/1.png; accepted: a pattern for every image"),
    "sizes": (["in"], "2.png cannot be used: it is 3x3, others are 6x4; scale all with --size 6x4"),
    "no folders": (["hollow"], "it has no folders; accepted: one folder of images per class"),
    "no pictures": (["bare"], "data file bare/a cannot be used: no images in it; accepted: files with .png"),
    "no picture": (["odd"], "1.png cannot be used: not an image"),
    "16 bits": (["deep"], "an image of type I;16; accepted: 8 bits a channel"),
    "unseen class": (["unseen"], "the class c is not among the training images"),
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    people().to_csv(tmp_path / "t.csv", index=False)
    gaps = people()
    gaps.loc[2, "heat"] = np.nan
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    (tmp_path / "t.doc").write_text("?")
    (tmp_path / "bad.csv").write_bytes(b'a,b\n1,2\n"\xff,3,4\n1,2,3,4,5,6')
    (tmp_path / "empty.csv").write_text("a,label\n")
    texts = {
        "shifted": "a,b,label\n1,2,x,7\n3,4,y,8\n",
        "longer": "a,b,label\n1,2,x\n3,4,y,8\n",
        "twice": "a,label,a\n1,x,2\n3,y,4\n",
        "nothing": "",
        "semicolons": "a;b;label\n1;2;x\n",
        "word": "a,b,label\n" + "1,2,x\n" * 29 + "n.n.,2,y\n",
        "both": "a,y,label\n1,2,x\n3,4,z\n",
        "one": "a,label\n" + "1,x\n" * 9,
        "single": "a,label\n1,x\n",
        "huge": "a,label\n" + "1e300,x\n1e300,y\n" * 9,
        "times": "a,at,label\n" + "1,2,x\n1,noon,y\n" * 9,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "latin.csv").write_bytes("a,label\n1,größe\n".encode("latin-1"))
    for folder in ("hollow", "bare/a", "odd/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "odd" / "a" / "1.png").write_text("no picture")
    picture(tmp_path / "in" / "a" / "1.png")
    picture(tmp_path / "in" / "b" / "2.png", 5, (3, 3))
    picture(tmp_path / "deep" / "a" / "1.png", 5, (3, 3), "I;16")
    for path in ("train/a", "train/b", "test/a", "test/c"):
        picture(tmp_path / "unseen" / path / "1.png")
    return tmp_path


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_one_line_and_writes_nothing(
    case: str, sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, says = BAD[case]
    monkeypatch.chdir(sources)
    assert says in refused(["data", "convert", *words, "--out", "mine.npz"], monkeypatch, capsys)
    assert list(sources.glob("*.npz")) == []


@pytest.mark.parametrize("out", ["mine.csv", "there.npz", "none/mine.npz"])
def test_the_file_must_be_new(
    out: str, sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sources)
    (sources / "there.npz").write_text("precious")
    says = refused(["data", "convert", "t.csv", "--label", "mood", "--out", out], monkeypatch, capsys)
    assert "accepted: a new file with the ending .npz, in a folder that exists" in says
    assert (sources / "there.npz").read_text() == "precious"
