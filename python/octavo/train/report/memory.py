# SPDX-License-Identifier: Apache-2.0
"""Memory figures of this process."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from octavo import _C


def reset_peak() -> None:
    """Resets the peaks where the system allows it, so that the second run of a process has its own."""
    _C.reset_arena_peaks()
    with contextlib.suppress(NotImplementedError):
        _C.HostMemory().reset_peak_resident()


def peak_host_bytes() -> int:
    """Returns the most memory that this process has held since `reset_peak`, or since its start where the system does
    not let it reset the peak."""
    return _C.HostMemory().peak_resident_bytes()


def peak_managed_bytes() -> int:
    """Returns the most bytes that tensors in managed memory, on any device or in files, can have had at once since
    `reset_peak`. It is an upper bound, because it adds up the peaks of each kind of memory."""
    return sum(kind["peak_bytes"] for kind in _C.arena_stats().values())


def tensor_bytes(tree: Any) -> int:
    """Returns the bytes of all tensors in nested dicts and lists."""
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(tensor_bytes(item) for item in tree.values())
    if isinstance(tree, (list, tuple)):
        return sum(tensor_bytes(item) for item in tree)
    return 0
