# SPDX-License-Identifier: Apache-2.0
"""ZeRO: ranks share out optimizer state, gradients and parameters, by octavo.initialize."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers import LlamaForCausalLM

import octavo
from octavo import _C
from octavo.train.checkpoint.writer import MODEL
from octavo.train.config import TrainConfig
from octavo.train.devices import compiler_for
from octavo.train.launch.world import World
from octavo.train.optimizer import build_optimizer
from octavo.train.report.memory import tensor_bytes
from octavo.train.strategy.base import Sent, State, Strategy, loss_of
from octavo.train.strategy.optimizer_forms import IS_SHARED_OUT, LOST, as_parts, names_by_group


class ZeroStrategy(Strategy):
    def __init__(
        self,
        config: TrainConfig,
        world: World,
        model: LlamaForCausalLM,
        precision: str,
        group: dist.ProcessGroup | None,
    ):
        self._parameters = sum(p.numel() for p in model.parameters())
        self._steps = 0
        optimizer = world.agree(lambda: build_optimizer(config, model))
        self._order = [name for group in names_by_group(optimizer, model) for name in group]
        device = next(model.parameters()).device
        options = {
            "zero_stage": config.zero,
            "plan": config.exchange_plan,
            "gather": config.gather,
            "compile": compiler_for(device) if config.compile else False,
            "accumulation_steps": config.grad_accum,
            "clip_norm": config.clip_norm,
            "seed": config.seed,
            "timeout_s": config.timeout_s,
            "is_paged": config.is_paged,
        }
        self._zero = world.agree(lambda: octavo.initialize(model, optimizer, options, group=group))
        super().__init__(config, world, model, precision, device, optimizer, self._zero.handle)

    def backward(self, batch: dict[str, Tensor], tokens: float, is_last: bool) -> float:
        loss = loss_of(self._zero, batch, tokens, self.precision, self.device)
        self._zero.backward(loss * self.config.grad_accum)  # it divides by grad_accum, and `tokens` does already
        return loss.item()

    def has_finite_gradients(self) -> bool:
        return self._zero.has_finite_gradients()

    def update(self) -> float | None:
        norm = self._zero.step()
        return None if norm is None else float(norm)

    def skip_step(self) -> None:
        self._zero.drop_gradients()

    def end_step(self, is_last: bool) -> None:
        self._steps += 1

    def sent(self) -> Sent:
        """Returns the bytes of gradients and parameters, and those that DDP would have sent: its ring sends all
        gradients once per step."""
        ring = _C.ring_bytes(4 * self._parameters, self.world.size)
        return Sent(self._zero.sent_bytes(), self._steps * ring)

    def whole_model(self) -> AbstractContextManager[None]:
        return self._zero.gathered()

    def common_parameters(self) -> Iterator[Tensor]:
        if self.config.zero < 3:  # each rank has its own copy
            yield from self.model.parameters()
        else:
            yield from (parameter for _, parameter in self._zero.whole_parameters())

    def save_model(self, folder: Path) -> None:
        self._zero.export_safetensors(folder / MODEL)
        if self.world.is_main:  # afterwards: where it fails, the others do not wait for rank 0 in the export
            self.model.config.save_pretrained(folder)
            self.model.generation_config.save_pretrained(folder)

    def shared_state(self) -> State:
        return {IS_SHARED_OUT: True, "param_groups": self._zero.optimizer_options()}

    def own_state(self) -> State:
        return {"optimizer": self._zero.optimizer_state(), "exchange": self.handle.state_dict()}

    def load(self, common: State, own: State | Iterable[State]) -> str | None:
        self._zero.take_own_parts()  # the file has exact values; an unbroken run has them after the codec of `gather`
        options = [{k: v for k, v in group.items() if k != "params"} for group in common["param_groups"]]
        if IS_SHARED_OUT not in common:
            parts = as_parts(common, dict(self.model.named_parameters()), self._order)
            self._zero.load_optimizer_state([parts], options)
            return LOST if self.config.parsed_plan.error_feedback else None
        if isinstance(own, dict):
            self._zero.load_optimizer_state(own["optimizer"], options)
            self.handle.load_state_dict(own["exchange"])
            return None
        exchanges = []

        def optimizers() -> Iterator[State]:
            for state in own:
                exchanges.append(state["exchange"])
                yield state["optimizer"]

        self._zero.load_optimizer_state(optimizers(), options)
        self.handle.load_state_dict(exchanges)
        return None

    def state_bytes(self) -> tuple[int, int]:
        return self._zero.optimizer_bytes(), tensor_bytes(self.handle.state_dict())

    def options(self) -> dict[str, Any]:
        return {"gather": self.config.gather or "dense"}
