# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without torch.compile: which parameters travel together, and who keeps them whole."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zero_runs import Engine, engine_of, error_of, inputs_of, net, train

import octavo
from octavo.zero.first_uses import FirstUses


class Transfers:
    """Stands for the C++ engine, and notes the parameters of each transfer that is started."""

    def __init__(self, engine: Engine):
        self._engine = engine._gathering._wholes._engine
        engine._gathering._wholes._engine = self
        self.started: list[list[int]] = []
        self.most_under_way = 0
        self._under_way: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def gather_into(self, graph: int, ids: list[int], wholes: list[Tensor]) -> None:
        self._engine.gather_into(graph, ids, wholes)
        self.started.append(ids)
        self._under_way.append(ids)
        self.most_under_way = max(self.most_under_way, len(self._under_way))

    def wait_allgather(self, graph: int, id: int) -> None:
        self._engine.wait_allgather(graph, id)
        self._under_way = [ids for ids in self._under_way if id not in ids]


def transfers_of_a_context(rank: int) -> tuple[list[list[int]], int]:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    engine = engine_of(model, 3, gather_mib=2e-4, reuse_mib=0)
    transfers = Transfers(engine)
    with engine.gathered():
        engine.take_own_parts()
    return transfers.started, transfers.most_under_way


def test_a_context_gathers_in_transfers_of_the_size_that_the_config_gives(two_ranks):
    """Weights have 64 bytes here and biases 16, and a transfer ends with the parameter that fills its 209 bytes."""
    once = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11]]
    assert two_ranks.run(transfers_of_a_context) == [(once * 2, 2)] * 2


class WithAScale(nn.Module):
    """A model that has a parameter besides those of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale


def transfers_of_the_second_step(rank: int) -> list[list[int]]:
    engine = engine_of(WithAScale(), 3)
    train(engine, rank, 1)
    transfers = Transfers(engine)
    train(engine, rank, 1)
    return transfers.started


def test_the_parameters_of_the_model_itself_travel_with_those_of_its_layers(two_ranks):
    assert two_ranks.run(transfers_of_the_second_step) == [[[0, 1, 2, 3, 4]]] * 2


def after_a_pass_that_never_began(rank: int) -> tuple[str, str]:
    """Returns the error of a hook before those of the engine, and the one of a reading in a context after it."""
    engine = engine_of(nn.Linear(4, 4), 3)

    def fail(*_: object) -> None:
        raise ValueError("these inputs are wrong")

    handle = engine.module.register_forward_pre_hook(fail, prepend=True)
    said = error_of(lambda: engine(inputs_of(rank)))
    handle.remove()
    with engine.gathered(), torch.no_grad():
        engine(inputs_of(rank))
        return said, error_of(engine.module.weight.sum)


def test_a_hook_that_raises_before_a_module_begins_leaves_no_trace(two_ranks):
    assert two_ranks.run(after_a_pass_that_never_began) == [("ValueError: these inputs are wrong", "")] * 2


def leave_after_the_module(rank: int) -> None:
    """A context begins while a module works, and ends when the module is done."""
    engine = engine_of(nn.Linear(4, 4), 3)
    context = engine.gathered()
    engine.module.register_forward_pre_hook(lambda *_: context.__enter__())
    with torch.no_grad():
        engine(inputs_of(rank))
    engine.module.weight.sum()
    context.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="not whole"):
        engine.module.weight.sum()


def test_a_context_that_outlives_its_module_leaves_nothing_whole(two_ranks):
    two_ranks.run(leave_after_the_module)


class WithoutRoom(Transfers):
    """An engine that finds no memory for the last parameter of its first transfer."""

    def gather_into(self, graph: int, ids: list[int], wholes: list[Tensor]) -> None:
        if not self.started:
            self.started.append(ids)
            wholes = [*wholes[:-1], torch.empty(0)]
        super().gather_into(graph, ids, wholes)


def gather_again_without_room(rank: int) -> tuple[str, str, bool]:
    model = net()
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    engine = engine_of(model, 3)
    WithoutRoom(engine)
    refused = error_of(lambda: engine(inputs_of(rank)))
    read = error_of(lambda: model[0].weight.sum())
    with engine.gathered():
        same = all(map(torch.equal, model.parameters(), expected))
    return refused, read, same


def test_parameters_are_refused_after_a_gather_that_found_no_memory(two_ranks):
    for refused, read, same in two_ranks.run(gather_again_without_room):
        assert "expected memory for" in refused and "is not whole on rank" in read and same


class Recomputed(nn.Module):
    """Blocks that are recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(4))

    def forward(self, x: Tensor, is_reentrant: bool) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=is_reentrant)
        return x


def whole_at_the_end_of_backward(rank: int, is_reentrant: bool) -> list[int]:
    """Returns, of each step, how many parameters are whole when the backward pass is through the first block."""
    model = Recomputed()
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "reuse_mib": 0})
    counts = []
    for _ in range(3):
        x = inputs_of(rank).requires_grad_()
        x.register_hook(lambda _: counts.append(len(engine._gathering._wholes.there)))
        engine.backward(engine(x, is_reentrant).square().mean())
        engine.step()
    return counts


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_recomputed_modules_are_released_with_their_gradients(two_ranks, is_reentrant):
    """What is recomputed without a backward pass of its own is awaited by nobody."""
    for counts in two_ranks.run(whole_at_the_end_of_backward, is_reentrant):
        assert all(count <= 4 for count in counts), counts


class WithRoomForAPart(Transfers):
    """An engine that finds memory for the first two parameters of its first gather only."""

    def gather_into(self, graph: int, ids: list[int], wholes: list[Tensor]) -> None:
        if self.started:
            return super().gather_into(graph, ids, wholes)
        super().gather_into(graph, ids[:2], wholes[:2])
        for id in ids[:2]:
            self.wait_allgather(graph, id)
        raise MemoryError("no room")


def gather_again_what_had_no_room(rank: int) -> tuple[list[list[int]], bool, str]:
    """Returns the transfers, whether a context then has all values, and what is read after it."""
    model = net()
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    engine = engine_of(model, 3)
    transfers = WithRoomForAPart(engine)
    for _ in range(2):
        with suppress(MemoryError), engine.gathered():
            same = all(map(torch.equal, model.parameters(), expected))
    return transfers.started, same, error_of(lambda: model[0].weight.sum())


def test_a_context_that_found_no_memory_may_begin_again(two_ranks):
    """What had arrived is not gathered again, because ranks that found all memory do not gather it either."""
    for started, same, said in two_ranks.run(gather_again_what_had_no_room):
        assert started == [[0, 1], [2, 3]] and same and "is not whole on rank" in said


def test_first_uses_are_taken_from_the_end_of_their_order():
    uses = FirstUses()
    counts = []
    for parameters in ([0], [1, 2], [0, 3]):
        uses.note(parameters)
        counts.append(uses.count)
    assert counts == [1, 3, 4]
    assert [uses.take_after(count) for count in (4, 3, 3, 1, 1)] == [[], [3], [], [2, 1], []]


class Skips(Transfers):
    """An engine that notes which gradients it is told not to expect, and those that come after all."""

    def __init__(self, engine: Engine):
        super().__init__(engine)
        self.skipped: set[int] = set()
        self.late: set[int] = set()
        engine._gathering._engine = engine._gradients._engine = self

    def start_backward(self, update: bool) -> None:
        self.skipped.clear()
        self._engine.start_backward(update)

    def skip_gradients(self, graph: int, ids: list[int]) -> None:
        self.skipped.update(ids)
        self._engine.skip_gradients(graph, ids)

    def take_grad(self, gradient: Tensor, graph: int, id: int) -> None:
        self.late |= self.skipped & {id}
        self._engine.take_grad(gradient, graph, id)


class Twice(nn.Module):
    """A module with a parameter and children; one child is called twice, directly and recomputed, around another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.shared, self.between, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, is_reentrant: bool) -> Tensor:
        x = self.between(self.shared(x)).tanh()
        return self.last(checkpoint(self.shared, x, use_reentrant=is_reentrant)) * self.scale


def skip_in_backward(rank: int, is_reentrant: bool, calls: int) -> tuple[list[int], list[int]]:
    """Makes the backward pass of one loss for several calls. Returns what was skipped at last, and what of it came."""
    model = Twice()
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3})
    skips = Skips(engine)
    engine._engine = skips
    for _ in range(3):
        engine.backward(sum(engine(inputs_of(rank), is_reentrant).square().mean() for _ in range(calls)))
        engine.step()
    return sorted(skips.skipped), sorted(skips.late)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("is_reentrant", [False, True])
def test_no_gradient_is_skipped_that_comes(two_ranks, is_reentrant, calls):
    """Each was there already when the backward pass had gone on."""
    for skipped, late in two_ranks.run(skip_in_backward, is_reentrant, calls):
        assert skipped and not late
