# SPDX-License-Identifier: Apache-2.0
"""The device on which a rank trains, and what the job asks of it."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import octavo
from octavo.train.launch.world import World, env_number


def choose(name: str) -> torch.device:
    """Returns the device that `--device` means on this rank, and makes it the current one.

    `auto` is the device of `octavo.get_accelerator()` where Octavo has kernels for it, else the CPU. The ranks of one
    machine take its devices in turn. Raises NotImplementedError, with the reason, where there is none, or where Octavo
    has no kernels for it.
    """
    accelerator = octavo.accelerator.accelerator_named(_auto() if name == "auto" else name)
    kernels = _kernels_for(accelerator.device_name())
    if not kernels["available"]:
        raise NotImplementedError(
            f"[train.device] Octavo has no kernels for {name} here: {kernels['reason']}; --device cpu works everywhere"
        )
    local_rank = env_number("LOCAL_RANK", default=env_number("RANK", default=0))
    accelerator.set_device(local_rank % accelerator.device_count())
    return accelerator.device(accelerator.current_device())


def describe(device: torch.device, name: str) -> str:
    """Returns the device in words, with the reason where `auto` did not take the machine's accelerator."""
    present = octavo.get_accelerator().device_name() if name == "auto" else device.type
    return str(device) if present == device.type else f"{device} (Octavo has no kernels for {present} here)"


def group_for(device: torch.device, world: World, timeout_s: float) -> dist.ProcessGroup | None:
    """Returns the group whose collectives take tensors of `device`; None means the default group. All ranks call it
    together."""
    if device.type == "cpu":
        return None
    return dist.new_group(backend=collectives_for(device, world), timeout=timedelta(seconds=timeout_s))


def collectives_for(device: torch.device, world: World) -> str:
    """Returns the name of c10d's back end for tensors of `device`, the same on all ranks, which call it together.

    NCCL refuses two ranks of one GPU. Gloo takes them, with copies through the host.
    """
    name = _accelerator_of(device).communication_backend_name()
    places = world.gather((socket.gethostname(), _own_name(device)))
    if name != "nccl":
        return name
    return "cpu:gloo,cuda:nccl" if len(set(places)) == world.size else "gloo"


def _own_name(device: torch.device) -> str:
    """Returns a name that no other device of the host has. With CUDA_VISIBLE_DEVICES set for each rank, all ranks call
    theirs cuda:0."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else str(device)


def compiler_for(device: torch.device) -> str:
    """Returns the back end of `torch.compile` for the device: Inductor generates no code for sycl."""
    return "aot_eager" if device.type == "sycl" else "inductor"


def reset_peak(device: torch.device) -> None:
    """Starts `peak_bytes` anew."""
    if device.type != "cpu":
        _accelerator_of(device).reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Returns the most bytes that tensors held on the device at once; 0 where the CPU is the device."""
    return 0 if device.type == "cpu" else _accelerator_of(device).max_memory_allocated(device)


def rng_state(device: torch.device) -> torch.Tensor | None:
    """Returns the state of the device's default generator; None where the CPU is the device."""
    return None if device.type == "cpu" else _accelerator_of(device).get_rng_state(device)


def set_rng_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Continues the draws of `rng_state`; a run that changed its device begins them anew."""
    if device.type != "cpu" and state is not None:
        _accelerator_of(device).set_rng_state(state, device)


def _auto() -> str:
    present = octavo.get_accelerator().device_name()
    return present if _kernels_for(present)["available"] else "cpu"


def _kernels_for(device: str) -> dict[str, Any]:
    """Returns the status of the back end whose kernels run on a device: on xpu, those of sycl."""
    return octavo._C.backend_status("sycl" if device == "xpu" else device)


def _accelerator_of(device: torch.device) -> octavo.accelerator.Accelerator:
    return octavo.accelerator.accelerator_named(device.type)
