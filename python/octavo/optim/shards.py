# SPDX-License-Identifier: Apache-2.0
"""Parameters that are shards of DTensors, as ``fully_shard`` makes them: a rank makes the step of what it has."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. Their module, most of a second of imports, is there where one is."""
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, in the same memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a DTensor that ranks have a summand each of, such as a norm; any other tensor. All ranks of its mesh
    call it together. Not for shards: of their gather Gloo keeps a long name (``OwnPart.gathered`` of octavo.zero)."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def match_placements(parameter: Tensor) -> None:
    """Gives the gradient of a DTensor the parameter's placements: under sequence parallelism ranks may have a summand
    each. All ranks of its mesh call it together."""
    gradient = parameter.grad
    if is_sharded(parameter) and is_sharded(gradient) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)


def first_element(tensor: Tensor) -> int:
    """The place of a shard's first element in the whole, in row-major order. Raises ValueError for a shard whose
    elements do not follow each other there."""
    if not is_sharded(tensor) or tensor.to_local().numel() == 0:
        return 0
    (chunk,) = tensor.__create_chunk_list__()
    if chunk.sizes[1:] != tensor.shape[1:]:
        raise ValueError(
            f"[optim.shards] a {tuple(tensor.shape)} parameter is sharded as {tensor.placements}: 'stochastic' draws "
            f"by an element's place in the whole, and these have no range of places; use bf16_rounding='extra_bits' or "
            f"'nearest', or shard along dimension 0 only"
        )
    return chunk.offsets[0] * tensor.stride(0) if tensor.ndim else 0


def has_whole_rows(parameter: DTensor) -> bool:
    """Whether a rank has some rows of a parameter, or all, and these whole."""
    from torch.distributed.tensor import Shard

    return all(placement.is_replicate() or placement == Shard(0) for placement in parameter.placements)


def as_shard(part: Tensor, parameter: DTensor) -> DTensor:
    """What a rank has of a tensor that is cut as the parameter is, in the same memory. Where ranks have whole rows,
    these may be of other sizes than the parameter's."""
    from torch.distributed.tensor import DTensor

    shape = parameter.shape[:1] + part.shape[1:] if has_whole_rows(parameter) else parameter.shape
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, shape=shape, stride=stride)


def any_rank(is_so: bool, tensors: Iterable[Tensor]) -> bool:
    """Whether it is so on a rank of the meshes of these tensors, which all of them ask together."""
    meshes = dict.fromkeys(tensor.device_mesh for tensor in tensors if is_sharded(tensor))
    for mesh in meshes:
        for dimension in range(mesh.ndim):
            flag = torch.tensor(int(is_so), dtype=torch.int32, device=mesh.device_type)
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=mesh.get_group(dimension))
            is_so = bool(flag)
    return is_so
