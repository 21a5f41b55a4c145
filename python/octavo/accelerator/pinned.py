# SPDX-License-Identifier: Apache-2.0
"""Page-locked host memory. A device copies from it while the host goes on. It is freed with the last tensor that uses
it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo import _C
from octavo.accelerator.device_index import index_of
from octavo.accelerator.tensors import require_tensor


class Pinning:
    """The part of an accelerator that makes page-locked memory.

    ``align_bytes``: the alignment of a tensor's first byte, a power of two; 1 asks for none, 0 for that of a page.
    Methods raise MemoryError where the system locks no more memory (``ulimit -l``) or has no more, ValueError for
    another alignment, TypeError for a bool.
    """

    def pinned_zeros(self, shape: Sequence[int], dtype: torch.dtype, align_bytes: int = 0) -> Tensor:
        """Returns zeros on the CPU, in page-locked memory that this device's driver knows."""
        if isinstance(align_bytes, bool):  # which was meant for another parameter
            raise TypeError("[accelerator.pinned_zeros] align_bytes must be an int, got a bool")
        return _C.pinned_zeros(shape, dtype, align_bytes, self._require("pinned_zeros"))

    def pin_memory(
        self, tensor: Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> Tensor:
        """Returns a page-locked CPU tensor with the dtype, the memory order and the contents of ``tensor``, or with
        zeros where ``make_copy`` is False.

        Without ``match_shape`` it is flat. It is a new tensor even where ``tensor`` is pinned and aligned already,
        because the caller may write to it.
        """
        require_tensor(tensor, "pin_memory")
        source = tensor.detach() if match_shape else tensor.detach().reshape(-1)
        flat = self.pinned_zeros((source.numel(),), source.dtype, align_bytes)
        pinned = flat.as_strided(source.shape, torch.empty_like(source, device="meta").stride())
        return pinned.copy_(source) if make_copy else pinned

    def pin_empty(self, *size: int | Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Returns a page-locked CPU tensor [*size], whose values the caller will overwrite. ``size``: the sizes, or one
        sequence of them. Raises ValueError for a ``device`` that is not the CPU, which the memory belongs to."""
        index_of(device, "cpu", "pin_empty")
        sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
        return self.pinned_zeros(sizes, dtype)

    def pin_empty_like(
        self, tensor: Tensor, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> Tensor:
        """Returns ``pin_empty`` of the tensor's shape and, unless ``dtype`` is another, of its dtype."""
        require_tensor(tensor, "pin_empty_like")
        return self.pin_empty(tensor.shape, dtype=dtype or tensor.dtype, device=device)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether all memory of the tensor, which may be a view, is page-locked."""
        return _C.is_pinned(tensor)

    def unpin_memory(self, tensor: Tensor) -> bool:
        """Lets the system move the tensor's memory again; the tensor keeps the memory. Returns False where nothing
        could be done.

        Memory that a device's driver has pinned stays pinned until its last tensor is gone.
        """
        return _C.unpin(tensor)

    def pin_memory_alignment(self) -> int:
        """Returns the alignment that suits every device and direct I/O: a page, in bytes."""
        return _C.page_bytes()

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Registers host memory that was locked elsewhere with the device's driver. Returns False where no driver needs
        it."""
        return False

    def unregister_host_memory(self, address: int) -> None:
        """Undoes ``register_host_memory``. Call it before the memory is freed. Raises RuntimeError where the driver
        refuses."""
