# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of ``Outer``."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.arguments import is_finite_number, is_whole_number
from octavo.optim.checks import SENDING_OPTIMIZERS, has_base_named
from octavo.optim.joined import JoinedOptimizer
from octavo.plan import as_plan

_AVERAGES = ("ranks", "hits")


def require_unwrapped(model: nn.Module, _: object) -> None:
    """The hook before each forward pass of a model that ``Outer`` trains. Raises TypeError where it runs inside a
    ``DistributedDataParallel`` that was put around it later, as HF Trainer and Accelerate do. This check is
    skipped in graphs of torch.compile."""
    if torch.compiler.is_compiling():
        return
    wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is not None and any(module is model for module in wrapper.modules()):
        raise TypeError(
            "[outer.forward] this model was wrapped in DistributedDataParallel after octavo.Outer was built, and would "
            "send dense gradients in every step: call the module itself, and let no framework wrap it"
        )


def require_inner_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    if isinstance(optimizer, JoinedOptimizer):
        raise ValueError(
            f"[outer.Outer] {type(optimizer).__name__} decides what ranks send in every step, and in rounds they step "
            f"by themselves: use an optimizer of gradients, such as AdamW, Muon or octavo.optim.AdamW8bit"
        )
    if has_base_named(optimizer, SENDING_OPTIMIZERS):
        raise ValueError(
            f"[outer.Outer] a {type(optimizer).__name__} sends the model to all ranks by itself, so that there would "
            f"be no local steps: use the optimizer that it wraps, or one such as octavo.optim.AdamW8bit to save memory"
        )
    moved = {p for group in getattr(optimizer, "param_groups", []) for p in group["params"]}
    if moved.isdisjoint(model.parameters()):
        raise ValueError(
            f"[outer.Outer] expected an inner optimizer of this model's parameters, got a {type(optimizer).__name__} "
            f"that has none of them: build it from model.parameters()"
        )
    if others := {p for p in moved if p.requires_grad} - set(model.parameters()):
        raise ValueError(
            f"[outer.Outer] the inner optimizer has {len(others)} parameters that are not of this model, the first of "
            f"shape {tuple(next(iter(others)).shape)}, and nobody would exchange them: put them into one module with "
            f"it, such as a ModuleList, or give them an optimizer of their own"
        )
    if not isinstance(getattr(optimizer, "state", None), Mapping):
        raise ValueError(
            f"[outer.Outer] a {type(optimizer).__name__} has no `state` by parameter, as torch.optim.Optimizer has: "
            f"state that contains a NaN could not be discarded"
        )


def require_numbers(whole: Mapping[str, tuple[int, int]], others: Mapping[str, float]) -> None:
    """Raises ValueError for arguments that are no numbers or out of range. ``whole``: integers by name, each with the
    least value that it may have; ``others``: floats by name, which must be finite."""
    for name, (number, least) in whole.items():
        if not (is_whole_number(number) and least <= number < 2**63):
            raise ValueError(f"[outer.Outer] {name} must be a whole number of {least} or more, got {number!r}")
    for name, share in others.items():
        if not is_finite_number(share):
            raise ValueError(f"[outer.Outer] {name} must be a finite number, got {share!r}")


def plan_of(plan: str | Plan, decay: float, average: str) -> Plan:
    plan = as_plan(plan)
    if average not in _AVERAGES:
        raise ValueError(f"[outer.Outer] average must be 'ranks' or 'hits', got {average!r}")
    if decay != 1.0:
        plan = plan.with_decay(decay)
    return plan.averaged_over_hits() if average == "hits" else plan
