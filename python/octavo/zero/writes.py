# SPDX-License-Identifier: Apache-2.0
"""What others than the engine write to parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn


class Writes:
    """Tells what the engine writes to its parameters from what others do, by the counts of changes that autograd
    keeps."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self._parameters = parameters
        self._renewals = 0

    def count_renewal(self) -> None:
        """Counts new values that the engine gives to all parameters: graphs made before have seen other values."""
        torch.autograd.graph.increment_version(self._parameters.values())
        self._renewals += 1

    @contextmanager
    def refused(self) -> Iterator[None]:
        """A context that raises RuntimeError in the end where others have written in it."""
        before = self._by_others()
        yield
        changed = [name for name, writes in self._by_others().items() if writes != before[name]]
        if changed:
            raise RuntimeError(
                f"[zero.gathered] {changed[0]}{f' and {len(changed) - 1} others' if changed[1:] else ''} changed in "
                f"engine.gathered(), and this change is lost, because the ranks keep their parts in other memory: load "
                f"weights before octavo.initialize, and a checkpoint by engine.load_checkpoint"
            )

    def _by_others(self) -> dict[str, int]:
        return {name: parameter._version - self._renewals for name, parameter in self._parameters.items()}
