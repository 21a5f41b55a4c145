# SPDX-License-Identifier: Apache-2.0
"""The device that a rank trains on, and what is asked of it."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

import octavo
from octavo.train.world import env_number


def choose(name: str) -> torch.device:
    """The device that `--device` means on this rank; `auto` is the CPU. It becomes the current one.

    Ranks of one machine take turns over its devices. Raises ValueError where there is none.
    """
    if name in ("auto", "cpu"):
        return torch.device("cpu")
    import octavo.sycl  # makes the device, which torch.accelerator serves from now on

    reason = octavo.sycl.why_missing()
    if reason:
        raise ValueError(f"[train.device] expected --device auto or cpu, since sycl is missing here: {reason}")
    local_rank = env_number("LOCAL_RANK", default=env_number("RANK", default=0))
    octavo.sycl.set_device(local_rank % octavo.sycl.device_count())
    return torch.device("sycl", octavo.sycl.current_device())


def group_for(device: torch.device, timeout_s: float) -> dist.ProcessGroup | None:
    """The group whose collectives take tensors of `device`; None: the default one. Called by all ranks together."""
    if device.type == "cpu":
        return None
    return dist.new_group(backend=octavo.sycl.COLLECTIVES, timeout=timedelta(seconds=timeout_s))


def reset_peak(device: torch.device) -> None:
    """Starts `peak_bytes` anew."""
    if device.type != "cpu":
        octavo.sycl.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most bytes that tensors held on the device at once; 0 where the CPU is the device."""
    return 0 if device.type == "cpu" else octavo.sycl.max_memory_allocated(device)


def rng_state(device: torch.device) -> torch.Tensor | None:
    """The state of the device's default generator; None where that is the CPU's."""
    return None if device.type == "cpu" else octavo.sycl.get_rng_state(device)


def set_rng_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Goes on with the draws of `rng_state`; a run that changed its device begins them anew."""
    if device.type != "cpu" and state is not None:
        octavo.sycl.set_rng_state(state, device)
