# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without torch.compile: which parameters travel together, and who keeps them whole."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_runs import Engine, engine_of, error_of, inputs_of, net, train

from octavo.zero.first_uses import FirstUses


class Transfers:
    """Stands for the C++ engine, and notes the parameters of each transfer that is started."""

    def __init__(self, engine: Engine):
        self._engine = engine._gathering._engine
        engine._gathering._engine = self
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


def first_uses_of(*calls: str) -> FirstUses:
    """Each call is the name of a module that begins, with the numbers of its parameters, or ends, as ")name"."""
    uses = FirstUses()
    for call in calls:
        name, _, own = call.partition(":")
        if name.startswith(")"):
            uses.end(name[1:])
        else:
            uses.begin(map(int, own.split()))
    return uses


def test_gradients_after_a_module_are_those_that_later_modules_used_first():
    uses = first_uses_of("a:0", ")a", "b:1 2", ")b", "c:0 3", ")c")
    assert [uses.take_after(module) for module in ("c", "unknown", "b", "a", "a")] == [[], [], [3], [2, 1], []]


def test_gradients_of_children_do_not_come_after_their_module():
    uses = first_uses_of("outer:0", "inner:1", ")inner", ")outer", "last:2", ")last")
    assert [uses.take_after(module) for module in ("last", "outer", "inner")] == [[], [2], []]


def test_what_comes_after_a_module_that_is_called_twice_comes_after_its_last_call():
    uses = first_uses_of("shared:0", ")shared", "encoder:1", ")encoder", "shared:0", ")shared", "decoder:2", ")decoder")
    assert [uses.take_after(module) for module in ("shared", "encoder", "shared")] == [[2], [], []]
