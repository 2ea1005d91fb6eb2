"""Arithmetic that does not depend on the type of processor, for the golden runs.

torch, NumPy, their BLAS libraries and the C library choose code for the processor when they are loaded, and each choice
rounds differently. In the process of `fixed_arithmetic` all of them use what every x86-64 processor offers. This is
slower, and it is not how users run: it shows changes of our code, not of the libraries.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Floats = NDArray[np.floating]

ENVIRONMENT = {  # read when the libraries are loaded
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels
    "MKL_CBWR": "COMPATIBLE",  # torch's matrix products, and exp, log and others of large tensors
    "OPENBLAS_CORETYPE": "Nehalem",  # NumPy's matrix products
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F",  # exp, log, pow of Python and of NumPy's draws
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def environment() -> dict[str, str]:
    """`ENVIRONMENT`, and NumPy without the code for newer processors that this version of NumPy has."""
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    newer = [*simd.get("found", []), *simd.get("not found", [])]
    return {**ENVIRONMENT, "NPY_DISABLE_CPU_FEATURES": " ".join(newer)}


def prepare() -> None:
    """Switches off torch's libraries for convolutions and LSTMs, which suit their code to processor and caches."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]


@contextmanager
def fixed_arithmetic() -> Iterator[ProcessPoolExecutor]:
    """A process with these settings; functions submitted to it run one after the other."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare) as process:
        with mock.patch.dict(os.environ, environment()):
            process.submit(os.getpid).result()  # starts the process, while the settings are in place
        yield process


def probe() -> dict[str, str]:
    """Checksums of what training and methods compute with, without our code. Where one differs from the recorded one,
    the checksums of the golden runs may differ too.

    Without torch.sqrt: it starts from an approximation that differs between processors, and no golden run uses it.
    """
    torch.manual_seed(7)
    parts = {"draws": _draws, "NumPy": _numpy, "Python": _python, "matrices": _matrices, "functions": _functions}
    networks = {"convolutions": _convolutions, "LSTM": _lstm, "SGD": _sgd}
    return {name: _checksum(compute()) for name, compute in {**parts, **networks}.items()}


def _checksum(arrays: list[Floats]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def _generator() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(7))


def _normal(*shape: int) -> Tensor:
    return torch.from_numpy(_generator().standard_normal(shape, dtype=np.float32))


def _backward(loss: Tensor, *inputs: Tensor) -> list[Floats]:
    return [gradient.contiguous().numpy() for gradient in torch.autograd.grad(loss, inputs)]


def _draws() -> list[Floats]:
    draw = _generator()
    drawn = [draw.standard_normal(5003), draw.normal(3.0, 0.7, 5003), draw.uniform(1.0, 3.0, 5003)]
    shares = [draw.dirichlet(np.full(10, beta), 500) for beta in (0.1, 0.5, 5.0)]
    initial = [
        nn.Linear(61, 203).weight,
        nn.Conv2d(3, 16, 5).weight,
        torch.randn(5003),
        torch.normal(0.0, 0.3, (503,)),
    ]
    return [*drawn, *shares, *(weights.detach().numpy() for weights in initial), torch.randperm(503).double().numpy()]


def _numpy() -> list[Floats]:
    x, y = _generator().standard_normal((2, 203, 61))
    positive = np.abs(x) + 0.01
    functions = [np.exp(x), np.log(positive), positive**0.3, positive**-0.5, np.sqrt(positive), x / positive]
    sums = [x.sum(axis=0), x.sum(axis=1), x.mean(axis=1), x.std(axis=1), x.ravel().cumsum(), (x * y).sum()]
    products = [x @ y.T, x @ y[0], np.dot(x.ravel(), y.ravel()), np.linalg.norm(x), x.astype(np.float32).sum(axis=1)]
    return [*functions, *map(np.asarray, sums), *map(np.asarray, products)]


def _python() -> list[Floats]:
    numbers = _generator().uniform(0.0, 1.0, 5003).tolist()
    rows = [[math.exp(u), math.log1p(-u), math.log(u), math.sqrt(u), u**-0.5, (math.e / 2) ** (9 * u)] for u in numbers]
    return [np.array(rows)]


def _matrices() -> list[Floats]:
    results: list[Floats] = []
    for samples, inputs, outputs in ((50, 61, 200), (13, 784, 203), (7, 200, 10), (1, 37, 5)):
        x, weights = _normal(samples, inputs).requires_grad_(), _normal(outputs, inputs).requires_grad_()
        bias = _normal(outputs).requires_grad_()
        scores = F.relu(F.linear(x, weights, bias))
        loss = F.cross_entropy(scores, torch.arange(samples) % outputs)
        results += [scores.detach().numpy(), loss.detach().numpy(), *_backward(loss, x, weights, bias)]
    return results


def _functions() -> list[Floats]:
    x = _normal(203, 61)
    functions = [torch.exp(x), torch.log(x.abs()), torch.tanh(x), torch.sigmoid(x), F.log_softmax(x, 1)]
    sums = [
        x.sum(),
        x.sum(dim=0),
        x.sum(dim=1),
        x.mean(dim=1),
        x.sum(dim=0, dtype=torch.float64),
        x.add(x * x, alpha=0.3),
    ]
    return [part.numpy() for part in (*functions, *sums, F.dropout(x, 0.5))]


def _convolutions() -> list[Floats]:
    results: list[Floats] = []
    for shape, kernels in (((50, 1, 28, 28), (16, 1, 5, 5)), ((13, 16, 12, 12), (32, 16, 5, 5))):
        x = _normal(*shape).contiguous(memory_format=torch.channels_last).requires_grad_()
        kernel, bias = _normal(*kernels).requires_grad_(), _normal(kernels[0]).requires_grad_()
        hidden = F.relu(F.max_pool2d(F.conv2d(x, kernel, bias), 2))
        loss = F.cross_entropy(hidden.flatten(1), torch.arange(shape[0]))
        results += [hidden.detach().contiguous().numpy(), *_backward(loss, x, kernel, bias)]
    return results


def _lstm() -> list[Floats]:
    network, x = nn.LSTM(8, 61, num_layers=2, batch_first=True), _normal(13, 20, 8).requires_grad_()
    sequence, _ = network(x)
    loss = F.cross_entropy(sequence[:, -1], torch.arange(13))
    return [sequence.detach().numpy(), *_backward(loss, x, *network.parameters())]


def _sgd() -> list[Floats]:
    parameters, buffers = [_normal(5003), _normal(203, 61)], [torch.zeros(5003), torch.zeros(203, 61)]
    factors = {
        "lr": 0.03,
        "momentum": 0.5,
        "weight_decay": 0.001,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
    }
    for _ in range(3):
        gradients = [torch.sin(parameter) for parameter in parameters]
        torch._fused_sgd_(parameters, gradients, buffers, **factors, is_first_step=False)  # type: ignore[call-overload]
    return [parameter.numpy() for parameter in parameters]
