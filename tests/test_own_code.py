"""Code of the user's that is wrong in any way and at any moment ends in one line that names the setting."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cabafl import UserError, load_experiment, simulate
from cabafl.own_code import blaming, find_own, reason
from tests.cli.program import refused

RUN = [
    "data.dataset=synthetic",
    "data.devices=6",
    "fleet.slots=2",
    "model.name=mlp",
    "run.virtual_time=20",
    "run.evaluate_every=5",
]
MODULES = {
    "syntax": ("def broken(:\n", "invalid syntax (MODULE.py, line 1)"),
    "name": ("import math\nundefined\n", "NameError: name 'undefined' is not defined (MODULE.py, line 2)"),
    "value": ("int('x')\n", "ValueError: invalid literal for int() with base 10: 'x' (MODULE.py, line 1)"),
    "exit": ("import sys\nsys.exit(0)\n", "SystemExit: 0 (MODULE.py, line 2)"),
    "assertion": ("assert False\n", "AssertionError (MODULE.py, line 1)"),
    "several lines": ("raise KeyError('one\\ntwo')\n", "KeyError: 'one\\ntwo' (MODULE.py, line 1)"),
}
KEYS = ["method.name", "model.name", "task.name", "training.optimiser", "training.schedule", "training.augment"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A file that can be imported under a name that no other test has; the working folder is its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    number = abs(hash(request.node.name)) % 10**8
    return tmp_path / f"own_code_{number}.py"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", MODULES)
def test_a_module_that_cannot_be_imported(
    kind: str, key: str, module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, says = MODULES[kind]
    module.write_text(text)
    name = f"{module.stem}:Thing"
    line = refused(["run", *RUN, "run.workers=0", f"{key}={name}", "--out", "run"], monkeypatch, capsys)
    assert line.startswith(f"error: {key} = {name!r}: cannot be ")
    assert line.rstrip().endswith(says.replace("MODULE", module.stem))
    assert not Path("run").exists()


TASK = """
import torch
from torch.nn import functional as F
from cabafl import LearningTask, TaskMetric

class Own(LearningTask):
    targets = "class"
    calls = 0
    def losses(self, outputs, y):
        return F.cross_entropy(outputs, y, reduction="none")
    def metrics(self):
        return [TaskMetric("hits", lambda o, y: (o.argmax(1) == y).sum())]
{more}
"""
HEAD = "import torch\nfrom cabafl import Method\nfrom cabafl.methods.fedasync import FedAsync\n"
FAILING: dict[str, tuple[str, str, str]] = {
    "task made": ("task.name", "    def __init__(self): self.x = undefined\n", "fails: NameError"),
    "metrics": ("task.name", "    def metrics(self): return 1 / 0\n", "fails: ZeroDivisionError"),
    "no metrics": ("task.name", "    def metrics(self): return None\n", "metrics() = None; accepted: a list of"),
    "names": ("task.name", "    def metrics(self): return ['hits']\n", "metrics() = ['hits']; accepted: a list of"),
    "usual": (
        "task.name",
        "    def usual(self): return self.absent\n",
        "fails: 'Own' object has no attribute 'absent'",
    ),
    "check": ("task.name", "    def check(self, y): raise KeyError(y.shape)\n", "fails: KeyError"),
    "outputs": (
        "task.name",
        "    def outputs(self, classes, y): return 'ten'\n",
        "outputs() = 'ten'; accepted: a whole",
    ),
    "no outputs": ("task.name", "    def outputs(self, classes, y): return 0\n", "outputs() = 0; accepted: a whole"),
    "sums": (
        "task.name",
        "    def metrics(self): return [TaskMetric('hits', lambda o, y: o.absent)]\n",
        "fails: 'Tensor' object has no attribute 'absent'",
    ),
    "sums of numbers": (
        "task.name",
        "    def metrics(self): return [TaskMetric('hits', lambda o, y: 1.0)]\n",
        "the sums of 'hits' are a float; accepted: a tensor",
    ),
    "value": (
        "task.name",
        "    def metrics(self): return [TaskMetric('hits', lambda o, y: o.sum(), lambda s, n: s[7])]\n",
        "fails: IndexError",
    ),
    "no value": (
        "task.name",
        "    def metrics(self): return [TaskMetric('hits', lambda o, y: o.sum(), lambda s, n: None)]\n",
        "the value of 'hits' is None; accepted: a number",
    ),
    "loss later": (
        "task.name",
        "    def loss(self, o, y):\n        if len(y) > 2: raise OSError('no weights')\n"
        "        return F.cross_entropy(o, y)\n",
        "fails: no weights",
    ),
    "exit": (
        "task.name",
        "    def loss(self, o, y):\n        if len(y) > 2: raise SystemExit(3)\n        return F.cross_entropy(o, y)\n",
        "fails: SystemExit: 3",
    ),
    "optimiser made": (
        "training.optimiser",
        "class Own(torch.optim.SGD):\n    def __init__(self, *a, **k): raise KeyError('momentum')\n",
        "cannot be used: KeyError: 'momentum'",
    ),
    "optimiser of nothing": ("training.optimiser", "Own = lambda *a, **k: None\n", "cannot be used: 'NoneType' object"),
    "optimiser later": (
        "training.optimiser",
        "class Own(torch.optim.SGD):\n    def step(self):\n        super().step()\n"
        "        if len(self.param_groups[0]['params']) > 1: raise IndexError('no such group')\n",
        "fails: IndexError: no such group",
    ),
    "schedule at once": ("training.schedule", "def Own(t): return [1][int(t) + 1]\n", "fails (IndexError: list index"),
    "schedule later": (
        "training.schedule",
        "def Own(t):\n    if t > 3: exit(1)\n    return 1\n",
        "fails (SystemExit: 1",
    ),
    "schedule of text": (
        "training.schedule",
        "def Own(t): return 'half'\n",
        "'half' at 0 s; accepted: a number above 0",
    ),
    "augmentation": ("training.augment", "def Own(x, generator): exit()\n", "cannot be used: SystemExit"),
    "no tensor": ("training.augment", "def Own(x, generator): return None\n", "cannot be used: it returns a NoneType"),
    "augmentation later": (
        "training.augment",
        "def Own(x, generator):\n    assert len(x) == 2, 'only two'\n    return x\n",
        "fails: AssertionError: only two",
    ),
    "method made": (
        "method.name",
        "class Own(FedAsync):\n    def __init__(self, parameters): raise OSError\n",
        "fails: OSError",
    ),
    "method starts": (
        "method.name",
        "class Own(FedAsync):\n    def start(self, server): self.absent()\n",
        "fails: 'Own'",
    ),
    "method later": (
        "method.name",
        "class Own(FedAsync):\n    def on_upload(self, server, upload): server.publish(upload.absent)\n",
        "fails: 'Upload' object has no attribute 'absent'",
    ),
    "network exits": (
        "model.name",
        "class Own(torch.nn.Linear):\n    def __init__(self): exit(0)\n",
        "cannot be built with the arguments (): SystemExit: 0",
    ),
    "network later": (
        "model.name",
        "class Own(torch.nn.Linear):\n    def __init__(self): super().__init__(32, 10)\n"
        "    def forward(self, x):\n        if len(x) > 2: raise LookupError('lost')\n"
        "        return super().forward(x)\n",
        "fails: LookupError: lost",
    ),
}


@pytest.fixture
def failing(module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    def check(case: str, workers: int) -> None:
        key, text, says = FAILING[case]
        module.write_text(TASK.format(more=text) if key == "task.name" else HEAD + text)
        own = [f"run.workers={workers}", "method.name=fedavg", f"{key}={module.stem}:Own"]
        line = refused(["run", *RUN, *own, "--out", "run", "--quiet"], monkeypatch, capsys)
        assert says in line
        assert key in line
        assert not Path("run/summary.json").exists()

    return check


@pytest.mark.parametrize("case", FAILING)
def test_code_that_fails_when_it_is_used(case: str, failing: Callable[..., None]) -> None:
    failing(case, workers=0)


@pytest.mark.parametrize("case", ["exit", "no value", "optimiser later"])
def test_code_that_fails_in_a_worker_process(case: str, failing: Callable[..., None]) -> None:
    failing(case, workers=1)


def test_an_error_of_a_listener_is_the_listeners() -> None:
    class Enough(Exception):
        pass

    def listener(event: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        simulate(load_experiment(None, [*RUN, "run.workers=0"]), listener=listener)


def test_only_code_that_a_setting_names_is_blamed() -> None:
    with pytest.raises(ZeroDivisionError), blaming({"method.name": "somewhere:Else", "model.name": "mlp"}):
        1 / 0  # noqa: B018
    says = r"model\.name = '.*:X': fails: ZeroDivisionError: division by zero \(test_own_code\.py, line \d+\)"
    named = {"method.name": "somewhere:Else", "model.name": f"{__name__}:X"}
    with pytest.raises(UserError, match=says), blaming(named):
        1 / 0  # noqa: B018


def test_what_is_there_is_found() -> None:
    assert find_own("task.name", f"{__name__}:RUN") is RUN
    assert reason(ValueError()) == "ValueError"
    assert len(reason(ValueError("x" * 1000))) < 400
