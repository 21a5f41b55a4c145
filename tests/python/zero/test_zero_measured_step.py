# SPDX-License-Identifier: Apache-2.0
"""The measured step of compiled graphs: where it fails on one rank, all ranks learn why, or are told whom to ask."""

from __future__ import annotations

import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Interpreter, Node
from zero_runs import Engine, error_of

import octavo
from octavo.zero.compiled.measure import Measuring

NAMES = ["gather", "reduce"]


def measured_engine(**config: Any) -> Engine:
    """Returns an engine whose second step is measured."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    schedule = [(0, NAMES), (2, [*NAMES, "prefetch"])]
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "schedule": schedule}, "timeout_s": 20, **config}
    return octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)


def step(engine: Engine) -> None:
    engine.backward(engine(torch.ones(4, 16)).square().mean())
    engine.step()


def figures_fail(rank: int, failing: tuple[int, ...]) -> list[str]:
    """Returns the errors of the step that is measured and of the one after it."""
    engine = measured_engine()

    def fail() -> float:
        raise MemoryError("no room for the probe")

    if rank in failing:
        engine._compiler._device.copy_s_per_byte = fail
    step(engine)
    return [error_of(lambda: step(engine)), error_of(lambda: step(engine))]


@pytest.mark.parametrize("failing", [(1,), (0, 1)], ids=str)
def test_a_measurement_that_fails_on_one_rank_fails_on_all(two_ranks, failing):
    said = "; ".join(
        f"rank {rank} cannot finish the measured step 2: MemoryError: no room for the probe" for rank in failing
    )
    for first, then in two_ranks.run(figures_fail, failing):
        assert first == f"RuntimeError: [zero.compiled] {said}"
        assert "an earlier error stopped this engine" in then and said in then


def a_start_fails(rank: int) -> list[str]:
    engine = measured_engine()

    def fail(_: Any) -> None:
        raise MemoryError("no room for counters")

    if rank == 1:
        engine._compiler._start_measuring = fail
    return [error_of(lambda: step(engine)), error_of(lambda: step(engine))]


def test_a_measurement_that_cannot_start_on_one_rank_fails_on_all(two_ranks):
    said = "rank 1 cannot begin to measure step 2: MemoryError: no room for counters"
    for first, then in two_ranks.run(a_start_fails):
        assert first == f"RuntimeError: [zero.compiled] {said}"
        assert "an earlier error stopped this engine" in then


def a_node_fails(rank: int, is_backward: bool, goes_on: bool) -> list[str]:
    """Returns the errors of the measured step: on rank 1, one of whose nodes fails, and that of the rank that waits for
    it. ``goes_on``: rank 1 catches the error and makes another step."""
    engine = measured_engine()
    run_node = Interpreter.run_node

    def failing(self: Interpreter, n: Node) -> Any:
        is_of_backward = bool(self.module.graph.find_nodes(op="call_function", target=REDUCE))
        if n.target == WAIT and is_of_backward == is_backward:
            raise MemoryError("no room")
        return run_node(self, n)

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(Interpreter, "run_node", failing)
        step(engine)
        said = [raised_by(engine)]
        if goes_on and rank == 1:
            said.append(raised_by(engine))
    return said


def raised_by(engine: Engine) -> str:
    try:
        step(engine)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_measured_graph_lets_go_of_its_results():
    """Otherwise it would keep what the forward pass saves until the backward pass has ended, and measure that."""
    graph, failing = torch.fx.Graph(), torch.fx.Graph()
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    result, seen = failing.call_function(torch.sin, (failing.placeholder("x"),)), []
    failing.output((failing.call_function(lambda value: seen.append(weakref.ref(value)) or 1 / 0, (result,)),))
    measuring = Measuring(torch.fx.GraphModule({}, graph))
    (result,) = measuring.boxed_run([torch.ones(3)])
    assert torch.equal(result, torch.ones(3).sin())
    of_result = weakref.ref(result)
    del result
    assert of_result() is None
    broken = Measuring(torch.fx.GraphModule({}, failing))
    with pytest.raises(ZeroDivisionError, match="rank 0 has failed in the measured step, in the graph, at"):
        broken.boxed_run([torch.ones(3)])
    assert [of_value() for of_value in seen] == [None]


WAIT, REDUCE = torch.ops.dc.wait_params.default, torch.ops.dc.reduce_grads.default


@pytest.mark.parametrize(
    ("is_backward", "goes_on"), [(False, False), (False, True), (True, False)], ids=["forward", "goes on", "backward"]
)
def test_a_node_that_fails_in_the_measured_step_says_so_and_others_are_told_whom_to_ask(
    two_ranks, is_backward, goes_on
):
    others, own = two_ranks.run(a_node_fails, is_backward, goes_on)
    which = "backward" if is_backward else "forward"
    words = rf"rank 1 has failed in the measured step, in the {which} graph \d+, at wait_params"
    assert re.match(rf"MemoryError: \[zero.compiled\] {words}", own[0])
    assert "no room" in own[0] and "Use tlparse" not in own[0]
    assert "It happened in the measured step" in others[0]
    assert "where another rank has failed in it, its own error says so" in others[0]
    assert re.search(r"rank 0\b.*\brank 1\b", others[0])
