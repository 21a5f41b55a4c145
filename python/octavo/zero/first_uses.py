# SPDX-License-Identifier: Apache-2.0
"""In which order a backward pass completes gradients, as far as the forward pass before says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class FirstUses:
    """The parameters of a forward pass in the order of their first uses.

    Backward passes undo the uses in the opposite order. When one comes to a module, the gradients of all parameters
    that were used for the first time by later modules are complete, or do not come.

    ``visits`` are the modules of the pass, as numbers, in the order in which they began; a module may come again.
    ``own`` has the parameters of each module.
    """

    def __init__(self, visits: Iterable[int], own: Sequence[Sequence[int]]):
        uses: dict[int, None] = {}  # in order
        self._used: dict[int, int] = {}  # by module: how many parameters were used before it and by it
        for module in visits:
            uses.update(dict.fromkeys(own[module]))
            self._used.setdefault(module, len(uses))
        self._uses = list(uses)

    def take_after(self, module: int) -> list[int]:
        """Returns the parameters whose first use came after the first visit of ``module``, without those that an
        earlier call has returned."""
        used = self._used.get(module, len(self._uses))
        after = self._uses[used:]
        del self._uses[used:]
        return after
