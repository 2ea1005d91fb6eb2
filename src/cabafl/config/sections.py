"""The sections of an experiment, one per table of its TOML file, with a default for every key."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cabafl.names import DATASETS, HUB, LabelLevel, PartitionName, is_function, is_given
from cabafl.validation import nearest
from cabafl.values import (
    AutoPositive,
    AutoShare,
    Devices,
    LoggerNames,
    Processor,
    Width,
    Workers,
)

HUB_KEYS = ("input_column", "label_column", "user_column", "train_split", "test_split", "test_share", "subset")
TABLE_KEYS = ("label_column", "user_column", "test_share")  # of these, those that apply to handed in data, too
# Of [run]: no result changes.
EXECUTION_KEYS = ("workers", "executor", "ray_address", "checkpoint_every", "keep_state", "log")
LENGTH_KEYS = ("virtual_time", "stop_at", "patience", "wall_time")  # of [run]: when it ends, and nothing else


class Section(BaseModel):
    """A table of the file. Unknown keys and wrong types are errors; sections are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, values: Any) -> Any:
        """TOML has no null: ``key = "none"`` switches off a setting that is on by default."""
        if not isinstance(values, dict):
            return values
        return {name: None if value == "none" else value for name, value in values.items()}


class DataSection(Section):
    """The samples, and how they are split over the devices."""

    dataset: str = Field(
        "mnist5k",
        description="see `cabafl data list`; hf:NAME_OR_FOLDER for Hugging Face data sets; my_module:function",
    )
    root: str | None = Field(
        None, description="folder or file of the data set; default: the folder that `cabafl data fetch` writes to"
    )
    partition: PartitionName = Field(
        "dirichlet", description="iid | dirichlet | natural (by user) | shards | coarse-balanced"
    )
    beta: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="Dirichlet concentration: smaller is more unbalanced"
    )
    min_samples: int = Field(10, ge=1, description="redraw a Dirichlet split until every device has this many samples")
    shards: int = Field(2, ge=1, description="shards per device, for partition = shards")
    devices: Devices = Field(
        "auto", description="auto: 100, or the number of users for natural partitions; or a number"
    )
    labels: LabelLevel = Field("fine", description="label level of cifar100: fine (100) | coarse (20)")
    train_limit: int | None = Field(None, ge=1, description="use a random subset of this many training samples")
    test_limit: int | None = Field(None, ge=1, description="use a random subset of this many test samples")
    input_column: str | None = Field(None, description="hf: column of images or numbers; default: found by its type")
    label_column: str | None = Field(
        None, description="hf, own frames: column of labels; default: found by its type or name"
    )
    user_column: str | None = Field(
        None, description="hf, own frames: column of users, for natural partitions; default: no users"
    )
    train_split: str = Field("train", description="hf: split with the training samples")
    test_split: str | None = Field(None, description="hf: split with the test samples; default: test, else validation")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="hf, own data: cut this share off the training samples for testing, of each user's samples",
    )
    subset: str | None = Field(None, description="hf: subset (configuration) of a data set on the Hub")

    @field_validator("dataset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in DATASETS or (value.startswith(HUB) and value != HUB) or is_function(value) or is_given(value):
            return value
        if value.endswith(".npz"):
            raise ValueError(f"is a file; accepted: data.dataset=npz data.root={value}")
        if value.endswith((".csv", ".tsv", ".parquet", ".gz")):
            raise ValueError(f"is a table; accepted: the .npz file that `cabafl data convert {value} --out FILE` makes")
        accepted = [*DATASETS, f"{HUB}NAME_OR_FOLDER", "my_module:function"]
        raise ValueError(f"unknown{nearest(value, DATASETS)}; accepted: {', '.join(accepted)}")

    @model_validator(mode="after")
    def _reads_files(self) -> "DataSection":
        files = not (self.dataset == "synthetic" or is_function(self.dataset) or is_given(self.dataset))
        if self.root is not None and not files:
            raise ValueError(
                f"data.root = {self.root!r}: data.dataset = {self.dataset!r} reads no folder; accepted: none, or with "
                f"{', '.join(name for name in DATASETS if name != 'synthetic')}, {HUB}NAME"
            )
        return self

    @model_validator(mode="after")
    def _hub_keys(self) -> "DataSection":
        own = is_function(self.dataset) or is_given(self.dataset)
        for key in HUB_KEYS:
            accepted = f"{HUB}NAME_OR_FOLDER" + (", my_module:function or given" if key in TABLE_KEYS else "")
            if self.dataset.startswith(HUB) or (own and key in TABLE_KEYS):
                continue
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"data.{key} = {getattr(self, key)!r}: only for data.dataset = {accepted}, not {self.dataset}"
                )
        if self.dataset.startswith(HUB) and self.partition == "natural" and self.user_column is None:
            raise ValueError("data.user_column: not set; data.partition = natural needs the column of the users")
        if self.test_split is not None and self.test_share is not None:
            raise ValueError(f"data.test_share = {self.test_share}: not together with data.test_split; accepted: one")
        return self


class ModelSection(Section):
    """The network to train."""

    name: str = Field("cnn", description="cnn | resnet18 | vgg16 | lstm | mlp | my_package.my_module:MyNet")
    width: Width = Field(
        1.0, description="factor on the channels of resnet18 and vgg16 and the units of lstm, up to 8; 0.25: a quarter"
    )
    feature_layer: str | None = Field(
        None, description="layer whose output is the feature; default: the one the model names"
    )
    weights: str | None = Field(
        None,
        description="file of weights to start from: safetensors or a torch state dictionary; default: random ones",
    )


class PrivacySection(Section):
    """Protection applied on the device before anything is sent; none by default."""

    feature_clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="clip a device's feature vector to this norm"
    )
    feature_noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Gaussian noise on every entry of it; standard deviation as a multiple of feature_clip",
    )

    dp_clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="DP-SGD: clip the gradient of each sample to this norm"
    )
    dp_noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="DP-SGD: Gaussian noise on the sum of the clipped gradients, as a multiple of dp_clip",
    )
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="DP-SGD: delta at which epsilon is reported")

    @model_validator(mode="after")
    def _bounded(self) -> "PrivacySection":
        if (self.dp_clip is None) != (self.dp_noise == 0):
            raise ValueError(
                f"privacy.dp_noise = {self.dp_noise}: needs privacy.dp_clip; accepted: both above 0, or neither"
            )
        if self.feature_noise and self.feature_clip is None:
            raise ValueError(
                f"privacy.feature_noise = {self.feature_noise}: needs privacy.feature_clip (noise protects vectors of "
                "bounded norm only)"
            )
        return self


class DeploySection(Section):
    """Settings of runs on real devices (`cabafl deploy`)."""

    start_devices: int | None = Field(
        None, ge=1, description="number of devices that must be online before the run starts; default: the whole fleet"
    )
    norm_bound: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="reject an upload whose distance from the model sent out is larger than this",
    )
    job_ttl: float = Field(
        86400.0, gt=0, allow_inf_nan=False, description="seconds after which an unanswered message expires"
    )
    keep_journal: bool = Field(
        False, description="keep every upload and feature vector in the run folder, so that the run can be replayed"
    )


class MethodSection(BaseModel):
    """The method's name. All other keys are the method's own, which validates them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field("cabafl", description="see `cabafl methods`, or my_module:MyMethod")

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's own keys, not validated yet."""
        return dict(self.model_extra or {})


class DefenceSection(Section):
    """What the server does with uploads, features and claims before the method sees them. ``auto`` is off in a
    simulation and `engine.defence.DEPLOYED` on real devices."""

    update_clip: AutoPositive = Field(
        "auto",
        description="clip an update to this multiple of the median update norm: auto (off in simulations) | none | > 0",
    )
    feature_clip: AutoPositive = Field(
        "auto", description="clip a feature vector to this multiple of the collection's median norm: auto | none | > 0"
    )
    sample_quantile: AutoShare = Field(
        "auto",
        description="count at most sample_factor times this quantile of the claimed samples: auto | none | up to 1",
    )
    sample_factor: float = Field(2.0, ge=1, allow_inf_nan=False, description="see sample_quantile")


class RunSection(Section):
    """Length of the run, evaluation, and where jobs are computed."""

    virtual_time: float | None = Field(
        1200.0,
        gt=0,
        allow_inf_nan=False,
        description="length of a simulation in virtual seconds; no limit by default where max_dispatches is set",
    )
    wall_time: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="length of a run on real devices in seconds (`cabafl deploy`); most wall seconds of a simulation",
    )
    stop_at: float | None = Field(
        None,
        allow_inf_nan=False,
        description="end the run when an evaluation reaches this value of the task's metric, e.g. 0.9",
    )
    patience: int | None = Field(
        None, ge=1, description="end the run after this many evaluations in a row that are not the best so far"
    )
    keep: Literal["last", "best", "both"] = Field(
        "last", description="what model.safetensors is: last | best (evaluated) | both (the best one beside it)"
    )
    max_dispatches: int | None = Field(
        None, ge=1, description="send at most this many jobs; the run ends when the last one is back"
    )
    evaluate_every: float = Field(
        20.0, gt=0, allow_inf_nan=False, description="seconds between evaluations, on the clock of the run"
    )
    evaluate_versions: int | None = Field(
        None, ge=1, description="evaluate every n-th published version instead of at fixed times"
    )
    evaluate_devices: int | None = Field(
        None, ge=1, description="also evaluate this many devices on their own samples (see docs/run-folder.md)"
    )
    average: Literal["polynomial", "exponential"] | None = Field(
        None, description="average the published models: none | polynomial | exponential (see docs/averaging.md)"
    )
    average_power: float = Field(
        8.0, ge=0, allow_inf_nan=False, description="polynomial: g, spans the last 1/(g + 1) of all versions; 0: all"
    )
    average_decay: float = Field(0.99, ge=0, lt=1, description="exponential: share of the old average per version")
    slot_timeout: AutoPositive = Field(
        "auto",
        description="give up a job after so many seconds: auto (real devices: 5 x the median; simulated: never) | none",
    )
    max_staleness: int | None = Field(
        None, ge=0, description="discard uploads whose staleness exceeds this many versions"
    )
    workers: Workers = Field(
        "auto", description="worker processes: auto (one per core) | 0 (in this process) | a number"
    )
    executor: Literal["local", "ray"] = Field(
        "local", description="local (worker processes of this machine) | ray (actors; workers is their number)"
    )
    ray_address: str | None = Field(
        None, description="a running Ray cluster: auto | host:port of its head node; default: start Ray here"
    )
    checkpoint_every: float = Field(60.0, gt=0, description="wall seconds between checkpoints")
    keep_state: bool = Field(
        True, description="keep the last checkpoint of a finished simulation, so that it can be extended"
    )
    log: LoggerNames = Field(
        [], description="loggers of figures and model: tensorboard, mlflow, wandb, my_module:Class (docs/loggers.md)"
    )
    device: Processor = Field("cpu", description="cpu | cuda | cuda:1")
    defence: DefenceSection = DefenceSection()

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, values: Any) -> Any:
        """With ``max_dispatches`` the default time limit does not apply."""
        if isinstance(values, dict) and values.get("max_dispatches") is not None:
            return {"virtual_time": None, **values}
        return values

    @model_validator(mode="after")
    def _ends(self) -> "RunSection":
        if self.virtual_time is None and self.max_dispatches is None:
            raise ValueError(
                "run.virtual_time, run.max_dispatches: both missing, the run would not end; accepted: one or both"
            )
        return self
