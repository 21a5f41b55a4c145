# SPDX-License-Identifier: Apache-2.0
"""Whether values are finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Returns a boolean tensor on the device of the first one: whether all values of all tensors, which may be on
    several devices, are finite. It is True where there are no values.

    The least and the greatest value of a tensor are NaN where any value is, and are found at the speed of memory.
    """
    bounds = [bound for tensor in tensors if tensor.numel() for bound in torch.aminmax(_with_an_order(tensor))]
    if not bounds:
        return torch.tensor(True, device="cpu")
    return torch.isfinite(torch.stack([bound.to(bounds[0].device) for bound in bounds])).all()


def _with_an_order(tensor: Tensor) -> Tensor:
    """Returns the tensor as one whose bounds torch can find: it cannot for complex values and floats of 8 bits."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
