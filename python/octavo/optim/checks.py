# SPDX-License-Identifier: Apache-2.0
"""What no optimizer of Octavo takes."""

from collections.abc import Iterable

from torch import Tensor
from torch.optim import Optimizer


def require_real(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Raises TypeError for complex parameters."""
    if any(parameter.is_complex() for parameter in parameters):
        raise TypeError(
            f"[optim.{type(optimizer).__name__}] complex parameters are not supported: use torch.optim.AdamW for them"
        )


def require_dense(optimizer: Optimizer, gradient: Tensor) -> None:
    """Raises RuntimeError for a sparse gradient."""
    if gradient.is_sparse:
        raise RuntimeError(
            f"[optim.{type(optimizer).__name__}] sparse gradients are not supported: use torch.optim.SparseAdam"
        )
