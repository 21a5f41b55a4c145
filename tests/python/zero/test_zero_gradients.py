# SPDX-License-Identifier: Apache-2.0
"""Which gradients an engine takes, and what users do with them: they differentiate between passes, drop micro-batches
and clip."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from torch import nn
from zero_runs import engine_of, error_of, inputs_of, net, of_plain, train

import octavo
from octavo.optim import AdamW8bit

# ---- gradients that are none of a step


def with_adversaries(rank: int, stage: int, compiled: bool, accumulation: int) -> list[float]:
    """Moves inputs along the gradient that a loss has for them (FGSM); the graph of that loss has parameters, too."""
    config = {"compile": "aot_eager"} if compiled else {}
    engine, losses = engine_of(net(), stage, accumulation_steps=accumulation, **config), []
    for _ in range(2 * accumulation):
        x = inputs_of(rank).requires_grad_()
        (towards,) = torch.autograd.grad(100 * engine(x).square().mean(), x)
        loss = engine(inputs_of(rank) + 0.01 * towards.sign()).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_differentiated_between_passes_is_no_gradient_of_a_step(two_ranks, stage, accumulation):
    by_graphs = two_ranks.run(with_adversaries, stage, True, accumulation)
    for one, other in zip(by_graphs, two_ranks.run(with_adversaries, stage, False, accumulation), strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def after_other_passes(rank: int, stage: int, compiled: bool) -> tuple[list[str], list[float]]:
    """Makes a pass before octavo.initialize, one that is refused, and losses that have no gradient, then trains."""
    model = net()
    model(inputs_of(rank)).square().mean().backward()
    engine = engine_of(model, stage, **({"compile": "aot_eager"} if compiled else {}))
    said = [
        error_of(lambda: engine(inputs_of(rank)).square().mean().backward()),
        error_of(lambda: engine.backward(torch.tensor(1.0))),
        error_of(lambda: engine.backward(engine(inputs_of(rank)))),
    ]
    return said, train(engine, rank)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("stage", [1, 3])
def test_a_pass_that_is_none_of_the_engine_leaves_nothing_behind(two_ranks, stage, compiled):
    for (said, losses), plain in zip(
        two_ranks.run(after_other_passes, stage, compiled), two_ranks.run(of_plain), strict=True
    ):
        assert "a backward pass has reached " in said[0] and "instead of loss.backward()" in said[0]
        assert all(text.startswith("ValueError: [zero.backward] expected a loss of one element") for text in said[1:])
        assert losses == pytest.approx(plain, rel=1e-6)


def with_another_engine(rank: int) -> list[str]:
    generator, judge = engine_of(net(), 1), engine_of(net(), 1)

    def train_generator() -> float:
        loss = judge(generator(inputs_of(rank))).mean()
        generator.backward(loss)
        generator.step()
        return loss.item()

    judge.module.requires_grad_(False)
    losses = [train_generator() for _ in range(2)]
    judge.module.requires_grad_(True)
    judged = train(judge, rank, 2)
    return [error_of(train_generator), str(losses[1] < losses[0]), str(judged[1] < judged[0])]


def test_a_loss_that_goes_through_the_model_of_another_engine(two_ranks):
    for said, *learns in two_ranks.run(with_another_engine):
        assert "the parameter's engine has not started it" in said and "requires_grad_(False) on this model" in said
        assert learns == ["True"] * 2


def with_two_engines(rank: int, stage: int) -> list[str]:
    model = net()
    engine = engine_of(model, stage)
    wider = nn.Sequential(model, nn.Linear(3, 3))
    said = [error_of(lambda module=module: engine_of(module, stage)) for module in (model, wider)]
    losses = train(engine, rank, 2)
    del engine
    if stage < 3:  # in stage 3 the parameters went with their engine
        losses += train(engine_of(model, stage), rank, 1)
    return [*said, str(sorted(losses, reverse=True) == losses)]


@pytest.mark.parametrize("stage", [1, 3])
def test_a_model_has_one_engine_at_a_time(two_ranks, stage):
    for of_model, of_wider, learns in two_ranks.run(with_two_engines, stage):
        for said, prefix in ((of_model, ""), (of_wider, "0.")):
            assert f"[zero.initialize] {prefix}0.weight is trained by an engine of octavo.initialize already" in said
        assert learns == "True"


# ---- what becomes of gradients before a step


def dropped(rank: int, stage: int, how: str) -> list[float]:
    engine = engine_of(net(), stage, accumulation_steps=2)

    def add(factor: float = 1.0) -> float:
        loss = engine(inputs_of(rank)).square().mean()
        engine.backward(loss * factor)
        return loss.item()

    if how == "first":
        add(float("nan"))
        engine.handle.drop_gradients()
    elif how == "saved":
        add(3.0)
        engine.handle.state_dict()
        engine.drop_gradients()
    elif how == "both":
        add()
        add(float("nan"))
        assert not engine.has_finite_gradients()
        engine.drop_gradients()
    losses = []
    for _ in range(3):
        losses += [add(), add()]
        engine.step()
    return losses


@pytest.mark.parametrize("how", ["first", "both", "saved"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_dropped_micro_batches_count_no_longer(two_ranks, stage, how):
    assert two_ranks.run(dropped, stage, how) == two_ranks.run(dropped, stage, "none")


def clipped(rank: int, stage: int, by: str) -> tuple[list[float], list[float], str]:
    in_config = by == "config"
    engine = engine_of(net(), stage, **({"clip_norm": 0.1} if in_config else {}))
    clip = engine.handle.clip_grad_norm_ if by == "handle" else engine.clip_grad_norm_
    losses, norms = [], []
    for _ in range(3):
        loss = engine(inputs_of(rank)).square().mean()
        engine.backward(loss)
        norm = None if in_config else clip(0.1)
        norms.append((engine.step() if in_config else norm).item())
        engine.step()
        losses.append(loss.item())
    return losses, norms, error_of(lambda: clip(0.1))


@pytest.mark.parametrize("stage", [1, 3])
def test_gradients_are_clipped_by_the_engine(two_ranks, stage):
    by_engine, by_config, by_handle = (two_ranks.run(clipped, stage, by) for by in ("engine", "config", "handle"))
    assert by_engine == by_config == by_handle
    for _, norms, error in by_engine:
        assert norms[0] > 0.1 and "[zero.clip_grad_norm_] call it between" in error


def clip_times(rank: int, factor: float) -> tuple[float, float, list[list[float]], list[list[float]]]:
    """Returns the norm before a clip, its sum of squares on this rank after it, and the gradients before and after."""
    engine = engine_of(net(), 1)
    engine.backward(engine(inputs_of(rank)).mean() * factor)
    gradients = [part.gradient.to_local() for part in engine.parts.values()]
    if factor == math.inf:
        gradients = [gradient.nan_to_num_(nan=math.inf) for gradient in gradients]
    before = [gradient.tolist() for gradient in gradients]
    norm = engine.clip_grad_norm_(1.0).item()
    return norm, sum(float(g.square().sum()) for g in gradients), before, [g.tolist() for g in gradients]


def test_a_norm_that_overflows_in_float32_clips_as_any_other(two_ranks):
    ordinary = two_ranks.run(clip_times, 1.0)
    huge = two_ranks.run(clip_times, 1e24)
    assert huge[0][0] == pytest.approx(1e24 * ordinary[0][0], rel=1e-5)
    assert sum(squares for _, squares, *_ in huge) == pytest.approx(1.0, rel=1e-5)


def test_gradients_with_an_infinity_stay_as_they_are(two_ranks):
    for norm, _, before, after in two_ranks.run(clip_times, math.inf):
        assert norm == math.inf and before == after


def differentiate_an_old_graph(rank: int, stage: int) -> str:
    engine = engine_of(net(), stage)
    first, second = (engine(inputs_of(rank)).square().mean() for _ in range(2))
    engine.backward(first)
    engine.step()
    return error_of(lambda: engine.backward(second))


@pytest.mark.parametrize("stage", [1, 3])
def test_the_graph_of_parameters_of_before_a_step_is_refused(two_ranks, stage):
    """torch does the same: gradients would mix old activations with new parameters."""
    for said in two_ranks.run(differentiate_an_old_graph, stage):
        assert "modified by an inplace operation" in said


def asked_without_gradients(rank: int) -> list[str]:
    engine = engine_of(net(), 1, accumulation_steps=2)
    said = []
    for _ in range(2):
        said.append(error_of(engine.has_finite_gradients))
        engine.backward(engine(inputs_of(rank)).mean())
    engine.has_finite_gradients()
    engine.step()
    return [*said, error_of(engine.has_finite_gradients)]


def test_gradients_that_are_not_there_are_not_finite_either(two_ranks):
    for said in two_ranks.run(asked_without_gradients):
        assert all("[zero.has_finite_gradients] call it between the last backward()" in one for one in said)


def without_gradients_around(rank: int, stage: int, mode: type) -> list[float]:
    engine, losses = engine_of(net(), stage), []
    for _ in range(4):
        loss = engine(inputs_of(rank)).square().mean()
        with mode():
            engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("stage", [1, 3])
def test_backward_may_be_called_where_no_gradients_are_computed(two_ranks, stage, mode):
    """As torch's loss.backward()."""
    assert two_ranks.run(without_gradients_around, stage, mode) == two_ranks.run(of_plain)


class Wrapper(AdamW8bit):
    """Inherits the class of what it wraps, as Lightning's do."""

    def __init__(self, optimizer: AdamW8bit) -> None:
        self.__dict__ = {**optimizer.__dict__, "optimizer": optimizer}


def clip_by_the_optimizer(rank: int, stage: int, wrapped: str) -> tuple[list[str], list[float], float]:
    """Returns the errors of the optimizer's own clip, the losses, and the norm that it finds without the engine."""
    model = net()
    optimizer = AdamW8bit(model.parameters(), lr=0.01)
    wrapper = Wrapper(optimizer) if wrapped else optimizer
    engine = octavo.initialize(model, wrapper if wrapped == "given" else optimizer, {"zero_stage": stage})
    said, losses = [], []
    for _ in range(3):
        loss = engine(inputs_of(rank)).square().mean()
        engine.backward(loss)
        said.append(error_of(lambda: wrapper.clip_grad_norm_(0.1)))
        engine.step()
        losses.append(loss.item())
    del engine
    gc.collect()
    parameter = optimizer.param_groups[0]["params"][0]
    assert wrapper.clip_grad_norm_(1.0) == 0.0
    parameter.grad = torch.ones_like(parameter)
    return said, losses, wrapper.clip_grad_norm_(1.0).item()


@pytest.mark.parametrize("wrapped", ["", "outside", "given"])
@pytest.mark.parametrize("stage", [1, 3])
def test_an_optimizers_own_clip_names_that_of_the_engine(two_ranks, stage, wrapped):
    for said, losses, norm in two_ranks.run(clip_by_the_optimizer, stage, wrapped):
        for text in said:
            assert text.startswith("RuntimeError: [optim.") and "call engine.clip_grad_norm_ in the place" in text
        assert losses == sorted(losses, reverse=True) and norm == pytest.approx(4.0)


def clip_in_the_step(rank: int) -> list[float]:
    """Clips in a hook of the optimizer's step, where parts have gradients."""
    model = net()
    optimizer = AdamW8bit(model.parameters(), lr=0.1, eps=1.0)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(optimizer.clip_grad_norm_(0.1).item()))
    train(octavo.initialize(model, optimizer, {"zero_stage": 2}), rank, 2)
    return norms


def test_an_optimizers_own_clip_works_where_it_has_gradients(two_ranks):
    for norms in two_ranks.run(clip_in_the_step):
        assert len(norms) == 2 and all(norm > 0.1 for norm in norms)
