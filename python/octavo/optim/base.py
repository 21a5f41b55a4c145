# SPDX-License-Identifier: Apache-2.0
"""The base class of all optimizers, and what their steps have in common."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo.arguments import is_number, require
from octavo.optim.checks import require_inert, require_no_capture, require_real

# Decorates steps, which ``torch.compile`` is to call and not to trace: it would compile a step anew for every number of
# a step. The public ``torch.compiler.disable`` would import Dynamo together with this module.
not_compiled = torch._disable_dynamo


def outside_of_inference(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method that makes states: it is not differentiated, and it is called outside of inference mode. A
    state that was made in inference mode could not be changed by the steps after it."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return call


def eager_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a step: it is neither traced nor captured, and it is ``outside_of_inference``."""
    made = outside_of_inference(step)

    @wraps(step)
    def eager(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        require_no_capture(optimizer)
        return made(optimizer, *args, **kwargs)

    return not_compiled(eager)


def unwrapped(optimizer: Any) -> Any:
    """Returns an optimizer itself, taken out of wrappers such as those of Accelerate, Lightning and Fabric."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def of_itself(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method that changes attributes of an optimizer, or reads some that the class has too. Lightning's and
    Fabric's wrappers inherit the class of what they wrap, so that such a method would be called for the wrapper: it
    would change the wrapper's attributes, and find the class's."""

    @wraps(method)
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return method(unwrapped(optimizer), *args, **kwargs)

    return call


def loss_of(closure: Callable[[], Tensor] | None) -> Tensor | None:
    """Returns what the closure of a step returns; None where there is none. It computes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Saved:
    """Hides a saved state in torch's ``load_state_dict``, which would copy its tensors in the dtype and to the device
    of their parameter."""

    def __init__(self, state: Any):
        self.state = state

    @staticmethod
    def of(state: Any) -> Any:
        """Returns a state that may be hidden."""
        return state.state if isinstance(state, Saved) else state


def states_of_none(states: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the entries of an optimizer's state that are of no parameter, which a program has put there: a load and a
    copy keep them as they are, as those of torch do."""
    return {key: Saved.of(state) for key, state in states.items() if not isinstance(key, Tensor)}


class CheckedOptimizer(Optimizer):
    """The base class of all optimizers of Octavo. A parameter group that is refused is not added."""

    _alike: ClassVar[tuple[str, ...]] = ()  # options that must be the same in all parameter groups

    @of_itself
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        first, group = self.param_groups[0], self.param_groups[-1]
        try:
            self._require_parameters(group["params"])
            self._require_valid(group)
            self._require(group.get("lr", 0) >= 0, "a finite lr of at least 0", repr(group.get("lr")))
            for name in self._alike:
                same, both = group[name] == first[name], f"{first[name]} and {group[name]}"
                self._require(same, f"the same {name} in all parameter groups", both)
        except Exception:
            self.param_groups.pop()
            raise

    def _require_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Raises TypeError or ValueError for parameters that a new group cannot have."""
        require_real(self, parameters)
        twice = len(parameters) - len(set(parameters))  # torch refuses those of another group
        self._require(twice == 0, "each parameter once in a group", f"{twice} of them again")

    def _require_all_valid(self) -> None:
        """Raises ValueError where the options of a group have been changed to what is out of range."""
        for group in self.param_groups:
            self._require_valid(group)

    def _require_valid(self, group: dict[str, Any]) -> None:
        """Raises ValueError for options of a group that are out of range, or not supported."""
        require_inert(self, group)
        # a schedule of torch's may end a rounding error below 0
        self._require(is_number(group.get("lr", 0)), "a finite lr of at least 0", repr(group.get("lr")))
        for name in ("eps", "weight_decay", "variance_floor"):
            value = group.get(name, 0)
            self._require(is_number(value) and value >= 0, f"a finite {name} of at least 0", repr(value))
        betas = self._betas(group)
        are_two = isinstance(betas, Sequence) and len(betas) == 2 and all(is_number(b) and 0 <= b < 1 for b in betas)
        self._require(are_two, "two betas from 0 to below 1", betas)

    def _load_checked(self, state_dict: dict[str, Any], check: Callable[[dict[str, Any]], None]) -> None:
        """Loads the state dict that the hooks of the program make of ``state_dict``. ``check`` sees it before anything
        has changed. ``__setstate__`` gets the states of parameters as ``Saved``."""

        def check_last(_: Optimizer, seen: dict[str, Any]) -> dict[str, Any]:
            check(seen)
            return seen | {"state": {key: Saved(state) for key, state in seen["state"].items()}}

        hook = self.register_load_state_dict_pre_hook(check_last)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()

    def _betas(self, group: dict[str, Any]) -> tuple[float, float]:
        return group["betas"]

    def _require(self, condition: bool, expected: str, got: Any) -> None:
        require(condition, f"optim.{type(self).__name__}", expected, got)
