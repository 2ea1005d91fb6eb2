"""Writes a model in the formats of other programs, and reads it back as they do."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from cabafl.data.dataset import network_inputs
from cabafl.errors import UserError
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import FlatModel
from cabafl.learning.weights import start_from
from cabafl.lifecycle.loading import LoadedModel
from cabafl.validation import unknown

Format = Literal["onnx", "torchscript", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}
RUNTIMES: dict[Format, str] = {
    "onnx": "onnxruntime",
    "torchscript": "the TorchScript interpreter",
    "safetensors": "a network that loads the file",
}
TASK_KEY = "task.json"  # under which the files keep the task's description
SAMPLES, OUTPUTS = "samples", "outputs"  # the names of input and output
Outputs = Callable[[Tensor], Tensor]


class Portable(nn.Module):
    """A network with its preprocessing: takes samples as they are in the data set."""

    def __init__(self, network: nn.Module, spec: TaskSpec) -> None:
        super().__init__()
        self.network = network
        self._kind, self._mean, self._deviation = spec.kind, spec.mean, spec.deviation

    def forward(self, samples: Tensor) -> Tensor:
        """The outputs of the network, one row per sample."""
        outputs: Tensor = self.network(network_inputs(samples, self._kind, self._mean, self._deviation))
        return outputs


def check_format(form: str) -> None:
    """Raises `UserError` for a format that is unknown or whose libraries are not installed."""
    if form not in FORMATS:
        raise unknown("--format", form, FORMATS)
    for library in ("onnx", "onnxruntime", "onnxscript") if form == "onnx" else ():
        if find_spec(library) is None:
            raise UserError(f"--format = 'onnx': needs {library}: pip install 'cabafl[export]'")


def write_model(model: LoadedModel, form: Format, samples: Tensor, path: Path) -> None:
    """Writes the file; ``samples`` are two or more of the data set, as they are there. Raises `UserError` if the
    network cannot be expressed in the format."""
    write = {"onnx": _write_onnx, "torchscript": _write_torchscript, "safetensors": _write_safetensors}[form]
    with in_one_line(form, model):
        write(model, samples, path)


@contextmanager
def in_one_line(form: Format, model: LoadedModel) -> Iterator[None]:
    """Turns what exporters and runtimes raise into a `UserError`."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        cause = error.__cause__ or error  # torch.onnx adds advice of many lines
        plain = re.sub(r"\x1b\[\d*m", "", f"{type(cause).__name__}: {cause}")
        reason = " ".join(plain.split())[:200]
        others = ", ".join(other for other in FORMATS if other != form)
        raise UserError(
            f"--format = {form!r}: model.name = {model.spec.model!r} cannot be exported: {reason}; accepted: {others}"
        ) from None


def read_model(form: Format, path: Path, spec: TaskSpec) -> Outputs:
    """What the file computes: samples -> outputs."""
    if form == "onnx":
        return _read_onnx(path)
    if form == "torchscript":
        with _calm_jit():
            program = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        return lambda x: _without_gradient(program, x)
    fresh = FlatModel(spec.network())
    start_from(fresh, path)
    portable = Portable(fresh.network.eval(), spec)
    return lambda x: _without_gradient(portable, x)


def _without_gradient(module: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    with torch.inference_mode():
        outputs: Tensor = module(x)
        return outputs


def _write_onnx(model: LoadedModel, samples: Tensor, path: Path) -> None:
    with _calm_onnx():
        program = torch.onnx.export(
            Portable(model.network, model.spec).eval(),
            (samples,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[SAMPLES],
            output_names=[OUTPUTS],
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props[TASK_KEY] = model.spec.model_dump_json()
    program.save(str(path), external_data=False)


def _read_onnx(path: Path) -> Outputs:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run([OUTPUTS], {SAMPLES: x.numpy()})[0])


def _write_torchscript(model: LoadedModel, samples: Tensor, path: Path) -> None:
    with _calm_jit(), torch.no_grad():
        portable = Portable(model.network, model.spec).eval()
        traced = torch.jit.trace(portable, (samples,), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={TASK_KEY: model.spec.model_dump_json()})


def _write_safetensors(model: LoadedModel, samples: Tensor, path: Path) -> None:
    path.write_bytes(save(model.tensors(), metadata={TASK_KEY: model.spec.model_dump_json()}))


@contextmanager
def _calm_jit() -> Iterator[None]:
    """Without the notice that TorchScript is deprecated, and without warnings about torch's own layers; those about
    branches in the user's network remain."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"(torch|cabafl)\.")
        yield


@contextmanager
def _calm_onnx() -> Iterator[None]:
    """Without what the exporter says about torch's own code, such as that torchvision is not there."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", "The tensor attributes? ", UserWarning)
            yield
    finally:
        log.setLevel(before)
