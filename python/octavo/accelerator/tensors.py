# SPDX-License-Identifier: Apache-2.0
"""``accelerator.FloatTensor`` and its like: what ``torch.cuda.FloatTensor`` is, for every device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TensorType:
    """Makes tensors of one dtype on the accelerator's current device, called as torch's legacy classes are.

    ``FloatTensor(2, 3)`` and ``FloatTensor(torch.Size([2, 3]))`` are uninitialized, of that shape; ``FloatTensor()`` is
    empty; ``FloatTensor([1, 2])`` holds the data, ``FloatTensor(tensor)`` the tensor itself where it is one already.
    ``isinstance(tensor, FloatTensor)`` asks for dtype and device type.
    """

    def __init__(self, dtype: torch.dtype, accelerator: Any) -> None:
        self.dtype = dtype
        self._accelerator = accelerator

    def __call__(self, *arguments: Any) -> Tensor:
        options = {"dtype": self.dtype, "device": self._accelerator._require("tensors")}
        if all(isinstance(argument, int) for argument in arguments):
            return torch.empty(arguments or 0, **options)
        if len(arguments) != 1:
            raise TypeError(f"[accelerator.tensors] expected sizes, a torch.Size or one sequence, got {arguments}")
        if isinstance(arguments[0], torch.Size):
            return torch.empty(arguments[0], **options)
        data = arguments[0]
        return data.to(**options) if isinstance(data, Tensor) else torch.tensor(data, **options)

    def __instancecheck__(self, instance: object) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.dtype == self.dtype
            and instance.device.type == self._accelerator._name
        )

    def __repr__(self) -> str:
        return f"TensorType({self.dtype}, {self._accelerator._name})"


def _tensor_type(dtype: torch.dtype) -> property:
    return property(lambda accelerator: TensorType(dtype, accelerator))


class TensorTypes:
    """The part of an accelerator that makes tensors."""

    BFloat16Tensor = _tensor_type(torch.bfloat16)
    ByteTensor = _tensor_type(torch.uint8)
    DoubleTensor = _tensor_type(torch.float64)
    FloatTensor = _tensor_type(torch.float32)
    HalfTensor = _tensor_type(torch.float16)
    IntTensor = _tensor_type(torch.int32)
    LongTensor = _tensor_type(torch.int64)
