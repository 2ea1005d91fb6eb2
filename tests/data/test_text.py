"""Text of the user's own: windows of symbol numbers, in every way that arrays can be given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cabafl import UserError, load_experiment, load_model, simulate
from cabafl.assembly import assemble, make_server_task
from cabafl.data.text import text_dataset

DRAW = np.random.default_rng(4)
X = DRAW.integers(0, 9, (80, 5))
NEXT = (X[:, -1] + 1) % 9
EACH = (X + 1) % 9
WORDS = ["task.name=next-token", "method.name=fedavg", "fleet.slots=2", "run.workers=0", "run.virtual_time=20"]
ARRAYS = {"x_train": X[:60], "y_train": NEXT[:60], "x_test": X[60:], "y_test": NEXT[60:]}


class EveryStep(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.embedding, self.scores = nn.Embedding(classes, 6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.embedding(x))
        return scores


def own(device: int | None) -> tuple[Any, Any]:
    return (X, NEXT) if device is None else (X[device::3], NEXT[device::3])


def far(device: int | None) -> tuple[Any, Any]:
    return (X, NEXT) if device is None else (X + 1, NEXT)


def given(*more: str) -> Any:
    return load_experiment(None, [*WORDS, "data.dataset=given", "data.partition=iid", "data.devices=4", *more])


def test_a_run_on_own_text_and_its_predictions(tmp_path: Path) -> None:
    result = simulate(given("model.name=lstm"), tmp_path / "run", data=ARRAYS)
    assert "perplexity" in result.metrics
    model = load_model(tmp_path / "run")
    assert (model.spec.kind, model.spec.classes) == ("text", 9)
    assert model.predict(X[:7]).shape == (7,)
    with pytest.raises(UserError, match=r"^x: int64 from 9 to 9; accepted: symbols, integers from 0 to 8$"):
        model.predict(np.full(5, 9))


def test_one_symbol_for_each_step(tmp_path: Path) -> None:
    data = ARRAYS | {"y_train": EACH[:60], "y_test": EACH[60:]}
    simulate(given(f"model.name={__name__}:EveryStep"), tmp_path / "run", data=data)
    assert load_model(tmp_path / "run").predict(X[:7]).shape == (7, 5)


def test_a_file_and_a_function(tmp_path: Path) -> None:
    np.savez(tmp_path / "text.npz", class_names=np.array(list("abcdefghij")), **ARRAYS)  # type: ignore[arg-type]
    words = [*WORDS, "model.name=lstm", "data.dataset=npz", f"data.root={tmp_path / 'text.npz'}"]
    dataset = assemble(load_experiment(None, [*words, "data.partition=iid", "data.devices=4"])).task.dataset
    assert (dataset.kind, dataset.classes, dataset.class_names[9]) == ("text", 10, "j")
    assert torch.equal(dataset.test.x.long(), torch.from_numpy(X[60:]))
    words = [*WORDS, "model.name=lstm", f"data.dataset={__name__}:own", "data.partition=natural", "data.devices=3"]
    assert assemble(load_experiment(None, words)).task.dataset.train.x.shape == X.shape
    assert make_server_task(load_experiment(None, words)).spec.classes == 9
    with pytest.raises(UserError, match="x_train has the symbol 9; accepted: 0 to 8"):
        assemble(load_experiment(None, [word.replace(":own", ":far") for word in words]))


def test_inputs_that_are_no_text_are_read_as_for_any_task() -> None:
    data = text_dataset("mine", ARRAYS | {"x_train": X[:60] / 2, "x_test": X[60:] / 2}, UserError)
    assert (data.kind, data.classes) == ("vector", 9)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"x_train": X[:60] - 1},
            r"x_train is int64 of shape \(60, 5\); accepted for text: numbers of symbols, integers",
        ),
        ({"x_train": X[:60] * 1.0}, "x_train is float64 of shape"),
        (
            {"x_train": X[:60, :4]},
            r"x_train has shape \(60, 4\) and y_train \(60,\); accepted: \(N, 5\) and \(N,\), or one",
        ),
        ({"y_train": EACH[:60, :2]}, r"x_train has shape \(60, 5\) and y_train \(60, 2\); accepted"),
        ({"y_train": NEXT[:60].astype(str)}, "y_train is <U21 of shape"),
        ({"y_train": NEXT[:59]}, r"y_train has shape \(59,\); \(60,\)"),
        ({"x_test": X[60:] + 10**7}, "10,000,009 symbols; accepted: 2 to 1,000,000 different ones"),
        ({"class_names": ["a", "b"]}, "x_train has the symbol 8; accepted: 0 to 1"),
        ({"class_names": ["a"] * 9}, "9 symbols; accepted: 2 to 1,000,000 different ones"),
        ({"mean": np.zeros(5)}, "mean: text has none; accepted: class_names"),
    ],
)
def test_mistakes_are_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"^data: cannot be used: {says}"):
        simulate(given("model.name=lstm"), data=ARRAYS | more)
