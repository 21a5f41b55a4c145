# SPDX-License-Identifier: Apache-2.0
"""What the strategies share in which each rank has the whole model, its gradients in `.grad`, and an optimizer for
all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from octavo.finite import all_finite
from octavo.optim.clipping import clip_gradients
from octavo.train.strategy.base import Sent, Strategy


class ReplicaStrategy(Strategy):
    def has_finite_gradients(self) -> bool:
        return bool(all_finite(p.grad for p in self.model.parameters() if p.grad is not None))

    def update(self) -> float | None:
        norm = None
        if self.config.clip_norm is not None:
            norm = self.clip_gradient(self.config.clip_norm)
        self.optimizer.step()
        return norm

    def clip_gradient(self, max_norm: float) -> float:
        return float(clip_gradients(list(self.model.parameters()), max_norm))

    def skip_step(self) -> None:
        """Does nothing: the gradients are forgotten when the step ends."""

    def end_step(self, is_last: bool) -> None:
        if is_last and hasattr(self.optimizer, "synchronize"):
            self.optimizer.synchronize()
        self.optimizer.zero_grad(set_to_none=True)

    def sent(self) -> Sent:
        stats = self.handle.stats()
        return Sent(stats["wire_bytes"], stats["dense_bytes"])

    def common_parameters(self) -> Iterator[Tensor]:
        with self.whole_model():
            yield from self.model.parameters()

    def save_model(self, folder: Path) -> None:
        if self.world.is_main:
            disable_progress_bar()  # for one file that takes a second
            with self.whole_model():
                self.model.save_pretrained(folder)
