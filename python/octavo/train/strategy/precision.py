# SPDX-License-Identifier: Apache-2.0
"""The precision of the forward pass: fp32 or bf16."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from octavo.train.config import TrainConfig
from octavo.train.launch.world import World

BF16_WIDTH = 256
"""The hidden size from which bf16 is faster on a CPU that multiplies it in hardware.

It is a rule rather than a measurement at the start, so that equal runs choose alike. Measured on a Xeon with AMX, one
thread, forward and backward of 8 x 128 tokens: at width 128 autocast costs 10 % (its casts outweigh the small
products), at width 384 it saves 40 %.
"""


def choose_precision(config: TrainConfig, world: World, device: torch.device, hidden_size: int) -> str:
    """Returns the precision of the options; for auto, the one that is faster on rank 0's device."""
    if config.precision != "auto":
        return config.precision
    return world.from_main("bf16" if _is_bf16_faster(device, hidden_size) else "fp32")


def _is_bf16_faster(device: torch.device, hidden_size: int) -> bool:
    if device.type in ("cuda", "xpu"):
        return torch.get_device_module(device).is_bf16_supported(including_emulation=False)
    return hidden_size >= BF16_WIDTH and _has_bf16_units()


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Returns the context of the forward pass: bf16 where chosen, plain fp32 otherwise."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def _has_bf16_units() -> bool:
    """Whether this CPU multiplies bf16 in hardware; a torch that cannot tell counts as no."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
