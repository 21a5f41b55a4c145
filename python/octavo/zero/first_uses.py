# SPDX-License-Identifier: Apache-2.0
"""In which order a backward pass completes gradients, as far as the forward pass before says."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class FirstUses:
    """The parameters of a forward pass in the order of their first uses.

    Backward passes undo the uses in the opposite order. When one comes to a module, the gradients of all parameters
    that were first used after the module had ended are complete, or do not come. Of a module that was called several
    times, the backward pass comes to the last call first.
    """

    def __init__(self) -> None:
        self._uses: dict[int, None] = {}  # in order
        self._used: dict[Hashable, int] = {}  # by module: how many parameters had been used when it ended

    def begin(self, parameters: Iterable[int]) -> None:
        """Notes that a module with these parameters begins."""
        self._uses.update(dict.fromkeys(parameters))

    def end(self, module: Hashable) -> None:
        self._used[module] = len(self._uses)

    def take_after(self, module: Hashable) -> list[int]:
        """Returns the parameters whose first use came after the module had ended, the last one first, without those
        that an earlier call has returned."""
        used = self._used.get(module, len(self._uses))
        return [self._uses.popitem()[0] for _ in range(len(self._uses) - used)]
