# SPDX-License-Identifier: Apache-2.0
"""The memory of an optimizer's states."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from octavo._C import Arena
from octavo.parameters import dense_strides


class StateArenas:
    """Makes zeros for the states of an optimizer, in ordinary memory or in managed memory. With a device managed memory
    is shared memory of SYCL or CUDA, whose pages the driver moves to where they are used. On the CPU it is memory that
    the system may page out or, with a directory, files there. It has an arena for each device."""

    def __init__(self, owner: str, page_dir: str | None):
        """``owner``: the name of the optimizer's class, for errors. ``page_dir``: the directory of the files."""
        self.page_dir = page_dir
        self.arenas: dict[torch.device, Arena] = {}
        self._owner = owner
        self._process = os.getpid()  # the process that made the states

    def zeros(self, shape: list[int], dtype: torch.dtype, device: torch.device, is_paged: bool) -> Tensor:
        if is_paged:
            return self._arena_on(device).zeros(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=device)

    def zeros_like(self, parameter: Tensor, dtype: torch.dtype, is_paged: bool) -> Tensor:
        """Returns zeros on the parameter's device, in its shape and memory order (``dense_strides``)."""
        if is_paged:
            return self._arena_on(parameter.device).zeros_like(parameter, dtype)
        is_dense = parameter.is_contiguous() or dense_strides(parameter) == parameter.stride()
        order = torch.preserve_format if is_dense else torch.contiguous_format
        return torch.zeros_like(parameter, dtype=dtype, memory_format=order)

    def require_own_process(self) -> None:
        """Raises RuntimeError in a forked process where states are in files, because it shares these files with its
        parent: a step would write to them, and a copy could be of several of the parent's steps at once."""
        if self.page_dir is not None and self.arenas and self._process != os.getpid():
            raise RuntimeError(
                f"[optim.{self._owner}] the states in page_dir belong to process {self._process}, from which this one "
                f"was forked and which may be writing to the same files, so that they can be neither stepped nor saved "
                f"here: load what copy.deepcopy(optimizer.state_dict()) gave there before the fork, or make the first "
                f"step after the fork"
            )

    def belongs_here(self) -> None:
        """Says that all states have been made anew, in this process."""
        self._process = os.getpid()

    def _arena_on(self, device: torch.device) -> Arena:
        if not self.arenas:
            self.belongs_here()
        if device not in self.arenas:
            directory = self.page_dir if self.page_dir is not None and device.type == "cpu" else ""
            self.arenas[device] = Arena(device, directory=directory)
        return self.arenas[device]
