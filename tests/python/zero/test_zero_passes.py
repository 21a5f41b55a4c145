# SPDX-License-Identifier: Apache-2.0
"""The passes of ZeRO's compiled graphs: what they change in a graph, their schedule, what contracts refuse."""

from __future__ import annotations

import copy
import itertools
import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from zero_runs import error_of

import octavo
from octavo.zero.compiled import Contract, Setting, ZeroGraph

SMALL = {"bucket_mib": 0.02, "gather_mib": 0.02}


def sent_by_step(rank: int, config: dict[str, Any], autocast: bool, steps: int) -> tuple[list[int], list[float]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    sent, losses = [0], []
    for step in range(steps):
        torch.manual_seed(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = engine(torch.randn(4, 64)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        sent.append(engine.sent_bytes())
    return [after - before for before, after in itertools.pairwise(sent)], losses


def test_what_is_cast_first_travels_in_few_bytes(two_ranks):
    config = {"zero_stage": 3, "compile": "aot_eager"}
    wide, narrow = (two_ranks.run(sent_by_step, config, autocast, 2)[0][0][-1] for autocast in (False, True))
    # in elements; no gradient needs the other parameters
    forward, backward = 2 * (64 * 64 + 64) + 64 * 8 + 8, 64 * 64 + 64 * 8
    assert wide - narrow == (forward + backward) // 2 * 2  # each rank sends half of them, with 2 bytes less per element


def test_memory_to_spare_keeps_parameters_whole(two_ranks):
    tight = {"zero_stage": 3, "compile": {"backend": "aot_eager"}} | SMALL
    roomy = tight | {"compile": {"backend": "aot_eager", "memory_mib": 2.0**20}}
    (sent, losses), _ = two_ranks.run(sent_by_step, tight, False, 6)
    (less, same), _ = two_ranks.run(sent_by_step, roomy, False, 6)
    assert same == losses
    assert less[0] == sent[0]
    assert less[-1] < 0.8 * sent[-1] == 0.8 * sent[0]  # one gather instead of two


def transfers_of_schedules(rank: int, memory_mib: float | None) -> tuple[int, list[list[str]]]:
    """Returns how often Dynamo has called the backend, and after each step the forward graph's own operators, in
    order."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "memory_mib": memory_mib}, "gather_mib": 0.01}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    calls: list[list[str]] = []

    def see(graph: ZeroGraph) -> None:
        if not graph.is_backward:
            calls.append([node.target.__name__ for node in graph.nodes if node.op == "call_function"])

    engine.register_compile_pass("see", see, Contract(requires=frozenset({"gathered"})))
    engine.set_compile_schedule([(0, ["gather", "reduce", "see"]), (2, ["gather", "reduce", "prefetch", "see"])])
    for _ in range(3):
        engine.backward(engine(torch.randn(4, 64)).square().mean())
        engine.step()
    return len(engine._compiler._graphs), calls


def test_a_step_of_the_schedule_lowers_the_graphs_again_and_traces_nothing(two_ranks):
    graphs, calls = two_ranks.run(transfers_of_schedules, 2.0**20)[0]
    assert graphs == 2
    assert len(calls) == 2
    assert sorted(calls[0]) == sorted(calls[1])
    assert sum(name.startswith("allgather_params_fused") for name in calls[0]) > 3


class Projections(nn.Module):
    """Makes matrices of several weights, and of weights that have no view with the columns that it needs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.Parameter(torch.randn(4, 32, 8) / 8)
        self.query, self.key = nn.Parameter(torch.randn(32, 32) / 8), nn.Parameter(torch.randn(32, 32) / 8)
        self.both = nn.Parameter(torch.randn(64, 32) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(torch.einsum("bsd,hdk->bshk", x, self.heads).flatten(2))
        x = torch.tanh(x @ torch.cat([self.query, self.key]).t())
        x = torch.tanh(x @ nn.functional.normalize(self.both, dim=1))
        first, second = (self.both * 2).chunk(2)
        return torch.tanh(x @ first) @ second.t()


def saved_elements(rank: int) -> tuple[list[int], list[float], list[float]]:
    """Returns how many elements each value has that forward computes and leaves for backward, and the losses of graphs
    and of eager code."""
    torch._dynamo.reset()
    saved: list[int] = []

    def see(graph: ZeroGraph) -> None:
        if not graph.is_backward:
            kept = graph.module.graph.output_node().all_input_nodes
            saved.extend(node.meta["val"].numel() for node in kept if node.op != "placeholder")

    losses = []
    for compile in ("aot_eager", False):
        model = Projections()
        config = {"zero_stage": 3, "compile": compile}
        engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
        if compile:
            engine.register_compile_pass("see", see, Contract())
            engine.set_compile_schedule([(0, ["see", "gather", "reduce"])])
        for step in range(3):
            loss = engine(torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(step))).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return saved, losses[:3], losses[3:]


def test_nothing_that_is_made_of_parameters_alone_is_saved(two_ranks):
    for saved, compiled, eager in two_ranks.run(saved_elements):
        weights = {4 * 32 * 8, 32 * 32, 2 * 32 * 32}
        assert saved and max(saved) < min(weights), saved
        assert compiled == pytest.approx(eager, rel=1e-6)


def failing_on_one_rank(rank: int) -> tuple[str, str]:
    """Returns the error of the step, and that of the next one."""
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "compile": "aot_eager", "timeout_s": 20}
    )

    def fail(graph: ZeroGraph) -> None:
        if rank == 1:
            raise MemoryError("no room")

    engine.register_compile_pass("fail", fail, Contract())
    engine.set_compile_schedule([(0, ["gather", "reduce"]), (1, ["gather", "fail"])])
    engine.backward(engine(torch.randn(4, 8)).square().mean())
    return error_of(engine.step), error_of(engine.step)


def test_a_pass_that_fails_on_one_rank_fails_on_all_and_ends_the_engine(two_ranks):
    words = (
        r"RuntimeError: \[zero.compiled\] rank 1 cannot lower the graphs for step 1: \[zero.passes\] the pass fail has "
        r"failed on graph \d+: MemoryError: no room"
    )
    for said, then in two_ranks.run(failing_on_one_rank):
        assert re.fullmatch(words, said)
        assert "[zero.step] an earlier error stopped this engine" in then and said in then


def failing_at_first(rank: int) -> tuple[str, float, float]:
    """Returns the error, the loss of another schedule after it, and that of a plain copy."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    plain = model(torch.ones(4, 8)).sum().item()
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "compile": "aot_eager"}
    )

    def fail(graph: ZeroGraph) -> None:
        raise IndexError("my pass is wrong")

    engine.register_compile_pass("fail", fail, Contract())
    engine.set_compile_schedule([(0, ["gather", "fail"])])
    said = error_of(lambda: engine(torch.ones(4, 8)))
    engine.set_compile_schedule([(0, ["gather", "reduce"])])  # no graph was made by the schedule before
    torch._dynamo.reset()
    return said, engine(torch.ones(4, 8)).sum().item(), plain


def test_a_pass_that_fails_at_first_is_named_and_its_schedule_may_be_replaced(two_ranks):
    for said, loss, plain in two_ranks.run(failing_at_first):
        assert "[zero.passes] the pass fail has failed on graph" in said and "IndexError: my pass is wrong" in said
        assert loss == pytest.approx(plain, rel=1e-5)


def on_other_schedules(rank: int) -> tuple[str, str]:
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    config = {"zero_stage": 3, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    names = ["gather", "reduce"]
    if rank == 0:
        engine.set_compile_schedule([(0, names), (2, names)])
    engine.backward(engine(torch.ones(4, 8)).sum())
    return error_of(engine.step), error_of(engine.step)


def test_ranks_with_other_schedules_are_told_after_the_first_step_and_their_engine_ends(two_ranks):
    for said, then in two_ranks.run(on_other_schedules):
        assert "[zero.set_compile_schedule] all ranks must have the same schedule: rank 0 has [(0, " in said
        assert "rank 1 has" in said
        assert "[zero.step] an earlier error stopped this engine" in then


def evaluated_in_few_bits(rank: int, memory_mib: float | None) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "memory_mib": memory_mib}}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    losses = []
    for step in range(7):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(8, 32)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            engine(x)
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_parameters_that_stay_whole_keep_all_of_their_digits(two_ranks):
    assert two_ranks.run(evaluated_in_few_bits, 2.0**20) == two_ranks.run(evaluated_in_few_bits, None)


def test_a_schedule_that_drops_selective_gather_ends_it(two_ranks):
    names = ["gather", "reduce"]
    schedule = [(0, names), (2, [*names, "selective_gather"]), (5, names)]
    config = {"backend": "aot_eager", "memory_mib": 2.0**20, "schedule": schedule}
    (sent, losses), _ = two_ranks.run(sent_by_step, {"zero_stage": 3, "compile": config}, False, 8)
    (_, same), _ = two_ranks.run(
        sent_by_step, {"zero_stage": 3, "compile": config | {"schedule": [(0, names)]}}, False, 8
    )
    assert sent[3] < sent[0]
    assert sent[6] == sent[7] == sent[0]
    assert losses == same


def refused(rank: int, compile: Any, schedule: Any = None) -> str:
    model = nn.Linear(4, 4)
    try:
        engine = octavo.initialize(
            model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "compile": compile}
        )
        engine.set_compile_schedule(schedule)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("compile", "schedule", "words"),
    [
        ("tensorrt", None, "expected compile's backend to be one of ('inductor', 'aot_eager'), got 'tensorrt'"),
        (None, None, "expected compile to be True, False, a backend's name or a dict, got None"),
        ({"bakend": "inductor"}, None, "compile has unknown keys: bakend"),
        ({"memory_mib": 0}, None, "expected a memory_mib above 0"),
        ({"memory_mib": "much"}, None, "expected a memory_mib above 0, got 'much'"),
        ({"memory_mib": float("nan")}, None, "expected a memory_mib above 0, got nan"),
        ({"dynamic": "yes"}, None, "expected dynamic to be True, False or None, got 'yes'"),
        ({1: 2}, None, "compile has unknown keys: 1; known are"),
        (False, [(0, ["gather"])], 'give "compile": True'),
        (True, [(1, ["gather"])], "whose steps begin with 0"),
        (True, [(0, ["gather", "fly"])], "there is no pass 'fly'"),
        (True, [(0, ["reduce"])], "stage 3 needs the pass gather"),
        (True, [(0, ["gather"]), (2, ["prefetch", "gather"])], "step 2: prefetch needs one of ['gather'] before it"),
        (True, [(0, ["gather", "prefetch"])], "prefetch needs a step that was measured"),
    ],
)
def test_what_makes_no_sense_is_refused(two_ranks, compile, schedule, words):
    for message in two_ranks.run(refused, compile, schedule):
        assert words in message


def test_contracts_name_what_excludes_each_other():
    from octavo.zero.compiled.passes import BUILT_IN, Pass, require_sound

    passes = dict(BUILT_IN) | {"mine": Pass(lambda graph: None, Contract(conflicts=frozenset({"reduce"})))}
    with pytest.raises(ValueError, match="mine and reduce exclude each other"):
        require_sound([(0, ["reduce", "mine"])], passes, Setting(1, "inductor"))
    with pytest.raises(ValueError, match="gather is for stage"):
        require_sound([(0, ["gather"])], passes, Setting(2, "inductor"))


def refused_schedule(rank: int) -> tuple[str, int, float, float]:
    """Returns the error, the parameter's elements after it, and the loss after a step, here and of a plain copy."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "schedule": [(0, ["reduce"])]}}
    with pytest.raises(ValueError) as caught:
        octavo.initialize(model, optimizer, config)
    elements = model.weight.untyped_storage().nbytes() // 4
    engine = octavo.initialize(model, optimizer, {"zero_stage": 3, "compile": "aot_eager"})
    engine.backward(engine(torch.ones(1, 8)).sum())
    engine.step()
    with pytest.raises(ValueError, match="graphs are already compiled"):
        engine.set_compile_schedule([(0, ["gather", "reduce"])])
    plain(torch.ones(1, 8)).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    loss, expected = (one(torch.ones(1, 8)).sum().item() for one in (engine, plain))
    return str(caught.value), elements, loss, expected


def test_nothing_has_changed_where_a_schedule_is_refused(two_ranks):
    for said, elements, loss, expected in two_ranks.run(refused_schedule):
        assert "stage 3 needs the pass gather" in said
        assert elements == 64
        assert loss == pytest.approx(expected, rel=1e-5)


def test_what_a_structure_costs_is_the_most_of_its_graphs():
    from octavo.zero.compiled.graph import Profile
    from octavo.zero.compiled.measure import greatest_of

    measured = [("a", Profile({"x": 2.0}, {}, {})), ("a", Profile({"x": 1.0, "y": 3.0}, {}, {}))]
    agreed, shared, _ = greatest_of([(measured, {})])
    assert agreed["a"].seconds == {"x": 2.0, "y": 3.0} and shared == {"a"}


def with_values_copied(rank: int, backend: str, copied: bool) -> tuple[list[float], list[int]]:
    """Trains as if the CPU were a device. Returns the losses and the operators that send values away and bring them
    back."""
    from octavo.zero.compiled.passes.offload_activations import offload_activations

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))))
    config = {"zero_stage": 2, "compile": backend}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    engine._compiler._memory.min_offload_bytes = 2**10
    moved = []

    def see(graph: ZeroGraph) -> None:
        for name in ("offload_tensor", "finish_offload", "reload_tensor", "finish_reload"):
            moved.extend([name] * len(graph.calls(getattr(torch.ops.dc, name).default)))

    engine.register_compile_pass("copy", offload_activations if copied else lambda graph: None, Contract())
    engine.register_compile_pass("see", see, Contract())
    engine.set_compile_schedule([(0, ["reduce", "copy", "see"])])
    losses = []
    for step in range(4):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, moved


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_values_for_the_backward_pass_are_those_that_were_sent(two_ranks, backend):
    plain = two_ranks.run(with_values_copied, backend, False, timeout_s=200)
    for (losses, moved), (expected, nothing) in zip(
        two_ranks.run(with_values_copied, backend, True, timeout_s=200), plain, strict=True
    ):
        assert losses == expected
        assert nothing == [] and len(moved) >= 4 * 5
        assert len({moved.count(name) for name in moved}) == 1


def without_a_wait(rank: int, backend: str) -> list[str]:
    """Returns the error of each of two steps, and of an evaluation."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 3, "compile": backend, "timeout_s": 20}
    )

    def drop_waits(graph: ZeroGraph) -> None:
        for wait in graph.calls(torch.ops.dc.wait_params.default):
            graph.module.graph.erase_node(wait)

    engine.register_compile_pass("drop_waits", drop_waits, Contract(after=frozenset({"gather"})))
    engine.set_compile_schedule([(0, ["gather", "reduce", "drop_waits"])])
    said = []
    for _ in range(2):
        try:
            engine.backward(engine(torch.ones(4, 8)).sum())
            said.append("")
        except (ValueError, RuntimeError) as error:
            said.append(str(error))
    with torch.no_grad():
        return [*said, error_of(lambda: engine(torch.ones(4, 8)))]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_pass_that_loses_a_wait_is_found_before_the_graph_runs(two_ranks, backend):
    for said in two_ranks.run(without_a_wait, backend, timeout_s=200):
        for words in said:
            assert "[zero.passes] after the pass drop_waits, the waits for parameters [0, 1] of graph" in words
            assert "keep one call of dc.wait_params" in words


def test_a_graph_lets_go_of_an_input_after_its_last_use():
    from octavo.zero.compiled.lowering import run_as_is

    graph, alive = torch.fx.Graph(), []
    first, second = graph.placeholder("first"), graph.placeholder("second")
    used = graph.call_function(torch.sin, (first,))
    seen = graph.call_function(lambda value: alive.append(of_first()) or value, (used,))
    graph.output((graph.call_function(torch.add, (seen, second)),))
    run = run_as_is(torch.fx.GraphModule({}, graph))
    for _ in range(2):
        inputs = [torch.ones(3), torch.zeros(3)]
        of_first = weakref.ref(inputs[0])
        (result,) = run(inputs)
        assert torch.equal(result, torch.ones(3).sin())
        assert inputs == []
    assert alive == [None, None]


def run_beside(rank: int, backend: str, names: list[str]) -> list[str]:
    """Returns the error for each of these operators where a pass puts it beside a graph, under another graph's
    number."""
    said = []
    for name in names:
        torch._dynamo.reset()
        engine = octavo.initialize(
            model := nn.Linear(8, 8), torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 2, "compile": backend}
        )

        def beside(graph: ZeroGraph, name: str = name) -> None:
            token = graph.token()
            arguments = (token, 5) if name == "wait_offloads" else (token, 5, [0])
            graph.insert(token.next, getattr(torch.ops.dc, name).default, arguments)

        engine.register_compile_pass("beside", beside, Contract())
        engine.set_compile_schedule([(0, ["reduce", "beside"])])
        try:
            engine(torch.randn(4, 8))
        except ValueError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_moves_memory_beside_a_graph_is_not_dropped(one_rank, backend):
    names = ["offload_params", "reload_params", "offload_states", "reload_states", "wait_offloads"]
    (said,) = one_rank.run(run_beside, backend, names, timeout_s=200)
    assert len(said) == len(names)
    assert all("no engine of this process has graph 5" in words for words in said)


def without_reductions(rank: int, backend: str) -> str:
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 2, "compile": backend, "timeout_s": 20}
    )

    def drop(graph: ZeroGraph) -> None:
        for target in (torch.ops.dc.reduce_grads.default, torch.ops.dc.finish_backward.default):
            for call in graph.calls(target):
                graph.module.graph.erase_node(call)

    engine.register_compile_pass("drop", drop, Contract())
    engine.set_compile_schedule([(0, ["reduce", "drop"])])
    return error_of(lambda: engine.backward(engine(torch.ones(4, 8)).sum()))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_pass_that_loses_gradients_is_refused(two_ranks, backend):
    for said in two_ranks.run(without_reductions, backend, timeout_s=200):
        assert "[zero.passes] the pass drop has changed which gradients a graph reduces" in said
        assert re.search(r"had 1 calls for the gradient of parameter \d before the pass, and has 0 after it", said)
