# SPDX-License-Identifier: Apache-2.0
"""Clips gradients in the step that reads them, by the norm that they had."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from octavo.finite import all_finite
from octavo.optim.shards import gathered, is_sharded, local


def require_max_norm(max_norm: object, where: str) -> None:
    """Raises TypeError or ValueError, in the name of `where`, unless gradients can be clipped to this norm, which may
    be infinite."""
    is_one = isinstance(max_norm, Real) or (isinstance(max_norm, Tensor) and max_norm.numel() == 1)
    if not is_one or isinstance(max_norm, bool):
        raise TypeError(f"[{where}] expected max_norm as a number, got {type(max_norm).__name__}")
    if not max_norm >= 0:
        raise ValueError(f"[{where}] expected max_norm as a number of at least 0, got {max_norm}")


def clip_factor(norm: Tensor, max_norm: float | Tensor) -> Tensor:
    """Returns the factor, at most 1, by which ``torch.nn.utils.clip_grad_norm_`` clips gradients of this norm."""
    most = max_norm.reshape(()) if isinstance(max_norm, Tensor) else max_norm
    return (most / (norm + 1e-6)).clamp(max=1.0)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the L2 norm of the gradients, and of all shards where they are shards. Where it overflows in float32 it
    is computed again in float64, so that it is finite where the gradients are. Waits for the device."""
    norm = gathered(nn.utils.get_total_norm(gradients))
    are_shards = any(is_sharded(gradient) for gradient in gradients)  # all ranks must take the same branch then
    if not norm.isinf() or (not are_shards and not all_finite(gradients)):
        return norm
    return gathered(nn.utils.get_total_norm([_in_double(gradient) for gradient in gradients]))


def _in_double(gradient: Tensor) -> Tensor:
    return gradient.to(torch.complex128 if gradient.is_complex() else torch.float64)


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Clips the L2 norm of all gradients of these parameters as ``torch.nn.utils.clip_grad_norm_`` does, and returns
    the norm that they had. Gradients whose norm is not finite stay as they are. Waits for the device. Raises
    RuntimeError for a sparse gradient."""
    clipped = [parameter for parameter in parameters if parameter.grad is not None]
    if any(parameter.grad.is_sparse for parameter in clipped):
        raise RuntimeError(
            "[optim.clip_gradients] sparse gradients cannot be clipped: use sparse=False in nn.Embedding, or train "
            "without clipping"
        )
    norm = total_norm([parameter.grad for parameter in clipped])
    if norm.isfinite():
        nn.utils.clip_grads_with_norm_(clipped, max_norm, norm)
    return norm


class GradientClip:
    """What the next step multiplies gradients by, so that their global L2 norm is at most ``max_norm``.

    It remembers the gradients that it was computed from: another step must not use it for others. It does not wait for
    a device. There, unlike on the CPU, a norm that overflows in float32 is infinite, and the factor is 0.
    """

    def __init__(self, optimizer: str, gradients: list[Tensor], max_norm: float):
        is_at_hand = all(gradient.device.type == "cpu" for gradient in gradients)
        self.norm = total_norm(gradients) if is_at_hand else gathered(nn.utils.get_total_norm(gradients))
        self._optimizer = optimizer  # its name, for errors
        norm = self.norm.to(torch.promote_types(self.norm.dtype, torch.float32))
        self._factor = clip_factor(norm, max_norm).float()
        self._versions = {weakref.ref(gradient): _version_of(gradient) for gradient in gradients}

    def factor_of(self, gradients: list[Tensor]) -> Tensor | None:
        """Returns the factor of these gradients; None where none of them was measured. Raises RuntimeError where some
        of them, but not all, were measured, or where these have been changed since."""
        versions = [self._versions.get(weakref.ref(gradient)) for gradient in gradients]
        if all(version is None for version in versions):
            return None  # these replaced the measured gradients and were not clipped
        if versions != [_version_of(gradient) for gradient in gradients]:
            raise RuntimeError(
                f"[optim.{self._optimizer}] gradients were added, replaced or changed after clip_grad_norm_ had "
                f"measured them: call it again, as the last thing before step(), or zero_grad() to cancel it"
            )
        return self._factor


class NormEstimate:
    """Estimates the norm of averaged gradients where only an estimate of the sum of their squares is known, as after
    the freeze of a 1-bit optimizer. It learns from steps in which both are known. What it has learnt is in the
    parameter groups, the same in all of them, and is saved with them."""

    START = MappingProxyType(
        {
            # the decayed sum of squared norms of averaged gradients
            "norm_squares": 0.0,
            # the same sum of what these squared norms were estimated to be
            "power_squares": 0.0,
        }
    )

    def __init__(self, groups: Sequence[dict[str, Any]]):
        self._groups = groups

    def learn(self, norm: float, squares: float, decay: float) -> None:
        """Calibrates by a step of gradients of this norm, whose sum of squares is estimated as ``squares``."""
        for group in self._groups:
            group["norm_squares"] = decay * group["norm_squares"] + norm**2
            group["power_squares"] = decay * group["power_squares"] + squares

    def of(self, squares: float) -> float:
        """Returns the norm of gradients whose sum of squares is estimated as ``squares``."""
        first = self._groups[0]
        calibration = first["norm_squares"] / first["power_squares"] if first["power_squares"] else 1.0
        return (calibration * squares) ** 0.5


def _version_of(gradient: Tensor) -> int:
    """Returns how often the gradient has been written to. A DTensor and its shard count their own changes each. Tensors
    of inference mode count none."""
    return sum(0 if tensor.is_inference() else tensor._version for tensor in (gradient, local(gradient)))
