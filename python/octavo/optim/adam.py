# SPDX-License-Identifier: Apache-2.0
"""Adam and AdamW, with moments in 32, 8 or 4 bits, paged or not."""

from __future__ import annotations

from typing import Any

import torch

from octavo.optim.checks import without_inert
from octavo.optim.fused import FusedOptimizer, Moved


class Adam(FusedOptimizer):
    """Adam (Kingma & Ba 2015) in the arithmetic of ``torch.optim.Adam``: ``weight_decay`` is added to the gradient.

    The other options are those of ``octavo.optim.fused.FusedOptimizer``, whose docstring explains them. They have the
    names of ``bitsandbytes.optim.Adam``. ``amsgrad`` is not supported (ValueError). State of a parameter: ``exp_avg``
    and ``exp_avg_sq``.
    """

    _moments = ("exp_avg", "exp_avg_sq")
    _own_options = frozenset({"betas", "eps", "weight_decay"})
    _is_decay_decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ):
        if amsgrad:
            raise ValueError(f"[optim.{type(self).__name__}] amsgrad is not supported: use torch.optim.Adam for it")
        # torch's name of this option, by which checkpoints tell Adam from AdamW
        is_decoupled = options.pop("decoupled_weight_decay", self._is_decay_decoupled)
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decoupled_weight_decay=is_decoupled)
        super().__init__(params, defaults, **without_inert(self, options))

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        asked = group.get("decoupled_weight_decay", self._is_decay_decoupled)
        other = "Adam" if self._is_decay_decoupled else "AdamW"
        what = f"decoupled_weight_decay={self._is_decay_decoupled}; octavo.optim.{other} has the other"
        self._require(asked == self._is_decay_decoupled, what, asked)

    def _loaded(self, saved: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Refuses the state of an AdamW in an Adam and the reverse: groups say which of the two they belong to. Without
        weight decay both are the same."""
        is_decoupled = bool(saved.get("decoupled_weight_decay", self._is_decay_decoupled))
        is_alike = is_decoupled == self._is_decay_decoupled or not saved.get("weight_decay")
        kinds = {True: "an AdamW", False: "an Adam"}
        self._require(is_alike, f"the state of {kinds[self._is_decay_decoupled]}", f"that of {kinds[is_decoupled]}")
        return super()._loaded(saved, own)

    def _call(self, group: dict[str, Any], moved: Moved, tensors: dict[str, Any]) -> None:
        torch.ops.octavo.adam_(
            means=moved.values("exp_avg"),
            mean_scales=moved.scales("exp_avg"),
            squares=moved.values("exp_avg_sq"),
            square_scales=moved.scales("exp_avg_sq"),
            steps=moved.next_steps(),
            lr=float(group["lr"]),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            is_decay_decoupled=self._is_decay_decoupled,
            **tensors,
        )


class AdamW(Adam):
    """AdamW (Loshchilov & Hutter 2019): a parameter loses ``lr * weight_decay`` of itself before its update. All else
    is as in ``Adam``."""

    _is_decay_decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


class Adam8bit(Adam):
    """``Adam`` with moments in 8 bits: 2.03 bytes of state per parameter instead of 8."""

    _bits = 8


class Adam4bit(Adam):
    """``Adam`` with moments in 4 bits: 1.06 bytes of state per parameter instead of 8."""

    _bits = 4


class PagedAdam(Adam):
    """``Adam`` with its state in managed memory."""

    _pages = True


class PagedAdam8bit(Adam8bit):
    """``Adam8bit`` with its state in managed memory."""

    _pages = True


class AdamW8bit(AdamW):
    """``AdamW`` with moments in 8 bits: 2.03 bytes of state per parameter instead of 8."""

    _bits = 8


class AdamW4bit(AdamW):
    """``AdamW`` with moments in 4 bits: 1.06 bytes of state per parameter instead of 8."""

    _bits = 4


class PagedAdamW(AdamW):
    """``AdamW`` with its state in managed memory."""

    _pages = True


class PagedAdamW8bit(AdamW8bit):
    """``AdamW8bit`` with its state in managed memory."""

    _pages = True


# Further names that bitsandbytes has for these classes.
Adam32bit, PagedAdam32bit = Adam, PagedAdam
AdamW32bit, PagedAdamW32bit = AdamW, PagedAdamW
