# SPDX-License-Identifier: Apache-2.0
"""Work for a stream."""

import torch

_COPIES = 40


def keep_busy(stream: torch.Stream, copies: int = _COPIES) -> None:
    """Gives the stream some hundred milliseconds of copies, and returns at once."""
    with stream:
        a, b = (torch.empty(1 << 24, device="sycl") for _ in range(2))
        for _ in range(copies):
            a.copy_(b, non_blocking=True)
