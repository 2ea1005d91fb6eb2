"""The experiment description: one typed object, one TOML file, every key with a default."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cabafl.errors import UserError
from cabafl.names import DatasetName, LabelLevel, PartitionName
from cabafl.tiers import CONFIGS, TIERS
from cabafl.toml import read_toml
from cabafl.validation import validated

RENAMED = {("run", "evaluate_aggregations"): "evaluate_versions"}  # keys of 0.1
EXECUTION_KEYS = ("workers", "executor", "ray_address", "checkpoint_every")  # of [run]: they change no result


class Section(BaseModel):
    """A table of the file: unknown keys and wrong types are errors, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, values: Any) -> Any:
        """TOML has no null: ``key = "none"`` switches a setting off that is on by default."""
        if not isinstance(values, dict):
            return values
        return {name: None if value == "none" else value for name, value in values.items()}


def _auto_or_count(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("accepted: 'auto' or a whole number from 1")


def _auto_or_workers(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024):
        return value
    raise ValueError("accepted: 'auto' (one per core), 0 (no worker processes) or a number of worker processes")


def _counts_or_config(value: Any) -> Any:
    if isinstance(value, str):
        if value in CONFIGS:
            return value
    elif isinstance(value, Mapping) and all(
        name in TIERS and isinstance(n, int) and n >= 0 for name, n in value.items()
    ):
        return dict(value)
    raise ValueError(f"accepted: {', '.join(CONFIGS)} or a table of counts for {', '.join(TIERS)}")


def _watts_by_tier(value: Any) -> Any:
    if isinstance(value, Mapping) and all(
        name in TIERS and isinstance(w, int | float) and w >= 0 for name, w in value.items()
    ):
        return {name: float(w) for name, w in value.items()}
    raise ValueError(f"accepted: a table of watts (0 or more) for {', '.join(TIERS)}")


Workers = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_workers)]
Devices = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_count)]
TierCounts = Annotated[str | dict[str, int], BeforeValidator(_counts_or_config)]
TierWatts = Annotated[dict[str, float], BeforeValidator(_watts_by_tier)]


class DataSection(Section):
    """Which samples there are and which device holds which of them."""

    dataset: DatasetName = Field("mnist5k", description="see `cabafl data list`")
    root: str | None = Field(
        None, description="folder or file of the data set; default: where `cabafl data fetch` puts it"
    )
    partition: PartitionName = Field(
        "dirichlet", description="iid | dirichlet | natural (by user) | shards | coarse-balanced"
    )
    beta: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="Dirichlet concentration: smaller is more unbalanced"
    )
    min_samples: int = Field(10, ge=1, description="a Dirichlet split is redrawn until every device has this many")
    shards: int = Field(2, ge=1, description="shards per device, for partition = shards")
    devices: Devices = Field(
        "auto", description="auto: 100, or the number of users for natural partitions; or a number"
    )
    labels: LabelLevel = Field("fine", description="label level of cifar100: fine (100) | coarse (20)")
    train_limit: int | None = Field(None, ge=1, description="use only this many training samples (random, seeded)")
    test_limit: int | None = Field(None, ge=1, description="use only this many test samples (random, seeded)")


class ModelSection(Section):
    """The network that is trained."""

    name: str = Field("cnn", description="cnn | resnet18 | vgg16 | lstm | mlp | my_package.my_module:MyNet")
    feature_layer: str | None = Field(
        None, description="module whose output is the feature; default: the model's own choice"
    )


class TrainingSection(Section):
    """What a device does with a model: the same for every method."""

    epochs: int = Field(5, ge=1, description="passes over the device's samples per job")
    batch_size: int = Field(50, ge=1, description="the last, shorter batch is kept")
    learning_rate: float = Field(0.01, gt=0, allow_inf_nan=False, description="SGD step")
    momentum: float = Field(0.5, ge=0, lt=1, description="SGD momentum; starts from zero in every job")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="L2 penalty on the parameters")


class FaultsSection(Section):
    """What goes wrong on the devices; nothing by default."""

    loss: float = Field(0.0, ge=0, le=1, description="probability that a job is lost at a random moment")
    corrupt: float = Field(0.0, ge=0, le=1, description="probability that an upload is corrupted (NaN or wrong shape)")
    slowdown: float = Field(0.0, ge=0, le=1, description="probability that a device slows down in the middle of a job")
    slowdown_factor: float = Field(3.0, ge=1, description="how much longer the second half of such a job takes")
    present_seconds: float | None = Field(None, gt=0, description="mean time a device stays (exponential)")
    absent_seconds: float | None = Field(None, gt=0, description="mean time it is away before it comes back")
    trace: str | None = Field(None, description="CSV file of absences instead: device,leave,back in seconds")

    @model_validator(mode="after")
    def _both_times(self) -> "FaultsSection":
        if (self.present_seconds is None) != (self.absent_seconds is None):
            raise ValueError("fleet.faults: set both present_seconds and absent_seconds, or neither")
        return self


class FleetSection(Section):
    """Who the devices are: speed, link, power, and how many train at the same time."""

    participation: float = Field(0.1, gt=0, le=1, description="share of the devices that train at the same time")
    slots: int | None = Field(None, ge=1, description="the same as a number; wins over participation")
    seconds_per_sample: float = Field(0.03, gt=0, description="mean of the Gaussian of device speeds")
    seconds_per_sample_deviation: float = Field(0.01, ge=0, description="its standard deviation")
    seconds_per_sample_floor: float = Field(0.01, gt=0, description="no device is faster than this")
    tiers: TierCounts | None = Field(
        None,
        description="quality tiers instead of the Gaussian: config1..config4 of the paper, or { high = 40, low = 60 }",
    )
    link_seconds: float = Field(4.0, ge=0, description="transfer time of one job, both ways (not added to tiers)")
    bandwidth_mbps: float | None = Field(None, gt=0, description="if set, link time follows from the size of the model")
    extra_latency: float = Field(0.0, ge=0, description="seconds added to every job")
    compute_watts: float = Field(15.0, ge=0, description="power while training")
    radio_watts: float = Field(2.0, ge=0, description="power while sending or receiving")
    tier_compute_watts: TierWatts = Field(default_factory=dict, description="power per tier, e.g. { low = 6.0 }")
    tier_radio_watts: TierWatts = Field(default_factory=dict, description="the same for the radio")
    faults: FaultsSection = FaultsSection()


class PrivacySection(Section):
    """What devices do to their feature vectors before they send them; nothing by default."""

    feature_clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="shorten a device's feature vector to this norm"
    )
    feature_noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Gaussian noise on each of its numbers: standard deviation as a multiple of feature_clip",
    )

    dp_clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="DP-SGD: clip the gradient of each sample to this norm"
    )
    dp_noise: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="DP-SGD: noise on their sum, as a multiple of dp_clip"
    )
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="DP-SGD: the delta for which epsilon is told")

    @model_validator(mode="after")
    def _bounded(self) -> "PrivacySection":
        if (self.dp_clip is None) != (self.dp_noise == 0):
            raise ValueError(
                f"privacy.dp_noise = {self.dp_noise}: goes with privacy.dp_clip, both above 0 or neither given"
            )
        if self.feature_noise and self.feature_clip is None:
            raise ValueError(
                f"privacy.feature_noise = {self.feature_noise}: needs privacy.feature_clip (no noise hides a vector of "
                "any length)"
            )
        return self


class DeploySection(Section):
    """Real devices only (`cabafl deploy`)."""

    start_devices: int | None = Field(
        None, ge=1, description="devices that must be there before the run begins; default: all of the fleet"
    )
    norm_bound: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="refuse an upload that is further than this from what was sent"
    )
    job_ttl: float = Field(
        86400.0, gt=0, allow_inf_nan=False, description="seconds after which the network forgets an unanswered message"
    )
    keep_journal: bool = Field(
        False, description="keep every upload and feature vector in the run folder, to go through the run again"
    )


class MethodSection(BaseModel):
    """The method's name; every other key belongs to the method and is checked by it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field("cabafl", description="see `cabafl methods`, or my_module:MyMethod")

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's own keys as given."""
        return dict(self.model_extra or {})


class RunSection(Section):
    """How long, how often it is looked at, and where it runs."""

    virtual_time: float | None = Field(
        1200.0, gt=0, allow_inf_nan=False, description="virtual seconds; default 1200, or none with max_dispatches"
    )
    wall_time: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds a run on real devices lasts (`cabafl deploy`)"
    )
    max_dispatches: int | None = Field(
        None, ge=1, description="send at most this many jobs; the run ends when the last of them is back"
    )
    evaluate_every: float = Field(
        20.0, gt=0, allow_inf_nan=False, description="seconds between two evaluations, virtual or of real devices"
    )
    evaluate_versions: int | None = Field(
        None, ge=1, description="evaluate every n-th published version instead of at fixed instants"
    )
    slot_timeout: float | None = Field(
        None, gt=0, description="give a job up after this many seconds, virtual or of real devices"
    )
    max_staleness: int | None = Field(None, ge=0, description="discard uploads that are older than this many versions")
    workers: Workers = Field(
        "auto", description="worker processes: auto (one per core) | 0 (in this process) | a number"
    )
    executor: Literal["local", "ray"] = Field(
        "local", description="local (worker processes of this machine) | ray (actors; workers is their number)"
    )
    ray_address: str | None = Field(
        None, description="a running Ray cluster: auto | host:port of its head node; default: start Ray here"
    )
    checkpoint_every: float = Field(60.0, gt=0, description="wall seconds between two checkpoints")
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu | cuda | cuda:1")

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, values: Any) -> Any:
        """Who counts dispatches does not expect the clock to end the run."""
        if isinstance(values, dict) and values.get("max_dispatches") is not None:
            return {"virtual_time": None, **values}
        return values

    @model_validator(mode="after")
    def _ends(self) -> "RunSection":
        if self.virtual_time is None and self.max_dispatches is None:
            raise ValueError("set run.virtual_time or run.max_dispatches (both are missing: the run would not end)")
        return self


class Experiment(Section):
    """Everything that determines a run: the same experiment gives the same bytes."""

    seed: int = Field(
        1, ge=0, description="of everything random: partition, speeds, initial weights, selection, shuffling"
    )
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    fleet: FleetSection = FleetSection()
    privacy: PrivacySection = PrivacySection()
    deploy: DeploySection = DeploySection()
    method: MethodSection = MethodSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _slots_fit(self) -> "Experiment":
        if self.fleet.slots is not None and self.data.devices != "auto":
            check_slots(self.fleet.slots, self.data.devices)
        return self

    def slots(self, devices: int) -> int:
        """How many of ``devices`` train at the same time."""
        slots = self.fleet.slots or max(1, int(self.fleet.participation * devices + 1e-9))
        check_slots(slots, devices)
        return slots


def check_slots(slots: int, devices: int) -> None:
    """More models in flight than devices to train them is impossible."""
    if slots > devices:
        raise ValueError(f"fleet.slots = {slots}: at most the number of devices, {devices} (data.devices)")


def load_experiment(file: Path | None = None, overrides: Iterable[str] = ()) -> Experiment:
    """The defaults, overlaid by a TOML file, overlaid by ``section.key=value`` settings."""
    values = read_toml(file) if file else {}
    for text in overrides:
        apply_override(values, text)
    return validated(Experiment, _renamed(values))


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Keys of 0.1 under the name they have now; a key given in both forms is left for validation to refuse."""
    for (section, old), new in RENAMED.items():
        table = values.get(section)
        if isinstance(table, dict) and old in table and new not in table:
            values = values | {section: {new if key == old else key: value for key, value in table.items()}}
    return values


def apply_override(values: dict[str, Any], text: str) -> None:
    """Sets one key of nested tables from ``section.key=value``; the value is read as TOML, else as a plain string."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"{text!r}: not a setting; accepted: section.key=value, e.g. data.beta=0.1")
    table = values
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UserError(f"{text!r}: {key} is a value, not a section")
    table[keys[-1]] = _parse(value.strip())


def _parse(value: str) -> Any:
    if value == "none":
        return None
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
