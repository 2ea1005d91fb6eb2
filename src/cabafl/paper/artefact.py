"""What a definition file says: the rows and columns of a table, or the panels and lines of a figure, as data."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["accuracy", "transfers", "stability", "curves", "selections", "similarities", "facts"]
ScaleName = Literal["paper", "desk", "smoke"]
Keys = dict[str, Any]  # nested tables of an experiment: {"run": {"virtual_time": 2000}}
NOT_REACHED, NO_VALUE = "NA", "-"  # in place of a published value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedValue(_Strict):
    """A number of the paper; ``mean`` is None where the paper says that a target was not reached."""

    mean: float | None
    deviation: float | None = None

    @classmethod
    def parse(cls, text: str) -> "PublishedValue | None":
        """Reads ``55.46±0.67``, ``1360`` or ``NA``; ``-``: the paper has no value here."""
        if text == NO_VALUE:
            return None
        if text == NOT_REACHED:
            return cls(mean=None)
        mean, _, deviation = text.partition("±")
        return cls(mean=float(mean), deviation=float(deviation) if deviation else None)


class AtScale(_Strict):
    """What an entry is at a scale, where that differs from the paper."""

    label: str | None = None
    keys: Keys = {}
    target: float | None = None


class Entry(_Strict):
    """A row or a column of a table; a panel or a line of a figure."""

    id: str = ""
    label: str = ""
    setting: str | None = None
    method: str | None = None
    keys: Keys = {}
    target: float | None = Field(None, description="accuracy to reach, in percent")
    paper: str = Field("", description="published values along the other axis, separated by blanks")
    at: dict[ScaleName, AtScale] = {}

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Without an ``id`` an entry is called like its method or setting."""
        name = values.get("id") or values.get("method") or values.get("setting") or values.get("label")
        return {**values, "id": name}

    def scaled(self, scale: str) -> AtScale:
        """The changes at a scale."""
        return next((change for name, change in self.at.items() if name == scale), AtScale())


class ScaleChange(_Strict):
    """How an artefact differs at a scale, besides what the scale changes everywhere."""

    replace: list[tuple[str, str]] = []
    keys: Keys = {}
    notes: list[str] = []


class Claim(_Strict):
    """A statement of the paper, and how to test it on our runs (`reproduction.verdicts`)."""

    text: str
    paper: str
    test: str
    of: str = Field("", description="row or column the claim is about")
    over: str = Field("", description="row or column it is compared with")
    row: str = Field("", description="only this row; default: all")
    target: float | None = None
    share: float = Field(1.0, description="share of the rows in which it must hold")


class Observation(_Strict):
    """What `cabafl observe` measures for a figure."""

    setting: str
    betas: list[float]
    epochs: int
    draws: int
    coarse: bool = False


class Artefact(_Strict):
    """One table or figure of the paper."""

    name: str
    number: str
    title: str
    about: str = ""
    kind: Kind
    unit: str = ""
    rows: list[Entry] | Literal["methods"] = []
    columns: list[Entry] | Literal["methods"] = []
    best: Literal["row", "column"] | None = None
    setting: str | None = None
    keys: Keys = {}
    cabafl: Keys = Field({}, description="parameters of CaBaFL, where they differ from the paper's usual ones")
    axes: list[Literal["time", "transfers", "joules"]] = ["time"]
    claims: list[Claim] = []
    scale: dict[ScaleName, ScaleChange] = {}
    observe: Observation | None = None
    headings: list[str] = []
    facts: Literal["tiers", "configs", "testbed", ""] = ""
    paper: list[list[str]] = []

    def at(self, scale: str) -> ScaleChange:
        """The changes at a scale."""
        return next((change for name, change in self.scale.items() if name == scale), ScaleChange())


class DataFacts(_Strict):
    """A data set of the paper, or one that stands in for it."""

    label: str
    size: int
    tests: int
    shape: list[int]
    classes: int
    devices: int | None = None
    text: bool = False
    keys: Keys = {}


class Heterogeneity(_Strict):
    """How the data are spread over the devices, with CaBaFL's parameters for it."""

    label: str
    keys: Keys
    cabafl: Keys


class Scale(_Strict):
    """A size at which everything can be reproduced."""

    about: str
    replace: list[tuple[str, str]] = []
    keys: Keys = {}
    network: dict[str, Keys] = {}
    data: dict[str, Keys] = {}


class PaperSettings(_Strict):
    """The content of ``settings.toml``."""

    methods: list[str]
    keys: Keys
    cabafl: Keys
    labels: dict[str, str]
    data: dict[str, DataFacts]
    network: dict[str, str]
    heterogeneity: dict[str, Heterogeneity]
    scale: dict[ScaleName, Scale]
