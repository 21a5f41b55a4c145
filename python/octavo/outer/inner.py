# SPDX-License-Identifier: Apache-2.0
"""An optimizer that makes the steps of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepsOfInner(Optimizer):
    """Has the parameters, groups and state of the optimizer ``inner``. Training loops, schedules of the learning rate
    and a ``GradScaler`` take it as they take ``inner``. Optimizer's own ``__init__`` is not called."""

    inner: Optimizer

    #: Tells a GradScaler that ``step`` divides gradients by the scale, and leaves out steps whose gradients have a NaN.
    _step_supports_amp_scaling = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the inner optimizer; ``state`` and ``defaults`` are the inner optimizer's, too."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.inner.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Registers a hook that is called before the inner optimizer's step, as ``register_step_post_hook`` does after
        it."""
        return self.inner.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable) -> RemovableHandle:
        return self.inner.register_step_post_hook(hook)

    def register_state_dict_pre_hook(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            "[outer.Outer] its state has another form than an optimizer's: give hooks of states to the inner optimizer"
        )

    register_state_dict_post_hook = register_state_dict_pre_hook
    register_load_state_dict_pre_hook = register_load_state_dict_post_hook = register_state_dict_pre_hook

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise ValueError(
            "[outer.add_param_group] what is exchanged is fixed: build the inner optimizer with all groups, then Outer"
        )

    @contextmanager
    def _scaled_step(self) -> Iterator[None]:
        """A context around a step. Where the step raises an error, removes what a GradScaler has set for this step: the
        GradScaler removes it only after a step that raises none."""
        try:
            yield
        except BaseException:
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise

    def _step_inner(self, closure: Callable[[], Tensor] | None) -> Any:
        """Makes a step of the inner optimizer, or leaves it out where a GradScaler has found an infinity. Where a
        GradScaler has called ``step``, gradients are divided by its scale before. If that step raises an error, they
        are scaled again, as the GradScaler goes on to believe."""
        if float(getattr(self, "found_inf", 0.0)):
            return None
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            self._multiply_gradients(float(scale.double().reciprocal()))
        try:
            return self.inner.step() if closure is None else self.inner.step(closure)
        except BaseException:
            if scale is not None:
                self._multiply_gradients(float(scale))
            raise

    @torch.no_grad()
    def _multiply_gradients(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
