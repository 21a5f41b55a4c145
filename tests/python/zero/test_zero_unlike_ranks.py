# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ: what a model decides by its data is trained as by DDP; every other difference is an error."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fsdp_runs import Block, batch_of
from rank_pool import RankPool
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zero_runs import error_of, inputs_of, net

import octavo


class Scaled(nn.Module):
    """Scales its input by the parameters that are chosen; one of them never is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale0, self.scale1, self.scale2, self.never = (nn.Parameter(torch.ones(64)) for _ in range(4))

    def forward(self, x: Tensor, chosen: list[int]) -> Tensor:
        for number in chosen:
            x = x * getattr(self, f"scale{number}")
        return x


class Chosen(nn.Module):
    """A model with tied parameters, whose gradient is complete twice where a block is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 64)
        self.scaled = Scaled()
        self.block = Block()
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, chosen: list[int], recomputes: bool) -> Tensor:
        x = self.scaled(self.block(self.embedding(tokens)), chosen)
        x = checkpoint(self.block, x, use_reentrant=True) if recomputes else self.block(x)
        return self.head(x)


CHOICES = [[[0, 1], [1]], [[], [0, 2]], [[0], [0]], [[2], [1]], [[], []], [[0, 1, 2], [0, 2, 1]], [[0], [2]]]


def loss_of(model: nn.Module, rank: int, batch: int, recomputes: bool) -> Tensor:
    tokens = batch_of(rank, batch)
    chosen = CHOICES[batch % len(CHOICES)][rank % 2]
    return nn.functional.cross_entropy(model(tokens, chosen, recomputes).flatten(0, 1), tokens.flatten())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.1)


def by_hand(rank: int, steps: int, accumulation: int, recomputes: bool) -> list[Tensor]:
    """Does what DDP does with `find_unused_parameters`; DDP itself refuses gradients that are complete twice."""
    model = Chosen()
    optimizer = adamw(model)
    for step in range(steps):
        optimizer.zero_grad()
        for batch in range(step * accumulation, (step + 1) * accumulation):
            (loss_of(model, rank, batch, recomputes) / accumulation).backward()
        for parameter in model.parameters():
            missing = torch.tensor(int(parameter.grad is None))
            dist.all_reduce(missing)
            if missing == dist.get_world_size():
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad.div_(dist.get_world_size()))
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def by_engine(rank: int, steps: int, recomputes: bool, config: dict[str, Any]) -> list[Tensor]:
    model = Chosen()
    engine = octavo.initialize(model, adamw(model), {"bucket_mib": 0.02, "gather_mib": 0.02, "timeout_s": 20, **config})
    for batch in range(steps * engine.config.accumulation_steps):
        engine.backward(loss_of(engine, rank, batch, recomputes))
        engine.step()
    with engine.gathered():
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_gradient_that_a_rank_lacks_is_zero(two_ranks, stage, shared):
    expected = two_ranks.run(by_hand, 18, 1, False)
    for parameters in two_ranks.run(by_engine, 18, False, {"zero_stage": stage, "symmetric_memory": shared}):
        for got, of_ddp in zip(parameters, expected[0], strict=True):
            assert got.equal(of_ddp)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_gradient_that_a_rank_lacks_is_zero_in_micro_batches_and_beside_others_that_come_twice(three_ranks, stage):
    expected = three_ranks.run(by_hand, 6, 3, True)
    for parameters in three_ranks.run(by_engine, 6, True, {"zero_stage": stage, "accumulation_steps": 3}):
        for got, of_ddp in zip(parameters, expected[0], strict=True):
            torch.testing.assert_close(got, of_ddp, rtol=1e-4, atol=1e-5)


class Branched(nn.Module):
    """A model of which the ranks use different modules, with parameters of the same sizes or of others."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.left, self.right = (nn.Linear(8, size) for size in sizes)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return (self.left if left else self.right)(self.first(x))


def says(rank: int, sizes: tuple[int, int], config: dict[str, Any]) -> str:
    torch._dynamo.reset()
    model = Branched(sizes)
    # A rank may wait as long as this for the other, which takes longer where it has graphs to compile.
    timeout_s = 20 if config["compile"] else 6
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3, "timeout_s": timeout_s, **config})
    try:
        for step in range(4):
            engine.backward(engine(torch.ones(3, 8), left=rank == 0 or step < 2).square().mean())
            engine.step()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("compiled", [False, "aot_eager"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sizes", [(8, 8), (8, 4000)])
def test_other_modules_of_stage_3_are_named_on_every_rank(two_ranks, sizes, shared, compiled):
    for rank, said in enumerate(two_ranks.run(says, sizes, {"symmetric_memory": shared, "compile": compiled})):
        assert re.search(rf"rank {rank}\b.*\brank {1 - rank}\b", said), said
        assert re.search(r"in the gather of .*\b(first|left|right)\.|backward pass of graph 0", said), said
        assert not compiled or re.search(r"\(graph \d+, parameter|backward pass of graph", said), said


def dies(rank: int, folder: str, config: dict[str, Any]) -> None:
    """Rank 1 dies without notice; what its peer then says is written to a file."""
    torch._dynamo.reset()
    model = Chosen()
    engine = octavo.initialize(model, adamw(model), {"bucket_mib": 0.02, "timeout_s": 60.0, **config})
    try:
        for batch in range(8):
            loss = loss_of(engine, 0, batch, False)
            if rank == 1 and batch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            engine.backward(loss)
            engine.step()
    except RuntimeError as error:
        Path(folder, "said").write_text(str(error))


@pytest.mark.ranks
@pytest.mark.parametrize("stage, compiled", [(1, False), (2, False), (3, False), (3, "aot_eager")])
@pytest.mark.parametrize("shared", [True, False])
def test_the_death_of_a_rank_ends_the_step_of_the_others(stage, compiled, shared, tmp_path):
    pool = RankPool(2)
    config = {"zero_stage": stage, "compile": compiled, "symmetric_memory": shared}
    try:
        with pytest.raises(AssertionError, match="rank 1 died"):
            pool.run(dies, str(tmp_path), config)
    finally:
        pool.stop()
    said = (tmp_path / "said").read_text()
    assert "rank 0: rank 1 (process" in said if shared else "rank 0: an exchange with a peer failed" in said, said
    assert "; it happened in the " in said


def wait_for_a_late_rank(rank: int, what: str) -> tuple[float, str]:
    """The group's own timeout is half an hour."""
    group = torch.distributed.new_group()
    model = net()
    config = {"zero_stage": 2, "timeout_s": 2}
    engine = octavo.initialize(model, adamw(model), config, group=group)
    engine.backward(engine(inputs_of(rank)).sum())
    if rank == 1:
        time.sleep(5)
    began, said = time.monotonic(), ""
    try:
        engine.clip_grad_norm_(1.0) if what == "clip" else engine.has_finite_gradients()
    except (TimeoutError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}, then {error_of(engine.step)}"
    return time.monotonic() - began, said


@pytest.mark.parametrize("what", ["clip", "finite"])
def test_no_wait_is_longer_than_the_timeout_of_the_engine(two_ranks, what):
    early, late = two_ranks.run(wait_for_a_late_rank, what)
    assert 1.9 < early[0] < 4.5 and late[0] < 4.5
    assert early[1].startswith("TimeoutError: [zero.") and "] rank 0: a peer did not answer within 2000 ms" in early[1]
    assert "] rank 1: an exchange with a peer failed" in late[1]
    for _, said in (early, late):
        assert "then RuntimeError: [zero.step] an earlier error stopped this engine" in said
