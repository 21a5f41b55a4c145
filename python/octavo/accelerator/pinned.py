# SPDX-License-Identifier: Apache-2.0
"""Page-locked host memory: a device copies from it while the host goes on. Freed with its last tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo import _C


class Pinning:
    """The part of an accelerator that pins.

    ``align_bytes``: 1 asks for no alignment, 0 for a page, another power of two for itself. Raises MemoryError where
    the system locks no more (``ulimit -l``) or has no more, ValueError for another alignment, TypeError for a bool.
    """

    pinned_zeros: Callable[..., Tensor]

    def pin_memory(
        self, tensor: Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> Tensor:
        """A page-locked CPU tensor with the dtype of ``tensor`` and its contents, or zeros without ``make_copy``.

        Without ``match_shape`` it is flat. A tensor that is pinned and aligned already is copied all the same: whoever
        asks for a copy may write to it.
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"[accelerator.pin_memory] expected a torch.Tensor, got {type(tensor).__name__}")
        shape = tensor.shape if match_shape else (tensor.numel(),)
        pinned = self.pinned_zeros(shape, tensor.dtype, align_bytes)
        return pinned.copy_(tensor.detach().reshape(shape)) if make_copy else pinned

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether all of the memory is page-locked; true of views too."""
        return _C.is_pinned(tensor)

    def unpin_memory(self, tensor: Tensor) -> bool:
        """Lets the system move the tensor's memory again, which stays its own. False where nothing could be done.

        Memory that a device's driver pinned stays pinned until its last tensor is gone.
        """
        return _C.unpin(tensor)

    def pin_memory_alignment(self) -> int:
        """The alignment, in bytes, that suits every device and direct I/O: a page."""
        return _C.page_bytes()


def pinned(shape: int | Sequence[int], dtype: torch.dtype = torch.float32, align_bytes: int = 0) -> Tensor:
    """Zeros in page-locked memory that the chosen accelerator copies from and to asynchronously.

    >>> staging = octavo.pinned((1024, 1024))            # at a page, for direct I/O
    >>> tensor.copy_(staging, non_blocking=True)
    """
    from octavo.accelerator.choose import get_accelerator

    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return get_accelerator().pinned_zeros(sizes, dtype, align_bytes)
