# SPDX-License-Identifier: Apache-2.0
"""Packs sign bits, eight to a byte: ``deepspeed.ops.xpu_packbits``, on every device.

Element 8i+j is bit 7-j of byte i. A bit is 1 where the sign bit is clear: +0 gives 1, -0 gives 0, a NaN gives its own
sign bit. The tail bits of the last byte are 0.
"""

import operator

import torch
from torch import Tensor


def packbits(tensor: Tensor, input_size: int | None = None, rank: int | None = None) -> Tensor:
    """Packs the signs of the first ``input_size`` elements into bits, and returns them as
    ``uint8[ceil(input_size / 8)]``.

    - ``tensor``: any real floating dtype, any shape and strides.
    - ``input_size``: the number of elements, in row-major order; None: all.
    - ``rank``: the device index that the original operator takes. It is not used: the tensor's own device decides.

    Element 8i+j is bit 7-j of byte i; a bit is 1 where the sign bit is clear. Raises TypeError for another dtype,
    ValueError for a size that the tensor does not have.
    """
    _require("packbits", "tensor", tensor, Tensor)
    size = None if input_size is None else _whole("packbits", "input_size", input_size)
    return torch.ops.octavo.packbits(tensor, size, _rank("packbits", rank))


def unpackbits(packed: Tensor, input_size: int, rank: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """Unpacks the first ``input_size`` signs, and returns them as ``float32[input_size]`` of +1.0 and -1.0.

    - ``packed``: packed bits, ``uint8``, as ``packbits`` returns them.
    - ``input_size``: the number of signs.
    - ``rank``: not used, as in ``packbits``.
    - ``out``: a contiguous float32 tensor of ``input_size`` elements to write to. For large results fresh memory costs
      more time than unpacking.

    Raises TypeError for another dtype, ValueError for sizes that do not fit.
    """
    _require("unpackbits", "packed", packed, Tensor)
    size, rank = _whole("unpackbits", "input_size", input_size), _rank("unpackbits", rank)
    if out is None:
        return torch.ops.octavo.unpackbits(packed, size, rank)
    _require("unpackbits", "out", out, Tensor)
    if out.numel() != size:
        raise ValueError(f"[ops.unpackbits] expected out with {size} elements, got {out.numel()}")
    torch.ops.octavo.unpackbits_out(packed, out=out)
    return out


def _require(function: str, name: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"[ops.{function}] {name} must be of type {wanted.__name__}, got {type(value).__name__}")


def _whole(function: str, name: str, value: object) -> int | torch.SymInt:
    """Returns a whole number of any type, such as numpy's, as torch's operators take it."""
    if isinstance(value, (int, torch.SymInt)):  # at once: Dynamo traces it
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"[ops.{function}] {name} must be of type int, got {type(value).__name__}") from None


def _rank(function: str, rank: object) -> int | None:
    return None if rank is None else _whole(function, "rank", rank)
