# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine with compiled graphs: how the passes change training. test_zero_parity.py compares it with torch's own
training."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from test_zero import by_ddp
from torch import Tensor, nn
from zero_runs import Odd, adamw, error_of, loss_of, net, step_once

import octavo

SMALL = {"bucket_mib": 0.02, "gather_mib": 0.02}


def by_compiled(rank: int, steps: int, config: dict[str, Any]) -> list[float]:
    torch._dynamo.reset()
    engine = octavo.initialize(model := Odd(), adamw(model), config)
    return [step_once(engine, rank, batch) for batch in range(steps * engine.config.accumulation_steps)]


@pytest.mark.parametrize("stage", [1, 3])
def test_generated_code_gives_the_losses_of_ddp(two_ranks, stage):
    expected = two_ranks.run(by_ddp, 1, None, 8)
    got = two_ranks.run(by_compiled, 8, {"zero_stage": stage, "compile": True} | SMALL)
    for of_rank, of_ddp in zip(got, expected, strict=True):
        assert of_rank == pytest.approx(of_ddp, rel=1e-4)


class Broken(nn.Module):
    """A model of two graphs, both of which use ``shared``, around a module that Dynamo does not compile."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.alone = nn.Linear(width, width), nn.Linear(width, 7)
        self.skipped = nn.Linear(width, width)

    @torch.compiler.disable
    def between(self, x: Tensor) -> Tensor:
        return torch.tanh(self.skipped(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.alone(torch.relu(self.shared(self.between(torch.relu(self.shared(x))))))


def of_broken(rank: int, stage: int | None, backend: str | bool, make: Callable[[], nn.Module] = Broken) -> list[float]:
    torch._dynamo.reset()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if stage is None:
        step_model = nn.parallel.DistributedDataParallel(model)
    else:
        step_model = octavo.initialize(model, optimizer, {"zero_stage": stage, "compile": backend} | SMALL)
    losses = []
    for step in range(6):
        torch.manual_seed(10 * step + rank)
        loss = step_model(torch.randn(3 + step % 3, 8)).square().mean()  # the batches have several lengths
        if stage is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            step_model.backward(loss)
            step_model.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_several_graphs_share_parameters_with_each_other_and_with_eager_code(two_ranks, stage):
    expected = two_ranks.run(of_broken, None, False)
    got = two_ranks.run(of_broken, stage, "aot_eager")
    assert got == [pytest.approx(of_ddp, rel=1e-6) for of_ddp in expected]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class LayerWithBreak(Layer):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return torch.relu(self.second(x))


class Looped(nn.Module):
    """A model whose layers Dynamo compiles one by one: their loop has a break. It takes one's graph for the next."""

    def __init__(self, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(layer() for _ in range(4)), nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.abs().max().item() > 1e6:
                x = x / 2
        return self.head(x)


def looped_with_a_hook() -> nn.Module:
    model = Looped()
    model.layers[1].register_full_backward_hook(lambda *_: None)
    return model


@pytest.fixture(scope="module")
def broken_by_ddp(two_ranks):
    """Returns what gives the losses of DDP for a model, computed once."""
    return cache(lambda make: two_ranks.run(of_broken, None, False, make))


# the graphs of stage 2 are those of stage 1
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    "make", [Looped, partial(Looped, LayerWithBreak), looped_with_a_hook], ids=["loop", "layer", "hook"]
)
def test_the_graph_of_one_layer_is_none_of_the_next(two_ranks, broken_by_ddp, make, stage):
    """Dynamo decides which layers share a graph, whatever the backend."""
    expected = broken_by_ddp(make)
    got = two_ranks.run(of_broken, stage, "aot_eager", make)
    assert got == [pytest.approx(of_ddp, rel=1e-5) for of_ddp in expected]


def test_the_generated_code_of_one_layer_is_none_of_the_next(two_ranks, broken_by_ddp):
    """Inductor looks for code that it has generated by the text of a graph: those of alike layers differ in numbers."""
    got = two_ranks.run(of_broken, 3, "inductor", Looped, timeout_s=100)
    assert got == [pytest.approx(of_ddp, rel=1e-5) for of_ddp in broken_by_ddp(Looped)]


class LoopedLinears(Looped):
    """Its layers are Linears, whose frames Dynamo may skip."""

    def __init__(self) -> None:
        super().__init__(partial(nn.Linear, 8, 8))


def partly_frozen(
    rank: int, backend: str | bool, make: type[Looped], frozen: tuple[int, ...], later: tuple[int, ...]
) -> list[float]:
    torch._dynamo.reset()
    model = make()
    for number in frozen:
        model.layers[number].requires_grad_(False)
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "compile": backend, "timeout_s": 30}
    )
    for number in later:
        model.layers[number].requires_grad_(False)
    losses = []
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        loss = engine(torch.randn(3, 8)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [Looped, LoopedLinears])
@pytest.mark.parametrize(("frozen", "later"), [((0,), ()), ((0,), (1,)), ((), (0,))])
def test_layers_may_be_frozen_before_and_after(two_ranks, make, frozen, later):
    expected = two_ranks.run(partly_frozen, False, make, frozen, later)
    got = two_ranks.run(partly_frozen, "aot_eager", make, frozen, later)
    assert got == [pytest.approx(of_rank, rel=1e-6) for of_rank in expected]


def dropped_with_a_shared_layer(rank: int, stage: int) -> tuple[set[str], set[str]]:
    """Returns the names of the residuals that are not zero before a pass that is dropped, and after it."""
    torch._dynamo.reset()
    model = Broken(64)
    config = {"zero_stage": stage, "compile": "aot_eager", "plan": "int4+ef"}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)

    def residuals() -> set[str]:
        state = engine.handle.state_dict()
        return {key for key, v in state.items() if isinstance(v, Tensor) and v.is_floating_point() and v.any()}

    for step in range(4):
        torch.manual_seed(10 * step + rank)
        engine.backward(engine(torch.randn(3, 64)).square().mean())
        if step < 3:
            engine.step()
            before = residuals()
    engine.drop_gradients()
    return before, residuals()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_dropped_gradients_of_a_layer_in_two_graphs_leave_no_residuals(two_ranks, stage):
    owed = {"worker/shared.weight", "worker/skipped.weight"}
    assert two_ranks.run(dropped_with_a_shared_layer, stage) == [(owed, set())] * 2


@pytest.mark.parametrize("stage", [2, 3])
def test_compressed_both_ways(two_ranks, stage):
    config = {"zero_stage": stage, "plan": "int4+ef", "gather": "int8"} | SMALL
    eager = two_ranks.run(by_compiled, 12, config)
    assert two_ranks.run(by_compiled, 12, config | {"compile": "aot_eager"}) == eager


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
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3, "compile": "aot_eager"} | SMALL)
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


def graphs_of_many(rank: int) -> list[int]:
    torch._dynamo.reset()
    numbers = []
    for _ in range(10):
        engine = octavo.initialize(model := Layer(), adamw(model), {"zero_stage": 1, "compile": "aot_eager"})
        engine.backward(engine(torch.ones(4, 8)).sum())
        engine.step()
        numbers.append(len(engine._compiler._graphs))
    return numbers


def test_the_tenth_engine_is_compiled_as_the_first(two_ranks):
    """Dynamo itself compiles a piece of code eight times at most."""
    for numbers in two_ranks.run(graphs_of_many):
        assert numbers[0] > 0 and len(set(numbers)) == 1


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


class OfLists(nn.Module):
    """Is compiled anew for each length of its list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack([self.layer(x) for x in inputs])


def at_the_limit_alone(rank: int, stage: int) -> str:
    torch._dynamo.reset()
    model = OfLists()
    config = {"zero_stage": stage, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model, adamw(model), config)
    with torch._dynamo.config.patch(recompile_limit=2):
        for step in range(4):
            inputs = [torch.ones(4)] * (1 + step * (rank == 0))
            if said := error_of(lambda inputs=inputs: engine.backward(engine(inputs).square().mean())):
                return said
            engine.step()
    return ""


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_that_alone_is_no_longer_compiled_is_told_why_the_others_do_not_match(two_ranks, stage):
    for said in two_ranks.run(at_the_limit_alone, stage):
        assert "all ranks must make the same calls" in said and "torch._dynamo.config.recompile_limit" in said


class Branched(nn.Module):
    """Has two branches, whose parameters are of the same size or not."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, size)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.left(x) if left else self.right(x)


def in_branches_of_its_own(rank: int, stage: int, size: int) -> str:
    torch._dynamo.reset()
    config = {"zero_stage": stage, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model := Branched(size), adamw(model), config)
    for step in range(3):
        loss = engine(torch.ones(2, 4), left=rank == 0 or step == 0).square().mean()
        if said := error_of(lambda loss=loss: engine.backward(loss)):
            return said
        engine.step()
    return ""


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("stage", [1, 2])
def test_ranks_in_different_branches_are_told_so(two_ranks, stage, size):
    for said in two_ranks.run(in_branches_of_its_own, stage, size):
        assert "ranks take different branches of a module" in said


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
