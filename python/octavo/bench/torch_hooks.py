# SPDX-License-Identifier: Apache-2.0
"""torch's own communication hooks for DDP, as contenders."""

from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

FP16 = "torch-fp16"
DENSE_STEPS = 2
"""The steps that PowerSGD makes before it compresses: the fewest that it takes."""


def _power_sgd(hook: Callable, rank: int, model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=DENSE_STEPS)
    model.register_comm_hook(state, hook)


def _stateless(hook: Callable, model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, hook)


def _quantized(hook: Callable, model: DistributedDataParallel) -> None:
    model.register_comm_hook(dist.group.WORLD, hook)


#: By name, a function that registers the hook on a model.
HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    FP16: partial(_stateless, default_hooks.fp16_compress_hook),
    "torch-powersgd:1": partial(_power_sgd, powerSGD_hook.powerSGD_hook, 1),
    "torch-powersgd:4": partial(_power_sgd, powerSGD_hook.powerSGD_hook, 4),
    "torch-powersgd-batched:1": partial(_power_sgd, powerSGD_hook.batched_powerSGD_hook, 1),
    "torch-int8": partial(_quantized, quantization_hooks.quantization_pertensor_hook),
    "torch-int8-channel": partial(_quantized, quantization_hooks.quantization_perchannel_hook),
}
#: Hooks that are measured in jobs of their own: on some process groups they raise or never return.
DOUBTFUL = tuple(name for name in HOOKS if name != FP16)
