# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine with compiled graphs: how the passes change training. test_zero_parity.py compares it with torch's own
training."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_runs import SMALL, TiedAndFrozen, adamw, by_ddp, loss_of, net, step_once

import octavo


def by_compiled(rank: int, steps: int, config: dict[str, Any]) -> list[float]:
    torch._dynamo.reset()
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), config)
    return [step_once(engine, rank, batch) for batch in range(steps * engine.config.accumulation_steps)]


@pytest.mark.parametrize("stage", [1, 3])
def test_generated_code_gives_the_losses_of_ddp(two_ranks, stage):
    expected = two_ranks.run(by_ddp, 1, None, 8)
    got = two_ranks.run(by_compiled, 8, {"zero_stage": stage, "compile": True} | SMALL)
    for of_rank, of_ddp in zip(got, expected, strict=True):
        assert of_rank == pytest.approx(of_ddp, rel=1e-4)


@pytest.mark.parametrize(("stage", "gather"), [(2, "int8"), (3, "int8"), (3, "fp8")])
def test_compressed_both_ways(two_ranks, stage, gather):
    config = {"zero_stage": stage, "plan": "int4+ef", "gather": gather} | SMALL
    eager = two_ranks.run(by_compiled, 12, config)
    assert two_ranks.run(by_compiled, 12, config | {"compile": "aot_eager"}) == eager


class Attending(nn.Module):
    """A model that mixes the tokens of a sequence, of any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.of_all, self.out = nn.Linear(32, 96), nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        query, key, value = self.of_all(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2) / tokens.shape[1], dim=-1)
        return self.out(x + weights @ value)


def of_lengths(rank: int, config: dict[str, Any] | None, steps: int) -> list[float]:
    """Returns the losses of sequences of changing numbers and lengths, which differ between ranks; without a config
    those of DDP."""
    torch._dynamo.reset()
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    engine = None if config is None else octavo.initialize(model, optimizer, config)
    ddp = nn.parallel.DistributedDataParallel(model) if engine is None else None
    losses = []
    for step in range(steps):
        shape = (1 + step % 3, 3 + (5 * step + 7 * rank) % 11)
        tokens = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = nn.functional.cross_entropy((engine or ddp)(tokens).flatten(0, 1), tokens.flatten())
        if engine is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("stage", "dynamic"), [(1, True), (3, True), (3, None)])
def test_sequences_may_have_other_lengths_in_each_step(two_ranks, stage, dynamic):
    """Stage 3 measures the third step, and makes its graphs anew for those after it."""
    config = {"zero_stage": stage, "compile": {"backend": "aot_eager", "dynamic": dynamic}} | SMALL
    expected = two_ranks.run(of_lengths, None, 7)
    got = two_ranks.run(of_lengths, config, 7)
    assert got == [pytest.approx(of_ddp, rel=1e-5) for of_ddp in expected]
    assert all(losses[-1] < 0.9 * losses[0] for losses in expected)


def read_after_steps(rank: int, how: str) -> list[float]:
    """Reads parameters that are persistent from the third step on, in `gathered` or in a module that is not
    compiled."""
    torch._dynamo.reset()
    model = Tied() if how == "tied" else nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "memory_mib": 2.0**20}}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    losses = []
    for _ in range(8):
        torch.manual_seed(1)
        loss = engine(torch.randn(4, 8)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        if how == "gathered":
            with engine.gathered():
                assert all(torch.isfinite(value).all() for value in model.state_dict().values())
        losses.append(loss.item())
    return losses


class Tied(nn.Module):
    """A model with one weight in a compiled module and in one that is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.alone = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    @torch.compiler.disable
    def apart(self, x: Tensor) -> Tensor:
        return self.second(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.alone(self.apart(self.first(x)))


@pytest.mark.parametrize("how", ["gathered", "tied"])
def test_persistent_parameters_may_be_used_outside_of_graphs(two_ranks, how):
    for losses in two_ranks.run(read_after_steps, how):
        assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def evaluated(rank: int) -> list[float]:
    torch._dynamo.reset()
    engine = octavo.initialize(
        model := TiedAndFrozen(), adamw(model), {"zero_stage": 3, "compile": "aot_eager"} | SMALL
    )
    losses = []
    for batch in range(4):
        with torch.no_grad():
            losses.append(loss_of(engine, rank, batch).item())
        assert step_once(engine, rank, batch) == pytest.approx(losses[-1], rel=1e-6)
    return losses


def test_passes_without_gradients_gather_too(two_ranks):
    for losses in two_ranks.run(evaluated):
        assert losses[-1] < losses[0]


def with_retained_graphs(rank: int, compile: bool) -> list[float]:
    """Takes the gradients of inputs before the backward pass in some steps, with the setting that torch asks for."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4), nn.GELU())
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 1, "compile": compile})
    seen = []
    with torch._functorch.config.patch(donated_buffer=False):
        for step in range(4):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + rank)).requires_grad_()
            loss = engine(x).square().mean()
            if step % 2:
                (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
                seen.append(gradient.norm().item())
            engine.backward(loss)
            engine.step()
            seen.append(loss.item())
    return seen


def test_generated_code_leaves_saved_values_alone_where_the_user_asks_for_it(two_ranks):
    compiled, plain = (two_ranks.run(with_retained_graphs, compile) for compile in (True, False))
    for one, other in zip(compiled, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


class Recomputed(nn.Module):
    """A model whose random numbers of the forward pass are drawn again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(8, 24), nn.Linear(24, 8)

    def layer(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.dropout(self.into(x), 0.5, self.training))

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)


def losses_of(model: nn.Module, config: dict[str, Any], passes_before_step: int = 0) -> list[float]:
    torch._dynamo.reset()
    engine = octavo.initialize(model, torch.optim.AdamW(model.parameters(), lr=0.01), config)
    losses = []
    for step in range(6):
        loss = engine(torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(step))).square().mean()
        engine.backward(loss)
        for _ in range(passes_before_step):
            with torch.no_grad():
                engine(torch.ones(4, 6, 8))
        engine.step()
        losses.append(loss.item())
    return losses


def with_checkpoints(rank: int, stage: int) -> tuple[list[float], list[float]]:
    config = {"zero_stage": stage} | SMALL
    return losses_of(Recomputed(), config), losses_of(Recomputed(), config | {"compile": "aot_eager"})


@pytest.mark.parametrize("stage", [1, 3])
def test_what_is_random_may_be_computed_again(two_ranks, stage):
    for plain, compiled in two_ranks.run(with_checkpoints, stage):
        assert compiled == pytest.approx(plain, rel=1e-5)


def seeded_pass_before_the_step(rank: int) -> tuple[list[float], list[float]]:
    torch.manual_seed(0)
    state = nn.Linear(8, 8).state_dict()
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "memory_mib": 100000}} | SMALL
    both = []
    for passes in (0, 1):
        model = nn.Linear(8, 8)
        model.load_state_dict(state)
        both.append(losses_of(model, config, passes))
    return both[0], both[1]


def test_a_pass_before_a_step_leaves_no_parameter_as_it_was(two_ranks):
    for without, with_one in two_ranks.run(seeded_pass_before_the_step):
        assert with_one == without


def losses_around(rank: int, compile: bool | str, how: str) -> list[list[float]]:
    """Returns the losses of steps whose forward passes the engine makes itself, and of steps where the caller has
    compiled them, or a function around them."""
    losses = []
    for compiled_by_caller in (False, True):
        torch._dynamo.reset()
        model = net()
        engine = octavo.initialize(model, adamw(model), {"zero_stage": 3, "compile": compile} | SMALL)

        def loss_of(x: Tensor, engine: Any = engine) -> Tensor:
            return engine(x).square().mean()

        forward = loss_of
        if compiled_by_caller and how == "the engine":
            forward = partial(loss_of, engine=torch.compile(engine, backend="aot_eager"))
        elif compiled_by_caller:
            forward = torch.compile(loss_of, backend="aot_eager")
        losses.append([])
        for _ in range(4):
            loss = forward(torch.full((2, 4), 1.0 + rank))
            engine.backward(loss)
            engine.step()
            losses[-1].append(loss.item())
    return losses


@pytest.mark.parametrize("compile", [False, "aot_eager"])
@pytest.mark.parametrize("how", ["the engine", "a function"])
def test_callers_may_compile_what_calls_the_engine(two_ranks, how, compile):
    for own, callers in two_ranks.run(losses_around, compile, how):
        assert callers == own and own[-1] < own[0]


class Scaled(nn.Module):
    """A module that has a parameter of its own besides those of its children."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))) * self.scale


def two_passes_forward(rank: int, backend: str | bool) -> list[float]:
    """Trains on the difference of two views, of which each has a forward pass of its own."""
    torch._dynamo.reset()
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 3, "compile": backend})
    losses = []
    for step in range(5):
        torch.manual_seed(10 * step + rank)
        loss = (engine(torch.randn(4, 8)) - engine(torch.randn(4, 8))).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_two_forward_passes_have_one_backward_pass(two_ranks):
    expected = two_ranks.run(two_passes_forward, False)
    got = two_ranks.run(two_passes_forward, "aot_eager")
    assert got == [pytest.approx(of_eager, rel=1e-6) for of_eager in expected]
