"""The sections of an experiment about its simulated devices."""

from typing import Any

from pydantic import Field, model_validator

from cabafl.config.sections import Section
from cabafl.names import AttackName
from cabafl.power import BOARDS, DEFAULT_POWER, BoardName
from cabafl.values import TierCounts, TierPower, TierWatts, Watts


class FaultsSection(Section):
    """Simulated faults; none by default."""

    loss: float = Field(0.0, ge=0, le=1, description="probability that a job crashes at a random moment")
    corrupt: float = Field(0.0, ge=0, le=1, description="probability that an upload is corrupted (NaN or wrong shape)")
    slowdown: float = Field(0.0, ge=0, le=1, description="probability that a device slows down halfway through a job")
    slowdown_factor: float = Field(3.0, ge=1, description="factor by which the second half of such a job takes longer")
    present_seconds: float | None = Field(None, gt=0, description="mean time a device stays online (exponential)")
    absent_seconds: float | None = Field(None, gt=0, description="mean time a device stays offline (exponential)")
    trace: str | None = Field(None, description="CSV file of absences instead: device,leave,back in seconds")
    attack: AttackName | None = Field(
        None, description="what liars do: sign-flip | noise | scale | label-flip | claim (see docs/robustness.md)"
    )
    attack_share: float = Field(0.1, ge=0, le=1, description="share of the devices that attack, if attack is set")
    attack_strength: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="factor of the attack; default: 4 (sign-flip), 10 (noise, scale), 1000 (claim)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "FaultsSection":
        if (self.present_seconds is None) != (self.absent_seconds is None):
            raise ValueError("fleet.faults: set both present_seconds and absent_seconds, or neither")
        if self.attack_strength is not None and self.attack in (None, "label-flip"):
            raise ValueError(
                f"fleet.faults.attack_strength = {self.attack_strength}: needs an attack with a factor; accepted: "
                "fleet.faults.attack = sign-flip, noise, scale or claim"
            )
        return self


class FleetSection(Section):
    """The simulated devices: speed, link, power, and how many train at the same time."""

    participation: float = Field(0.1, gt=0, le=1, description="share of the devices that train at the same time")
    slots: int | None = Field(
        None, ge=1, description="number of devices that train at the same time; overrides participation"
    )
    seconds_per_sample: float = Field(
        0.03, gt=0, description="compute time per sample for all epochs of a job: mean over the devices (Gaussian)"
    )
    seconds_per_sample_deviation: float = Field(
        0.01, ge=0, description="standard deviation of seconds_per_sample over the devices"
    )
    seconds_per_sample_floor: float = Field(0.01, gt=0, description="lower bound of seconds_per_sample")
    forward_share: float = Field(
        1 / 3,
        gt=0,
        le=1,
        description="compute time of a forward pass (feature collection) as a share of one epoch of training",
    )
    tiers: TierCounts | None = Field(
        None,
        description="quality tiers instead of the Gaussian: config1..config4 of the paper, or { high = 40, low = 60 }",
    )
    link_seconds: float = Field(
        4.0, ge=0, description="transfer time of one job, down and up together (tiers include it)"
    )
    bandwidth_mbps: float | None = Field(None, gt=0, description="if set, link_seconds is computed from the model size")
    extra_latency: float = Field(0.0, ge=0, description="seconds added to every job")
    power: BoardName | None = Field(
        None, description=f"watts of a board: {' | '.join(BOARDS)} (see docs/experiment-file.md)"
    )
    compute_watts: Watts = Field(None, description="power while computing; default: that of power, or 15")
    radio_watts: Watts = Field(None, description="power while sending or receiving; default: that of power, or 2")
    idle_watts: Watts = Field(None, description="power while doing neither; default: that of power, or 0")
    tier_power: TierPower = Field(default_factory=dict, description='board per tier, e.g. { low = "raspberry-pi-3" }')
    tier_compute_watts: TierWatts = Field(default_factory=dict, description="power per tier, e.g. { low = 6.0 }")
    tier_radio_watts: TierWatts = Field(default_factory=dict, description="radio power per tier")
    tier_idle_watts: TierWatts = Field(default_factory=dict, description="idle power per tier")
    faults: FaultsSection = FaultsSection()

    @model_validator(mode="before")
    @classmethod
    def _default_watts(cls, values: Any) -> Any:
        """Without a board, a key with the default watts is as good as unset: earlier versions wrote it into every file,
        and a comparison recognises its runs by their settings."""
        if not isinstance(values, dict) or values.get("power") is not None:
            return values
        defaults = {f"{name}_watts": watts for name, watts in DEFAULT_POWER._asdict().items()}
        return {k: v for k, v in values.items() if type(v) not in (int, float) or v != defaults.get(k)}
