"""The paper's device quality tiers: `config` validates their names, `fleet` uses their times."""

# Mean and standard deviation, in seconds, of a whole job (training and transfer together).
TIERS: dict[str, tuple[float, float]] = {
    "excellent": (10.0, 1.0),
    "high": (15.0, 2.0),
    "medium": (20.0, 2.0),
    "low": (30.0, 3.0),
    "critical": (50.0, 5.0),
}
# Devices per tier out of 100, in the order of TIERS: the paper's four compositions.
CONFIGS: dict[str, tuple[int, int, int, int, int]] = {
    "config1": (40, 30, 10, 10, 10),
    "config2": (10, 10, 10, 30, 40),
    "config3": (10, 20, 40, 20, 10),
    "config4": (20, 20, 20, 20, 20),
}
