# SPDX-License-Identifier: Apache-2.0
"""What is checked of passes that users register: their contracts, and where they leave the waits of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zero_runs import error_of

import octavo
from octavo.zero.compiled import Contract, Setting, ZeroGraph
from octavo.zero.compiled.passes.gather import parts_of

WAIT, LAUNCH = torch.ops.dc.wait_params.default, torch.ops.dc.allgather_params_fused.default


def waits_at_the_end(graph: ZeroGraph) -> None:
    for wait in graph.calls(WAIT):
        graph.module.graph.output_node().prepend(wait)


def one_use_before(graph: ZeroGraph) -> None:
    """Puts a use of the last parameter between its gather and its wait, as a fusion of views might."""
    wait = graph.calls(WAIT)[-1]
    part = wait.args[0][-1]
    early = graph.insert(wait, torch.ops.aten.relu.default, (part,), part.meta["val"])
    part.replace_all_uses_with(early, delete_user_cb=lambda user: user not in (early, wait))


def one_taken_again(graph: ZeroGraph) -> None:
    """Takes the last parameter from its gather once more, and uses that before the wait."""
    wait = graph.calls(WAIT)[-1]
    part = wait.args[0][-1]
    again = graph.insert(wait, operator.getitem, part.args, part.meta["val"])
    early = graph.insert(wait, torch.ops.aten.relu.default, (again,), part.meta["val"])
    part.replace_all_uses_with(early, delete_user_cb=lambda user: user is not wait)


def ids_exchanged(graph: ZeroGraph) -> None:
    """Lets waits have the numbers of each other's parameters."""
    for wait in graph.calls(WAIT):
        gathered, graph_id, ids = wait.args
        wait.args = (gathered, graph_id, list(reversed(ids)))


def gathers_and_waits_at_the_front(graph: ZeroGraph) -> None:
    behind = graph.module.graph.find_nodes(op="placeholder")[-1]
    for launch, wait in zip(graph.calls(LAUNCH), graph.calls(WAIT), strict=True):
        for node in (launch, *parts_of(launch), wait):
            if node is not behind.next:
                behind.append(node)
            behind = node


def with_a_pass(rank: int, edit: Callable[[ZeroGraph], None], is_backward: bool) -> tuple[str, str]:
    """Returns the error of a forward pass and of its backward pass, with this edit of one of their graphs."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    config: dict[str, Any] = {"zero_stage": 3, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    engine.register_compile_pass(
        "mine", lambda graph: edit(graph) if graph.is_backward == is_backward else None, Contract()
    )
    engine.set_compile_schedule([(0, ["gather", "reduce", "mine"])])
    losses: list[torch.Tensor] = []
    forward = error_of(lambda: losses.append(engine(torch.ones(4, 8).requires_grad_()).sum()))
    return forward, error_of(lambda: engine.backward(losses[0])) if losses else ""


@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("edit", "ids"),
    [
        (waits_at_the_end, {False: "[0, 1, 2, 3]", True: "[0, 2]"}),
        (one_use_before, {False: "[3]", True: "[0]"}),
        (one_taken_again, {False: "[3]", True: "[0]"}),
        (ids_exchanged, {False: "[0, 1, 2, 3]", True: "[0, 2]"}),
    ],
)
def test_a_pass_that_uses_parameters_before_their_wait_is_found_before_the_graph_runs(
    two_ranks, edit, ids, is_backward
):
    for said in two_ranks.run(with_a_pass, edit, is_backward):
        assert "[zero.passes] after the pass mine, the" in said[is_backward], said
        assert f"does not wait for parameters {ids[is_backward]} before it uses them" in said[is_backward]


@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
def test_a_pass_may_move_gathers_as_far_as_it_likes(two_ranks, is_backward):
    assert two_ranks.run(with_a_pass, gathers_and_waits_at_the_front, is_backward) == [("", "")] * 2


def refusal(contract: Contract, step: int = 0) -> str:
    """Returns why a schedule with a pass of this contract is refused."""
    from octavo.zero.compiled.passes import BUILT_IN, Pass, require_sound

    passes = dict(BUILT_IN) | {"mine": Pass(lambda graph: None, contract)}
    schedule = [(0, ["gather", "reduce"]), (step, ["gather", "mine"])] if step else [(0, ["gather", "mine"])]
    return error_of(lambda: require_sound(schedule, passes, Setting(3, "inductor")))


KNOWN = "gather, mine, offload_activations, offload_optimizer, offload_parameters, prefetch, reduce, selective_gather"


@pytest.mark.parametrize("field", ["conflicts", "after"])
def test_names_in_a_contract_that_no_pass_has_are_refused(field):
    said = refusal(Contract(**{field: frozenset({"reduc", "gather", "gathr"})}), step=2)
    assert said.startswith(
        f"ValueError: [zero.passes] step 2: the contract of mine has in its {field} 'gathr', 'reduc'"
    )
    assert said.endswith(f"known are {KNOWN}")
    assert refusal(Contract(**{field: frozenset({"prefetch"})}), step=2) == ""


def test_a_property_that_no_pass_provides_is_named():
    said = refusal(Contract(requires=frozenset({"gathered", "sorted"}), provides=frozenset({"sorted"})))
    assert said.startswith("ValueError: [zero.passes] step 0: mine requires 'sorted', which no other pass provides")
    assert "'gathered'" in said and "'reduced early'" in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"needs_profile": "no"}, "expected a contract's needs_profile as True or False, got 'no'"),
        ({"needs_profile": 1}, "expected a contract's needs_profile as True or False, got 1"),
        ({"backends": frozenset({"inductr"})}, "expected a contract's backends as a set among inductor and aot_eager"),
        ({"conflicts": "reduce"}, "expected a contract's conflicts as a set of texts, got 'reduce'"),
        ({"stages": [3]}, "expected a contract's stages as a set among 1, 2 and 3, got [3]"),
        ({"stages": frozenset({3, "4"})}, "expected a contract's stages as a set among 1, 2 and 3"),
        ({"why_not": "never"}, "expected a contract's why_not as a function, got 'never'"),
    ],
)
def test_a_contract_with_fields_of_other_types_is_refused(fields, words):
    assert f"ValueError: [zero.passes] {words}" in error_of(lambda: Contract(**fields))
