# SPDX-License-Identifier: Apache-2.0
"""Packs sign bits, eight to a byte: ``deepspeed.ops.xpu_packbits``, on every device.

Element 8i+j is bit 7-j of byte i. A bit is 1 where the sign bit is clear: +0 gives 1, -0 gives 0, a NaN gives its own
sign bit. The tail bits of the last byte are 0.
"""

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
    if input_size is not None:
        _require("packbits", "input_size", input_size, int, torch.SymInt)
    return torch.ops.octavo.packbits(tensor, input_size, rank)


def unpackbits(tensor: Tensor, input_size: int, rank: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """Unpacks the first ``input_size`` signs, and returns them as ``float32[input_size]`` of +1.0 and -1.0.

    - ``tensor``: packed bits, ``uint8``, as ``packbits`` returns them.
    - ``input_size``: the number of signs.
    - ``rank``: not used, as in ``packbits``.
    - ``out``: a contiguous float32 tensor of ``input_size`` elements to write to. For large results fresh memory costs
      more time than unpacking.

    Raises TypeError for another dtype, ValueError for sizes that do not fit.
    """
    _require("unpackbits", "tensor", tensor, Tensor)
    _require("unpackbits", "input_size", input_size, int, torch.SymInt)
    if out is not None:
        _require("unpackbits", "out", out, Tensor)
        if out.numel() != input_size:
            raise ValueError(f"[ops.unpackbits] expected out with {input_size} elements, got {out.numel()}")
        return torch.ops.octavo.unpackbits.out(tensor, out=out)
    return torch.ops.octavo.unpackbits(tensor, input_size, rank)


def _require(function: str, name: str, value: object, *types: type) -> None:
    if not isinstance(value, types):
        raise TypeError(f"[ops.{function}] {name} must be of type {types[0].__name__}, got {type(value).__name__}")
