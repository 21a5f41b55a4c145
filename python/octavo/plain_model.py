# SPDX-License-Identifier: Apache-2.0
"""The check of a model that nothing else exchanges or shares out."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from octavo.optim.checks import has_base_named


def require_plain_model(model: nn.Module, where: str) -> None:
    """Raises TypeError or NotImplementedError, in the name of ``where``, for a model that averages its gradients by
    itself or is sharded, and ValueError for one with buffers that cannot be written."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"[{where}] expected model as a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"[{where}] this model averages gradients in every step by itself: pass the module that is wrapped in "
            f"DistributedDataParallel (ddp.module), and train that"
        )
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise TypeError(
                f"[{where}] {name} is a DistributedDataParallel, which averages its gradients in every step: put the "
                f"module that it wraps in its place"
            )
        if has_base_named(module, {"fullyshardeddataparallel"}):
            raise NotImplementedError(f"[{where}] {name or 'the model'} is a FullyShardedDataParallel: {_NOT_SHARDED}")
    for name, buffer in model.named_buffers():
        if buffer.layout is not torch.strided or _is_expanded(buffer):
            raise ValueError(
                f"[{where}] the buffer {name} is sparse or expanded: the values of rank 0 cannot be copied to it; make "
                f"it dense, as by contiguous()"
            )
    for name, parameter in model.named_parameters():
        if type(parameter.data) is not Tensor:
            raise NotImplementedError(f"[{where}] {name} is a {type(parameter.data).__name__}: {_NOT_SHARDED}")


_NOT_SHARDED = (
    "pass a model of which every rank has all parameters, as before fully_shard (octavo.compress takes sharded ones)"
)


def _is_expanded(tensor: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
