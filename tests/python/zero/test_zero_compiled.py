# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine with compiled graphs: how the passes change training. test_zero_parity.py compares it with torch's own
training."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from test_zero import by_ddp
from torch import Tensor, nn
from zero_runs import Odd, adamw, loss_of, net, said_by, step_once

import octavo
from octavo.zero.compiled import Contract, Setting, ZeroGraph

SMALL = {"bucket_mib": 0.02, "gather_mib": 0.02}


def by_compiled(rank: int, steps: int, config: dict[str, Any]) -> list[float]:
    torch._dynamo.reset()
    engine = octavo.initialize(model := Odd(), adamw(model), config)
    return [step_once(engine, rank, batch) for batch in range(steps * engine.config.accumulation_steps)]


@pytest.mark.parametrize("stage", [1, 3])
def test_generated_code_gives_them_too(two_ranks, stage):
    expected = two_ranks.run(by_ddp, 1, None, 8)
    got = two_ranks.run(by_compiled, 8, {"zero_stage": stage, "compile": True} | SMALL)
    for of_rank, of_ddp in zip(got, expected, strict=True):
        assert of_rank == pytest.approx(of_ddp, rel=1e-4)


class Broken(nn.Module):
    """A model of two graphs, both of which use ``shared``, around a module that Dynamo does not compile."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.alone, self.skipped = nn.Linear(8, 8), nn.Linear(8, 7), nn.Linear(8, 8)

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


@pytest.mark.parametrize(("stage", "backend"), [(1, "aot_eager"), (2, "aot_eager"), (3, "aot_eager"), (3, "inductor")])
@pytest.mark.parametrize(
    "make", [Looped, partial(Looped, LayerWithBreak), looped_with_a_hook], ids=["loop", "layer", "hook"]
)
def test_the_graph_of_one_layer_is_none_of_the_next(two_ranks, make, stage, backend):
    expected = two_ranks.run(of_broken, None, False, make)
    got = two_ranks.run(of_broken, stage, backend, make)
    assert got == [pytest.approx(of_ddp, rel=1e-5) for of_ddp in expected]


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


def failing_on_one_rank(rank: int) -> str:
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
    try:
        engine.step()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_pass_that_fails_on_one_rank_fails_on_all(two_ranks):
    words = "[zero.compiled] rank 1 cannot lower the graphs for step 1: MemoryError: no room"
    assert two_ranks.run(failing_on_one_rank) == [words, words]


@pytest.mark.parametrize("stage", [2, 3])
def test_compressed_both_ways(two_ranks, stage):
    config = {"zero_stage": stage, "plan": "int4+ef", "gather": "int8"} | SMALL
    eager = two_ranks.run(by_compiled, 12, config)
    assert two_ranks.run(by_compiled, 12, config | {"compile": "aot_eager"}) == eager


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
        ({"bakend": "inductor"}, None, "compile has no bakend"),
        ({"memory_mib": 0}, None, "expected a memory_mib above 0"),
        ({"memory_mib": "much"}, None, "expected a memory_mib above 0, got 'much'"),
        ({"memory_mib": float("nan")}, None, "expected a memory_mib above 0, got nan"),
        ({"dynamic": "yes"}, None, "expected dynamic to be True, False or None, got 'yes'"),
        ({1: 2}, None, "compile has no 1; known are"),
        (False, [(0, ["gather"])], 'give "compile": True'),
        (True, [(1, ["gather"])], "whose steps begin with 0"),
        (True, [(0, ["gather", "fly"])], "there is no pass 'fly'"),
        (True, [(0, ["reduce"])], "stage 3 needs the pass gather"),
        (True, [(0, ["gather"]), (2, ["prefetch", "gather"])], "step 2: prefetch comes after one of ['gather']"),
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
    with pytest.raises(ValueError, match="gather is of stage"):
        require_sound([(0, ["gather"])], passes, Setting(2, "inductor"))


def refused_schedule(rank: int) -> tuple[str, int, float]:
    """Returns the error, and figures of a training after it."""
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"zero_stage": 3, "compile": {"backend": "aot_eager", "schedule": [(0, ["reduce"])]}}
    with pytest.raises(ValueError) as caught:
        octavo.initialize(model, optimizer, config)
    elements = model.weight.untyped_storage().nbytes() // 4
    engine = octavo.initialize(model, optimizer, {"zero_stage": 3, "compile": "aot_eager"})
    engine.backward(engine(torch.ones(1, 8)).sum())
    engine.step()
    with pytest.raises(ValueError, match="graphs are compiled already"):
        engine.set_compile_schedule([(0, ["gather", "reduce"])])
    return str(caught.value), elements, engine(torch.ones(1, 8)).sum().item()


def test_nothing_has_changed_where_a_schedule_is_refused(two_ranks):
    for said, elements, loss in two_ranks.run(refused_schedule):
        assert "stage 3 needs the pass gather" in said
        assert elements == 64
        assert loss == loss


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


def test_what_a_structure_costs_is_the_most_of_its_graphs():
    import torch.distributed as dist

    from octavo.zero.compiled.graph import Profile
    from octavo.zero.compiled.measure import agree

    class Alone:
        def size(self) -> int:
            return 1

    def gather(into: list[Any], value: Any, group: Any) -> None:
        into[0] = value

    measured = [("a", Profile({"x": 2.0}, {}, {})), ("a", Profile({"x": 1.0, "y": 3.0}, {}, {}))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_object", gather)
        agreed, shared, _ = agree(measured, {}, Alone())
    assert agreed["a"].seconds == {"x": 2.0, "y": 3.0} and shared == {"a"}


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
    """Returns the error of each of two steps."""
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
    return said


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_pass_that_loses_a_wait_is_found_before_the_step(two_ranks, backend):
    for said in two_ranks.run(without_a_wait, backend, timeout_s=200):
        for words in said:
            assert "the gather of 0.weight, 0.bias was not waited for" in words
            assert "graph" in words


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


def hooked(rank: int, stage: int) -> tuple[bool, float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    seen: list[bool] = []

    def freeze(gradient: Tensor) -> Tensor:
        seen.append(isinstance(gradient, Tensor) and bool(gradient.any()))
        return gradient * 0

    model[0].weight.register_hook(freeze)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = octavo.initialize(model, optimizer, {"zero_stage": stage, "compile": "aot_eager"} | SMALL)
    before = engine.whole(model[0].weight).clone()
    for _ in range(2):
        engine.backward(engine(torch.ones(4, 8)).square().mean())
        engine.step()
    return all(seen) and len(seen) == 2, float((engine.whole(model[0].weight) - before).abs().max())


@pytest.mark.parametrize("stage", [1, 3])
def test_hooks_see_the_gradients_of_compiled_graphs(two_ranks, stage):
    assert two_ranks.run(hooked, stage) == [(True, 0.0)] * 2


def graphs_of_many(rank: int) -> list[int]:
    torch._dynamo.reset()
    numbers = []
    for _ in range(10):
        model = Odd()
        engine = octavo.initialize(model, adamw(model), {"zero_stage": 1, "compile": "aot_eager"} | SMALL)
        step_once(engine, rank, 0)
        numbers.append(len(engine._compiler._graphs))
    return numbers


def test_the_tenth_engine_is_compiled_as_the_first(two_ranks):
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
            if said := said_by(lambda inputs=inputs: engine.backward(engine(inputs).square().mean())):
                return said
            engine.step()
    return ""


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_that_alone_is_no_longer_compiled_is_told_why_the_others_do_not_match(two_ranks, stage):
    for said in two_ranks.run(at_the_limit_alone, stage):
        assert "all ranks must make the same calls" in said and "torch._dynamo.config.recompile_limit" in said
