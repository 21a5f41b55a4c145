# SPDX-License-Identifier: Apache-2.0
"""Models inside of the wrappers of Lightning Fabric and of torch.compile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.wrappers import _FabricModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import octavo


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def by_fabric(wrapped: nn.Module, original: nn.Module) -> nn.Module:
    return _FabricModule(wrapped, SimpleNamespace(), original_module=original)


WRAPS = {
    "fabric": by_fabric,
    "compiled in fabric": lambda wrapped, original: by_fabric(compiled(wrapped), original),
    "compiled in fabric, and inside": lambda wrapped, original: by_fabric(compiled(wrapped), compiled(original)),
    "fabric in compiled": lambda wrapped, original: compiled(by_fabric(wrapped, original)),
}


def average(rank: int, how: str, is_sharded: bool) -> list[float]:
    """Returns the gradient of a model that is compressed inside of its wrappers."""
    original = nn.Linear(4, 2, bias=False)
    wrapped = fully_shard(original) if is_sharded else DistributedDataParallel(original)
    handle = octavo.compress(WRAPS[how](wrapped, original), "dense")
    wrapped(torch.full((1, 4), 1.0 + rank)).sum().backward()
    assert handle.stats()["steps"] == 1
    gradient = original.weight.grad
    return (gradient.to_local() if is_sharded else gradient).flatten().tolist()


@pytest.mark.parametrize("how", WRAPS)
@pytest.mark.parametrize("is_sharded", [False, True], ids=["ddp", "fsdp"])
def test_a_model_is_found_in_its_wrappers(two_ranks, how, is_sharded):
    assert two_ranks.run(average, how, is_sharded) == [[1.5] * (4 if is_sharded else 8)] * 2


def refuse(rank: int) -> None:
    alone = nn.Linear(4, 2)
    with pytest.raises(TypeError, match=r"got Linear: wrap it in DistributedDataParallel"):
        octavo.compress(by_fabric(alone, alone), "dense")


def test_a_wrapper_of_a_model_of_one_process_is_refused(one_rank):
    one_rank.run(refuse)
