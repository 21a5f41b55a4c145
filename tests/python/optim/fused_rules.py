# SPDX-License-Identifier: Apache-2.0
"""The rules of the fused optimizers once more, in plain torch: maps by their published formula, codes by the nearest
value, steps in a few lines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = {8: 256, 4: 128}


def dynamic_map(is_signed: bool, bits: int) -> Tensor:
    """Of bitsandbytes: the midpoints of boundaries that are equally spaced in each decade, 0 and 1."""
    values, exponents = [0.0, 1.0], bits - 1
    for i in range(exponents):
        count = 2**i if is_signed else 2 ** (i + 1)
        edges = torch.linspace(0.1, 1, count + 1, dtype=torch.float64)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (i - exponents + 1)
        values += middles.tolist() + ((-middles).tolist() if is_signed else [])
    return torch.tensor(sorted(values), dtype=torch.float64)


MEAN = {8: dynamic_map(True, 8), 4: dynamic_map(True, 4)}
SQUARE = {8: dynamic_map(False, 8), 4: torch.arange(1, 17, dtype=torch.float64) / 16}


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor as they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def in_blocks(values: Tensor, bits: int) -> Tensor:
    count = values.numel()
    padded = values.new_zeros(-(-count // BLOCK[bits]) * BLOCK[bits])
    padded[:count] = values
    return padded.view(-1, BLOCK[bits])


def codes_of(state: dict[str, Tensor], name: str, bits: int, count: int) -> Tensor:
    """One number for each element."""
    codes = flat(state[f"{name}_codes"]).long()
    return codes if bits == 8 else torch.stack((codes // 16, codes % 16), 1).flatten()[:count]


def decoded(state: dict[str, Tensor], name: str, bits: int, count: int) -> Tensor:
    """In float64, in the order of memory."""
    if bits == 32:
        return flat(state[name]).double()
    table = (MEAN if name == "exp_avg" else SQUARE)[bits]
    values = table[codes_of(state, name, bits, count)]
    return (in_blocks(values, bits) * state[f"{name}_scale"].double()[:, None]).flatten()[:count]


def encoded(values: Tensor, name: str, bits: int) -> tuple[Tensor, Tensor]:
    """Codes by the nearest value of the map, and scales, which have the sign of a block's extreme."""
    blocks = in_blocks(values, bits)
    extremes = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scaled = (blocks / extremes.where(extremes != 0, 1)).flatten()[: values.numel()]
    table = (MEAN if name == "exp_avg" else SQUARE)[bits]
    return (scaled[:, None] - table).abs().argmin(1), extremes.flatten()


def adam_step(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: int, options: dict[str, Any], coupled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The parameter, the mean and the square after it, in the dtype that they are given in."""
    lr, (beta1, beta2), decay = options["lr"], options["betas"], options["weight_decay"]
    if coupled:
        gradient = gradient + decay * parameter
    else:
        parameter = parameter * (1 - lr * decay)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * gradient**2
    denominator = (square / (1 - beta2**step)).sqrt() + options["eps"]
    return parameter - lr / (1 - beta1**step) * mean / denominator, mean, square


def lion_step(
    parameter: Tensor, gradient: Tensor, mean: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """The parameter and the momentum after it, and the update whose sign is the step."""
    lr, (beta1, beta2) = options["lr"], options["betas"]
    update = beta1 * mean + (1 - beta1) * gradient
    moved = parameter * (1 - lr * options["weight_decay"]) - lr * update.sign()
    return moved, beta2 * mean + (1 - beta2) * gradient, update
