# SPDX-License-Identifier: Apache-2.0
"""The buffers of a rank that makes steps of its own, kept finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from octavo.outer.state import is_finite
from octavo.parameters import plain_name


class FiniteBuffers:
    """Remembers what a model's floating buffers were when they were last finite. A buffer that was never finite, such
    as a mask with -inf, is left alone. Buffers are known by their names, because models may put another tensor in the
    place of one, of another size, or add some."""

    def __init__(self, model: nn.Module):
        self._model = model
        self.values: dict[str, Tensor] = {}
        self.remember()

    @torch.no_grad()
    def restore(self) -> list[str]:
        """Gives buffers that are not finite the values that are remembered. Returns their names."""
        return self._go_through(remembers=False)

    @torch.no_grad()
    def remember(self) -> list[str]:
        """Remembers the buffers that are finite, and restores the others, whose names it returns."""
        return self._go_through(remembers=True)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Takes back earlier ``values``. A buffer whose size has changed since keeps its present value."""
        for name, saved in values.items():
            own = self.values.get(name)
            if own is None or own.shape == saved.shape:
                self.values[name] = saved.clone() if own is None else saved.to(own, copy=True)

    def _go_through(self, remembers: bool) -> list[str]:
        restored = []
        for name, module, key in self._places():
            buffer, last = module._buffers[key], self.values.get(name)
            is_known = last is not None and last.shape == buffer.shape
            if is_finite(buffer):
                if remembers:
                    self.values[name] = last.copy_(buffer) if is_known else buffer.clone()
            elif is_known:
                _write(module, key, last)
                restored.append(name)
        return restored

    def _places(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Yields the name of each floating buffer, its module, and its name there."""
        for path, module in self._model.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point() and buffer.numel():
                    yield plain_name(f"{path}.{key}" if path else key), module, key


def _write(module: nn.Module, key: str, values: Tensor) -> None:
    """Writes ``values`` to a buffer. A buffer that cannot be written to, such as one that was made in inference mode,
    is replaced by a copy."""
    try:
        module._buffers[key].copy_(values)
    except RuntimeError:
        module._buffers[key] = values.clone()
