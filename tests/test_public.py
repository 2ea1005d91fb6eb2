"""The public interface: the exported names, and that `import cabafl` does not load torch."""

import contextlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cabafl

NAMES = [
    "Comparison",
    "Experiment",
    "Exported",
    "Job",
    "LearningTask",
    "LoadedModel",
    "LoggedRun",
    "Logger",
    "Method",
    "Objective",
    "Parameters",
    "Result",
    "Server",
    "TaskMetric",
    "Upload",
    "UserError",
    "__version__",
    "build_report",
    "compare",
    "export_model",
    "finish",
    "load_experiment",
    "load_model",
    "load_runs",
    "resume",
    "simulate",
    "sweep",
]


def test_exactly_these_names_are_public() -> None:
    assert cabafl.__all__ == NAMES
    assert dir(cabafl) == NAMES


def test_the_reference_lists_every_public_name() -> None:
    page = Path("docs/reference/index.md").read_text()
    assert [name for name in NAMES if f"| [`{name}`][cabafl.{name}] |" not in page] == ["__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    found = getattr(cabafl, name)
    assert isinstance(found, str) or (found.__doc__ and found.__module__.startswith("cabafl."))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = cabafl.simulat


@pytest.mark.parametrize("code", ["import cabafl", "import cabafl.cli", "from cabafl import Experiment, UserError"])
def test_importing_does_not_load_torch(code: str) -> None:
    check = f"{code}\nimport sys\nprint([m for m in ('torch', 'pandas', 'matplotlib', 'flwr') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_base_installation_brings_no_large_library_of_others() -> None:
    """Neither by name nor through something it requires: the embedded digits need none of them."""
    found, pending = set(), ["cabafl"]
    while pending:
        for text in requires(pending.pop()) or []:
            wanted = Requirement(text)
            name = canonicalize_name(wanted.name)
            if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
                found.add(name)
                with contextlib.suppress(PackageNotFoundError):  # for another system
                    version(name)
                    pending.append(name)
    assert {"torch", "numpy", "pandas"} <= found
    assert not found & {"scikit-learn", "scipy", "mlxtend", "datasets", "ray", "flwr", "opacus", "optuna", "onnx"}
