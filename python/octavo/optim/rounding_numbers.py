# SPDX-License-Identifier: Apache-2.0
"""The numbers by which random rounding draws its bits: those of parameters, and those of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.optim.shards import first_element


class RoundingNumbers:
    """Gives parameters the numbers from which they draw their random bits. No parameter has the same number twice, in
    whichever order parameters make steps."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}  # of each parameter, by its id

    def numbers(self, groups: Sequence[dict[str, Any]], parameters: list[Tensor], steps: list[int]) -> list[int]:
        """Returns the numbers for the next steps of these parameters, which are in ``groups``."""
        # Otherwise these are the first steps, or groups have changed.
        if not all(self._is_in_place(groups, parameter) for parameter in parameters):
            self._places = self._find_places(groups)
        of_each = zip(parameters, steps, strict=True)
        return [step * 2**32 + self._places[id(parameter)].number for parameter, step in of_each]

    def _find_places(self, groups: Sequence[dict[str, Any]]) -> dict[int, _Place]:
        found = [(number, index, p) for number, group in enumerate(groups) for index, p in enumerate(group["params"])]
        return {id(p): _Place(group, index, number) for number, (group, index, p) in enumerate(found)}

    def _is_in_place(self, groups: Sequence[dict[str, Any]], parameter: Tensor) -> bool:
        """Whether the parameter is where it was found last. No reference to it is kept, not even a weak one, because
        torch does not convert models whose parameters have any."""
        place = self._places.get(id(parameter))
        if place is None or place.group >= len(groups):
            return False
        of_group = groups[place.group]["params"]
        return place.index < len(of_group) and of_group[place.index] is parameter


class _Place(NamedTuple):
    """Where a parameter is: the number of its group, its index there, and its number among all parameters."""

    group: int
    index: int
    number: int


def first_elements(parameters: list[Tensor]) -> list[int]:
    """Returns the places at which random rounding begins. Only bfloat16 is rounded at random."""
    return [first_element(parameter) if parameter.dtype == torch.bfloat16 else 0 for parameter in parameters]
