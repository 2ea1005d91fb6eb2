"""Counter-based randomness: every draw is a function of (seed, purpose, indices), never of what ran before it."""

import hashlib

import numpy as np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def seed64(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for one purpose, e.g. the shuffling of job 17; fits torch's and NumPy's generators alike."""
    text = ":".join((str(seed), purpose, *map(str, indices)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def rng(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A NumPy generator of its own for one purpose; costs about 10 microseconds, so not for every event."""
    return np.random.Generator(np.random.Philox(seed64(seed, purpose, *indices)))


class Stream:
    """A cheap stream of draws for hot paths: draw number n is a hash of (key, n).

    Its whole state is the counter, so a checkpoint stores one integer.
    """

    __slots__ = ("counter", "key")

    def __init__(self, key: int, counter: int = 0) -> None:
        self.key = key
        self.counter = counter

    def bits(self) -> int:
        """64 random bits (the SplitMix64 finaliser over key and counter)."""
        self.counter += 1
        z = (self.key + self.counter * _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return (self.bits() * n) >> 64

    def uniform(self) -> float:
        """A uniform number in [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53

    def distinct(self, n: int, k: int) -> list[int]:
        """k distinct integers below n in random order, in O(k) whatever n is (a sparse Fisher-Yates shuffle)."""
        moved: dict[int, int] = {}
        drawn = []
        for i in range(k):
            j = i + self.below(n - i)
            drawn.append(moved.get(j, j))
            moved[j] = moved.get(i, i)
        return drawn
