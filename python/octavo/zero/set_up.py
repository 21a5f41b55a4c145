# SPDX-License-Identifier: Apache-2.0
"""What ``octavo.initialize`` does before the first step: ranks agree on what they train, connect, take the values of
rank 0, and get their parts of the parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import compress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from octavo import _C
from octavo.parameters import not_trained
from octavo.plan import as_plan
from octavo.rendezvous import Rendezvous, broadcast_from_rank_0, require_same_on_all_ranks
from octavo.zero.config import ZeroConfig
from octavo.zero.optimizer_state import States, options_of
from octavo.zero.parts import OwnPart
from octavo.zero.peers import Peers
from octavo.zero.whole_parameters import GRAPH


def connect(
    config: ZeroConfig,
    group: dist.ProcessGroup,
    rendezvous: Rendezvous,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    exempt: Mapping[str, bool],
    optimizer: Optimizer,
    states: States,
) -> _C.Engine:
    """Returns the C++ engine, connected to those of the other ranks. Raises ValueError where ranks differ in what they
    must have alike, such as their optimizers' classes, options and states, and where a rule of the plan fits no
    parameter that is not exempt."""
    plan = as_plan(config.plan)
    plan.require_rules_fit([name for name, is_exempt in exempt.items() if not is_exempt])
    require_same_on_all_ranks(
        rendezvous,
        group.rank(),
        {
            **config.shared(),
            "exempt parameters": [name for name, is_exempt in exempt.items() if is_exempt],
            "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in parameters.items()],
            **not_trained(model),
            "optimizer": f"{type(optimizer).__name__} {[_compared(options) for options in options_of(optimizer)]}",
            "optimizer's state": [(name, key, _kind(v)) for name, state in states.items() for key, v in state.items()],
        },
        "zero.initialize",
    )
    of_model = sum(p.numel() for p in parameters.values())
    return _C.Engine(
        rendezvous.connect(),
        bucket_elements=max(1, min(int(config.bucket_mib * 2**20) // 4, of_model)),
        plan=plan,
        gather=None if config.gather is None else as_plan(config.gather),
        timeout_s=config.timeout_s,
        symmetric_memory=config.symmetric_memory,
        # a connection for gradients only: one rank may send a gradient after gathers that another rank makes before it
        gradient_backend=rendezvous.connect() if config.zero_stage == 3 else None,
        paging=config.paging(),
        seed=config.seed,
    )


def _compared(value: object) -> object:
    """Returns what must be the same on all ranks of an option: its value, or its type where that cannot be compared."""
    if isinstance(value, dict):
        return {name: _compared(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_compared(one) for one in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _kind(value: object) -> str:
    """Returns what must be the same on all ranks of a value of which rank 0's counts; of a plain value all of it."""
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def broadcast_start_values(model: nn.Module, states: States, peers: Peers) -> None:
    """Replaces the model's parameters and buffers and the optimizer's states by those of rank 0, in place."""
    tensors = [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]
    of_parameters = [value for value in tensors if value.dim() > 0]
    broadcast_from_rank_0([*model.parameters(), *model.buffers(), *of_parameters], peers.group)
    numbers = [value for value in tensors if value.dim() == 0]  # on the CPU, for which the group may have no back end
    of_first = peers.values([number.item() for number in numbers], "zero.initialize")[0]
    for number, first in zip(numbers, of_first, strict=True):
        number.fill_(first)


def share_out(
    engine: _C.Engine,
    config: ZeroConfig,
    parameters: Mapping[str, nn.Parameter],
    exempt: Mapping[str, bool],
    mesh: DeviceMesh,
) -> dict[nn.Parameter, OwnPart]:
    """Registers the parameters with the engine, by their place as their id, and returns this rank's parts of them."""
    parts: dict[nn.Parameter, OwnPart] = {}
    for id, (name, parameter) in enumerate(parameters.items()):
        if config.zero_stage == 3:  # copied, because it will be emptied: the memory may be a file's, or shared
            parameter.data = parameter.data.clone()
        whole = parameter.data
        first, count = engine.owned(whole.numel())
        values = whole.view(-1)[first : first + count]
        gradient = torch.zeros_like(values)
        values = values.clone() if config.has_parts_apart else values
        if config.zero_stage == 3:
            engine.register_z3_param(
                id, list(whole.shape), values, gradient, persistent=False, name=name, exempt=exempt[name]
            )
        else:
            own_part = values if config.has_parts_apart else None
            engine.register_param(
                id, list(whole.shape), whole, gradient, first, name=name, exempt=exempt[name], own_part=own_part
            )
        parts[parameter] = OwnPart.of(name, values, gradient, whole.numel(), mesh)
    return parts


def give_parts(optimizer: Optimizer, parts: Mapping[nn.Parameter, OwnPart]) -> None:
    """Replaces the optimizer's parameters by this rank's parts of them, and leaves out those that need no gradient."""
    for group in optimizer.param_groups:
        trained = [parameter in parts for parameter in group["params"]]
        group["params"] = [parts[parameter].values for parameter in compress(group["params"], trained)]
        if "param_names" in group:
            group["param_names"] = list(compress(group["param_names"], trained))
    optimizer.state.clear()


def register_graph(engine: _C.Engine, config: ZeroConfig, parameters: int, *, is_compiled: bool) -> None:
    """Registers the graph of eager passes, of so many parameters. Warns where ranks were to share memory and do not."""
    getattr(engine, f"register_graph_z{config.zero_stage}")(GRAPH, list(range(parameters)))
    # Ranks may have different gradients where a model decides by its data. With torch.compile no order is expected,
    # because gradients of compiled graphs come in between.
    expected = [] if is_compiled else list(reversed(range(parameters)))
    engine.order_gradients(GRAPH, expected, not is_compiled)
    if config.symmetric_memory and engine.why_no_symmetric_memory():
        warnings.warn(
            f"[zero.initialize] ranks use the network in place of symmetric_memory: {engine.why_no_symmetric_memory()}",
            stacklevel=4,
        )
