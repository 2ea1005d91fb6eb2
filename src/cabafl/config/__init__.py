"""The description of an experiment: a typed object, one section per table of the TOML file, a default for every key."""

from cabafl.config.experiment import Experiment, apply_override, load_experiment, parse_value
from cabafl.config.fleet import FleetSection
from cabafl.config.learning import TaskSection, TrainingSection
from cabafl.config.sections import (
    EXECUTION_KEYS,
    HUB_KEYS,
    LENGTH_KEYS,
    DataSection,
    MethodSection,
    ModelSection,
    PrivacySection,
    RunSection,
)

__all__ = [
    "EXECUTION_KEYS",
    "HUB_KEYS",
    "LENGTH_KEYS",
    "DataSection",
    "Experiment",
    "FleetSection",
    "MethodSection",
    "ModelSection",
    "PrivacySection",
    "RunSection",
    "TaskSection",
    "TrainingSection",
    "apply_override",
    "load_experiment",
    "parse_value",
]
