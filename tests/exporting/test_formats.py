"""Every network in every format computes what the torch model computes."""

import json
import warnings
from pathlib import Path

import onnx
import pytest
import torch
from safetensors import safe_open

from cabafl import UserError, models
from cabafl.config import PrivacySection, TaskSection, TrainingSection
from cabafl.data.dataset import Kind, Split
from cabafl.exporting import formats
from cabafl.exporting.check import compare_outputs
from cabafl.exporting.formats import FORMATS, Format, check_format, in_one_line, read_model, write_model
from cabafl.learning.spec import TaskSpec
from cabafl.lifecycle.loading import LoadedModel

SHAPES: dict[str, tuple[int, ...]] = {
    "cnn": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "vgg16": (1, 28, 28),
    "lstm": (20,),
    "mlp": (7,),
}


def loaded(
    name: str, shape: tuple[int, ...], task: str = "classification", dtype: torch.dtype = torch.uint8
) -> LoadedModel:
    """A network with random weights, not those that it would begin with: those of batch norm are all the same."""
    kind: Kind = "text" if name == "lstm" else "image" if len(shape) == 3 else "vector"
    wide = name in ("resnet18", "vgg16")
    scale = shape[0] if kind != "text" else 0
    spec = TaskSpec(
        seed=3,
        model=name,
        width=0.1 if wide else 1.0,
        kind=kind,
        input_shape=shape,
        classes=50 if name == "lstm" else 6,
        mean=tuple(0.4 + 0.01 * i for i in range(scale)),
        deviation=tuple(0.3 + 0.02 * i for i in range(scale)),
        class_names=(),
        feature_layer=None,
        task=TaskSection(name=task),
        training=TrainingSection(),
        privacy=PrivacySection(),
    )
    network = spec.network().eval()
    draw = torch.Generator().manual_seed(1)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data += 0.05 * torch.rand(tensor.shape, generator=draw)
    model = LoadedModel(network, spec)
    last = network.get_submodule("out")
    assert isinstance(last, torch.nn.Linear)
    last.bias.data -= model(samples(shape, dtype=dtype).x).mean(dim=0)  # no class is the best of all samples
    return model


def samples(shape: tuple[int, ...], count: int = 260, dtype: torch.dtype = torch.uint8) -> Split:
    """More than one batch of the comparison."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256 if len(shape) == 3 else 50, (count, *shape), generator=draw)
    return Split(x.to(dtype), torch.randint(0, 6, (count,), generator=draw))


def test_all_networks_are_here() -> None:
    assert SHAPES.keys() == models.NETWORKS.keys()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_predictions(form: Format, name: str, tmp_path: Path) -> None:
    model, test = loaded(name, SHAPES[name]), samples(SHAPES[name])
    path = tmp_path / "model"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        write_model(model, form, test.x[:2], path)
        read_model(form, path, model.spec)
    assert [str(each.message) for each in shown] == []
    assert list(tmp_path.iterdir()) == [path]  # one file, whatever the size
    agreement = compare_outputs(model, read_model(form, path, model.spec), test, form)
    assert agreement.line.startswith("260 test samples: the same predictions in ")
    outputs = model(test.x)
    assert agreement.figures["accuracy"] == (outputs.argmax(dim=1) == test.y).double().mean()
    assert len(set(outputs.argmax(dim=1).tolist())) > 1  # the comparison means something


def test_the_cnn_for_small_images(tmp_path: Path) -> None:
    model, test = loaded("cnn", (1, 28, 28)), samples((1, 28, 28))
    write_model(model, "onnx", test.x[:2], tmp_path / "m")
    compare_outputs(model, read_model("onnx", tmp_path / "m", model.spec), test, "onnx")


@pytest.mark.parametrize("form", FORMATS)
def test_preprocessing_and_task_travel_with_the_file(form: Format, tmp_path: Path) -> None:
    model, test = loaded("mlp", (7,), dtype=torch.float32), samples((7,), dtype=torch.float32)
    path = tmp_path / "m"
    write_model(model, form, test.x[:2], path)
    if form == "onnx":
        found = {each.key: each.value for each in onnx.load(path).metadata_props}["task.json"]
        onnx.checker.check_model(str(path), full_check=True)
        [given] = onnx.load(path).graph.input
        assert given.type.tensor_type.shape.dim[0].dim_param == "batch"
    elif form == "torchscript":
        extra = {"task.json": ""}
        torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]
        found = extra["task.json"]
    else:
        with safe_open(path, "pt") as file:
            found = file.metadata()["task.json"]
    assert TaskSpec.model_validate_json(found) == model.spec
    assert len(json.loads(found)["mean"]) == 7


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("form", FORMATS)
def test_other_tasks(form: Format, task: str, tmp_path: Path) -> None:
    model, test = loaded("mlp", (7,), task, torch.float32), samples((7,), dtype=torch.float32)
    targets = torch.nn.functional.one_hot(test.y, 6).float()
    write_model(model, form, test.x[:2], tmp_path / "m")
    exported = read_model(form, tmp_path / "m", model.spec)
    compare_outputs(model, exported, Split(test.x, targets), form)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return exported(x) * 1.01 - 0.02

    with pytest.raises(UserError, match=r"differently \(outputs differ by .*nothing is written"):
        compare_outputs(model, wrong, Split(test.x, targets), form)


def test_a_file_that_predicts_something_else_is_refused() -> None:
    model, test = loaded("mlp", (7,), dtype=torch.float32), samples((7,), dtype=torch.float32)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        outputs = model(x).clone()
        if len(x) == 10:
            outputs[3] = outputs[3].flip(0)  # one sample of 260
        return outputs

    with pytest.raises(UserError, match=r"^--format = 'onnx': the file predicts 1 of 260 test samples differently"):
        compare_outputs(model, wrong, test, "onnx")


def test_a_model_that_has_diverged_is_refused() -> None:
    model, test = loaded("mlp", (7,)), samples((7,))
    next(model.network.parameters()).data[0, 0] = float("nan")
    with pytest.raises(UserError, match=r"^the model: its outputs on the test samples are not finite; accepted: "):
        compare_outputs(model, model, test, "onnx")


def test_a_file_that_takes_one_size_of_batch_only_is_one_line(tmp_path: Path) -> None:
    model, test = loaded("mlp", (7,)), samples((7,))

    def fixed(x: torch.Tensor) -> torch.Tensor:
        if len(x) != 2:
            raise RuntimeError("Got invalid dimensions\nfor input: samples")
        return model(x)

    with (
        pytest.raises(UserError, match=r"cannot be exported: RuntimeError: Got invalid dimensions for input: samples"),
        in_one_line("onnx", model),
    ):
        compare_outputs(model, fixed, test, "onnx")


def test_a_tie_is_not_a_difference() -> None:
    model, test = loaded("mlp", (7,), dtype=torch.float32), samples((7,), dtype=torch.float32)
    last = model.network.get_submodule("out")
    assert isinstance(last, torch.nn.Linear)
    last.weight.data[1] = last.weight.data[0]
    last.bias.data[:2] = 1000.0

    def rounded(x: torch.Tensor) -> torch.Tensor:
        outputs = model(x).clone()
        outputs[:, 1] += 0.001
        return outputs

    assert "260 ties apart" in compare_outputs(model, rounded, test, "onnx").line


@pytest.mark.parametrize("library", ["onnx", "onnxruntime", "onnxscript"])
def test_a_library_that_is_missing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == library else name)
    with pytest.raises(UserError, match=rf"^--format = 'onnx': needs {library}: pip install 'cabafl\[export\]'$"):
        check_format("onnx")
    check_format("torchscript")


def test_a_format_that_is_unknown() -> None:
    with pytest.raises(UserError, match=r"^--format = 'tflite': unknown; accepted: onnx, torchscript, safetensors$"):
        check_format("tflite")
