"""The experiment files of the paper's settings: in the package, or in the folder ``experiments`` of a clone."""

from pathlib import Path

from cabafl.validation import unknown

_INSTALLED = Path(__file__).parent / "experiments"
_CLONE = Path(__file__).parents[3] / "experiments"


def paper_file(name: str) -> Path:
    """The file of a setting, such as ``cifar10-cnn-beta0.1``; raises `UserError` if there is none."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _CLONE
    files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    name = name.removesuffix(".toml")
    if name not in files:
        raise unknown("--paper", name, files)
    return files[name]
