# SPDX-License-Identifier: Apache-2.0
"""The order in which modules need their parameters in a pass, and which ones are needed next because of it."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice


class Visits:
    """Notes the visits of modules in a pass, which is a forward and a backward pass, and expects the next pass to visit
    the same modules in the same order. Modules and parameters are numbers.

    ``own``: the parameters of each module, a list that may grow until the first visit. ``sizes``: the bytes of each
    parameter.
    """

    def __init__(self, own: list[list[int]], sizes: list[int]):
        self._own, self._sizes = own, sizes
        self._now: list[int] = []  # the modules visited in this pass
        self._before: list[int] = []  # those of the pass before

    def forget_pass(self) -> None:
        """Forgets the visits of this pass, which has had no backward pass."""
        self._now.clear()

    def end_pass(self) -> None:
        self._before, self._now = self._now, []

    def add(self, module: int) -> int | None:
        """Notes a visit. Returns its place if the pass before had the same module there."""
        place = len(self._now)
        self._now.append(module)
        return place if self._before[place : place + 1] == [module] else None

    def transfer_at(self, place: int, transfer_bytes: int) -> Collection[int]:
        """Returns the parameters of the visits from ``place`` on, until they have ``transfer_bytes``."""
        sizes: dict[int, int] = {}  # of each parameter
        for module in islice(self._before, place, None):
            sizes.update((id, self._sizes[id]) for id in self._own[module])
            if sum(sizes.values()) >= transfer_bytes:
                break
        return sizes.keys()

    def transfer_ahead(self, place: int, there: set[int], transfer_bytes: int) -> Collection[int]:
        """Returns the parameters of the transfer that begins with the first visit from ``place`` on whose parameters
        are not all in ``there``. Returns none where the visits before that one need the bytes of a transfer already.
        """
        there_bytes = 0
        for next_place in range(place, len(self._before)):
            own = self._own[self._before[next_place]]
            if not there.issuperset(own):
                return self.transfer_at(next_place, transfer_bytes)
            there_bytes += sum(self._sizes[id] for id in own)
            if there_bytes >= transfer_bytes:
                break
        return ()

    def comes_soon(self, parameter: int, kept_bytes: int) -> bool:
        """Whether a module needs the parameter again before the modules until then need more than ``kept_bytes`` of
        others. False where the last visit was not that of the pass before."""
        place = len(self._now)
        if self._before[place - 1 : place] != self._now[-1:]:
            return False
        between = {parameter}
        needed = self._sizes[parameter]
        for module in islice(self._before, place, None):
            for other in self._own[module]:
                if other == parameter:
                    return True
                if other not in between:
                    between.add(other)
                    needed += self._sizes[other]
            if needed > kept_bytes:
                return False
        return False
