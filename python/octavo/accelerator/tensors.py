# SPDX-License-Identifier: Apache-2.0
"""``accelerator.FloatTensor`` and its like: for every device what ``torch.cuda.FloatTensor`` is for CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def require_tensor(value: object, function: str) -> None:
    """Raises TypeError `[accelerator.function]` for what is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"[accelerator.{function}] expected a torch.Tensor, got {type(value).__name__}")


class TensorType:
    """Makes tensors of one dtype on the accelerator's current device. It is called as torch's legacy classes are:

    - ``FloatTensor(2, 3)`` and ``FloatTensor(torch.Size([2, 3]))`` return an uninitialized tensor of that shape.
    - ``FloatTensor()`` returns an empty tensor.
    - ``FloatTensor([1, 2])`` returns a tensor with these data.
    - ``FloatTensor(tensor)`` returns the tensor with this dtype on this device: the tensor itself where it has both
      already.

    ``isinstance(tensor, FloatTensor)`` compares the dtype and the device type. Raises TypeError for other arguments.
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
