# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step: on their way from backward passes to the C++ engine, and what it has made of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from octavo import _C
from octavo.finite import all_finite
from octavo.hooks import has_hooks_of_others, remove_after, while_alive
from octavo.optim.clipping import clip_factor, total_norm
from octavo.zero.always_whole import AlwaysWhole
from octavo.zero.gathering import Gathering
from octavo.zero.parts import OwnPart
from octavo.zero.peers import Peers
from octavo.zero.whole_parameters import GRAPH


class Gradients:
    """From its making on, gradients of ``parameters`` that backward has completed go to the C++ engine, which averages
    them over ranks and micro-batches and writes them to the ranks' parts."""

    def __init__(
        self,
        engine: _C.Engine,
        parameters: Mapping[str, nn.Parameter],
        parts: Mapping[nn.Parameter, OwnPart],
        gathering: Gathering | AlwaysWhole,
        peers: Peers,
    ):
        self._engine, self._parts, self._gathering, self._peers = engine, parts, gathering, peers
        self._engine.ignore_gradients(True)
        handles = []
        for id, (name, parameter) in enumerate(parameters.items()):
            parameter.grad = None
            hook = partial(while_alive(self._reduce), name, id)
            handles.append(parameter.register_post_accumulate_grad_hook(hook))
        remove_after(self, handles)

    def _reduce(self, name: str, id: int, parameter: Tensor) -> None:
        """Hands over the gradient of a parameter, once backward has it. There is none where a compiled graph has
        reduced it."""
        gradient, parameter.grad = parameter.grad, None
        if self._engine.ignores_gradients():
            raise RuntimeError(
                f"[zero.backward] a backward pass has reached {name}, but the parameter's engine has not started it: "
                f"call engine.backward(loss) instead of loss.backward(); where the loss is another engine's, call "
                f"requires_grad_(False) on this model before it is computed, and requires_grad_(True) after backward"
            )
        if gradient is None:
            return
        # a user's hook may have kept the gradient, and the engine writes averages to memory that it is given
        given = gradient.clone() if has_hooks_of_others(parameter) else gradient
        self._engine.take_grad(given, GRAPH, id)
        self._gathering.release_after_gradient(id)

    def give_to_parts(self) -> None:
        """Makes averaged gradients those of the optimizer's parameters."""
        for part in self._reduced_parts():
            part.values.grad = part.gradient

    def take_from_parts(self) -> None:
        for part in self._parts.values():
            part.values.grad = None

    def clip(self, max_norm: float) -> tuple[Tensor, float | None]:
        """Clips the norm of all gradients of all ranks, which call it together. Returns the norm that they had, and
        what they were multiplied by; None for a norm that is not finite, by which nothing is clipped."""
        gradients = self._own()
        norm = self._peers.sum(total_norm(gradients).double().square(), "zero.clip_grad_norm_").sqrt()
        if not norm.isfinite():
            return norm, None
        factor = clip_factor(norm, max_norm)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm, factor.item()

    def are_finite(self) -> bool:
        """Whether all gradients of all ranks are finite. They call it together."""
        has_others = (~all_finite(self._own())).to(torch.int32)
        return not self._peers.sum(has_others, "zero.has_finite_gradients")

    def _own(self) -> list[Tensor]:
        return [part.gradient.to_local() for part in self._reduced_parts()]

    def _reduced_parts(self) -> list[OwnPart]:
        """Returns the parts of the parameters for which some rank had a gradient in this step."""
        reduced = set(self._engine.reduced_params())
        return [part for id, part in enumerate(self._parts.values()) if id in reduced]
