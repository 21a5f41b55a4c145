# SPDX-License-Identifier: Apache-2.0
"""``octavo.compress``, for DDP and for FSDP2."""

import sys
from os import PathLike

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.arguments import paging_of, require_seed
from octavo.compression.ddp import compress_ddp
from octavo.compression.handle import Handle
from octavo.parameters import Exempt
from octavo.plan import as_plan


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
    page_dir: str | PathLike | None = None,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> Handle:
    """Compresses the gradients that a model's ranks exchange; everything else about training stays as it is. The model
    is wrapped in ``DistributedDataParallel`` (DDP), or sharded by ``torch.distributed.fsdp.fully_shard`` (FSDP2). Call
    it once per model, on all ranks, with the same arguments.

    - ``model``: the DDP model, or the model that ``fully_shard`` was applied to as a whole. It may be inside of the
      wrappers of ``torch.compile`` and of Lightning Fabric.
    - ``plan``: how gradients are sent, an ``octavo.Plan`` or its text.
    - ``optimizer``: must be given where the optimizer decides what is sent; it may be built before or after the model
      was wrapped. With ``OneBitAdamW`` and ``OneBitLamb``, ``plan`` is the plan of their momentum, and in their warm-up
      gradients are sent by their own ``warmup_plan``. With ``Signum`` and ``DistributedLion`` it is the plan of the
      ranks' updates (``sign-vote``). With ``ZeroOneAdam`` it is the plan of how far ranks have moved since they last
      exchanged it. Any other optimizer need not be given. Under a plan that keeps the momentum itself (``dgc``,
      ``fetchsgd``) the optimizer must have none of its own; if it is given and has one, it is refused.
    - ``scaler``: the ``GradScaler`` that scales the loss, if there is one. Error-feedback residuals and momenta are
      then kept in unscaled units.
    - ``exempt``: which parameters are sent in float32. Either a function of name and parameter that returns a bool, or
      names with ``*``. Default: ``is_exempt_by_default`` (parameters of at most one dimension, and those of fewer than
      2048 elements).
    - ``replicas``: for hybrid sharding with FSDP2, the process group of the ranks that hold the same shard; see below.
    - ``ranks_per_host``: with DDP, how many ranks each host has, or ``"auto"``; see below.
    - ``is_paged``: whether what is remembered from step to step (residuals, ranks' own momenta, estimates) is kept in
      managed memory, as paged optimizers keep their states. With a device this memory is on the device while a bucket
      is exchanged, and on the host otherwise. On the CPU it is memory that the system may page out. The bits of results
      do not depend on it, states are saved and loaded as without it, and ranks may differ in it.
    - ``page_dir``: with ``is_paged`` on the CPU, the directory of files that hold this memory.
    - ``seed``: the seed of the run. All that plans draw at random depends on it, such as the places of ``randomk`` and
      the rounding of residuals. Runs with different seeds are different samples.
    - ``timeout_s``: how long backward waits for the other ranks before it raises TimeoutError, in seconds.

    With DDP the work is done in C++ on a thread of its own, without the GIL, while backward goes on. FSDP2 needs the
    result of each collective at once, and waits for it.

    With FSDP2 the reduce-scatter of gradients is compressed; parameters are gathered as they are. For hybrid sharding,
    call ``fully_shard`` with ``mesh=mesh["shard"]``, one dimension of a mesh, and pass
    ``replicas=mesh.get_group("replicate")``. Then the reduce-scatter among shards stays dense, and gradients are
    averaged between replicas by a compressed all-reduce. Replicas must begin with the same parameters, as with FSDP2's
    own hybrid sharding.

    Limits with FSDP2:

    - Call this after the last ``fully_shard``, and where the model was built on the device meta, after
      ``model.to_empty(device=...)``.
    - ``auto``, and the optimizers that decide what is sent, work only with DDP.
    - Plans that need the whole mean on all ranks (``powersgd``, ``sketch``, ``dgc``, ``delta``, ``+ef21``, ``lsh``,
      ``+econtrol``) work only between replicas.
    - Unfreeze before this call every parameter that is in one group with trained ones. A group that is frozen now and
      trained later is reduced by FSDP2 itself.
    - With ``replicas`` accumulate micro-batches by ``model.set_requires_gradient_sync(False)``. FSDP2's
      ``set_requires_all_reduce`` has no effect: every micro-batch is sent between replicas.

    With ``ranks_per_host`` gradients are compressed only between hosts. The ranks of a host exchange exact values, and
    each gets the sum of one range. Ranks of equal place on all hosts average their ranges by the plan. The results are
    then sent to all ranks of a host. Ranks of a host have consecutive numbers, and all hosts have equally many;
    ``"auto"`` takes the ``LOCAL_WORLD_SIZE`` of torchrun. It is for hosts whose ranks share memory or a fast link: a
    host then sends no more than one rank would. What error feedback remembers is what a host owes, kept by each rank
    for its range. Linear maps, ``+clip``, ``auto``, sparse gradients and optimizers that keep a momentum on each
    rank (``Signum``) are refused with it.

    Raises ValueError for arguments that make no sense, and on all ranks where the ranks' arguments differ; TypeError
    for another kind of model or scaler; NotImplementedError, with the reason, where the gradients' device has no
    kernels.
    """
    require_seed(seed, "compression.compress")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise TypeError(f"[compression.compress] expected a GradScaler as scaler, got {type(scaler).__name__}")
    paging = paging_of(is_paged, page_dir, "compression.compress")
    model = _unwrapped(model)
    if _is_sharded(model):
        from octavo.compression.fsdp import compress_fsdp  # takes a second to import

        if ranks_per_host is not None:
            raise ValueError(
                "[compression.compress] ranks_per_host is for DistributedDataParallel: shard the model inside a host, "
                "and pass the ranks that hold the same shard on all hosts as replicas"
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
            f"[compression.compress] expected a DistributedDataParallel model, or one to which "
            f"torch.distributed.fsdp.fully_shard was applied as a whole, got {type(model).__name__}: wrap it in "
            f"DistributedDataParallel, or call fully_shard(model)"
        )
    if replicas is not None:
        raise ValueError(
            "[compression.compress] all ranks of a DistributedDataParallel model are replicas: pass replicas only "
            "with a model of fully_shard"
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


def _unwrapped(model: nn.Module) -> nn.Module:
    """Returns the module of DDP or FSDP2 inside of wrappers of torch.compile and of Lightning Fabric, in any order."""
    while not (isinstance(model, DistributedDataParallel) or _is_sharded(model)):
        # that of Fabric first: its wrapper would look for the other one in the module that it was given
        names = [name for name in ("_forward_module", "_orig_mod") if isinstance(getattr(model, name, None), nn.Module)]
        if not names:
            break
        model = getattr(model, names[0])
    return model


def _is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 shards the model. If it does, its module has been imported already."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)
