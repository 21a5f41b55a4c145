# SPDX-License-Identifier: Apache-2.0
"""What plans know of a model's parameters: their names, their sizes, and which of them are exempt."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from octavo import _C
from octavo._C import Plan

Exempt = Callable[[str, nn.Parameter], bool] | Iterable[str] | None
#: Name, number of real numbers, whether it is exempt, number of rows.
Row = tuple[str, int, bool, int]

#: In elements. For smaller parameters scales and latency cost more than compression saves.
SMALLEST_COMPRESSED = 2048


def is_exempt_by_default(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is sent in float32 by default: norms and biases (at most one dimension), and tiny parameters.

    They are well under 1 % of a model; exempting them removes most of the relative error of a compressed gradient.
    """
    return parameter.ndim <= 1 or parameter.numel() < SMALLEST_COMPRESSED


def exempt_by_name(exempt: Exempt, parameters: Mapping[str, nn.Parameter], where: str) -> dict[str, bool]:
    """Returns for each parameter whether it is sent in float32. Raises TypeError for an ``exempt`` of another type,
    ValueError for a pattern that matches no parameter."""
    if exempt is None:
        is_exempt = is_exempt_by_default
    elif callable(exempt):
        is_exempt = exempt
    else:
        is_exempt = _matcher(exempt, parameters, where)
    return {name: bool(is_exempt(name, parameter)) for name, parameter in parameters.items()}


def _matcher(
    exempt: Iterable[str], parameters: Mapping[str, nn.Parameter], where: str
) -> Callable[[str, nn.Parameter], bool]:
    are_many = isinstance(exempt, Iterable) and not isinstance(exempt, str)
    patterns = list(exempt) if are_many else [exempt]
    if others := [pattern for pattern in patterns if not isinstance(pattern, str)]:
        raise TypeError(
            f"[{where}] expected exempt as patterns of parameters' names or as a function of name and parameter, got "
            f"{others[0]!r}"
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ValueError(
                f"[{where}] the exempt pattern '{pattern}' matches none of the {len(parameters)} parameters; "
                f"their names are such as '{next(iter(parameters), '')}'"
            )
    return lambda name, parameter: parameter.numel() == 0 or any(fnmatchcase(name, p) for p in patterns)


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers that ``model.state_dict()`` has, by plain name. Others are what a module can compute again,
    and may have any shape."""
    saved = model.state_dict(keep_vars=True)
    return {plain_name(name): buffer for name, buffer in model.named_buffers() if name in saved}


def not_trained(model: nn.Module) -> dict[str, list[tuple[str, torch.Size, torch.dtype]]]:
    """Returns the names, shapes and dtypes of frozen parameters and buffers. All ranks must have the same, because rank
    0's values are copied to the others."""
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    return {
        what: [(plain_name(name), tensor.shape, tensor.dtype) for name, tensor in tensors]
        for what, tensors in (("frozen parameters", frozen), ("buffers", model.named_buffers()))
    }


def plain_name(name: str) -> str:
    """Returns the name that a parameter has in the module itself, where ``name`` is that in a module wrapped by
    torch.compile."""
    return name.replace("_orig_mod.", "")


def require_kernels(parameters: Iterable[Tensor]) -> None:
    """Raises NotImplementedError where a parameter's device has no kernels. Every plan needs them, dense too, which
    measures the powers of gradients."""
    for parameter in parameters:
        _C.require_kernels(parameter)


def table_of(sent: Mapping[str, Tensor], exempt_of: Mapping[str, bool], plan: Plan) -> list[Row]:
    """Returns what a compressor knows of the parameters, or of a rank's shards, that are ``sent``. Raises ValueError
    where a rule of the plan fits none that is not exempt."""
    plan.require_rules_fit([name for name in sent if not exempt_of[name]])
    return [(name, real_numbers(p), exempt_of[name], rows_of(p)) for name, p in sent.items()]


def real_numbers(parameter: Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def rows_of(parameter: Tensor) -> int:
    """Returns the number of rows of a parameter as a matrix of its first dimension by all others; 1 where it has at
    most one dimension or no elements."""
    return _C.rows_of(parameter.shape)


def dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """Returns the strides of what is kept for a parameter, element by element: its own where it is dense; otherwise
    those of rows, as DDP's buckets and the kernels have it."""
    own = torch.empty_like(parameter, device="meta").stride()
    return own if own == parameter.stride() else torch.empty(parameter.shape, device="meta").stride()


def require_memory_orders(parameters: Mapping[str, Tensor], saved: Mapping[str, object], where: str) -> None:
    """Raises ValueError where the elements of a parameter lie in memory in another order than that of ``saved``, what
    ``memory_orders`` returned where a state was saved."""
    here = memory_orders(parameters)
    if moved := sorted(name for name in here.keys() | saved.keys() if here.get(name) != saved.get(name)):
        raise ValueError(
            f"[{where}] the elements of {moved[0]} have another order in memory than when the state was saved, and "
            f"residuals have that order: give the model its earlier memory format before you wrap it, or start with "
            f"an empty state"
        )


def memory_orders(parameters: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Returns the strides, by name, of the parameters whose elements do not lie row by row, such as channels_last
    ones."""
    return {
        name: [stride for stride, size in zip(p.stride(), p.shape, strict=True) if size > 1]
        for name, p in parameters.items()
        if not p.is_contiguous()
    }
