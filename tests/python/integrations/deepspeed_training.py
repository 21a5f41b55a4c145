# SPDX-License-Identifier: Apache-2.0
"""Trains a rank's share of a batch by DeepSpeed under Octavo's accelerator, and the whole batch by torch alone, in
float32, and compares the losses.

OCTAVO_ACCELERATOR says on which device. Arguments: the stages of ZeRO, one after another. Prints "equal" at the end.
"""

import os
import sys

import deepspeed
import torch
import torch.distributed as dist

import octavo.integrations.deepspeed

DEVICE = octavo.get_accelerator().device()
STEPS = 5
BATCH = torch.linspace(-1, 1, 4 * 8).reshape(4, 8).to(DEVICE)
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def new_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)).to(DEVICE)


def losses_of_torch() -> list[float]:
    model, losses = new_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = model(BATCH).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of_deepspeed(zero_stage: int) -> list[float]:
    model, losses = new_model(), []
    config = {"train_batch_size": 4, "zero_optimization": {"stage": zero_stage}, "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(STEPS):
        loss = engine(BATCH.chunk(RANKS)[RANK]).square().mean()
        engine.backward(loss)
        engine.step()
        mean = loss.detach() / RANKS
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


handed = octavo.integrations.deepspeed.install()
assert deepspeed.accelerator.get_accelerator() is handed
# this operator would be compiled
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
theirs = losses_of_torch()
for stage in map(int, sys.argv[1:]):
    ours = losses_of_deepspeed(stage)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=0)
    assert ours[-1] < ours[0]
print("equal")
