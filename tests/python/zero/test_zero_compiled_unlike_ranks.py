# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine with compiled graphs: ranks that run different ones are told so."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from zero_runs import adamw, error_of

import octavo


class OfLists(nn.Module):
    """Is compiled anew for each length of its list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        return torch.stack([self.layer(x) for x in inputs])


def at_the_limit_alone(rank: int, stage: int) -> str:
    torch._dynamo.reset()
    model = OfLists()
    config = {"zero_stage": stage, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model, adamw(model), config)
    with torch._dynamo.config.patch(recompile_limit=2):
        for step in range(4):
            inputs = [torch.ones(4)] * (1 + step * (rank == 0))
            if said := error_of(lambda inputs=inputs: engine.backward(engine(inputs).square().mean())):
                return said
            engine.step()
    return ""


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_that_alone_is_no_longer_compiled_is_told_why_the_others_do_not_match(two_ranks, stage):
    for said in two_ranks.run(at_the_limit_alone, stage):
        assert "all ranks must make the same calls" in said and "torch._dynamo.config.recompile_limit" in said


class Branched(nn.Module):
    """Has two branches, whose parameters are of the same size or not."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, size)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.left(x) if left else self.right(x)


def in_branches_of_its_own(rank: int, stage: int, size: int) -> str:
    torch._dynamo.reset()
    config = {"zero_stage": stage, "compile": "aot_eager", "timeout_s": 20}
    engine = octavo.initialize(model := Branched(size), adamw(model), config)
    for step in range(3):
        loss = engine(torch.ones(2, 4), left=rank == 0 or step == 0).square().mean()
        if said := error_of(lambda loss=loss: engine.backward(loss)):
            return said
        engine.step()
    return ""


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("stage", [1, 2])
def test_ranks_in_different_branches_are_told_so(two_ranks, stage, size):
    for rank, said in enumerate(two_ranks.run(in_branches_of_its_own, stage, size)):
        assert "ranks take different branches of a module" in said
        assert re.search(rf"\brank {rank}\b.*\brank {1 - rank}\b", said), said
        assert re.search(
            rf"in the sum of the gradients of {('left', 'right')[rank]}.* \(graph \d+, rank {rank}\)", said
        ), said
