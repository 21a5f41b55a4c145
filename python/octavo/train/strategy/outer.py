# SPDX-License-Identifier: Apache-2.0
"""Local steps: ranks step by themselves, and octavo.Outer exchanges in rounds how far they have moved."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from transformers import LlamaForCausalLM

import octavo
from octavo.train.config import TrainConfig
from octavo.train.launch.world import World
from octavo.train.optimizer import build_optimizer
from octavo.train.options import OUTER_OPTIONS
from octavo.train.report.memory import tensor_bytes
from octavo.train.strategy.base import State, forward_of, loss_of
from octavo.train.strategy.replica import ReplicaStrategy


class OuterStrategy(ReplicaStrategy):
    """A strategy whose handle and optimizer are the same octavo.Outer."""

    steps_alone = True

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        model: LlamaForCausalLM,
        precision: str,
        group: dist.ProcessGroup | None,
    ):
        inner = world.agree(lambda: build_optimizer(config, model))
        outer = world.agree(
            lambda: octavo.Outer(
                model,
                inner,
                config.resolved_plan,
                config.outer,
                delay=config.outer_delay,
                fragments=config.outer_fragments,
                lr=config.outer_lr,
                momentum=config.outer_momentum,
                spread=config.outer_spread,
                group=group,
                seed=config.seed,
                timeout_s=config.timeout_s,
            )
        )
        device = next(model.parameters()).device
        self._forward = forward_of(model, config.compile, device)
        super().__init__(config, world, model, precision, device, outer, outer)

    def backward(self, batch: dict[str, Tensor], tokens: float, is_last: bool) -> float:
        loss = loss_of(self._forward, batch, tokens, self.precision, self.device)
        loss.backward()
        return loss.item()

    def skip_step(self) -> None:
        self.optimizer.count_step()

    def whole_model(self) -> AbstractContextManager[None]:
        return self.optimizer.at_anchor()

    def shared_state(self) -> State:
        return self.optimizer.shared_state()

    def own_state(self) -> State:
        return self.optimizer.own_state()

    def load(self, common: State, own: State | Iterable[State]) -> str | None:
        if isinstance(own, dict):
            self.optimizer.load_state_dict({**own, "shared": common})
        else:
            self.optimizer.load_state_dict([{**state, "shared": common} for state in own])
        return None

    def state_bytes(self) -> tuple[int, int]:
        own = self.optimizer.own_state()
        residuals = {name: state for name, state in own["own"].items() if not name.startswith("parameter/")}
        return tensor_bytes(own["inner"]), tensor_bytes(residuals) + tensor_bytes(self.optimizer.shared_state())

    def options(self) -> dict[str, Any]:
        return {name: getattr(self.optimizer, name.removeprefix("outer_")) for name in OUTER_OPTIONS}
