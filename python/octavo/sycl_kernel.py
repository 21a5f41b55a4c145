# SPDX-License-Identifier: Apache-2.0
"""A SYCL kernel from source text, called with tensors."""

import ctypes
import struct

import torch
from torch import Tensor

from octavo import _C

Argument = Tensor | int | float | ctypes._SimpleCData


class SyclKernel:
    """A SYCL kernel from source text, compiled at its first call for the device of the tensors that it is called with:
    ``sycl``, ``xpu`` or ``cpu``.

    - ``source``: SYCL 2020 with free-function kernels. It may include ``octavo/kernels/sycl/device.h``, whose
      ``OCTAVO_KERNEL`` declares such a function, and the rules of ``octavo/rules``.
    - ``function``: the name of a function in it that takes an nd_range of one dimension.

    >>> scale = octavo.SyclKernel('''
    ... #include "octavo/kernels/sycl/device.h"
    ... OCTAVO_KERNEL scale(float* x, float by, std::int64_t count) {
    ...   const std::int64_t i = octavo::sycl_code::item().get_global_id(0);
    ...   if (i < count) x[i] *= by;
    ... }''', "scale")
    >>> scale((x.numel() + 255) // 256, 256, x, 0.5, x.numel())

    Compiling takes some two seconds, and 0.3 seconds where SYCL's cache has the result. Raises ValueError with the
    compiler's first error where the source does not compile, NotImplementedError with the reason where SYCL is missing.
    """

    def __init__(self, source: str, function: str) -> None:
        if not isinstance(source, str) or not isinstance(function, str):
            raise TypeError(f"[sycl_kernel.SyclKernel] expected two texts, got {source!r} and {function!r}")
        self._function = function
        self._kernel = _C.sycl.Kernel(source, function)

    def __call__(self, groups: int, group_size: int, *arguments: Argument) -> None:
        """Enqueues ``groups * group_size`` work-items on the current stream. On the CPU it returns when they have run.

        ``arguments``: those of the function. A contiguous tensor is passed as the pointer to its first element, an int
        as ``std::int64_t``, a float as ``float``, and a value of ``ctypes`` as it is. The function's parameter types
        are not known here and not checked: the arguments' types, also the dtypes of tensors, must match them exactly.
        With 0 groups nothing is done. Raises ValueError for other sizes, tensors on different devices and tensors that
        are not contiguous; TypeError for an argument of another type.
        """
        self._check_range(groups, group_size)
        self._kernel.launch(self._device_of(arguments), groups, group_size, [_in_memory(value) for value in arguments])

    def _check_range(self, groups: int, group_size: int) -> None:
        for name, value, least in (("groups", groups, 0), ("group_size", group_size, 1)):
            if not isinstance(value, int) or not least <= value < 2**31:
                raise ValueError(
                    f"[sycl_kernel.{self._function}] {name} must be an int from {least} to 2^31-1, got {value!r}"
                )

    def _device_of(self, arguments: tuple[Argument, ...]) -> torch.device:
        devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
        if len(devices) != 1:
            found = ", ".join(sorted(map(str, devices))) or "no tensor"
            raise ValueError(f"[sycl_kernel.{self._function}] expected tensors of one device, got {found}")
        return devices.pop()


def _in_memory(argument: Argument) -> tuple[bytes, bool]:
    """Returns the bytes of an argument, and whether they are a pointer."""
    if isinstance(argument, Tensor):
        if not argument.is_contiguous():
            raise ValueError(f"[sycl_kernel.launch] expected a contiguous tensor, got strides {argument.stride()}")
        if argument.is_conj() or argument.is_neg():
            raise ValueError(
                "[sycl_kernel.launch] expected a tensor with values of its own, got a view of values that are still to "
                "be conjugated or negated: call resolve_conj() or resolve_neg()"
            )
        return struct.pack("P", argument.data_ptr()), True
    if isinstance(argument, float):
        return struct.pack("f", argument), False
    if isinstance(argument, int) and not isinstance(argument, bool):
        if not -(2**63) <= argument < 2**63:
            raise ValueError(f"[sycl_kernel.launch] expected an int of 64 bits, got {argument}")
        return struct.pack("q", argument), False
    if isinstance(argument, ctypes._SimpleCData):
        return bytes(argument), False
    raise TypeError(
        f"[sycl_kernel.launch] expected a tensor, an int, a float or a value of ctypes, got {type(argument).__name__}"
    )
