# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with compressed messages: ranks exchange gradients in each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM

import octavo
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data
from octavo.train.launch.world import World
from octavo.train.optimizer import build_optimizer
from octavo.train.report.memory import tensor_bytes
from octavo.train.strategy.base import State, forward_of, loss_of
from octavo.train.strategy.optimizer_forms import IS_SHARED_OUT, LOST, as_state_dict, names_by_group
from octavo.train.strategy.replica import ReplicaStrategy


class DdpStrategy(ReplicaStrategy):
    def __init__(
        self,
        config: TrainConfig,
        world: World,
        model: LlamaForCausalLM,
        precision: str,
        group: dist.ProcessGroup | None,
        warm_up_data: Data | None,
    ):
        """`warm_up_data`: the data of a resumed run, which makes a warm-up pass; None for a new one."""
        self._ddp = DistributedDataParallel(model, process_group=group)
        device = next(model.parameters()).device
        self._forward = forward_of(self._ddp, config.compile, device)
        if warm_up_data is not None:
            _make_warm_up_pass(self._forward, warm_up_data, precision, device)
            self._ddp.zero_grad(set_to_none=True)
        optimizer = world.agree(lambda: build_optimizer(config, model))
        joined = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        options = dict(is_paged=config.is_paged, seed=config.seed, timeout_s=config.timeout_s)
        handle = world.agree(lambda: octavo.compress(self._ddp, config.exchange_plan, optimizer=joined, **options))
        super().__init__(config, world, model, precision, device, optimizer, handle)

    def backward(self, batch: dict[str, Tensor], tokens: float, is_last: bool) -> float:
        with nullcontext() if is_last else self._ddp.no_sync():
            loss = loss_of(self._forward, batch, tokens, self.precision, self.device)
            loss.backward()
        return loss.item()

    def clip_gradient(self, max_norm: float) -> float:
        return float(self.handle.clip_grad_norm_(max_norm))  # error feedback must know of it

    def has_finite_gradients(self) -> bool:
        # The reduced gradients are the same bits on every rank, so the ranks agree without another message; where
        # nothing was reduced they need one.
        is_finite = super().has_finite_gradients()
        return self.world.mean(float(is_finite)) == 1.0 if self.handle.exchange == "nothing" else is_finite

    def whole_model(self) -> AbstractContextManager[None]:
        return _at_last_sync(self.optimizer)

    def shared_state(self) -> State:
        return self.optimizer.state_dict()

    def own_state(self) -> State:
        return self.handle.state_dict()

    def needs_all_ranks(self, common: State) -> bool:
        return IS_SHARED_OUT in common

    def load(self, common: State, own: State | Iterable[State]) -> str | None:
        if IS_SHARED_OUT in common:
            parts = (state["optimizer"] for state in own)
            groups, parameters = names_by_group(self.optimizer, self.model), dict(self.model.named_parameters())
            self.optimizer.load_state_dict(as_state_dict(common["param_groups"], parts, parameters, groups))
            return LOST if self.config.parsed_plan.error_feedback else None
        self.handle.load_state_dict(own if isinstance(own, dict) else list(own))
        self.optimizer.load_state_dict(common)
        return None

    def state_bytes(self) -> tuple[int, int]:
        return tensor_bytes(self.optimizer.state_dict()), tensor_bytes(self.handle.state_dict())


@contextmanager
@torch.no_grad()
def _at_last_sync(optimizer: Any) -> Iterator[None]:
    """Inside this context the model of a 0/1 Adam between two syncs is that of its last sync, which is the same on all
    ranks. A sync instead would send, round and forget the updates since then. The more often a run was evaluated, the
    more it would then differ from one that was not."""
    anchors = {p: state["anchor"] for p, state in optimizer.state.items() if "anchor" in state}
    own = {parameter: parameter.detach().clone() for parameter in anchors}
    for parameter, anchor in anchors.items():
        parameter.copy_(anchor)
    try:
        yield
    finally:
        for parameter, values in own.items():
            parameter.copy_(values)


def _make_warm_up_pass(forward: Any, data: Data, precision: str, device: torch.device) -> None:
    """Makes one uncompressed pass before a resumed run's first step, whose gradients are of no use.

    DDP sorts its buckets anew after the first backward pass. Without this pass the resumed run would make a step with
    the unsorted buckets where the unbroken run had the sorted ones: sums and blocks would round differently.
    """
    forked = [] if device.type == "cpu" else [device.index]
    with torch.random.fork_rng(devices=forked, device_type=device.type):
        loss = loss_of(forward, data.train.batch(0), 1.0, precision, device)
    loss.backward()
