# SPDX-License-Identifier: Apache-2.0
"""The buffers of a rank that makes steps of its own, kept finite."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.outer.state import is_finite
from octavo.parameters import plain_name


class FiniteBuffers:
    """Remembers what a model's floating buffers were when they were last finite. Buffers are known by their names,
    because models may put another tensor in the place of one."""

    def __init__(self, model: nn.Module):
        self._model = model
        self.values = {name: buffer.clone() for name, buffer in self._buffers()}

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in self._model.named_buffers():
            if buffer.is_floating_point() and buffer.numel():
                yield plain_name(name), buffer

    @torch.no_grad()
    def restore(self) -> list[str]:
        """Gives buffers that are not finite the values that are remembered, and returns their names."""
        restored = []
        for name, buffer in self._buffers():
            last = self.values.get(name)
            if last is not None and last.shape == buffer.shape and not is_finite(buffer):
                buffer.copy_(last)
                restored.append(name)
        return restored

    @torch.no_grad()
    def remember(self) -> list[str]:
        """Remembers the buffers that are finite, and restores the others, whose names it returns."""
        restored = self.restore()
        self.values |= {name: buffer.clone() for name, buffer in self._buffers() if is_finite(buffer)}
        return restored
