# SPDX-License-Identifier: Apache-2.0
"""Hooks that users register on parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zero_runs import engine_of, inputs_of, net, train

import octavo


def hooked(rank: int, stage: int) -> tuple[bool, float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    seen: list[bool] = []

    def freeze(gradient: Tensor) -> Tensor:
        seen.append(isinstance(gradient, Tensor) and bool(gradient.any()))
        return gradient * 0

    model[0].weight.register_hook(freeze)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = octavo.initialize(model, optimizer, {"zero_stage": stage, "compile": "aot_eager"})
    before = engine.whole(model[0].weight).clone()
    for _ in range(2):
        engine.backward(engine(torch.ones(4, 8)).square().mean())
        engine.step()
    return all(seen) and len(seen) == 2, float((engine.whole(model[0].weight) - before).abs().max())


@pytest.mark.parametrize("stage", [1, 3])
def test_hooks_see_the_gradients_of_compiled_graphs(two_ranks, stage):
    assert two_ranks.run(hooked, stage) == [(True, 0.0)] * 2


def hooked_late(rank: int, stage: int, compile: bool | str) -> tuple[list[float], list[list[float]]]:
    """Registers a hook after one step, and removes it after another. Returns the losses, and the gradients that the
    hook was given."""
    engine, seen = engine_of(net(), stage, compile=compile), []
    losses = train(engine, rank, 1)

    def double(gradient: Tensor) -> Tensor:
        seen.append(gradient.flatten().tolist())
        return 2 * gradient

    handle = engine.module[0].weight.register_hook(double)
    losses += train(engine, rank, 2)
    handle.remove()
    return losses + train(engine, rank, 2), seen


@pytest.mark.parametrize("stage", [1, 3])
def test_a_hook_that_is_registered_after_a_graph_was_compiled_sees_gradients(two_ranks, stage):
    eager = two_ranks.run(hooked_late, stage, False)
    for (losses, seen), (expected, expected_seen) in zip(
        two_ranks.run(hooked_late, stage, "aot_eager"), eager, strict=True
    ):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert len(seen) == len(expected_seen) == 2
        for one, other in zip(seen, expected_seen, strict=True):
            assert one == pytest.approx(other, rel=1e-5)


def keep_gradients(rank: int, stage: int, compile: bool | str) -> list[bool]:
    """Returns for each parameter whether a hook of before octavo.initialize still has this rank's gradient after
    backward and step."""
    alone, model, kept = net(), net(), {}
    alone(inputs_of(rank)).square().mean().backward()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: kept.__setitem__(p, p.grad))
    engine = engine_of(model, stage, compile=compile)
    train(engine, rank, 1)
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return [torch.allclose(kept[ours], expected.grad) for expected, ours in pairs]


@pytest.mark.parametrize("compile", [False, "aot_eager"], ids=["eager", "compiled"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_gradient_that_a_hook_has_kept_stays_that_of_its_rank(two_ranks, stage, compile):
    assert two_ranks.run(keep_gradients, stage, compile) == [[True] * 4] * 2
