# SPDX-License-Identifier: Apache-2.0
"""One case of `octavo bench memory`: `python -m octavo.bench.memory_case OPTIONS REPORT`, JSON and a file for JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

import octavo
from octavo.bench.memory import RELEASED, TORCH, Row
from octavo.train import devices
from octavo.train.model import model_config
from octavo.train.report import memory

VOCABULARY = 2048
"""The vocabulary of models whose name does not decide it."""
ROWS, TOKENS = 2, 128
LR = 2e-4
MIB = 2**20


def run(case: str, model: str, device: str, limit_mib: float | None, steps: int, recompute: bool) -> Row:
    """Trains in this process, which must be fresh, and returns the figures without the saving against others."""
    where = devices.choose(device)
    if limit_mib is not None:
        torch.get_device_module(where).set_memory_limit(int(limit_mib * MIB))
    memory.reset_peak()
    devices.reset_peak(where)
    count = _parameters(model)
    try:
        loss = _train(case, _model(model, where, recompute), where, steps)
    except torch.OutOfMemoryError:
        return Row(case, where.type, count, "no", None, None, None, None)
    peak = None if where.type == "cpu" else devices.peak_bytes(where) / MIB
    managed, process = memory.peak_managed_bytes() / MIB, memory.peak_host_bytes() / MIB
    return Row(case, where.type, count, "yes", peak, managed, process, loss)


def _parameters(model: str) -> int:
    with torch.device("meta"):
        return LlamaForCausalLM(model_config(model, VOCABULARY, TOKENS)).num_parameters()


def _train(case: str, net: LlamaForCausalLM, device: torch.device, steps: int) -> float:
    """Trains and returns the loss of the last step."""
    optimizer = _optimizer(case, net)
    if case.endswith(RELEASED):
        optimizer.step_in_backward()
    loss, drawn = torch.zeros(()), torch.Generator().manual_seed(0)  # the same tokens on all devices
    for _ in range(steps):
        tokens = torch.randint(net.config.vocab_size, (ROWS, TOKENS), generator=drawn).to(device)
        loss = net(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _model(name: str, device: torch.device, recompute: bool) -> LlamaForCausalLM:
    """Makes the model on the device in bfloat16. Elsewhere, or in float32 first, it would make peaks that training does
    not have."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            net = LlamaForCausalLM(model_config(name, VOCABULARY, TOKENS))
    finally:
        torch.set_default_dtype(before)
    if recompute:
        net.gradient_checkpointing_enable()
    return net


def _optimizer(case: str, net: LlamaForCausalLM) -> Optimizer:
    if case == TORCH:
        # foreach, the default on devices, would also take copies of all states
        return torch.optim.AdamW(net.parameters(), lr=LR, foreach=False)
    return getattr(octavo.optim, case.removesuffix(RELEASED))(net.parameters(), lr=LR)


def main(options: str, report: str) -> None:
    Path(report).write_text(json.dumps(asdict(run(**json.loads(options)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
