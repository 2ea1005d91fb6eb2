"""Data handed in from Python: every form, the name they get, and resuming."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from cabafl import Experiment, UserError, load_experiment, resume, simulate
from cabafl.lifecycle.stopping import Paused
from cabafl.samples import make_data, with_given
from tests.cli.program import cabafl_here

DRAW = np.random.default_rng(3)
Y = np.arange(80) % 2
X = (DRAW.random((80, 4)) + Y[:, None]).astype(np.float32)
USERS = np.array([f"person {each % 5}" for each in range(80)])
ARRAYS = {"x_train": X[:60], "y_train": Y[:60], "x_test": X[60:], "y_test": Y[60:]}
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(label=np.where(Y == 1, "yes", "no"), person=USERS)
PLAIN = FRAME.drop(columns="person")
TENSORS = torch.from_numpy(X), torch.from_numpy(Y)
RUN = {"virtual_time": 40, "evaluate_every": 10}


class Items(TorchDataset[Any]):
    """With users, and numbers of Python as targets."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*TENSORS, strict=True))


class Failing(Items):
    def __len__(self) -> int:
        raise OSError("no such picture")


class Compressed:
    """As the matrices of scipy.sparse: numpy sees one object."""


SPARSE = TENSORS[0].to_sparse()


def loaded(data: Any, **section: Any) -> Any:
    experiment = Experiment(data={"dataset": "given", "partition": "iid", "devices": 4, **section})  # type: ignore[arg-type]
    named, dataset = with_given(experiment, data)
    assert dataset is not None
    assert named.data.dataset.startswith("given:")
    return make_data(named, dataset)[0]


WITH_USERS = Items(*((X[place], int(Y[place]), str(USERS[place])) for place in range(80)))


@pytest.mark.parametrize(
    "data",
    [
        ARRAYS,
        {key: torch.from_numpy(values) for key, values in ARRAYS.items()},
        ((X[:60], Y[:60]), (X[60:], Y[60:])),
        ((X[:60], Y[:60], USERS[:60]), (X[60:], Y[60:], USERS[60:])),
        (TensorDataset(*(each[:60] for each in TENSORS)), TensorDataset(*(each[60:] for each in TENSORS))),
        (FRAME[list("abcd")].assign(label=Y)[:60], FRAME[list("abcd")].assign(label=Y)[60:]),
    ],
    ids=["arrays", "tensors", "pairs", "pairs with users", "torch datasets", "frames"],
)
def test_training_and_test_samples(data: Any) -> None:
    found = loaded(data)
    assert np.array_equal(found.train.x.numpy(), X[:60])
    assert np.array_equal(found.test.y.numpy(), Y[60:])
    assert (found.kind, found.classes) == ("vector", 2)


@pytest.mark.parametrize(
    "data",
    [(X, Y), TENSORS, (X.tolist(), Y.tolist()), TensorDataset(*TENSORS), WITH_USERS, Stream()],
    ids=["arrays", "tensors", "lists", "torch dataset", "with users", "stream"],
)
def test_one_part_is_enough_with_a_test_share(data: Any) -> None:
    found = loaded(data, test_share=0.25)
    assert (len(found.train), len(found.test)) == (60, 20)
    assert (found.train.users is not None) == (data is WITH_USERS)


def test_a_frame_with_columns_for_label_and_user() -> None:
    section = {"label_column": "label", "user_column": "person", "test_share": 0.25, "partition": "natural"}
    found = loaded(FRAME, **section)
    assert (found.class_names, found.feature_names, found.input_shape) == (("no", "yes"), tuple("abcd"), (4,))
    assert np.bincount(found.test.users).tolist() == [4] * 4, "a quarter of each of the four people's 16 samples"


def test_targets_and_images_pass_as_they_are() -> None:
    found = loaded((X, X[:, :2].astype(np.float64)), test_share=0.5)
    assert (found.classes, found.train.y.dtype, found.train.y.shape) == (0, torch.float32, (40, 2))
    pixels = torch.zeros((80, 3, 8, 8))
    assert loaded(TensorDataset(pixels, TENSORS[1]), test_share=0.5).kind == "image"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (7, "it is a int; accepted: a mapping of arrays x_train"),
        ((X, Y), "there are no test samples; accepted: \\(train, test\\), or data.test_share"),
        ({"x": X}, "unknown x; accepted: x_train, y_train, x_test"),
        ({"x_train": X, "y_train": Y}, "missing x_test, y_test; accepted"),
        (({"x": 1}, {"y": 2}), "it is a tuple; accepted"),
        ((FRAME.drop(columns="label"), FRAME), "no column is called label, labels, y, target, class; name the one"),
        ((PLAIN.assign(a=np.nan), PLAIN), "column 'a' has 80 missing values, the first in row 1; fill or drop them"),
        ((FRAME[["label"]], FRAME), "no column with numbers is left for the inputs; found: label"),
        ((FRAME, FRAME), "no numbers in column 'person'; accepted: numbers as inputs: encode such columns, or drop"),
        ((FRAME.assign(day=pd.Timestamp("2026-01-01")), FRAME), "no numbers in column 'person', 'day'; accepted"),
        (
            (PLAIN, PLAIN.assign(e=1.0)),
            "test frame: column 'e' is not in the training frame; accepted: the same columns",
        ),
        ((PLAIN, PLAIN.drop(columns="c")), "test frame: there is no column 'c'; found: a, b, d, label"),
        ((PLAIN, PLAIN.assign(c="?")), "test frame: column 'c' has text or dates"),
        ((pd.concat([PLAIN, PLAIN["a"]], axis=1), PLAIN), "column 'a' is there twice; accepted: each column once"),
        (
            (pd.DataFrame(X, columns=pd.MultiIndex.from_product([["a"], list("bcde")])),) * 2,
            "its columns have 2 levels",
        ),
        (
            ARRAYS | {"x_train": FRAME[list("abcd")][:60], "x_test": FRAME[list("abd")][60:].assign(e=1)},
            "x_test has a column 'e', x_train has not; accepted: the same columns in both",
        ),
        (ARRAYS | {"x_test": None}, "missing x_test; accepted: x_train"),
        (ARRAYS | {"feature_names": ["a", "b", "a", "c"]}, "feature_names has 3 different names; accepted: 4, one per"),
        (
            ARRAYS | {"mean": np.zeros(4), "deviation": np.full(4, 1e-300)},
            "deviation has 1e-300; accepted: numbers above",
        ),
        (
            ARRAYS | {"mean": np.full(4, 1e300), "deviation": np.ones(4)},
            "mean is float64 of shape .*; accepted: mean and",
        ),
        (ARRAYS | {"user_train": np.arange(60), "user_test": USERS[60:]}, "user_train is int64 but user_test is <U8"),
        (ARRAYS | {"x_train": None, "y_train": None}, "there are test samples only; accepted: training samples beside"),
        ((PLAIN.assign(y=Y), PLAIN.assign(y=Y)), "columns label and y are both there; name the one to learn"),
        (ARRAYS | {"x_test": SPARSE}, "x_test is a Tensor that is no array: "),
        (ARRAYS | {"x_test": Compressed()}, "x_test is a Compressed; accepted: arrays, tensors or lists"),
        (ARRAYS | {"x_test": np.float32(3)}, r"x_test is empty or a single number \(shape \(\)\); accepted: uint8"),
        (ARRAYS | {"y_test": np.int64(3)}, r"y_test has shape \(\); \(20,\) or \(20, targets\) expected"),
        (ARRAYS | {"x_train": np.ma.masked_less(X[:60], 0.5)}, "x_train is a MaskedArray .* a masked array with gaps"),
        (
            ARRAYS | {"y_train": [1] * 60, "y_test": [1] * 20},
            "all labels are 1; accepted: at least two classes, or class",
        ),
        (ARRAYS | {"x_train": [[1, 2], [3]]}, "x_train is a list that is no array: "),
        ((Items(), Items()), "a torch dataset is empty"),
        ((Failing(), Failing()), "a torch dataset fails: OSError: no such picture"),
        ((Stream, Stream), "it is a tuple; accepted"),
        ((Items(1, 2), Items(1)), r"a torch dataset must give \(x, y\) or \(x, y, user\) for every sample"),
        (
            (Items((X[0], 1), (X[0, :2], 1)), Items((X[0], 1))),
            r"a torch dataset has x of different shapes, such as \(4,\)",
        ),
    ],
)
def test_mistakes_are_one_line(data: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"data: cannot be used: {says}") as refused:
        loaded(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((X, Y[:70]), r"y has shape \(70,\); \(80,\) or \(80, targets\) expected, one per sample of x$"),
        ((X, np.array(1)), r"y has shape \(\); \(80,\)"),
        ((np.array(1.0), np.array(1)), r"x is empty or a single number \(shape \(\)\)"),
        ((X, Y, np.array([None] * 80)), "user is object; integers or strings expected"),
        ((X, Y, USERS[:9]), r"user has shape \(9,\); \(80,\) expected, one per sample of x"),
        ((X[:0], Y[:0]), r"x is empty or a single number \(shape \(0, 4\)\)"),
        ((X, np.full(80, 2)), "all labels are 2; accepted: at least two classes"),
        (PLAIN[:0], r"x is empty or a single number \(shape \(0, 4\)\)"),
    ],
)
def test_one_part_that_does_not_fit_together(data: Any, says: str) -> None:
    with pytest.raises(UserError, match=f"^data: cannot be used: {says}"):
        loaded(data, test_share=0.25)


def test_frames_are_matched_by_the_names_of_their_columns() -> None:
    turned = PLAIN[["label", "d", "c", "b", "a"]]
    found = loaded((PLAIN[:60], turned[60:]))
    assert np.array_equal(found.test.x.numpy(), X[60:])
    assert found.feature_names == tuple("abcd")
    found = loaded(ARRAYS | {"x_train": PLAIN[list("abcd")][:60], "x_test": turned[list("dcba")][60:]})
    assert np.array_equal(found.test.x.numpy(), X[60:])
    assert found.feature_names == tuple("abcd")


def test_the_label_of_the_training_frame_is_that_of_the_test_frame() -> None:
    train = PLAIN.rename(columns={"label": "target"})
    test = train.assign(target=train["target"])
    assert loaded((train[:60], test[60:])).class_names == ("no", "yes")


def test_numbers_that_a_frame_keeps_as_objects_are_numbers() -> None:
    decimals: list[Any] = [Decimal(str(each)) for each in X[:, 0]]
    odd = PLAIN.assign(a=decimals, b=X[:, 1].astype(object), c=X[:, 2].tolist())
    before = odd.dtypes.to_dict()
    found = loaded((odd[:60], odd[60:]))
    assert found.feature_names == tuple("abcd")
    assert np.allclose(found.test.x.numpy(), X[60:])
    assert odd.dtypes.to_dict() == before, "the user's frame is not changed"


def test_training_and_test_inputs_may_have_different_types_of_numbers() -> None:
    found = loaded(ARRAYS | {"x_train": (X[:60] * 10).astype(np.int16), "x_test": X[60:].astype(np.float64)})
    assert (found.train.x.dtype, found.test.x.dtype) == (torch.float32, torch.float32)


def test_pixels_may_be_integers_of_any_type() -> None:
    pixels = np.arange(80 * 48).reshape(80, 4, 4, 3) % 256
    found = loaded((pixels.tolist(), Y.tolist()), test_share=0.5)
    assert (found.kind, found.train.x.dtype, found.input_shape) == ("image", torch.uint8, (3, 4, 4))
    with pytest.raises(
        UserError, match="x_train has pixels from 48 to 3791; accepted: integers from 0 to 255, or float"
    ):
        loaded((np.arange(80 * 48).reshape(80, 4, 4, 3), Y), test_share=0.5)


def test_a_rare_class_is_for_training() -> None:
    labels = np.array(["a"] * 78 + ["b"] * 2)
    for share in (0.25, 0.75):
        found = loaded((X, labels), test_share=share)
        assert 1 in found.train.y.tolist()


@pytest.mark.parametrize("entry", [np.array, tuple, torch.tensor, list])
def test_a_list_of_samples_is_an_array(entry: Any) -> None:
    found = loaded(([entry(row) for row in X.tolist()], list(Y)), test_share=0.25)
    assert (found.input_shape, found.classes) == ((4,), 2)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(
        UserError, match="there is no column 'lable', did you mean 'label'\\?; found: a, b, c, d, label"
    ):
        loaded(FRAME, label_column="lable", test_share=0.5)
    with pytest.raises(UserError, match=r"^data\.test_share = 0\.001: leaves no training or no test samples"):
        loaded(PLAIN, test_share=0.001)


def test_data_and_the_name_of_other_data_do_not_go_together() -> None:
    with pytest.raises(UserError, match=r"^data\.dataset = 'cifar10': data are handed in, too; accepted: given"):
        simulate(load_experiment(None, ["data.dataset=cifar10"]), data=ARRAYS)
    with pytest.raises(
        UserError, match=r"data\.label_column = 'a': only for data\.dataset = hf:.* my_module:function or"
    ):
        load_experiment(None, ["data.label_column=a"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_records_the_fingerprint_and_resume_asks_for_the_data(tmp_path: Path, workers: int) -> None:
    section = {"partition": "iid", "devices": 6}
    experiment = Experiment(
        data=section,  # type: ignore[arg-type]
        model={"name": "mlp"},  # type: ignore[arg-type]
        run={**RUN, "workers": workers},  # type: ignore[arg-type]
        fleet={"slots": 2},  # type: ignore[arg-type]
    )
    whole = simulate(experiment, tmp_path / "whole", data=ARRAYS)
    assert 'dataset = "given:' in (tmp_path / "whole" / "experiment.toml").read_text()
    with pytest.raises(Paused):
        simulate(experiment, tmp_path / "part", until=15, data=ARRAYS)
    with pytest.raises(UserError, match="handed in from Python; accepted: simulate or resume with data"):
        resume(tmp_path / "part")
    with pytest.raises(
        UserError, match=r"^data: given:\w+, but the run has given:\w+; accepted: the data that it began"
    ):
        resume(tmp_path / "part", data=ARRAYS | {"y_test": 1 - Y[60:]})
    again = resume(tmp_path / "part", data=ARRAYS)
    assert again is not None
    assert again.metrics.equals(whole.metrics)
    for name in ("events.jsonl", "model.safetensors"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_command_line_says_that_the_data_were_handed_in(tmp_path: Path) -> None:
    experiment = Experiment(
        data={"partition": "iid", "devices": 6},  # type: ignore[arg-type]
        model={"name": "mlp"},  # type: ignore[arg-type]
        run={**RUN, "workers": 0},  # type: ignore[arg-type]
    )
    with pytest.raises(Paused):
        simulate(experiment, tmp_path / "part", until=15, data=ARRAYS)
    done = cabafl_here("resume", "part", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "handed in from Python" in done.stderr
