# SPDX-License-Identifier: Apache-2.0
"""Parameters that are shards of DTensors, such as those of ``fully_shard``: each rank makes the step of its own
shard."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_PLAIN = (Tensor, torch.nn.Parameter)


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. It does not import the module of DTensors, which takes most of a second: where there is
    a DTensor, the module has been imported."""
    if type(tensor) in _PLAIN:  # most are, and every step asks this of all parameters
        return False
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a DTensor, in the same memory; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """Returns the whole of a DTensor of which each rank has a summand, such as a norm; any other tensor as it is. All
    ranks of its mesh call it together.

    Do not use it for shards. It would gather them by Gloo's ALLGATHER_COALESCED, whose long name can corrupt the heap
    (HACKING.md, Layers). ``OwnPart.whole`` gathers without that call.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def match_placements(parameter: Tensor) -> None:
    """Gives the gradient of a DTensor the parameter's placements, because under sequence parallelism each rank may have
    a summand of it. All ranks of its mesh call it together."""
    gradient = parameter.grad
    if is_sharded(parameter) and is_sharded(gradient) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)


def first_element(tensor: Tensor) -> int:
    """Returns the index of a shard's first element in the whole tensor, in row-major order. Raises ValueError on all
    ranks where the elements of a shard do not follow one another there."""
    if not is_sharded(tensor) or tensor.ndim == 0:
        return 0
    ways = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    if any(size > 1 and getattr(placement, "dim", 0) != 0 for placement, size in ways):
        raise ValueError(
            f"[optim.shards] a {tuple(tensor.shape)} parameter is sharded as {tensor.placements}: 'stochastic' draws "
            f"by an element's place in the whole, and these have no range of places; use bf16_rounding='extra_bits' or "
            f"'nearest', or shard along dimension 0 only"
        )
    (chunk,) = tensor.__create_chunk_list__()
    return chunk.offsets[0] * tensor.shape[1:].numel() if tensor.to_local().numel() else 0


def has_whole_rows(parameter: DTensor) -> bool:
    """Whether each rank has whole rows of the parameter: some of them, or all."""
    from torch.distributed.tensor import Shard

    return all(placement.is_replicate() or placement == Shard(0) for placement in parameter.placements)


def as_shard(part: Tensor, parameter: DTensor) -> DTensor:
    """Returns a DTensor that is cut as the parameter is, of which ``part`` is this rank's shard, in the same memory.
    Where ranks have whole rows of the parameter, the rows of ``part`` may have another size."""
    from torch.distributed.tensor import DTensor

    shape = parameter.shape[:1] + part.shape[1:] if has_whole_rows(parameter) else parameter.shape
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, shape=shape, stride=stride)


def any_rank(is_so: bool, tensors: Iterable[Tensor]) -> bool:
    """Whether ``is_so`` is True on any rank of the meshes of these tensors. All of these ranks call it together."""
    meshes = dict.fromkeys(tensor.device_mesh for tensor in tensors if is_sharded(tensor))
    for mesh in meshes:
        for dimension in range(mesh.ndim):
            flag = torch.tensor(int(is_so), dtype=torch.int32, device=mesh.device_type)
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=mesh.get_group(dimension))
            is_so = bool(flag)
    return is_so
