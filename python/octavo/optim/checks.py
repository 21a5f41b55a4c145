# SPDX-License-Identifier: Apache-2.0
"""Checks of what optimizers are given: options, parameters, gradients and saved states."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Options of other libraries that have no counterpart here, with the only values that mean no more than their absence.
_OF_BITSANDBYTES = {"args": None, "percentile_clipping": 100, "block_wise": True, "max_unorm": 0.0, "skip_zeros": False}
_OF_TORCH = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False}
_INERT = _OF_BITSANDBYTES | _OF_TORCH
_HOW_TORCH_STEPS = ("foreach", "fused")  # options of torch's that do not change the result
TORCHS_OWN = frozenset({*_OF_TORCH, *_HOW_TORCH_STEPS, "decoupled_weight_decay"})
"""Options that the groups of torch's optimizers have, and ours do not."""

SENDING_OPTIMIZERS = frozenset({"zeroredundancyoptimizer", "postlocalsgdoptimizer"})
"""Optimizers around others that send parameters by themselves, as class names in small letters."""


def has_base_named(value: object, names: Set[str]) -> bool:
    """Whether a class of ``value``, or one of its base classes, has one of these names, given in small letters. It is
    for classes whose packages may not be installed, or take long to import."""
    return any(base.__name__.lower() in names for base in type(value).__mro__)


def require_real(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Raises TypeError for complex parameters."""
    if any(parameter.is_complex() for parameter in parameters):
        raise TypeError(
            f"[optim.{type(optimizer).__name__}] complex parameters are not supported: use torch.optim.AdamW for them"
        )


def require_dense(optimizer: Optimizer, gradient: Tensor) -> None:
    """Raises RuntimeError for a sparse gradient."""
    if gradient.is_sparse:
        raise RuntimeError(
            f"[optim.{type(optimizer).__name__}] sparse gradients are not supported: use torch.optim.SparseAdam"
        )


def require_no_capture(optimizer: Optimizer) -> None:
    """Raises RuntimeError while a CUDA graph is captured. The operators take the numbers of a step by value, and a
    replay would repeat them."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"[optim.{type(optimizer).__name__}] a step cannot be captured in a CUDA graph, whose replays would repeat "
            f"the learning rate, the bias corrections and the random bits of this one step: capture the forward and "
            f"backward pass alone, and call step() after each replay"
        )


def require_same_kind(optimizer: Any, saved_groups: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises ValueError, in the name of ``where``, unless saved parameter groups may be those of ``optimizer``: where
    their number differs, the numbers of their parameters, if they were saved, or where they have options of another
    kind of optimizer."""
    groups = optimizer.param_groups
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"[{where}] expected the state of {len(groups)} parameter groups of {type(optimizer).__name__}, got "
            f"{len(saved_groups)}; nothing has changed"
        )
    for index, (own, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        if "params" in saved and len(saved["params"]) != len(own["params"]):
            raise ValueError(
                f"[{where}] expected {len(own['params'])} parameters in group {index} of {type(optimizer).__name__}, "
                f"got {len(saved['params'])}; nothing has changed"
            )
    if type(optimizer).__module__.startswith("octavo."):
        return  # these take torch's states, too, and know which options those lack
    for own, saved in zip(groups, saved_groups, strict=True):
        missing = own.keys() - saved.keys() - {"params"}
        unknown = saved.keys() - own.keys() - {"initial_lr"}  # a schedule's
        if missing and unknown:  # another version of the same optimizer has more options, or fewer
            raise ValueError(
                f"[{where}] this is the state of another optimizer than {type(optimizer).__name__}: its options have "
                f"{', '.join(sorted(unknown))}, and no {', '.join(sorted(missing))}; nothing has changed"
            )


def require_inert(optimizer: Optimizer, options: Mapping[str, Any]) -> None:
    """Raises ValueError where an option of bitsandbytes or torch that has no counterpart here would change something
    there. None means its absence."""
    for name in _INERT.keys() & options.keys():
        if options[name] is not None and options[name] != _INERT[name]:
            library = "bitsandbytes" if name in _OF_BITSANDBYTES else "torch"
            raise ValueError(
                f"[optim.{type(optimizer).__name__}] {name}={options[name]!r} of {library} is not supported: leave it "
                f"out, or {_INERT[name]!r}"
            )


def without_inert(optimizer: Optimizer, options: dict[str, Any]) -> dict[str, Any]:
    """Returns ``options`` without those of bitsandbytes and torch that change nothing. Raises ValueError as
    ``require_inert`` does."""
    require_inert(optimizer, options)
    return {name: value for name, value in options.items() if name not in {*_INERT, *_HOW_TORCH_STEPS}}


def require_group_options(optimizer: Optimizer, state_dict: dict[str, Any], options: Set[str]) -> None:
    """Raises ValueError for a state whose parameter groups lack one of ``options``."""
    if any(options - group.keys() for group in state_dict["param_groups"]):
        name = type(optimizer).__name__
        raise ValueError(f"[optim.{name}] this is the state of another optimizer, not of {name}")


def require_parameter_states(
    optimizer: Optimizer, state_dict: dict[str, Any], names: Callable[[Set[str]], tuple[Set[str], Set[str]]]
) -> None:
    """Raises ValueError where the saved state of a parameter has other names than the optimizer's states, or a tensor
    of another shape. ``names``: a function of the names that are saved, which returns those that such a state must
    have, and those that it may have besides."""
    # not strict: torch compares the lengths
    for group, saved_group in zip(optimizer.param_groups, state_dict["param_groups"], strict=False):
        for parameter, key in zip(group["params"], saved_group["params"], strict=False):
            if saved := state_dict["state"].get(key):
                needed, allowed = names(saved.keys())
                _require_names(optimizer, saved.keys(), needed, allowed)
                _require_shapes(optimizer, saved, parameter)


def _require_names(optimizer: Optimizer, saved: Set[str], needed: Set[str], allowed: Set[str]) -> None:
    name = type(optimizer).__name__
    for verb, others in (("needs", needed - saved), ("has no", saved - needed - allowed)):
        if others:
            raise ValueError(
                f"[optim.{name}] this is the state of another optimizer, or of one with other options: a {name} {verb} "
                f"{', '.join(sorted(others))}; nothing has changed"
            )


OF_ELEMENTS = frozenset({"exp_avg", "exp_avg_sq", "preconditioner", "anchor", "update"})
"""The states with a value for each element of the parameter; others are single numbers."""


def _require_shapes(optimizer: Optimizer, saved: Mapping[str, Any], parameter: Tensor) -> None:
    for name in sorted(OF_ELEMENTS & saved.keys()):
        got = tuple(saved[name].shape) if isinstance(saved[name], Tensor) else saved[name]
        if got != tuple(parameter.shape):
            raise ValueError(
                f"[optim.{type(optimizer).__name__}] expected the saved {name} as a tensor of shape "
                f"{tuple(parameter.shape)}, got {got!r}; nothing has changed"
            )


def require_steppable(
    optimizer: Optimizer, parameter: Tensor, state: Mapping[str, Any], in_own_dtype: Set[str] = frozenset()
) -> None:
    """Raises ValueError where the step of a parameter that has a gradient could not be made. Operators make the same
    check. But an operator is called for one parameter or one group, and then other parameters may have moved already.
    ``in_own_dtype``: the states that may be in another dtype than float32."""
    _require_writable(optimizer, parameter)
    shape, device = parameter.shape, parameter.device  # read once, because every step looks at every parameter
    for name in ("gradient", *(OF_ELEMENTS & state.keys())):
        tensor = parameter.grad if name == "gradient" else state[name]
        may_be_any = name == "gradient" or name in in_own_dtype
        is_of_dtype = tensor.is_floating_point() if may_be_any else tensor.dtype is torch.float32
        if not (is_of_dtype and tensor.shape == shape and tensor.device == device and tensor.layout is torch.strided):
            raise ValueError(
                f"[optim.{type(optimizer).__name__}] expected the {name} of a parameter as strided "
                f"{'floats' if may_be_any else 'float32'} {_place_of(parameter)}, got {_described(tensor)}; no "
                f"parameter has moved"
            )


def _require_writable(optimizer: Optimizer, parameter: Tensor) -> None:
    name = type(optimizer).__name__
    if parameter.layout is not torch.strided or not parameter.is_floating_point():
        raise ValueError(
            f"[optim.{name}] expected strided parameters of a floating dtype, got {_described(parameter)}; no "
            f"parameter has moved"
        )
    strides = parameter.stride()
    if 0 in strides and any(size > 1 for stride, size in zip(strides, parameter.shape, strict=True) if stride == 0):
        raise ValueError(
            f"[optim.{name}] expected parameters with memory for each element, got strides {parameter.stride()} of "
            f"{tuple(parameter.shape)}, as expand() makes them: call contiguous(); no parameter has moved"
        )


def _described(tensor: Tensor) -> str:
    return f"{tensor.layout} {tensor.dtype} {_place_of(tensor)}"


def _place_of(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} on {tensor.device}"
