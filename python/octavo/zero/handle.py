# SPDX-License-Identifier: Apache-2.0
"""The handle of an engine of ZeRO."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from octavo.compression.handle import Handle

if TYPE_CHECKING:
    from octavo.zero.engine import ZeroEngine


class ZeroHandle(Handle):
    """The plan in force, the state and the statistics of the gradients that a ``ZeroEngine`` reduces. The gradients are
    in the engine's parts, not in ``.grad``: what changes them is the engine's own method. The engine saves the state in
    its checkpoints."""

    def __init__(self, engine: ZeroEngine, *arguments: Any):
        """``arguments``: those of ``Handle``."""
        super().__init__(*arguments)
        self._engine = weakref.ref(engine)  # which refers to the handle

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Does what ``clip_grad_norm_`` of the engine does."""
        return self._living_engine("clip_grad_norm_").clip_grad_norm_(max_norm)

    def drop_gradients(self) -> None:
        """Does what ``drop_gradients`` of the engine does."""
        self._living_engine("drop_gradients").drop_gradients()

    def _living_engine(self, function: str) -> ZeroEngine:
        engine = self._engine()
        if engine is None:
            raise RuntimeError(
                f"[zero.handle] {function}: the engine of this handle is gone, and its gradients with it"
            )
        return engine
