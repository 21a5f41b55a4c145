# SPDX-License-Identifier: Apache-2.0
"""What the tests of ZeRO share: models, their losses and steps. `TiedAndFrozen` is the usual one, `net` a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fsdp_runs import Block, batch_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo


class TiedAndFrozen(nn.Module):
    """A model with tied parameters, a frozen one, and one that only odd batches use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 64)
        self.blocks = nn.Sequential(Block(), Block())
        self.frozen = nn.Linear(64, 64)
        self.frozen.requires_grad_(False)
        self.sometimes = nn.Linear(64, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, odd: bool) -> Tensor:
        x = self.frozen(self.blocks(self.embedding(tokens)))
        return self.head(self.sometimes(x) if odd else x)


def loss_of(model: nn.Module, rank: int, batch: int) -> Tensor:
    tokens = batch_of(rank, batch)
    return nn.functional.cross_entropy(model(tokens, odd=batch % 2 == 1).flatten(0, 1), tokens.flatten())


def step_once(engine: octavo.zero.ZeroEngine, rank: int, batch: int) -> float:
    loss = loss_of(engine, rank, batch)
    engine.backward(loss)
    engine.step()
    return loss.item()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.1)


def paged(parameters: Any) -> torch.optim.Optimizer:
    return octavo.optim.PagedAdamW8bit(parameters, lr=1e-3, min_8bit_size=512)


Engine = octavo.zero.ZeroEngine

#: Buckets and transfers so small that these models need several of each.
SMALL = {"bucket_mib": 0.02, "gather_mib": 0.02}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def engine_of(model: nn.Module, stage: int, **config: Any) -> Engine:
    torch._dynamo.reset()
    return octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.3), {"zero_stage": stage, **config})


def inputs_of(rank: int) -> Tensor:
    return torch.linspace(-1, 1 + rank, 12).reshape(3, 4)


def train(engine: Engine, rank: int, steps: int = 4) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = engine(inputs_of(rank)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def of_plain(rank: int, stage: int = 1) -> list[float]:
    return train(engine_of(net(), stage), rank)


def average_gradients(model: nn.Module) -> None:
    """Averages gradients as DistributedDataParallel does, for what it refuses or gets wrong."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(dist.get_world_size())
            dist.all_reduce(parameter.grad)


def saved_engine(rank: int, folder: str) -> Engine:
    """Returns an engine of stage 1 that has made a step of AdamW and has been saved in the folder."""
    model = net()
    engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 1})
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    torch.distributed.barrier()
    return engine


def error_of(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (RuntimeError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def by_ddp(rank: int, accumulation: int, clip: float | None, steps: int) -> list[float]:
    """Returns the losses of DistributedDataParallel."""
    model = DistributedDataParallel(TiedAndFrozen(), find_unused_parameters=True)
    optimizer, losses = adamw(model), []
    for step in range(steps):
        optimizer.zero_grad()
        for batch in range(step * accumulation, (step + 1) * accumulation):
            loss = loss_of(model, rank, batch)
            (loss / accumulation).backward()
            losses.append(loss.item())
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses


def trained(rank: int, make: Any, config: dict[str, Any], steps: int) -> tuple[list[float], int, list[Tensor]]:
    """Returns the losses, the bytes that were sent, and the whole parameters in the end."""
    model = TiedAndFrozen()
    engine = octavo.initialize(model, make(model.parameters()), config)
    losses = []
    for batch in range(steps):
        losses.append(step_once(engine, rank, batch))
    sent = engine.sent_bytes()
    engine.step()  # this step has nothing left to do
    with engine.gathered():
        return losses, sent, [p.detach().clone() for p in model.parameters()]


def resumed(rank: int, stages: tuple[int, int], make: Any, folder: str, save: bool, load: bool) -> list[float]:
    """Returns the losses of 12 steps; of only the first 6, which are then saved; or of only the last 6, after a
    load."""
    plan = {"plan": "int4+ef"} if make is paged else {}
    model = TiedAndFrozen()
    engine = octavo.initialize(model, make(model.parameters()), {"zero_stage": stages[load]} | plan)
    if load:
        engine.load_checkpoint(folder)
    losses = []
    for batch in range(6 if load else 0, 6 if save else 12):
        losses.append(step_once(engine, rank, batch))
    if save:
        engine.save_checkpoint(folder)
    return losses
