# SPDX-License-Identifier: Apache-2.0
"""The parts of signSGD that DeepSpeed's description of its XPU operator packbits (seed 000) sketches, as working
classes. They are for loops that handle gradients themselves; ``octavo.compress`` is the faster way to the same end."""

from collections.abc import Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from octavo.ops.xpu_packbits import packbits, unpackbits


class SignSGDCompressor:
    """Packs gradients into sign bits, and unpacks them. ``rank`` is the device index that ``packbits`` takes; the
    tensor's own device decides."""

    def __init__(self, rank: int = 0):
        self.rank = rank

    def compress(self, gradient: Tensor) -> tuple[Tensor, torch.Size]:
        """Returns the sign bits, ``uint8[ceil(numel / 8)]``, and the gradient's shape."""
        return packbits(gradient, gradient.numel(), self.rank), gradient.shape

    def decompress(self, packed: Tensor, original_shape: torch.Size) -> Tensor:
        """Returns a float32 tensor of the given shape whose values are +1.0 and -1.0."""
        shape = torch.Size(original_shape)
        return unpackbits(packed, shape.numel(), self.rank).view(shape)


class CompressedGradientAccumulator:
    """Accumulates the signs of several backward passes in a few bits per element.

    ``accumulated[name]`` is a counter of positive signs per element, held as packed bit planes (plane k has the value
    2^k). So n passes take ``ceil(log2(n + 1))`` bits per element instead of 32. (DeepSpeed's sketch adds bits by
    XOR, which forgets the first of two equal signs.) ``get_accumulated`` gives the majority's sign, 0 for a tie, or the
    mean.
    """

    def __init__(self, model: nn.Module, rank: int = 0):
        self.rank = rank
        self.accumulated: dict[str, list[Tensor]] = {n: [] for n, p in model.named_parameters() if p.requires_grad}
        self._passes = dict.fromkeys(self.accumulated, 0)

    def accumulate(self, model: nn.Module) -> None:
        """Adds the signs of the gradients of ``model``. A parameter without a gradient does not vote."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                planes = self.accumulated.setdefault(name, [])  # a parameter that was frozen at first has none yet
                _add_bits(planes, packbits(parameter.grad, parameter.grad.numel(), self.rank))
                self._passes[name] = self._passes.get(name, 0) + 1

    def get_accumulated(self, model: nn.Module, mean: bool = False) -> None:
        """Sets ``grad`` of each parameter that has voted to the majority's sign: +1, -1, or 0 for a tie.

        ``mean``: sets it instead to the exact mean of the signs, from -1 to +1, which tells how many passes agreed.
        """
        for name, parameter in model.named_parameters():
            if self._passes.get(name, 0):
                signs = self._sum_of_signs(name, parameter)
                gradient = signs / self._passes[name] if mean else torch.sign(signs)
                parameter.grad = gradient.view_as(parameter).to(parameter.dtype)

    def zero(self) -> None:
        for name in self.accumulated:
            self.accumulated[name] = []
            self._passes[name] = 0

    def _sum_of_signs(self, name: str, parameter: Tensor) -> Tensor:
        votes = torch.zeros(parameter.numel(), device=parameter.device)
        for k, plane in enumerate(self.accumulated[name]):
            votes += 2.0**k * (unpackbits(plane, parameter.numel(), self.rank) + 1) / 2
        return 2 * votes - self._passes[name]


class ErrorFeedbackSignSGD:
    """Replaces gradients by their signs times their mean magnitude, averaged over the ranks, and feeds back the error.

    ``error_buffer[name]`` is what could not be sent: the gradient plus the error before, less what was sent. (The
    sketch of DeepSpeed subtracts only from the gradient, which loses the error that it had added.) Where a value of any
    rank is not finite, the average is not finite either, and the errors of all ranks stay as they were. A rank that
    lacks a gradient which another rank has sends zeros for it; a gradient that all ranks lack stays None.
    """

    def __init__(self, model: nn.Module, rank: int = 0):
        self.rank = rank
        self.error_buffer = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}

    def compress_and_communicate(self, model: nn.Module) -> None:
        """Replaces the gradients of ``model``. Call it on all ranks, after backward. Without a process group this
        process is the only rank."""
        parameters = dict(model.named_parameters())
        for (name, parameter), is_sent in zip(parameters.items(), _have_gradients(parameters.values()), strict=True):
            if is_sent:
                self._replace_gradient(name, parameter)

    def _replace_gradient(self, name: str, parameter: nn.Parameter) -> None:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if gradient.layout is not torch.strided:
            raise ValueError(
                f"[sign_sgd.compress_and_communicate] the gradient of {name} is sparse, but signs of all "
                f"elements are sent: give the layer dense gradients (sparse=False)"
            )
        error = self.error_buffer.get(name)
        compensated = gradient if error is None else gradient + error
        packed = packbits(compensated, compensated.numel(), self.rank)
        scale = compensated.abs().mean().float().reshape(1)
        parameter.grad = self._average(packed, scale, compensated)
        if parameter.grad.isfinite().all():  # all ranks find the same
            self.error_buffer[name] = compensated - self._decode(packed, scale, compensated)

    def _decode(self, packed: Tensor, scale: Tensor, like: Tensor) -> Tensor:
        return (unpackbits(packed, like.numel(), self.rank) * scale).view_as(like).to(like.dtype)

    def _average(self, packed: Tensor, scale: Tensor, like: Tensor) -> Tensor:
        if not dist.is_initialized():
            return self._decode(packed, scale, like)
        # The scale is the last four bytes of a message. Bits cannot be added on the way, so all ranks get all messages.
        message = torch.cat([packed, scale.view(torch.uint8)])
        messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        dist.all_gather(messages, message)
        total = torch.zeros_like(like)
        for other in messages:  # in rank order, so that every rank computes the same bits
            total += self._decode(other[:-4], other[-4:].clone().view(torch.float32), like)
        return total / len(messages)


def _have_gradients(parameters: Collection[nn.Parameter]) -> list[bool]:
    """Returns for each parameter whether any rank has a gradient of it, because all ranks must make the same calls."""
    here = [parameter.grad is not None for parameter in parameters]
    if not (here and dist.is_initialized()):
        return here
    anywhere = torch.tensor(here, dtype=torch.uint8, device=next(iter(parameters)).device)
    dist.all_reduce(anywhere, dist.ReduceOp.MAX)
    return anywhere.bool().tolist()


def _add_bits(planes: list[Tensor], carry: Tensor) -> None:
    """Adds one bit per element to a counter that is held as bit planes, the lowest first."""
    for k, plane in enumerate(planes):
        planes[k], carry = plane ^ carry, plane & carry
    if carry.any():
        planes.append(carry)
