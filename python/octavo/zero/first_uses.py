# SPDX-License-Identifier: Apache-2.0
"""In which order a backward pass completes gradients, as far as the forward pass before says."""

from __future__ import annotations

from collections.abc import Iterable


class FirstUses:
    """The parameters of a forward pass in the order of their first uses.

    Backward passes undo the uses in the opposite order. When one comes to a call of a module, the gradients of all
    parameters that were first used after the call had ended are complete, or do not come.
    """

    def __init__(self) -> None:
        self._order: dict[int, None] = {}

    def note(self, parameters: Iterable[int]) -> None:
        """Notes that a module with these parameters begins."""
        self._order.update(dict.fromkeys(parameters))

    @property
    def count(self) -> int:
        """How many parameters have been used so far, without those that were taken."""
        return len(self._order)

    def take_after(self, count: int) -> list[int]:
        """Takes those away that were first used when ``count`` others had been, and returns them, the last one
        first."""
        return [self._order.popitem()[0] for _ in range(len(self._order) - count)]
