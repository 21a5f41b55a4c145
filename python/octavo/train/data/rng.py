# SPDX-License-Identifier: Apache-2.0
"""Random draws that are the same on every machine, Python and torch.

The generators of libraries do not promise the same draws in all versions, and a resumed run must see exactly the same
batches. The few draws that the data need are therefore made here, by SplitMix64 over a key hashed with SHA-256.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


class Rng:
    """A stream of draws named by its key: `Rng("tasks", 7)` gives the same draws everywhere."""

    def __init__(self, *key: str | int) -> None:
        self._state = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")

    def bits(self) -> int:
        """Returns the next 64 bits, as an unsigned integer."""
        self._state = (self._state + _GAMMA) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """Returns an integer in [0, n); the bias of the multiply-shift is under n / 2^64."""
        return (self.bits() * n) >> 64

    def between(self, low: int, high: int) -> int:
        """Returns an integer in [low, high], both ends included."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[Item]) -> Item:
        """Returns one of the items, each with the same probability."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """Returns `count` different items, in the order drawn; `count` is at most the number of items."""
        return [items[i] for i in self.permutation(len(items))[:count]]

    def permutation(self, n: int) -> list[int]:
        """Returns the numbers 0 … n-1 in a random order."""
        keys = [self.bits() for _ in range(n)]
        return sorted(range(n), key=keys.__getitem__)
