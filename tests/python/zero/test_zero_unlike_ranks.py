# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ: what a model decides by its data is trained as by DDP; every other difference is an error."""

from __future__ import annotations

import itertools
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
from patience import PATIENCE
from rank_pool import RankPool
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from turns import tell, wait_until
from zero_runs import error_of, inputs_of, net

import octavo


class Scaled(nn.Module):
    """Scales its input by the parameters that are chosen; one of them never is. The sum of a parameter's rows is the
    scale."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.scale0, self.scale1, self.scale2, self.never = (
            nn.Parameter(torch.full((rows, 64), 1 / rows)) for _ in range(4)
        )

    def forward(self, x: Tensor, chosen: list[int]) -> Tensor:
        for number in chosen:
            x = x * getattr(self, f"scale{number}").sum(0)
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
        assert not compiled or re.search(r"\(graph \d+, (first|left|right)\.|backward pass of graph", said), said


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
    config = {"zero_stage": 2, "timeout_s": PATIENCE}
    engine = octavo.initialize(model, adamw(model), config, group=group)
    engine.backward(engine(inputs_of(rank)).sum())
    if rank == 1:
        wait_until("rank 0 has given up")
    began, said = time.monotonic(), ""
    try:
        engine.clip_grad_norm_(1.0) if what == "clip" else engine.has_finite_gradients()
    except (TimeoutError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}, then {error_of(engine.step)}"
    waited_s = time.monotonic() - began
    if rank == 0:
        tell("rank 0 has given up")
    return waited_s, said


@pytest.mark.parametrize("what", ["clip", "finite"])
def test_no_wait_is_longer_than_the_timeout_of_the_engine(two_ranks, what):
    early, late = two_ranks.run(wait_for_a_late_rank, what)
    assert early[0] > 0.9 * PATIENCE and early[1].startswith("TimeoutError: [zero.")
    assert f"] rank 0: a peer did not answer within {1000 * PATIENCE:g} ms" in early[1]
    # whether rank 0's connection is closed by then depends on which of its two timers, c10d's or Gloo's, ends first
    assert re.search(r"\] rank 1: (an exchange with a peer failed|a peer did not answer within)", late[1]), late[1]
    assert late[0] < 2 * PATIENCE
    for _, said in (early, late):
        assert "then RuntimeError: [zero.step] an earlier error stopped this engine" in said


class Gated(nn.Module):
    """A model with scales of ``rows`` rows amid layers each of which fills most of a bucket."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        self.scaled = Scaled(rows)
        self.after = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x: Tensor, chosen: list[int]) -> Tensor:
        return self.after(self.scaled(self.before(x), chosen))


def lack_a_gradient_late(rank: int, rows: int, first_step: int, config: dict[str, Any]) -> list[Tensor]:
    model = Gated(rows)
    engine = octavo.initialize(model, adamw(model), {"timeout_s": 20, "bucket_mib": 0.02, **config})
    for step in range(4):
        chosen = [0, 1] if rank == 0 or step < first_step else [1]
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        engine.backward(engine(inputs, chosen).square().mean())
        engine.step()
    with engine.gathered():
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows", [1, 64, 200])  # small, nearly a bucket, several buckets
@pytest.mark.parametrize("first_step", [0, 2])
def test_a_gradient_that_a_rank_lacks_holds_up_no_gather(two_ranks, first_step, rows, shared):
    """A rank that waits for the bucket with it takes part in no gather, which the rank that lacks it needs."""
    small = {"zero_stage": 3, "reuse_mib": 0, "gather_mib": 0.001, "symmetric_memory": shared}
    expected = two_ranks.run(lack_a_gradient_late, rows, first_step, {"zero_stage": 2})
    for parameters in two_ranks.run(lack_a_gradient_late, rows, first_step, small):
        assert all(map(torch.equal, parameters, expected[0]))


class Gate(nn.Module):
    """Multiplies by a matrix of its own, where it is on; otherwise returns its input, or a tensor that is as large."""

    def __init__(self, passes_through: bool = False) -> None:
        super().__init__()
        self.passes_through = passes_through
        self.factor = nn.Parameter(torch.eye(64))

    def forward(self, x: Tensor, is_on: bool) -> Tensor:
        if is_on:
            return x @ self.factor
        return x if self.passes_through else x * 1.0


class Gates(nn.Module):
    """Gates between two layers, with more gradients than two buckets have room for."""

    def __init__(self, passes_through: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64)
        self.gates = nn.ModuleList(Gate(passes_through) for _ in range(8))
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor, is_on: bool) -> Tensor:
        x = self.first(x)
        for gate in self.gates:
            x = gate(x, is_on)
        return self.last(x)


def close_all_gates(rank: int, shape: tuple, passes_through: bool, config: dict[str, Any]) -> list[Tensor]:
    """In the second half of the steps rank 1 lacks the gradients of all gates."""
    model = Gates(passes_through)
    engine = octavo.initialize(model, adamw(model), {"timeout_s": 20, "bucket_mib": 0.01, **config})
    for step in range(4):
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(10 * step + rank))
        engine.backward(engine(inputs, rank == 0 or step < 2).square().mean())
        engine.step()
    with engine.gathered():
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64)])  # a layer returns a view of the second one
@pytest.mark.parametrize("passes_through", [False, True])
def test_many_gradients_that_a_rank_lacks_hold_up_no_gather(two_ranks, passes_through, shape):
    """No gradient comes behind them. A gate that returns its input has the output of the module before it."""
    small = {"zero_stage": 3, "reuse_mib": 0, "gather_mib": 0.001}
    expected = two_ranks.run(close_all_gates, shape, passes_through, {"zero_stage": 2})
    for parameters in two_ranks.run(close_all_gates, shape, passes_through, small):
        assert all(map(torch.equal, parameters, expected[0]))


class SharedFactor(nn.Module):
    """Two layers with the same matrix between layers of their own; each uses it where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.gates = nn.ModuleList(Gate() for _ in range(2))
        self.gates[1].factor = self.gates[0].factor

    def forward(self, x: Tensor, are_on: list[bool], is_reentrant: bool | None = None) -> Tensor:
        if is_reentrant is not None:
            return checkpoint(self.forward, x, are_on, use_reentrant=is_reentrant)
        for layer, gate, is_on in zip(self.layers, self.gates, are_on, strict=False):
            x = gate(layer(x), is_on)
        return self.layers[2](x)


def share_a_factor(rank: int, how: str, config: dict[str, Any]) -> list[Tensor]:
    """Rank 0 uses the factor in the last use only, and so has its gradient before it comes to the first one."""
    model = SharedFactor()
    engine = octavo.initialize(model, adamw(model), {"timeout_s": 20, **config})
    for step in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank), requires_grad=True)
        if how == "two passes":
            outputs = engine(x, [rank == 1, rank == 1]) + engine(x, [True, True])
        elif how == "one pass":
            outputs = engine(x, [rank == 1, True])
        else:
            outputs = engine(x, [rank == 1, True], how == "recomputed by a pass of its own")
        engine.backward(outputs.square().mean())
        engine.step()
    with engine.gathered():
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("how", ["one pass", "two passes", "recomputed", "recomputed by a pass of its own"])
def test_a_shared_parameter_is_gathered_alike_whoever_has_its_gradient(two_ranks, how):
    small = {"zero_stage": 3, "reuse_mib": 0, "gather_mib": 0.001}
    expected = two_ranks.run(share_a_factor, how, {"zero_stage": 2})
    for parameters in two_ranks.run(share_a_factor, how, small):
        assert all(map(torch.equal, parameters, expected[0]))


def attend_to_fewer(rank: int, stage: int, is_compiled: bool) -> list[float]:
    """The last batch of rank 1 has one row, for which Inductor computes gradients in another order."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    config = {"zero_stage": stage, "compile": is_compiled, "timeout_s": 60}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    for rows in (2, 2, 2 - rank):
        x = torch.ones(rows, 4, 16)
        engine.backward(engine(x, x, x, need_weights=False)[0].square().mean())
        engine.step()
    with engine.gathered():
        return model.in_proj_weight.flatten()[:3].tolist()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [1, 3])
def test_the_order_of_reductions_does_not_depend_on_shapes(two_ranks, stage):
    expected = two_ranks.run(attend_to_fewer, stage, False)[0]
    assert two_ranks.run(attend_to_fewer, stage, True) == [pytest.approx(expected, rel=1e-5)] * 2


class Failing(nn.Module):
    """A model with a parameter that is larger than a bucket."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(32, 32) for _ in range(11)]
        self.layers = nn.Sequential(*layers[:5], nn.Linear(32, 400), nn.Linear(400, 32), *layers[5:])

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        if fails:
            raise ValueError("a bad sample")
        return self.layers(x).square().mean()


def fail_in_a_forward_pass(rank: int, stage: int, fails: bool) -> list[float]:
    model = Failing()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": stage, "timeout_s": 10, "bucket_mib": 0.02})
    for step in range(6):
        if fails and rank == 1 and step == 3:
            with pytest.raises(ValueError, match="a bad sample"):
                engine(torch.ones(4, 32), fails=True)
        engine.backward(engine(torch.randn(4, 32, generator=torch.Generator().manual_seed(10 * step + rank))))
        engine.step()
    with engine.gathered():
        return model.layers[0].weight.flatten()[:3].tolist()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_forward_pass_that_fails_on_one_rank_harms_no_later_step(two_ranks, stage):
    assert two_ranks.run(fail_in_a_forward_pass, stage, True) == two_ranks.run(fail_in_a_forward_pass, stage, False)


def count_steps(rank: int, stage: int) -> tuple[int, int]:
    model = net()
    config = {"zero_stage": stage, "plan": "int8+ef", "accumulation_steps": 4}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    for batch in range(8):
        engine.backward(engine(inputs_of(rank)).square().mean())
        engine.step()
        if batch == 5:  # in the second step, of which nothing is sent yet
            engine.drop_gradients()
            engine.backward(engine(inputs_of(rank)).square().mean())
            engine.backward(engine(inputs_of(rank)).square().mean())
    return engine.handle.step, engine.handle.stats()["steps"]


def test_a_step_of_the_plan_is_a_pass_that_sends(two_ranks):
    """In stage 1 micro-batches are added up before anything is sent."""
    assert two_ranks.run(count_steps, 1) == [(2, 2)] * 2


def change_the_order(rank: int) -> list[int]:
    """Returns the bytes of each pass. In the first one the branches are used in another order than later."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    config = {"zero_stage": 2, "bucket_mib": 0.02, "timeout_s": 20}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    sent = [engine.sent_bytes()]
    for step in range(5):
        x = torch.ones(4, 64)
        for layer in model if step == 0 else reversed(model):
            x = layer(x)
        engine.backward(x.square().mean())
        engine.step()
        sent.append(engine.sent_bytes())
    return [after - before for before, after in itertools.pairwise(sent)]


def test_an_order_that_has_changed_is_learned(two_ranks):
    for first, changed, *later in two_ranks.run(change_the_order):
        assert changed > 1.3 * first  # zeros were sent in the place of what came late
        assert all(of_pass < 1.1 * first for of_pass in later)


def gather_another_parameter(rank: int) -> tuple[str, str]:
    """Each rank asks for a parameter of its own, of as many elements as the other's."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    return error_of(lambda: engine.whole(model[rank].weight)), error_of(lambda: engine.whole(model[0].weight))


def test_ranks_that_gather_different_parameters_are_told_so(two_ranks):
    for rank, (first, second) in enumerate(two_ranks.run(gather_another_parameter)):
        differ = f"RuntimeError: [zero.whole] rank {rank} and rank {1 - rank} gather different values"
        assert first.startswith(f"{differ}, this rank those of {rank}.weight") and "must be rebuilt" in first, first
        assert second.startswith("RuntimeError: [zero.whole] an earlier wait for other ranks failed"), second
