# SPDX-License-Identifier: Apache-2.0
"""The formats of a moment: float32 under its own name, or codes of 8 or 4 bits as ``NAME_codes`` with the scales of
their blocks as ``NAME_scale``. A name never means both, so that no program takes codes for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BLOCK = {8: 256, 4: 128}  # by bits: how many elements share a scale
NESTED = "__bnb_optimizer_quant_state__"  # the key under which bitsandbytes hides tensors from FSDP since 0.50
IS_SIGNED = {"exp_avg": True, "exp_avg_sq": False}  # by moment: a momentum has signs, a variance has none


def names_of(moment: str) -> tuple[str, str, str]:
    """Returns the names of a moment's floats, of its codes and of the scales of these."""
    return moment, f"{moment}_codes", f"{moment}_scale"


def has_codes(state: Mapping[str, Any], moment: str) -> bool:
    return f"{moment}_codes" in state


def code_shape(shape: torch.Size, bits: int) -> list[int]:
    """Returns the shape of the codes of a state of this shape. In 4 bits two codes of a row share a byte, or of all
    elements where rows are odd."""
    if bits == 8:
        return list(shape)
    return [*shape[:-1], shape[-1] // 2] if shape and shape[-1] % 2 == 0 else [-(-shape.numel() // 2)]


def blocks_of(count: int, bits: int) -> int:
    return -(-count // BLOCK[bits])


def kept_scales(scales: Tensor) -> Tensor:
    """Returns scales as the encoder keeps them: those below 2^-125 are 0, because a map's values would not be in their
    order there. Other libraries keep such scales."""
    return scales.where(scales.abs() >= 2.0**-125, 0.0)


def floats_of(state: Mapping[str, Tensor], moment: str, bits: int, shape: torch.Size) -> Tensor:
    """Returns a moment of this shape as floats. `bits` are those of its codes, if it has any. Without codes the result
    is the state's own tensor."""
    if not has_codes(state, moment):
        return state[moment]
    codes, scales = (state[name].contiguous() for name in names_of(moment)[1:])
    return torch.ops.octavo.decode_state(codes, kept_scales(scales), shape.numel(), bits, IS_SIGNED[moment]).view(shape)


def keep_floats(state: Mapping[str, Tensor], moment: str, bits: int, values: Tensor) -> None:
    """Writes floats to a moment, in the format that the moment has in the state."""
    floats, codes, scales = names_of(moment)
    if has_codes(state, moment):
        torch.ops.octavo.encode_state_(values, state[codes], state[scales], bits, IS_SIGNED[moment])
    else:
        state[floats].copy_(values)


def is_fitting(state: Mapping[str, Any], moment: str, bits: int, shape: torch.Size) -> bool:
    """Whether a state has such a moment in exactly one of the formats."""
    floats, codes, scales = (state.get(name) for name in names_of(moment))
    if not has_codes(state, moment):
        is_floats = isinstance(floats, Tensor) and floats.is_floating_point() and floats.shape == shape
        return is_floats and scales is None
    if floats is not None or not (isinstance(codes, Tensor) and isinstance(scales, Tensor)):
        return False
    shapes = [code_shape(shape, bits)]
    if bits == 4 and len(shape) > 1 and shape[1:].numel() % 2 == 0:
        shapes.append([shape[0], shape[1:].numel() // 2])  # as StateMaker.portable writes them
    are_codes = codes.dtype == torch.uint8 and list(codes.shape) in shapes
    return are_codes and scales.dtype == torch.float32 and scales.numel() == blocks_of(shape.numel(), bits)
