"""New samples for a trained network get the form of the training samples, or one line."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cabafl.config import load_experiment
from cabafl.data.arrays import dataset_of
from cabafl.data.raw import InputForm, raw_inputs
from cabafl.errors import UserError
from cabafl.learning.spec import TaskSpec

DRAW = np.random.default_rng(6)
GREY = DRAW.integers(0, 256, (12, 5, 6), dtype=np.uint8)
COLOUR = DRAW.integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)
Y = np.arange(12) % 3


def trained(x: Any, **more: Any) -> tuple[InputForm, Any]:
    """The form that a run on these samples records, and its network's inputs for them."""
    data = dataset_of("mine", {"x_train": x, "y_train": Y, "x_test": x, "y_test": Y, **more}, UserError)
    experiment = load_experiment(None, ["data.dataset=npz", "model.name=mlp"])
    recorded = TaskSpec.model_validate_json(TaskSpec.of(experiment, data).model_dump_json())
    return recorded.form, data.inputs(data.train.x)


def same(x: Any, form: InputForm, expected: Any) -> bool:
    return torch.equal(raw_inputs(x, form), expected)


@pytest.mark.parametrize(
    "x",
    [GREY, GREY[..., None], COLOUR, COLOUR.transpose(0, 3, 1, 2), COLOUR / np.float32(255), GREY[..., None] * 3.0],
    ids=["grey", "one channel", "channels last", "channels first", "floats", "floats of 0 to 765"],
)
def test_pictures_as_they_were_for_training(x: Any) -> None:
    form, expected = trained(x)
    assert same(x, form, expected)
    assert same(torch.from_numpy(x), form, expected)
    assert same(x[3], form, expected[3:4])
    assert same(x.tolist(), form, expected) or x.dtype == np.float32, "a list of float32 has float64 numbers"


def test_pixels_of_any_integer_type_are_divided() -> None:
    form, expected = trained(GREY)
    for x in (GREY.astype(np.int64), GREY.astype(np.int16), GREY.tolist(), torch.from_numpy(GREY.astype(np.int32))):
        assert same(x, form, expected)
    assert torch.allclose(raw_inputs(GREY / 255, form), expected), "fractions are pixels, too"


def test_channels_may_be_first_or_last_or_absent() -> None:
    form, expected = trained(GREY)
    for x in (GREY[:, None], GREY[..., None]):
        assert same(x, form, expected)
        assert same(x[0], form, expected[:1])
    form, expected = trained(COLOUR)
    assert same(COLOUR.transpose(0, 3, 1, 2), form, expected)


def test_bytes_are_divided_in_images_only() -> None:
    x = DRAW.integers(0, 256, (12, 4), dtype=np.uint8)
    form, expected = trained(x)
    assert expected.max() > 1, "vectors are not rescaled in training"
    assert same(x, form, expected)
    assert same(x.astype(np.float64), form, expected)
    assert same(x.tolist(), form, expected)


def test_a_frame_is_matched_by_the_names_of_its_columns() -> None:
    x = DRAW.random((12, 3), dtype=np.float32)
    form, expected = trained(x, feature_names=np.array(["a", "b", "c"]))
    frame = pd.DataFrame(x, columns=list("abc")).assign(label="?")
    assert same(frame[["c", "label", "a", "b"]], form, expected)
    assert same(frame[["c", "label", "a", "b"]].iloc[2], form, expected[2:3]), "a row has the names, too"
    assert same(pd.Series(x[2]), form, expected[2:3])
    with pytest.raises(UserError, match=r"^x: there is no column 'b'; found: a, c, label$"):
        raw_inputs(frame.drop(columns="b"), form)
    with pytest.raises(UserError, match=r"^x: a frame, but the features of the training samples have no names"):
        raw_inputs(frame, trained(x)[0])


def test_pixels_of_a_run_that_did_not_record_their_type() -> None:
    form, expected = trained(GREY)
    assert same(GREY, form._replace(pixels=None), expected)
    form, expected = trained(COLOUR * 1.0)
    assert same(COLOUR * 1.0, form._replace(pixels=None), expected)


IMAGES, FLOATS = trained(GREY)[0], trained(GREY[..., None] / 255)[0]
VECTORS = trained(DRAW.random((12, 4)))[0]
TEXT = InputForm("text", (5,), symbols=10)


@pytest.mark.parametrize(
    ("x", "form", "says"),
    [
        (np.zeros((3, 5)), VECTORS, r"x: shape \(3, 5\); accepted: \(4,\), or n x \(4,\) for n samples$"),
        (np.zeros(5), VECTORS, r"x: shape \(5,\); accepted: \(4,\)"),
        (7, VECTORS, r"x: shape \(\); accepted"),
        (None, VECTORS, "x is a NoneType; accepted: arrays, tensors or lists"),
        ("text", VECTORS, r"x is <U4 of shape \(\); accepted: numbers"),
        ([["1", "2", "3", "4"]], VECTORS, "x is <U1 of shape .*; accepted: numbers"),
        ([[1, 2], [3]], VECTORS, "x is a list that is no array"),
        ([[1, 2, None, 4]], VECTORS, "x is object of shape"),
        ([[1, 2, np.nan, 4]], VECTORS, r"x\[0, 2\] is nan; only finite numbers are accepted"),
        ([[1, 2, 1e300, 4]], VECTORS, r"x\[0, 2\] is inf; only finite"),
        ([[1j, 2, 3, 4]], VECTORS, "x is complex128"),
        (GREY.astype(int) + 1, IMAGES, "x has pixels from 1 to 256; accepted: integers from 0 to 255, or floating"),
        (GREY * 1.0, IMAGES, "x: float32 from 0 to 255; accepted: pixels as integers from 0 to 255, or as fractions"),
        (GREY > 9, IMAGES, "x has pixels of type bool; accepted: integers"),
        (GREY, FLOATS, "x: uint8 pixels, but the network was trained with floating-point ones; accepted: those"),
        (
            COLOUR,
            IMAGES,
            r"x: shape \(12, 5, 6, 3\); accepted: \(1, 5, 6\), .* with the channels first or last, or without",
        ),
        (GREY[:, 1:], IMAGES, r"x: shape \(12, 4, 6\); accepted"),
        ([[0, 1, 2, 3, 10]], TEXT, "x: int64 from 0 to 10; accepted: symbols, integers from 0 to 9"),
        ([[0, 1, 2, 3, -1]], TEXT, "x: int64 from -1 to 3; accepted: symbols"),
        ([[0, 1, 2, 3, 1.5]], TEXT, "x: float64 from 0 to 3; accepted: symbols"),
        (pd.DataFrame({"a": [1]}), IMAGES, "x: a frame; accepted: arrays of shape"),
    ],
)
def test_what_does_not_have_the_form_is_one_line(x: Any, form: InputForm, says: str) -> None:
    with pytest.raises(UserError, match=f"^{says}") as refused:
        raw_inputs(x, form)
    assert "\n" not in str(refused.value)


def test_no_samples_are_no_predictions() -> None:
    for shape, form in (((0, 4), VECTORS), ((0, 5, 6), IMAGES), ((0, 5), TEXT)):
        x = np.zeros(shape, np.float32 if form is VECTORS else np.uint8)
        assert len(raw_inputs(x, form)) == 0
