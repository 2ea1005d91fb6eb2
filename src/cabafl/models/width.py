"""Networks of another width than in the paper."""


def scaled(channels: int, width: float) -> int:
    """Channels or units of a layer, times ``width``; at least 1."""
    return max(1, round(channels * width))
