# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients for ``DistributedDataParallel``."""

import os
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.handle import Handle
from octavo.handle_state import WHOLE_MODEL
from octavo.optim.joined import JoinedOptimizer, joined_optimizer, require_no_momentum
from octavo.parameters import Exempt, exempt_by_name, plain_name, real_numbers, rows_of
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
    parameters = {plain_name(name): p for name, p in model.module.named_parameters() if p.requires_grad}
    joined = joined_optimizer(optimizer)
    host_size = _host_size(ranks_per_host, model.process_group)
    if joined is None:
        require_no_momentum(optimizer, plan)
        first_plan = plan
    else:
        joined.require_joinable(plan, parameters.values())
        _require_no_hosts(joined, host_size)
        first_plan = joined.first_plan(plan)
    exempt_of = exempt_by_name(exempt, parameters)
    table = [(name, real_numbers(p), exempt_of[name], rows_of(p)) for name, p in parameters.items()]
    plan.require_rules_fit([name for name, _, is_exempt, _ in table if not is_exempt])
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
    )
    compressor, layout = _compressor(rendezvous, model.process_group, host_size, first_plan, table, timeout_s, paging)
    compressor.seed = seed
    handle = Handle(compressor, parameters, model)
    handle._layout = layout
    handle._require_kernels()
    handle._delivered = _register_hook(model, compressor, list(parameters.values()))
    handle._follow_scaler(model, scaler)
    if joined is not None:
        handle._joined = weakref.ref(joined)
        joined._join(handle, plan)
    elif optimizer is not None:
        handle._other_optimizer = weakref.ref(optimizer)
    return handle


def _require_hookable(model: DistributedDataParallel) -> None:
    if getattr(model, "_use_python_reducer", False):
        raise ValueError(
            "[ddp.compress] this model uses DDP's Python reducer (optimize_ddp='python_reducer'), which calls no hook: "
            "choose another optimize_ddp"
        )
    if getattr(model, "_delay_all_reduce_params", None):
        raise ValueError(
            "[ddp.compress] this model delays gradients (delay_all_reduce_named_params), which DDP sends by itself "
            "and does not wait for: leave the option out"
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
    """Lets the model exchange its buckets through the compressor. Returns what counts the backward passes that were
    delivered."""
    try:
        return _C.register_ddp_hook(model.reducer, compressor, parameters)
    except RuntimeError as error:
        raise ValueError(
            "[ddp.compress] this DDP model has a communication hook already, and DDP takes one in its life: keep the "
            "first handle and call its set_plan(); or wrap the model anew, without register_comm_hook() and "
            "mixed_precision=, which registers one, too"
        ) from error


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
    table: list[tuple[str, int, bool, int]],
    timeout_s: float,
    paging: "_C.StatePaging",
) -> tuple["_C.Compressor", str]:
    """Returns this rank's compressor, and the layout of its states: what the ranks hold copies of
    (``Handle._layout``)."""
    if host_size == 1:
        return _C.Compressor(rendezvous.connect(), plan, table, timeout_s, paging), WHOLE_MODEL
    if host_size == 0 or group.size() % host_size:
        found = f"{host_size}, and {group.size()} ranks make no hosts of {host_size}" if host_size else "'auto'"
        raise ValueError(
            f"[ddp.compress] ranks_per_host is {found}: all hosts must have as many ranks of the group, with "
            f"consecutive numbers; without ranks_per_host all ranks compress"
        )
    host, place = divmod(group.rank(), host_size)
    between = rendezvous.connect(range(place, group.size(), host_size))
    in_host = rendezvous.connect(range(host * host_size, (host + 1) * host_size))
    layout = f"part {place} of {host_size} of the model on each host"
    return _C.host_compressor(between, in_host, plan, table, timeout_s, paging), layout
