# SPDX-License-Identifier: Apache-2.0
"""Checks of what the user gives: whether a model and an optimizer can be shared out, whether they are still the same in
each step, whether a loss can be differentiated, and whether a path is one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo.optim.checks import SENDING_OPTIMIZERS, has_base_named
from octavo.optim.joined import JoinedOptimizer
from octavo.outer import Outer
from octavo.plain_model import require_plain_model
from octavo.zero.config import ZeroConfig
from octavo.zero.overlaps import require_apart
from octavo.zero.parts import OwnPart

_LOOK_AT_SHAPES = {
    *("adafactor", "lamb", "fusedlamb", "lars", "muon", "shampoo", "distributedshampoo", "soap", "lbfgs"),
}
"""Optimizers whose steps look at a parameter's shape, as class names in small letters: the classes of other packages
cannot be imported here to compare with."""


def require_shareable(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], optimizer: Optimizer, config: ZeroConfig
) -> None:
    """Raises ValueError for what the stage cannot share out. ``parameters``: those of the model that need a
    gradient."""
    require_plain_model(model, "zero.initialize")
    require_trainable(parameters, optimizer)
    if config.has_parts_apart:
        require_unwritten(model)
    if config.zero_stage == 3:
        require_uncompiled(model)
    require_apart(model, config)


def require_trainable(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Raises ValueError where the parameters that need a gradient cannot be shared out, or where the optimizer lacks
    one of them, needs whole ones or sends gradients by itself."""
    if isinstance(optimizer, JoinedOptimizer):
        raise ValueError(
            f"[zero.initialize] {type(optimizer).__name__} decides what ranks send, but under ZeRO the plan decides "
            f"it: use an optimizer that takes averaged gradients, such as octavo.optim.AdamW8bit"
        )
    if isinstance(optimizer, Outer) or has_base_named(optimizer, SENDING_OPTIMIZERS):
        raise ValueError(
            f"[zero.initialize] {type(optimizer).__name__} wraps an optimizer, which would keep its present "
            f"parameters, and sends parameters by itself: pass the wrapped optimizer"
        )
    if has_base_named(optimizer, _LOOK_AT_SHAPES):
        raise ValueError(
            f"[zero.initialize] {type(optimizer).__name__} computes its steps from whole matrices or from all "
            f"parameters together, but a rank has only a flat part of each parameter: use an optimizer that works "
            f"element by element, such as octavo.optim.AdamW8bit"
        )
    if not parameters:
        raise ValueError("[zero.initialize] the model has no parameter that requires a gradient")
    devices = {p.device for p in parameters.values()}
    if len(devices) > 1:
        raise ValueError(f"[zero.initialize] expected all parameters on one device, got {sorted(map(str, devices))}")
    for name, parameter in parameters.items():
        if not parameter.is_contiguous() or parameter.is_complex():
            raise ValueError(
                f"[zero.initialize] expected {name} real and in row-major order, got {parameter.dtype} with "
                f"strides {parameter.stride()}: ranks own ranges of its memory. Convert it first, for example by "
                f"model.to(memory_format=torch.contiguous_format), or by view_as_real for complex numbers"
            )
    of_optimizer = {p for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in parameters.items():
        if parameter not in of_optimizer:
            raise ValueError(
                f"[zero.initialize] the optimizer does not have {name}: give it all of model.parameters(), or call "
                f"requires_grad_(False) on the parameter"
            )
    if others := [tuple(p.shape) for p in of_optimizer - set(parameters.values()) if p.requires_grad]:
        raise ValueError(
            f"[zero.initialize] {len(others)} of the optimizer's parameters, of shapes {', '.join(map(str, others))}, "
            f"are not the model's, and would not be trained: make them parameters of a module that holds the model, or "
            f"give them an optimizer of their own"
        )


def require_uncompiled(model: nn.Module) -> None:
    """Raises ValueError for modules that torch.compile has wrapped: their graphs keep parameters, which have no memory
    between uses."""
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None:
            raise ValueError(
                f"[zero.initialize] {name or 'the model'} is compiled already, and in stage 3 graphs must gather what "
                f'they use: give the model as it was, and "compile": True in the config'
            )


def require_unwritten(model: nn.Module) -> None:
    """Raises ValueError for modules that write to their parameters, where ranks keep their parts in other memory."""
    for name, module in model.named_modules():
        is_limited = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        if is_limited and module.weight.requires_grad:
            raise ValueError(
                f"[zero.initialize] {name} changes its weight in forward passes (max_norm), and such changes are lost "
                f"in stage 3 and with gather: use stage 1 or 2 without gather, or do without max_norm"
            )


Memory = tuple[int, torch.dtype]


def memory_of(parameter: Tensor) -> Memory:
    """Returns what identifies the memory of a parameter, also while it is empty."""
    return parameter.untyped_storage()._cdata, parameter.dtype


def require_same(
    model: nn.Module,
    memories: Mapping[nn.Parameter, Memory],
    optimizer: Optimizer,
    parts: Mapping[nn.Parameter, OwnPart],
) -> None:
    """Raises RuntimeError where the model or the optimizer is no longer what was shared out: the difference would not
    be trained."""
    for name, parameter in model.named_parameters():
        if parameter in parts and memory_of(parameter) != memories[parameter]:
            raise RuntimeError(
                f"[zero.step] {name} has other memory than at octavo.initialize, for example after model.to(dtype): it "
                f"would not be trained. Change the model before octavo.initialize, and load checkpoints by "
                f"engine.load_checkpoint()"
            )
        if parameter.requires_grad and parameter not in parts:
            raise RuntimeError(
                f"[zero.step] {name} was added, or now requires a gradient, after octavo.initialize: it would not be "
                f"trained. Build the model with all that is trained, and freeze parts of it later by "
                f"requires_grad_(False)"
            )
    ours = {part.values for part in parts.values()}
    if any(values not in ours for group in optimizer.param_groups for values in group["params"]):
        raise RuntimeError(
            "[zero.step] parameters were added to the optimizer after octavo.initialize, and their gradients are not "
            "averaged: give it all parameters before"
        )


def warn_of_rounding(parameters: Mapping[str, nn.Parameter]) -> None:
    """Warns of parameters whose gradients have more digits than what ranks send of them."""
    wide = [name for name, p in parameters.items() if p.dtype == torch.float64]
    if wide:
        warnings.warn(
            f"[zero.initialize] float64 is the dtype of {wide[0]}, as of {len(wide)} parameters in all: ranks round "
            "their gradients to float32 before they add them up",
            stacklevel=4,
        )


def require_differentiable(loss: Tensor) -> None:
    """Raises ValueError for a loss that cannot be differentiated, before anything has happened."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"{tuple(loss.shape)}, requires_grad={loss.requires_grad}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"[zero.backward] expected a loss of one element that the engine's forward pass has computed, with a "
            f"gradient, got {what}: reduce it, as by mean(), and compute it outside of torch.no_grad()"
        )


def as_path(function: str, path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise TypeError(f"[zero.{function}] expected a path, got {path!r}") from None
