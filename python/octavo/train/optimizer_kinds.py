# SPDX-License-Identifier: Apache-2.0
"""The optimizers of `octavo train`: the class of each one, its default hyperparameters, and what it needs of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """An optimizer. The fields from `freezes_variance` on say in which way it is not like AdamW."""

    class_path: str
    """Its class, with the module that has it."""
    lr: float
    """The default of --lr. Together with `beta1` it is the best value, or nearly the best, on all data sets of `octavo
    bench quality`. Not tuned there are 0/1 Adam, which has AdamW's rate, and the optimizers that step by signs, which
    have a fifth of it, as the paper on Lion advises. LAMB's rate is relative to the size of each tensor."""
    beta1: float
    """The default of --beta1. AdamW learns these short runs faster with 0.5 than with the usual 0.9."""
    beta2: float | None
    """The default of --beta2; None where the optimizer has only one beta."""
    eps: float | None = None
    """What is added to the root of the variance; None where the optimizer has no variance, or where an AdamW beside it
    has one."""
    freezes_variance: bool = False
    """Whether it freezes its variance and sends momenta afterwards."""
    sends_updates: bool = False
    """Whether it sends the updates of several steps together."""
    steps_by_signs: bool = False
    """Whether it steps by the sign of what the ranks send: the updates that the ranks' own momenta make."""
    has_adamw_beside: bool = False
    """Whether it steps only the hidden matrices, as a whole, and an AdamW steps everything else."""

    @property
    def can_step_alone(self) -> bool:
        """Whether it only needs averaged gradients: a rank can step by itself, between the rounds of --outer."""
        return not (self.freezes_variance or self.sends_updates or self.steps_by_signs)

    @property
    def is_elementwise(self) -> bool:
        """Whether it only needs averaged gradients and steps each element by itself, so that a rank can step any part
        of a parameter, as with --zero."""
        return self.can_step_alone and not self.has_adamw_beside

    @property
    def is_fused(self) -> bool:
        """Whether it only needs averaged gradients and has a fused step. Most of these have states of 8 or 4 bits, or
        paged states."""
        return self.is_elementwise and self.class_path.startswith("octavo.optim.")

    @property
    def is_paged(self) -> bool:
        """Whether its states are in managed memory."""
        return self.class_path.startswith("octavo.optim.Paged")

    @property
    def can_lack_momentum(self) -> bool:
        """Whether it works without a momentum of its own, where the plan keeps one."""
        return self.is_elementwise and self.eps is not None

    @property
    def clips(self) -> bool:
        """Whether --clip-norm has a meaning for it."""
        return not (self.sends_updates or self.steps_by_signs)

    @property
    def plan(self) -> str:
        """The default of --plan, where ranks exchange in every step."""
        if self.can_step_alone:
            return "int4+ef"
        return "sign-vote" if self.steps_by_signs else "sign+ef"


def _adam(class_path: str, *, lr: float = 3e-3, **differences: Any) -> Kind:
    return Kind(class_path, lr=lr, beta1=0.5, beta2=0.999, eps=1e-8, **differences)


def _lion(class_path: str, **differences: Any) -> Kind:
    return Kind(class_path, lr=6e-4, beta1=0.9, beta2=0.99, **differences)


KINDS = {
    "adamw": _adam("torch.optim.AdamW"),
    "onebit-adamw": _adam("octavo.optim.OneBitAdamW", freezes_variance=True),
    "onebit-lamb": _adam("octavo.optim.OneBitLamb", lr=1e-2, freezes_variance=True),
    "zero-one-adam": _adam("octavo.optim.ZeroOneAdam", sends_updates=True),
    "muon": Kind("torch.optim.Muon", lr=3e-3, beta1=0.95, beta2=0.999, has_adamw_beside=True),
    "signum": Kind("octavo.optim.Signum", lr=6e-4, beta1=0.9, beta2=None, steps_by_signs=True),
    "lion": _lion("octavo.optim.DistributedLion", steps_by_signs=True),
    "adam": _adam("octavo.optim.Adam"),
    "adam8bit": _adam("octavo.optim.Adam8bit"),
    "adam4bit": _adam("octavo.optim.Adam4bit"),
    "adamw8bit": _adam("octavo.optim.AdamW8bit"),
    "adamw4bit": _adam("octavo.optim.AdamW4bit"),
    "paged-adam": _adam("octavo.optim.PagedAdam"),
    "paged-adam8bit": _adam("octavo.optim.PagedAdam8bit"),
    "paged-adamw": _adam("octavo.optim.PagedAdamW"),
    "paged-adamw8bit": _adam("octavo.optim.PagedAdamW8bit"),
    "lion32bit": _lion("octavo.optim.Lion"),
    "lion8bit": _lion("octavo.optim.Lion8bit"),
    "paged-lion": _lion("octavo.optim.PagedLion"),
    "paged-lion8bit": _lion("octavo.optim.PagedLion8bit"),
}
OPTIMIZERS = tuple(KINDS)
FUSED = tuple(name for name, kind in KINDS.items() if kind.is_fused)
ADAMW = KINDS["adamw"]
