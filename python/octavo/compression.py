# SPDX-License-Identifier: Apache-2.0
"""``octavo.compress``, whatever shares the model's gradients."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from octavo._C import Plan, StatePaging
from octavo.ddp import compress_ddp
from octavo.handle import Handle
from octavo.parameters import Exempt
from octavo.plan import as_plan, require_seed


def compress(
    model: nn.Module,
    plan: str | Plan = "int4+ef",
    *,
    optimizer: Optimizer | None = None,
    scaler: "torch.amp.GradScaler | None" = None,
    exempt: Exempt = None,
    replicas: dist.ProcessGroup | None = None,
    ranks_per_host: int | str | None = None,
    is_paged: bool = False,
    page_dir: str | None = None,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> Handle:
    """Compresses the gradients that a model's ranks exchange; everything else about training stays as it is. The model
    is wrapped in ``DistributedDataParallel``, or sharded by ``torch.distributed.fsdp.fully_shard`` (FSDP2).

    ``plan``: see ``octavo.Plan``. ``optimizer``: one that decides what is sent must be passed, built before or after
    the model was wrapped. With ``OneBitAdamW`` and ``OneBitLamb`` ``plan`` is that of their momentum, and their warm-up
    sends gradients by its own ``warmup_plan``; with ``Signum`` and ``DistributedLion`` it is that of the ranks' updates
    (``sign-vote``); with ``ZeroOneAdam`` that of what ranks have moved since they last exchanged it. Any other
    optimizer need not be passed; under a plan with dgc, which keeps the momentum, it must have none of its own, and is
    refused if it is passed and has one. ``scaler``: the ``GradScaler`` that scales the
    loss, if one does; error-feedback residuals and momenta are then kept in unscaled units. ``exempt``: which
    parameters are sent in float32: a function of name and parameter, or names with ``*`` (default:
    ``is_exempt_by_default``). ``seed``: of the run, from which is drawn what plans draw, such as the places of
    ``randomk`` and how residuals are rounded; with another one a run is another sample. ``timeout_s``: how long
    backward waits for the peers before it raises RuntimeError.

    With FSDP2 the reduce-scatter of gradients is compressed; parameters are gathered as they are. ``replicas`` is for
    hybrid sharding: call ``fully_shard`` with ``mesh=mesh["shard"]``, one dimension of a mesh, and pass
    ``replicas=mesh.get_group("replicate")``, the ranks that hold the same shard. Then the reduce-scatter among shards
    stays dense, and gradients are averaged between replicas by a compressed all-reduce. Replicas must begin with the
    same parameters, as with FSDP2's own hybrid sharding.

    ``ranks_per_host`` (DDP): compress between hosts alone. The ranks of a host then exchange the exact values of a
    range each, ranks of equal place on all hosts average their ranges by the plan, and the results go to all ranks of a
    host. A number, or ``"auto"`` for the ``LOCAL_WORLD_SIZE`` of torchrun; ranks of a host have consecutive numbers,
    and all hosts have equally many. It is for hosts whose ranks share memory or a fast link: a host then sends no more
    than one rank would. Feedback keeps what hosts owe, of each rank's range. It takes neither linear maps, ``auto``,
    sparse gradients nor optimizers that keep a momentum on each rank (``Signum``).

    ``is_paged`` keeps what is remembered from step to step, residuals, momenta of ranks and estimates, in managed
    memory, as the optimizers of that option keep their states: on a device it lies there while a bucket is on its way,
    and on the host otherwise; on the CPU in memory that the system may page out or, with ``page_dir``, in files in that
    directory. No bit of a result depends on it, states are saved and loaded as those of other handles are, and ranks
    may differ in it.

    With DDP the hook runs in C++ on a thread of its own, without the GIL, while backward goes on; FSDP2 needs the
    result of each collective at once, and waits for it. Call it once per model, on all ranks, with the same arguments:
    where these differ, ValueError is raised on all ranks. The gradients are encoded by their own device's kernels:
    NotImplementedError, with the reason, where it has none.
    """
    require_seed(seed, "compress")
    if page_dir is not None and not is_paged:
        raise ValueError(f"[compress] page_dir is for paged states, got {page_dir!r}: pass is_paged=True, too")
    paging = StatePaging(is_paged, page_dir or "")
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    if _is_sharded(model):
        from octavo.fsdp import compress_fsdp  # imports a second's worth of torch

        if ranks_per_host is not None:
            raise ValueError(
                "[fsdp.compress] ranks_per_host is for DistributedDataParallel: shard the model inside a host, and "
                "pass the ranks that hold the same shard on all hosts as replicas"
            )
        return compress_fsdp(
            model,
            as_plan(plan),
            optimizer=optimizer,
            scaler=scaler,
            exempt=exempt,
            replicas=replicas,
            paging=paging,
            seed=seed,
            timeout_s=timeout_s,
        )
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"[ddp.compress] expected a DistributedDataParallel model, or one to which "
            f"torch.distributed.fsdp.fully_shard was applied as a whole, got {type(model).__name__}: wrap it in "
            f"DistributedDataParallel, or call fully_shard(model)"
        )
    if replicas is not None:
        raise ValueError(
            "[ddp.compress] all ranks of a DistributedDataParallel model are replicas: pass replicas with a model of "
            "fully_shard alone"
        )
    return compress_ddp(
        model,
        as_plan(plan),
        optimizer=optimizer,
        scaler=scaler,
        exempt=exempt,
        ranks_per_host=ranks_per_host,
        paging=paging,
        seed=seed,
        timeout_s=timeout_s,
    )


def _is_sharded(model: nn.Module) -> bool:
    """By FSDP2, which is imported where a model is."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)
