# SPDX-License-Identifier: Apache-2.0
"""Cuts the joint graph of a forward and a backward pass into the two. Gradients of parameters are reduced, not
returned."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, PlainAOTInput
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

# Keys in the meta of nodes:
PARAMETER = "octavo_parameter"  # the id of a placeholder's parameter
SAVED = "octavo_saved"  # the number of a value that is saved for the backward pass and shares its memory with no other

_CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)


def partition(
    joint: GraphModule,
    inputs: Sequence[object],
    ids: Mapping[int, int],
    graph_id: int,
    returned: Set[int] = frozenset(),
    are_gathered: bool = True,
    **options: Any,
) -> tuple[GraphModule, GraphModule]:
    """Returns the forward and the backward graph.

    Where parameters are gathered, what torch's own operators compute only from them is not saved for the backward pass,
    which gathers them and computes it again, unless it is random. What the backward pass does with gradients is in one
    call at its end.

    - ``ids``: the ids of the parameters, by index of the input.
    - ``returned``: the ids of those parameters whose gradients the graph returns, for hooks, and does not reduce.
    - ``are_gathered``: parameters are whole only while they are used, as in stage 3.
    """
    mark_parameters(joint, ids)
    _keep_what_is_overwritten(joint)
    _recompute_what_parameters_make(joint, are_gathered)
    grads = _parameters_of_gradients(joint, {index: id for index, id in ids.items() if id not in returned})
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    _reduce_at_end(backward, grads[options["num_fwd_outputs"] :], graph_id)
    _number_saved(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def mark_parameters(graph_module: GraphModule, ids: Mapping[int, int]) -> None:
    for node in graph_module.graph.find_nodes(op="placeholder"):
        index = _index(node.meta.get("desc"))
        if index in ids:
            node.meta[PARAMETER] = ids[index]


def is_cast(node: Node) -> bool:
    return node.target in _CASTS


def _index(description: object) -> int | None:
    return description.idx if isinstance(description, PlainAOTInput) else None


def _recompute_what_parameters_make(joint: GraphModule, are_gathered: bool) -> None:
    """Marks what is made only of parameters to be computed again: views and casts, and, where parameters are gathered,
    for example what a concatenation or an einsum makes of weights before it multiplies. If it were saved, it would keep
    as much memory as whole parameters from the forward pass to the backward pass."""
    of_parameters = {node for node in joint.graph.find_nodes(op="placeholder") if PARAMETER in node.meta}
    for node in joint.graph.nodes:
        inputs = node.all_input_nodes
        is_kept = not are_gathered and node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE
        if not inputs or not of_parameters.issuperset(inputs) or is_kept:
            continue
        if is_cast(node) or _is_view(node.target) or (are_gathered and _can_be_repeated(node.target)):
            of_parameters.add(node)
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _can_be_repeated(target: Callable[..., Any] | str) -> bool:
    """Whether an operator is known to give the same once more, and to change nothing."""
    if target is operator.getitem:  # which takes one of several results
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _keep_what_is_overwritten(joint: GraphModule) -> None:
    """Marks what is computed of an input that the forward pass writes to, such as a counter in a buffer, to be saved.
    torch's partitioner would let the backward pass compute it again from the overwritten input. A view of the input is
    overwritten with it, so what is computed from the view is marked instead of the view."""
    for copy in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        views = [copy.args[0]]
        while views:
            for user in views.pop().users:
                if user is copy:
                    continue
                if _is_view(user.target) or user.target is operator.getitem:  # which takes one of several views
                    views.append(user)
                else:
                    user.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _is_view(target: Callable[..., Any] | str) -> bool:
    return isinstance(target, torch._ops.OpOverload) and any(r.alias_info for r in target._schema.returns)


def _parameters_of_gradients(joint: GraphModule, ids: Mapping[int, int]) -> list[int | None]:
    """Returns for each output of the joint graph the id of the parameter whose gradient it is, or None."""
    descriptions = joint.graph.output_node().meta["desc"]
    return [ids.get(_index(d.grad_of), None) if isinstance(d, GradAOTOutput) else None for d in descriptions]


def _reduce_at_end(backward: GraphModule, parameters: Sequence[int | None], graph_id: int) -> None:
    """Puts the calls that reduce gradients at the end of the backward graph. They mutate a token, so that none of them
    is taken for dead code."""
    output = backward.graph.output_node()
    values: list[Any] = list(output.args[0])
    reduced = [i for i, id in enumerate(parameters) if id is not None and isinstance(values[i], Node)]
    if not reduced:
        return
    with backward.graph.inserting_before(output):
        gradients = [values[i] for i in reduced]
        token = insert_token(backward.graph, gradients[0].meta["val"])
        ids = [parameters[i] for i in reduced]
        for target, arguments in (
            (torch.ops.dc.reduce_grads.default, (gradients, token, graph_id, ids)),
            (torch.ops.dc.finish_backward.default, (token, graph_id, len(reduced))),
        ):
            backward.graph.call_function(target, arguments).meta["val"] = None
    output.args = (tuple(None if i in reduced else value for i, value in enumerate(values)),)
    backward.recompile()


def insert_token(graph: Graph, like: torch.Tensor) -> Node:
    """Inserts a token where ``graph`` inserts now: a tensor on the device of ``like``, a fake tensor."""
    options = {"dtype": torch.uint8, "device": like.device}
    token = graph.call_function(torch.ops.aten.empty.memory_format, ([1],), options)
    with like.fake_mode:
        token.meta["val"] = torch.empty(1, **options)
    return token


def _number_saved(forward: GraphModule, backward: GraphModule, outputs: int) -> None:
    """Numbers the saved values that the forward pass has computed, and that are no outputs of either pass besides."""
    returned = forward.graph.output_node().args[0]
    held = [*returned, *forward.graph.find_nodes(op="placeholder")]
    holders = Counter(_storage(node) for node in held if isinstance(node, Node))
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    gradients = set(backward.graph.output_node().all_input_nodes)
    for number, node in enumerate(returned[outputs:]):
        if not isinstance(node, Node) or node.name not in placeholders:  # random states have other names there
            continue
        is_gradient = placeholders[node.name] in gradients
        if node.op != "placeholder" and holders[_storage(node)] == 1 and not is_gradient:
            node.meta[SAVED] = placeholders[node.name].meta[SAVED] = number


def _storage(node: Node) -> object:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node
