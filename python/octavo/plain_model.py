# SPDX-License-Identifier: Apache-2.0
"""The check of a model that nothing else exchanges or shares out."""

import gc
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from octavo.optim.checks import has_base_named


def require_plain_model(model: nn.Module, where: str) -> None:
    """Raises TypeError or NotImplementedError, in the name of ``where``, for a model that averages its gradients by
    itself or is sharded, and ValueError for one that an engine of ZeRO trains, or with buffers that cannot be
    written."""
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
        if parameter.requires_grad:
            _require_without_engine(name, parameter, where)


#: The ids of the parameters that engines train. No reference to a parameter is kept, not even a weak one, because torch
#: does not convert models whose parameters have any. Engines keep their parameters, so that the ids stay theirs.
_trained: set[int] = set()


def remember_engine(engine: object, parameters: Iterable[nn.Parameter]) -> None:
    """Keeps others from training these parameters as long as there is this engine."""
    ids = {id(parameter) for parameter in parameters}
    _trained.update(ids)
    weakref.finalize(engine, _trained.difference_update, ids).atexit = False


def _require_without_engine(name: str, parameter: nn.Parameter, where: str) -> None:
    """Raises ValueError where an engine trains the parameter: it takes the gradients, and moves the values."""
    if id(parameter) in _trained:
        gc.collect()  # an engine that nothing refers to any more may be part of a reference cycle
    if id(parameter) in _trained:
        raise ValueError(
            f"[{where}] {name} is trained by an engine of octavo.initialize already: go on with that one, or delete it "
            f"(del engine) and build the model anew"
        )


_NOT_SHARDED = (
    "pass a model of which every rank has all parameters, as before fully_shard (octavo.compress takes sharded ones)"
)


def _is_expanded(tensor: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
