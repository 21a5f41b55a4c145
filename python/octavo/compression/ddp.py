# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients for ``DistributedDataParallel``."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.compression.handle import Handle
from octavo.compression.state import WHOLE_MODEL
from octavo.hooks import OwnHook
from octavo.optim.joined import JoinedOptimizer, joined_optimizer, require_no_momentum
from octavo.parameters import Exempt, Row, exempt_by_name, plain_name, require_kernels, table_of
from octavo.rendezvous import Rendezvous, require_same_on_all_ranks


def compress_ddp(
    model: DistributedDataParallel,
    plan: Plan,
    *,
    optimizer: Optimizer | None,
    scaler: "torch.amp.GradScaler | None",
    exempt: Exempt,
    ranks_per_host: int | str | None,
    paging: "_C.StatePaging",
    seed: int,
    timeout_s: float,
) -> Handle:
    """Does what ``octavo.compress`` does, for a DDP model."""
    _require_hookable(model)
    parameters = {name: p for name, p in _of_reducer(model).items() if p.requires_grad}
    joined = joined_optimizer(optimizer, "ddp.compress")
    host_size = _host_size(ranks_per_host, model.process_group)
    if joined is None:
        require_no_momentum(optimizer, plan, "ddp.compress")
        first_plan = plan
    else:
        joined.require_joinable(plan, parameters.values())
        _require_no_hosts(joined, host_size)
        first_plan = joined.first_plan(plan)
    later_plan = plan.for_momentum() if joined is not None and joined.chooses_plans else first_plan
    table = table_of(parameters, exempt_by_name(exempt, parameters, "ddp.compress"), plan)
    require_kernels(parameters.values())
    rendezvous = Rendezvous(model.process_group, "ddp.compress", timeout_s)
    require_same_on_all_ranks(
        rendezvous,
        model.process_group.rank(),
        {
            "plan": f"{plan}, {first_plan}",
            "phase of the optimizer": None if joined is None else joined.phase,
            "use of a GradScaler": scaler is not None,
            "exempt parameters": [name for name, _, is_exempt, _ in table if is_exempt],
            "model": table,
            "dtypes of the parameters": [str(parameter.dtype) for parameter in parameters.values()],
            "seed": seed,
            "number of ranks on a host": host_size,
        },
        "ddp.compress",
    )
    setting = dict(timeout_s=timeout_s, paging=paging, seed=seed)
    compressor, covers = _compressor(rendezvous, model.process_group, host_size, later_plan, table, **setting)
    if first_plan != later_plan:
        compressor.set_plan(first_plan)  # both have been checked now, before anything has changed
    delivered = _register_hook(model, compressor, list(parameters.values()))
    _watch_frozen(model)
    handle = Handle(
        compressor, parameters, model, covers=covers, delivered=delivered, optimizer=joined or optimizer, scaler=scaler
    )
    if joined is not None:
        joined._join(handle, plan)
    return handle


def _of_reducer(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """Returns the parameters of the model by plain name, frozen ones included, except those that DDP was told to
    ignore. In the list of ignored names DDP looks for parameters of the root module with a dot in front (`.weight`)."""
    return {
        plain_name(name): parameter
        for name, parameter in model.module.named_parameters()
        if (name if "." in name else f".{name}") not in model.parameters_to_ignore
    }


def _require_hookable(model: DistributedDataParallel) -> None:
    if getattr(model, "_use_python_reducer", False):
        raise ValueError(
            "[ddp.compress] this model uses DDP's Python reducer (optimize_ddp='python_reducer'), which does not call "
            "hooks: choose another optimize_ddp"
        )
    if getattr(model, "_delay_all_reduce_params", None):
        raise ValueError(
            "[ddp.compress] this model delays gradients (delay_all_reduce_named_params), which DDP sends by itself "
            "and does not wait for: leave the option out"
        )
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError(
            "[ddp.compress] this model leaves out buckets of unused parameters (skip_all_reduce_unused_params), and "
            "then no hook is told that a backward pass has ended: leave the option out"
        )


def _require_no_hosts(joined: JoinedOptimizer, host_size: int) -> None:
    if host_size > 1 and joined.keeps_own_momenta:
        raise ValueError(
            f"[ddp.compress] {type(joined).__name__} sends the update that each rank's own momentum makes, and with "
            f"ranks_per_host the means of hosts are sent: leave ranks_per_host out, or use OneBitAdamW with sign+ef"
        )


def _register_hook(
    model: DistributedDataParallel, compressor: "_C.Compressor", parameters: list[nn.Parameter]
) -> Callable[[], int]:
    """Lets the model exchange its buckets through the compressor. Returns a function that gives the number of backward
    passes whose averages were delivered."""
    try:
        return _C.register_ddp_hook(model.reducer, compressor, parameters)
    except RuntimeError as error:
        raise ValueError(
            "[ddp.compress] this DDP model already has a communication hook, and DDP accepts only one: keep the first "
            "handle and call its set_plan(); or wrap the model again, without register_comm_hook() and without "
            "mixed_precision=, which also registers a hook"
        ) from error


def _watch_frozen(model: DistributedDataParallel) -> None:
    """Warns once if a parameter that is frozen now needs a gradient in a later forward pass: DDP does not average that
    gradient."""
    frozen = {name: p for name, p in _of_reducer(model).items() if not p.requires_grad}

    def warn_of_unfrozen(*_: object) -> None:
        name = next((name for name, parameter in frozen.items() if parameter.requires_grad), None)
        if name is None:
            return
        frozen.clear()
        warnings.warn(
            f"[ddp.compress] {name} was frozen when the model was wrapped, but now requires a gradient, which is not "
            f"averaged: ranks will differ in this parameter. Call requires_grad_(True) before "
            f"DistributedDataParallel and octavo.compress",
            stacklevel=2,
        )

    if frozen:
        model.register_forward_pre_hook(OwnHook(warn_of_unfrozen))


def _host_size(ranks_per_host: int | str | None, group: dist.ProcessGroup) -> int:
    """Returns how many of the group's ranks share a host: 1 where ``ranks_per_host`` is None, 0 where ``"auto"`` finds
    that hosts differ."""
    if ranks_per_host is None:
        return 1
    size = ranks_per_host
    if size == "auto":
        size = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not size.isdecimal():
            raise ValueError(
                "[ddp.compress] ranks_per_host='auto' reads LOCAL_WORLD_SIZE, which torchrun sets, and it is not set "
                "here: pass the number of ranks that each host has"
            )
        # 0 is refused once the ranks have compared what they found
        return _members_per_host(max(1, int(size)), dist.get_process_group_ranks(group))
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    raise ValueError(
        f"[ddp.compress] ranks_per_host must be 'auto' or the number of ranks that each host has, got {size!r}"
    )


def _members_per_host(processes: int, members: list[int]) -> int:
    """Returns how many members of a group each host has. ``processes``: the number of processes on each host, which
    have consecutive numbers; ``members``: the processes of the group. Returns 0 where hosts have different numbers of
    members, or where the members of a host do not follow one another."""
    hosts = [member // processes for member in members]
    each = hosts.count(hosts[0])
    is_even = hosts == sorted(hosts) and all(hosts.count(host) == each for host in hosts)
    return each if is_even else 0


def _compressor(
    rendezvous: Rendezvous,
    group: dist.ProcessGroup,
    host_size: int,
    plan: Plan,
    table: list[Row],
    **setting: Any,
) -> tuple["_C.Compressor", str]:
    """Returns this rank's compressor, and what its states cover (``Handle``)."""
    if host_size == 1:
        return _C.Compressor(rendezvous.connect(), plan, table, **setting), WHOLE_MODEL
    if host_size == 0 or group.size() % host_size:
        found = f"{host_size}, and {group.size()} ranks make no hosts of {host_size}" if host_size else "'auto'"
        raise ValueError(
            f"[ddp.compress] ranks_per_host is {found}: all hosts must have as many ranks of the group, with "
            f"consecutive numbers; without ranks_per_host all ranks compress"
        )
    host, place = divmod(group.rank(), host_size)
    alike, neighbours = range(place, group.size(), host_size), range(host * host_size, (host + 1) * host_size)
    between, in_host = ((rendezvous.connect(ranks), ranks) for ranks in (alike, neighbours))
    covers = f"part {place} of {host_size} of the model on each host"
    return _C.host_compressor(between, in_host, plan, table, **setting), covers
