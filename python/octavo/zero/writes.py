# SPDX-License-Identifier: Apache-2.0
"""Finds what is written to parameters by others than the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

_LOST = (
    "and this change is lost, because the ranks keep their parts in other memory: load weights before "
    "octavo.initialize, and a checkpoint by engine.load_checkpoint; a module's forward must not write to its parameters"
)


class Writes:
    """Distinguishes the engine's writes to parameters from those of other code, by the counts of changes that autograd
    keeps. It does not see what is written through ``parameter.data``, which has a count of its own."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self._parameters = parameters
        self._renewals = 0
        self._known = self._by_others()  # when the engine gave all parameters their values

    def count_renewal(self) -> None:
        """Counts new values that the engine gives to all parameters: graphs made before have seen other values."""
        torch.autograd.graph.increment_version(self._parameters.values())
        self._renewals += 1
        self._known = self._by_others()

    def require_none(self) -> None:
        """Raises RuntimeError where others have written to parameters whose values the next renewal replaces."""
        if changed := self._changed_since(self._known):
            raise RuntimeError(f"[zero.step] {changed} changed since the last step, {_LOST}")

    @contextmanager
    def refused(self) -> Iterator[None]:
        """A context that raises RuntimeError in the end where others have written in it."""
        before = self._by_others()
        yield
        if changed := self._changed_since(before):
            self._known = self._by_others()  # because the error below reports it
            raise RuntimeError(f"[zero.gathered] {changed} changed in engine.gathered(), {_LOST}")

    def _changed_since(self, before: Mapping[str, int]) -> str:
        """Names the parameters that others have written to since the counts ``before``; empty where there are none."""
        changed = [name for name, writes in self._by_others().items() if writes != before[name]]
        return f"{changed[0]}{f' and {len(changed) - 1} others' if changed[1:] else ''}" if changed else ""

    def _by_others(self) -> dict[str, int]:
        return {name: parameter._version - self._renewals for name, parameter in self._parameters.items()}
