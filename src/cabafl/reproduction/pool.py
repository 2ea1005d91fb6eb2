"""Finished runs, found by their settings: in the output folder and in folders from other machines or commands."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cabafl import methods
from cabafl.config import Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.paper.identity import digest, identity
from cabafl.recording.folder import EXPERIMENT, SUMMARY
from cabafl.reporting.runs import Run, load_run


class RunPool:
    """Finished simulations by experiment and seed. Of equal runs, the one in the first folder counts.

    A run may lack its event log, which is by far the largest file and which few figures need.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.outdated: list[Path] = []
        self._paths: dict[str, dict[int, Path]] = {}
        self._loaded: dict[Path, Run] = {}
        for folder in folders:
            for file in sorted(folder.rglob(EXPERIMENT)):
                if (file.parent / SUMMARY).exists():
                    self._add(file.parent)

    def _add(self, folder: Path) -> None:
        try:
            experiment = load_experiment(folder / EXPERIMENT)
            key = _key(experiment)
            clock = json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get("clock", "virtual")
        except (UserError, OSError, ValueError, KeyError, ImportError, AttributeError, TypeError):
            return  # not a run of this program, or of a method that is not here
        if clock != "virtual":
            return
        if _is_outdated(folder, experiment):
            self.outdated.append(folder)
            return
        self._paths.setdefault(key, {}).setdefault(experiment.seed, folder)

    def find(self, experiment: Experiment) -> Path | None:
        """The folder of this experiment with this seed."""
        return self._paths.get(_key(experiment), {}).get(experiment.seed)

    def runs(self, experiment: Experiment) -> list[Run]:
        """The runs of this experiment with any seed, sorted by seed."""
        found = sorted(self._paths.get(_key(experiment), {}).items())
        return [self._load(path) for _, path in found]

    def _load(self, folder: Path) -> Run:
        if folder not in self._loaded:
            self._loaded[folder] = load_run(folder, "", needs_events=False)
        return self._loaded[folder]


def _key(experiment: Experiment) -> str:
    return digest(identity(experiment.model_copy(update={"seed": 0})))


def _is_outdated(folder: Path, experiment: Experiment) -> bool:
    """Whether the run is from a version whose numbers differ with these settings: before ``fleet.forward_share``, a
    feature collection took longer, WKAFL's buffer had another default and ResNet-18 other initial weights."""
    written: dict[str, Any] = tomllib.loads((folder / EXPERIMENT).read_text(encoding="utf-8"))
    if "forward_share" in written.get("fleet", {}):
        return False
    cls = methods.find(experiment.method.name)
    collects = cls(cls.Parameters(**experiment.method.parameters)).needs().features is not None
    return collects or experiment.method.name == "wkafl" or experiment.model.name == "resnet18"
