# SPDX-License-Identifier: Apache-2.0
"""The base of optimizers whose state decides what ranks send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.hooks import OwnHook, while_alive
from octavo.optim.base import CheckedOptimizer, not_compiled, unwrapped

if TYPE_CHECKING:
    from octavo.compression.handle import Handle


class JoinedOptimizer(CheckedOptimizer):
    """An optimizer that ``octavo.compress(ddp, plan, optimizer=optimizer)`` joins to the handle that it returns. Ranks
    then send what the optimizer makes of their gradients, and ``parameter.grad`` holds what came back.

    A subclass says in ``_enter_phase`` what is sent, and calls ``_require_joined`` and ``_require_delivered`` before it
    makes a step. In a single process no handle is needed.
    """

    _handle: Handle | None = None  # a copy has none
    _plan: Plan | None = None  # the plan that octavo.compress was given
    _sent: frozenset[Tensor] = frozenset()  # the parameters whose gradients the handle sends

    # ---- what a subclass says of itself

    @property
    def chooses_plans(self) -> bool:
        """Whether the handle's plan follows the optimizer's phases, so that nobody else may set it."""
        return False

    @property
    def keeps_own_momenta(self) -> bool:
        """Whether each rank keeps a momentum of its own gradients (``Handle.keep_own_momenta``)."""
        return False

    @property
    def phase(self) -> object:
        """What must be the same on all ranks when they join. It has a ``repr``."""
        return type(self).__name__

    def first_plan(self, plan: Plan) -> Plan:
        """Returns the plan of the first backward pass, where ``plan`` is the plan of ``octavo.compress``."""
        return plan

    def require_plan(self, plan: Plan) -> None:
        """Raises ValueError for a plan of ``octavo.compress`` with which the optimizer cannot work."""

    def _require_magnitudes(self, plan: Plan) -> None:
        """Raises ValueError for a plan that sends only signs, keeps a momentum itself, or changes while training."""
        self._require(not plan.votes, "a plan that keeps magnitudes, such as sign+ef", plan)
        self._require(plan.momentum is None, "a plan that keeps no momentum, such as sign+ef", plan)
        self._require(not plan.is_auto, "a plan that stays the same, such as sign+ef", plan)

    def _enter_phase(self) -> None:
        """Tells the handle what to send, at the join and whenever the state has changed from outside."""
        raise NotImplementedError

    def _before_forward(self, *_: object) -> None:
        """Tells the handle what a schedule has changed. The model calls this before every forward pass."""

    def _after_load_of_handle(self) -> None:
        """The handle calls this when its state has been replaced by a saved one."""

    def _after_drop(self) -> None:
        """The handle calls this when its last step has been dropped on all ranks."""

    # ---- the handle

    def require_joinable(self, plan: Plan, parameters: Iterable[Tensor]) -> None:
        """Raises ValueError where the optimizer cannot be joined to ``octavo.compress`` of these parameters by this
        plan."""
        if self._handle is not None:
            raise ValueError(
                f"[optim.{type(self).__name__}] this optimizer is joined to another octavo.compress already: "
                f"make a new one"
            )
        self.require_plan(plan)
        self._require_known(self._parameters(), parameters)

    def _require_parameters(self, parameters: Sequence[Tensor]) -> None:
        super()._require_parameters(parameters)
        if self._handle is not None:
            self._require_known(parameters, self._sent)

    def _require_known(self, ours: Iterable[Tensor], of_model: Iterable[Tensor]) -> None:
        known = set(of_model)
        unowned = sum(parameter.requires_grad and parameter not in known for parameter in ours)
        if unowned:
            raise ValueError(
                f"[optim.{type(self).__name__}] {unowned} of the optimizer's parameters are not of the model that "
                f"octavo.compress is given, or were frozen then: build the optimizer from that model's parameters, and "
                f"call requires_grad_(True) before"
            )

    def _join(self, handle: Handle, plan: Plan) -> None:
        self._handle = handle
        self._plan = plan
        self._sent = frozenset(handle.parameters)
        handle._model.register_forward_pre_hook(OwnHook(not_compiled(while_alive(self._before_forward))))
        self._enter_phase()

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _states(self) -> dict[Tensor, dict[str, Any]]:
        """Returns the states of parameters, without entries that a program has put beside them."""
        return {parameter: self.state[parameter] for parameter in self._parameters() if parameter in self.state}

    def _require_joined(self) -> None:
        """Raises RuntimeError on several ranks without a handle: the optimizer would take averaged gradients for its
        rank's own. With a handle, raises RuntimeError for a gradient that the handle does not send."""
        if self._handle is not None:
            self._require_sent()
            return
        if not (dist.is_available() and dist.is_initialized()):
            return
        if self._moves_parameters and dist.get_world_size() > 1:
            raise RuntimeError(
                f"[optim.{type(self).__name__}] this optimizer does not know how gradients are sent between the "
                f"{dist.get_world_size()} ranks: pass it as octavo.compress(ddp, plan, optimizer=optimizer)"
            )

    @property
    def _moves_parameters(self) -> bool:
        return any(group["lr"] != 0 for group in self.param_groups)

    def _only_makes_states(self) -> bool:
        """Whether this is no step of training: ``torch.distributed.checkpoint.state_dict`` makes one with lr 0 and
        gradients of zero, so that states are there. (A schedule may begin at lr 0, too, but with gradients.)"""
        gradients = (parameter.grad for parameter in self._parameters() if parameter.grad is not None)
        return not self._moves_parameters and not any(bool(gradient.any()) for gradient in gradients)

    def _require_sent(self) -> None:
        alone = [p for p in self._parameters() if p.grad is not None and p not in self._sent]
        if alone:
            raise RuntimeError(
                f"[optim.{type(self).__name__}] {self._described(alone[0])} has a gradient that is not sent between "
                f"the ranks, because it required none when the model was wrapped: the ranks would move it apart. Call "
                f"requires_grad_(True) before DistributedDataParallel and octavo.compress, or take it out of the "
                f"optimizer"
            )

    def _described(self, parameter: Tensor) -> str:
        names = (name for name, other in self._handle._model.module.named_parameters() if other is parameter)
        return next(names, f"a {tuple(parameter.shape)} parameter that the model does not have")

    def _require_delivered(self, function: str, words: str) -> None:
        """Raises RuntimeError where ``.grad`` was changed after it was delivered. ``words``: the rest of the error's
        sentence."""
        if self._handle is not None and not self._handle.holds_momenta():
            raise RuntimeError(f"[optim.{type(self).__name__}] {function}: {words}")


def joined_optimizer(optimizer: object, where: str) -> JoinedOptimizer | None:
    """Returns the optimizer that is to be joined, taken out of a wrapper such as Accelerate's. Returns None for an
    optimizer that need not be joined. Raises TypeError for what is no optimizer of torch."""
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"[{where}] optimizer must be a torch optimizer, got {type(optimizer).__name__}")
    optimizer = unwrapped(optimizer)  # first: some wrappers inherit the class of what they wrap
    return optimizer if isinstance(optimizer, JoinedOptimizer) else None


def require_no_momentum(optimizer: Optimizer | None, plan: Plan, where: str) -> None:
    """Raises ValueError where the plan keeps a momentum and a parameter group of the optimizer has one, too."""
    if plan.momentum is None or optimizer is None:
        return
    for group in optimizer.param_groups:
        betas = group.get("betas", (0.0,))
        if group.get("momentum", 0.0) or betas[0]:
            raise ValueError(
                f"[{where}] the plan {plan} keeps the momentum, of {plan.momentum:g}, and this "
                f"{type(optimizer).__name__} has one of its own: build it with momentum=0 or betas=(0, beta2), or take "
                f"a plan that keeps none, such as topk:0.01+ef"
            )
