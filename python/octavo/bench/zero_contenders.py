# SPDX-License-Identifier: Apache-2.0
"""The contenders: the same model trained by torch's DDP, ZeroRedundancyOptimizer and FSDP2, and by Octavo's ZeRO. Those
of torch also have their forms in which graphs are compiled, and FSDP2 the one that keeps whole parameters from the
forward to the backward pass (`reshard_after_forward=False`)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim.shards import local

LR = 1e-3


class Contender(ABC):
    """A model and its optimizer, fused AdamW for all. `tokens` is the batch that every step computes with."""

    def __init__(self, model: nn.Module, tokens: Tensor):
        self.model, self._tokens = model, tokens

    def loss(self) -> Tensor:
        return self.model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss

    def backward(self) -> float:
        loss = self.loss()
        loss.backward()
        return loss.item()

    @abstractmethod
    def update(self) -> None:
        """Makes the optimizer's step and drops the gradients."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Returns the bytes of this rank's parameters, gradients and states, residuals among them. It is called between
        `backward` and `update`, after a first step."""

    def wire_bytes(self) -> int | None:
        """Returns the bytes that this rank has sent so far, or None where they are not known."""
        return None

    def __call__(self) -> float:
        loss = self.backward()
        self.update()
        return loss


class _TorchContender(Contender):
    optimizer: torch.optim.Optimizer

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def held_bytes(self) -> int:
        states = [value for state in self._states() for value in state.values() if isinstance(value, Tensor)]
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return _bytes_of([*parameters, *gradients, *states])

    def _states(self) -> Iterable[dict[str, Any]]:
        return self.optimizer.state.values()


class Ddp(_TorchContender):
    def __init__(self, model: nn.Module, tokens: Tensor, compile: bool = False):
        super().__init__(DistributedDataParallel(model, gradient_as_bucket_view=True), tokens)
        if compile:
            self.model.compile()
        self.optimizer = adamw(model)


class TorchZero1(_TorchContender):
    def __init__(self, model: nn.Module, tokens: Tensor):
        super().__init__(DistributedDataParallel(model, gradient_as_bucket_view=True), tokens)
        options = dict(parameters_as_bucket_view=True, lr=LR, fused=True)
        self.optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)

    def _states(self) -> Iterable[dict[str, Any]]:
        return self.optimizer.optim.state.values()  # the optimizer of this rank's part; the outer one forwards to it


class Fsdp2(_TorchContender):
    def __init__(self, model: nn.Module, tokens: Tensor, compile: bool = False, keep: bool = False):
        options = dict(mesh=init_device_mesh("cpu", (dist.get_world_size(),)), reshard_after_forward=not keep)
        for layer in model.model.layers:
            if compile:  # layer by layer, because FSDP2 gathers each in hooks that no graph contains
                layer.compile()
            fully_shard(layer, **options)
        fully_shard(model, **options)
        super().__init__(model, tokens)
        self.optimizer = adamw(model)


class Zero(Contender):
    def __init__(self, model: nn.Module, tokens: Tensor, name: ZeroName):
        super().__init__(model, tokens)
        config = {"zero_stage": name.stage, "compile": name.compile, "plan": name.plan, "gather": name.gather}
        self._engine = octavo.initialize(model, adamw(model), config)

    def loss(self) -> Tensor:
        return self._engine(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss

    def backward(self) -> float:
        loss = self.loss()
        self._engine.backward(loss)
        return loss.item()

    def update(self) -> None:
        self._engine.step()

    def held_bytes(self) -> int:
        own = [tensor for part in self._engine.parts.values() for tensor in (part.values, part.gradient)]
        states = self._engine.optimizer_bytes() + self.remembered_bytes()
        return _bytes_of([*self.model.parameters(), *own]) + states

    def remembered_bytes(self) -> int:
        """Returns the bytes of what the plan remembers, such as residuals. After a first step there are two of each:
        what the step before has left, and what this step leaves."""
        kept = self._engine.handle._compressor.state()  # those tensors, of which handle.state_dict() makes copies
        return 2 * _bytes_of(kept.tensors.values())

    def wire_bytes(self) -> int:
        return self._engine.sent_bytes()


@dataclass(frozen=True)
class ZeroName:
    """What a name such as `zero3`, `zero2/int4+ef` or `zero3-compiled:int8/int4+ef` says: the stage, whether graphs are
    compiled, the codec of parameters, the plan of gradients."""

    stage: int
    compile: bool = False
    plan: str = "dense"
    gather: str | None = None

    @classmethod
    def parse(cls, text: str) -> ZeroName | None:
        """Returns what `text` says, or None where it is no such name. Raises ValueError for an unknown plan or
        codec."""
        match = re.fullmatch(r"zero([123])(-compiled)?(?::([^/]+))?(?:/(.+))?", text)
        if match is None:
            return None
        stage, compiled, gather, plan = match.groups()
        if plan is not None:
            octavo.Plan(plan)
        if gather is not None:
            octavo._C.require_gather(octavo.Plan(gather))
        return cls(int(stage), compiled is not None, plan or "dense", gather)


DDP = "ddp"
TORCHS = {
    DDP: Ddp,
    f"{DDP}-compiled": partial(Ddp, compile=True),
    "torch-zero1": TorchZero1,
    "fsdp2": Fsdp2,
    "fsdp2:keep": partial(Fsdp2, keep=True),
    "fsdp2-compiled": partial(Fsdp2, compile=True),
}


def require_known(name: str) -> None:
    if name not in TORCHS and ZeroName.parse(name) is None:
        raise ValueError(
            f"[bench.zero] expected {', '.join(TORCHS)} or zeroSTAGE[-compiled][:CODEC][/PLAN], such as zero3 or "
            f"zero3-compiled:int8/int4+ef, got '{name}'; `octavo bench ddp` measures plans of replicas"
        )


def build(name: str, model: nn.Module, tokens: Tensor) -> Contender:
    """Returns the contender. All ranks call it together, with the same model on each."""
    if name in TORCHS:
        return TORCHS[name](model, tokens)
    parsed = ZeroName.parse(name)
    assert parsed is not None, "require_known comes first"
    return Zero(model, tokens, parsed)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR, fused=True)


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of the tensors' memory; tensors in the same memory count once."""
    storages = {}
    for tensor in tensors:
        storage = local(tensor.detach()).untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
