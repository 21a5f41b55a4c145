# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that public calls have in common: seeds and numbers, also those of numpy and of tensors."""

import math
from numbers import Integral, Real

from torch import Tensor


def require_seed(seed: int, where: str) -> None:
    """Raises ValueError for what is no seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, Integral) and 0 <= seed < 2**64:
        return
    raise ValueError(f"[{where}] seed must be an integer from 0 to 2^64 - 1, the same on all ranks, got {seed!r}")


def is_whole_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) < math.inf


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number of a type that operators take. It may be a tensor of one element: a learning
    rate that a schedule changes in place."""
    is_of_numpy = isinstance(value, Real) and hasattr(value, "dtype")
    is_one = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, float | Integral) or is_of_numpy
    try:
        return is_one and math.isfinite(float(value))
    except (OverflowError, RuntimeError):  # a whole number beyond float64, a complex tensor
        return False
