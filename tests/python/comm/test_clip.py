# SPDX-License-Identifier: Apache-2.0
"""What error feedback owes of gradients that were clipped, or not used at all: a burst that was held back must not come
back in later steps."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from onebit_runs import loss_of, wrap
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world

import octavo

SIDE, BURST, STEPS = 64, 2, 6
ORDINARY = 70.0  # more than the norm of an ordinary gradient
PLANS = ["int8+ef", "int4+ef", "int4+ef:8bit", "sign+ef", "topk:0.01+ef", "powersgd:2+ef", "dgc:0.05", "int4+ef21"]


def gradient(rank: int, step: int) -> Tensor:
    """Returns a gradient of the norm 64; in the step of the burst one of the norm 640,000, of another direction."""
    generator = torch.Generator().manual_seed(99 + rank if step == BURST else 5)
    return torch.randn(SIDE, SIDE, generator=generator) * (1e4 if step == BURST else 1.0)


def wrapped(plan: str, **options) -> tuple[nn.Module, octavo.Handle]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(SIDE, SIDE, bias=False))
    return model, octavo.compress(model, plan, **options)


def backward(model: nn.Module, given: Tensor) -> Tensor:
    """Makes a backward pass whose gradient is `given`, and returns that of the weight."""
    model.zero_grad()
    (model(torch.eye(SIDE)).T * given).sum().backward()
    return model.module.weight.grad


def require_ordinary(norms: list[float]) -> None:
    """The burst was there; in each step after it there is a gradient, and nothing of the burst."""
    assert norms[BURST] > 1e5, norms
    assert all(0.4 * ORDINARY < norm < 8 * ORDINARY for norm in norms[BURST + 1 :]), norms


def residuals(handle: octavo.Handle) -> dict[str, Tensor]:
    return {key: value for key, value in handle.state_dict().items() if isinstance(value, Tensor)}


def norms_after_a_clip(rank: int, plan: str) -> list[float]:
    model, handle = wrapped(plan)
    norms = []
    for step in range(STEPS):
        averaged = backward(model, gradient(rank, step))
        norms.append(averaged.norm().item())
        assert handle.clip_grad_norm_(ORDINARY).item() == pytest.approx(norms[-1])
        assert averaged.norm().item() == pytest.approx(min(norms[-1], ORDINARY), rel=1e-3)
    return norms


@pytest.mark.parametrize("plan", PLANS)
def test_a_burst_that_was_clipped_does_not_come_back(two_ranks, plan):
    require_ordinary(two_ranks.run(norms_after_a_clip, plan)[0])


def clip_every_step(rank: int, plan: str, clips: tuple[float, ...]) -> list[Tensor]:
    model, handle = wrapped(plan)
    owed = []
    for _ in range(4):
        backward(model, gradient(rank, BURST))  # always as large: no burst
        for most in clips:
            handle.clip_grad_norm_(most)
        owed.append(residuals(handle))
    return [torch.cat([value.flatten().float() for value in one.values()]) for one in owed]


@pytest.mark.parametrize("clips", [(ORDINARY,), (math.inf, ORDINARY), (ORDINARY, math.inf)])
def test_what_is_clipped_in_every_step_is_owed_as_ever(two_ranks, clips):
    """A norm that is taken for a log, too, is no clip of its own."""
    for owed in two_ranks.run(clip_every_step, "int4+ef", clips):
        assert all(one.abs().max() > 0 for one in owed)
        assert all(not torch.equal(before, after) for before, after in itertools.pairwise(owed))


def drop_the_burst(rank: int, plan: str) -> list[float]:
    model, handle = wrapped(plan)
    norms = []
    for step in range(STEPS):
        before = residuals(handle)
        norms.append(backward(model, gradient(rank, step)).norm().item())
        if step == BURST:
            handle.drop_gradients()
            after = residuals(handle)
            assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    return norms


@pytest.mark.parametrize("plan", PLANS)
def test_gradients_that_are_dropped_are_owed_no_longer(two_ranks, plan):
    require_ordinary(two_ranks.run(drop_the_burst, plan)[0])


def read_between(rank: int, plan: str, read: str) -> tuple[bool, list[str]]:
    """Returns whether a burst that was clipped, or dropped, leaves no trace where figures are read or a state is saved
    before; and the errors."""
    is_clean, said = True, []
    for give_up in ("clip", "drop"):
        model, handle = wrapped(plan)
        for step in range(2):
            backward(model, gradient(rank, step))
            handle.clip_grad_norm_(ORDINARY)
        before = residuals(handle)
        backward(model, gradient(rank, BURST))
        left = {one["name"]: one["residual_rms"] for one in getattr(handle, read)()} if read == "parameter_stats" else 0
        getattr(handle, read)()
        try:
            handle.clip_grad_norm_(ORDINARY) if give_up == "clip" else handle.drop_gradients()
        except ValueError as error:
            said.append(str(error))
            continue
        after = residuals(handle)
        is_clean &= before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
        assert read != "parameter_stats" or left["weight"] > 100 * handle.parameter_stats()[0]["residual_rms"]
    return is_clean, said


@pytest.mark.parametrize("plan", ["sign+ef", "int4+ef:8bit"])
def test_figures_may_be_read_before_a_burst_is_given_up(two_ranks, plan):
    """They are those of what the burst would leave, and do not keep it."""
    assert two_ranks.run(read_between, plan, "parameter_stats") == [(True, [])] * 2


def test_gradients_are_not_dropped_once_their_step_has_ended(two_ranks):
    for _, said in two_ranks.run(read_between, "sign+ef", "state_dict"):
        assert len(said) == 1 and said[0].startswith("[comm.drop_step] the step has ended"), said
        assert "such as state_dict()" in said[0]


def norms_after_a_clip_of_an_ended_step(rank: int) -> list[float]:
    model, handle = wrapped("sign+ef")
    norms = []
    for step in range(STEPS):
        norms.append(backward(model, gradient(rank, step)).norm().item())
        handle.state_dict()
        handle.clip_grad_norm_(ORDINARY)
    return norms


def test_a_burst_does_not_come_back_either_where_its_step_had_ended(two_ranks):
    require_ordinary(two_ranks.run(norms_after_a_clip_of_an_ended_step)[0])


def clip_what_overflows(rank: int) -> list[float]:
    model, handle = wrapped("int4+ef")
    norms = []
    for step in range(STEPS):
        backward(model, gradient(rank, step) * (1e20 if step == BURST else 1))
        handle.clip_grad_norm_(ORDINARY)
        norms.append(model.module.weight.grad.norm().item())
    return norms


def test_a_burst_whose_norm_overflows_in_float32_is_clipped_too(two_ranks):
    norms = two_ranks.run(clip_what_overflows)[0]
    assert norms[BURST] == pytest.approx(ORDINARY, rel=1e-3), norms
    assert all(0.8 * ORDINARY < norm < 1.01 * ORDINARY for norm in norms), norms


def burst_after_a_nan(rank: int) -> bool:
    """Returns whether the clip of the burst left what was owed as it was."""
    model, handle = wrapped("int4+ef")
    for bad in (1.0, 1.0, float("nan") if rank == 0 else 1.0):
        backward(model, gradient(rank, 0) * bad)
        handle.clip_grad_norm_(ORDINARY)
    before = residuals(handle)
    backward(model, gradient(rank, BURST))
    handle.clip_grad_norm_(ORDINARY)
    after = residuals(handle)
    return bool(before) and before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in after)


def test_a_burst_after_a_nan_is_rolled_back_alone(two_ranks):
    assert two_ranks.run(burst_after_a_nan) == [True, True]


def burst_after_a_resume(rank: int) -> list[float]:
    model, handle = wrapped("sign+ef")
    for _ in range(BURST):
        backward(model, gradient(rank, 0))
        handle.clip_grad_norm_(ORDINARY)
    resumed, other = wrapped("sign+ef")
    other.load_state_dict(copy.deepcopy(handle.state_dict()))
    backward(resumed, gradient(rank, BURST))
    other.clip_grad_norm_(ORDINARY)
    return [backward(resumed, gradient(rank, 0)).norm().item() for _ in range(3)]


def burst_after_a_step_without_a_clip(rank: int, resumes: bool) -> dict[str, Tensor]:
    """Two passes have been sent since the last clip. A resumed run drops what both owe, too."""
    model, handle = wrapped("int4+ef")
    backward(model, gradient(rank, 0))
    handle.clip_grad_norm_(ORDINARY)
    backward(model, gradient(rank, 0))
    if resumes:
        saved = copy.deepcopy(handle.state_dict())
        model, handle = wrapped("int4+ef")
        backward(model, gradient(rank, 0))  # which the load forgets
        handle.load_state_dict(saved)
    backward(model, gradient(rank, BURST))
    handle.clip_grad_norm_(ORDINARY)
    return residuals(handle)


def test_a_resumed_run_knows_how_many_passes_there_were_since_the_last_clip(two_ranks):
    assert two_ranks.run(burst_after_a_step_without_a_clip, False) == [{}, {}]
    assert two_ranks.run(burst_after_a_step_without_a_clip, True) == [{}, {}]


def test_what_is_usual_is_saved(two_ranks):
    norms = two_ranks.run(burst_after_a_resume)[0]
    assert all(0.4 * ORDINARY < norm < 8 * ORDINARY for norm in norms), norms


def clip_shards(rank: int) -> tuple[float, float, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(SIDE, SIDE, bias=False)
    fully_shard(model)
    handle = octavo.compress(model, "int4+ef")
    norms = []
    for step in range(STEPS):
        model.zero_grad()
        (model(torch.eye(SIDE)).T * gradient(rank, step)).sum().backward()
        norms.append(handle.clip_grad_norm_(ORDINARY))
    assert not any(isinstance(norm, DTensor) for norm in norms)
    whole = model.weight.grad.full_tensor().norm().item()
    model.zero_grad()
    (model(torch.eye(SIDE)).T * (float("nan") if rank == 0 else 1.0)).sum().backward()
    handle.drop_gradients()
    (model(torch.eye(SIDE)).T * 1.0).sum().backward()
    handle.end_step()
    assert handle.stats()["nonfinite_steps"] == 1  # on both ranks, though only one shard may have it
    return norms[-1].item(), whole, [norm.item() for norm in norms]


def test_shards_are_clipped_by_the_norm_of_the_whole(two_ranks):
    (norm, whole, norms), (of_other, _, _) = two_ranks.run(clip_shards)
    assert norm == of_other and whole == pytest.approx(min(norm, ORDINARY), rel=1e-3)
    require_ordinary(norms)


def norms_of_zero(rank: int, stage: int, drops: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(SIDE, SIDE, bias=False)
    options = {"zero_stage": stage, "plan": "int4+ef"}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.0), options)
    norms = []
    for step in range(STEPS):
        engine.backward((engine(torch.eye(SIDE)).T * gradient(rank, step)).sum())
        norms.append(engine.clip_grad_norm_(1e9 if drops else ORDINARY).item())
        if drops and step == BURST:
            engine.drop_gradients()
        engine.step()
        if step == BURST - 1:
            engine.drop_gradients()  # there are none: what was used stays owed
    return norms


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_owes_nothing_of_a_burst_that_was_clipped_or_dropped(two_ranks, stage, drops):
    require_ordinary(two_ranks.run(norms_of_zero, stage, drops)[0])


def norms_of_micro_batches(rank: int, stage: int, micro_batch: int, drops: bool) -> list[float]:
    """The burst comes in one micro-batch of a step."""
    torch.manual_seed(0)
    model = nn.Linear(SIDE, SIDE, bias=False)
    options = {"zero_stage": stage, "plan": "sign+ef", "accumulation_steps": 2}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.0), options)
    norms = []
    for step in range(STEPS):
        for turn in range(2):
            given = gradient(rank, BURST if step == BURST and turn == micro_batch else 0)
            engine.backward((engine(torch.eye(SIDE)).T * given).sum())
        norms.append(engine.clip_grad_norm_(1e9 if drops else ORDINARY).item())
        if drops and step == BURST:
            engine.drop_gradients()
        engine.step()
    return norms


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("micro_batch", [0, 1])
@pytest.mark.parametrize("stage", [1, 2])
def test_zero_owes_nothing_of_a_burst_in_one_of_several_micro_batches(two_ranks, stage, micro_batch, drops):
    require_ordinary(two_ranks.run(norms_of_micro_batches, stage, micro_batch, drops)[0])


def give_up_after_the_end(rank: int) -> tuple[str, bool]:
    """Returns the error of gradients that are dropped too late, and whether a clip of the burst leaves nothing owed."""
    model, handle = wrapped("sign+ef")
    backward(model, gradient(rank, 0))
    handle.clip_grad_norm_(ORDINARY)
    backward(model, gradient(rank, BURST))
    assert handle.end_step()
    with pytest.raises(ValueError) as error:
        handle.drop_gradients()
    handle.clip_grad_norm_(ORDINARY)
    is_forgotten = not residuals(handle)
    backward(model, torch.full((SIDE, SIDE), float("nan")))
    assert not handle.end_step()
    handle.drop_gradients()  # of a step that was rolled back already
    return str(error.value), is_forgotten


def test_an_ended_step_is_not_dropped_and_all_that_is_owed_is_where_its_burst_is_clipped(two_ranks):
    for said, is_forgotten in two_ranks.run(give_up_after_the_end):
        assert "the step has ended, and what it has left out is kept already: call this before end_step()" in said
        assert is_forgotten


def sizes_of_frozen_steps(rank: int, burst: float) -> list[float]:
    model, _, optimizer = wrap(warmup_steps=4, plan="int4+ef", weight_decay=0.0)
    weight, sizes = model.module.weight, []
    for step in range(14):
        optimizer.zero_grad()
        (loss_of(model, rank, step) * (burst if step == 8 else 1.0)).backward()
        optimizer.clip_grad_norm_(2.0)
        before = weight.detach().clone()
        optimizer.step()
        sizes.append((weight.detach() - before).norm().item())
    return sizes


def test_frozen_steps_after_a_clipped_burst_are_as_large_as_without_it(two_ranks):
    usual, after = two_ranks.run(sizes_of_frozen_steps, 1.0)[0], two_ranks.run(sizes_of_frozen_steps, 1e3)[0]
    for without, with_burst in zip(usual[9:], after[9:], strict=True):
        assert 0.5 * without < with_burst < 1.5 * without, (usual, after)


def estimates_after_local_clips(rank: int) -> dict[str, Tensor]:
    """Clips a step that sends nothing, whose norm is each rank's own, and then one that sends and is clipped less than
    that of rank 1."""
    model, handle = wrapped("int4+ef21")
    for step in (0, 1):
        backward(model, gradient(rank, step))
    handle.set_exchange("nothing")
    backward(model, gradient(rank, 0))
    handle.clip_grad_norm_(ORDINARY if rank == 0 else 0.05 * ORDINARY)
    handle.set_exchange("planned")
    averaged = backward(model, gradient(rank, 0))
    handle.clip_grad_norm_(0.2 * averaged.norm().item())
    return {key: value for key, value in residuals(handle).items() if key.startswith("shared_estimate/")}


def test_clips_of_steps_that_send_nothing_leave_ranks_alike(two_ranks):
    (first, second) = two_ranks.run(estimates_after_local_clips)
    assert first.keys() == second.keys() and len(first) == 1
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def clip_by_the_optimizer(rank: int) -> tuple[float, float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(SIDE, SIDE, bias=False))
    optimizer = octavo.optim.AdamW(model.parameters())
    handle = octavo.compress(model, "int4+ef", optimizer=optimizer)
    averaged = backward(model, gradient(rank, 0))
    norm = averaged.norm().item()
    clipped = handle.clip_grad_norm_(1.0).item()
    return abs(clipped - norm), abs(averaged.norm().item() - norm)  # it clips in its step: `.grad` stays


def refuse(rank: int, name: str, plan: str, **options: int) -> str:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(SIDE, SIDE, bias=False))
    optimizer = getattr(octavo.optim, name)(model.parameters(), lr=1e-3, **options)
    handle = octavo.compress(model, plan, optimizer=optimizer)
    with pytest.raises(ValueError) as error:
        handle.clip_grad_norm_(1.0)
    return str(error.value)


def test_an_optimizer_that_clips_itself_does_and_one_that_has_no_norm_refuses(two_ranks):
    assert max(two_ranks.run(clip_by_the_optimizer)[0]) < 1e-3
    assert "[optim.Signum] a step has the size of the learning rate" in two_ranks.run(refuse, "Signum", "sign")[0]
    zero_one = partial(refuse, var_freeze_step=8, local_step_scaler=8)
    assert "ZeroOneAdam sends updates of its own" in two_ranks.run(zero_one, "ZeroOneAdam", "sign+ef")[0]


def norms_of_two_optimizers(rank: int, name: str) -> tuple[float, float, float]:
    """Clips a model of two layers, of which `optimizer` has only the second, to 1. Returns the norm before by torch and
    by the handle, and the factor by which the norm of the first layer's gradient has changed."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Linear(SIDE, SIDE, bias=False))
    model = DistributedDataParallel(layers)
    if name == "AdamW":
        optimizer, plan = octavo.optim.AdamW(layers[1].parameters()), "dense"
    else:
        optimizer, plan = octavo.optim.OneBitAdamW(layers[1].parameters(), lr=1e-3, warmup_steps=8), "sign+ef"
    handle = octavo.compress(model, plan, optimizer=optimizer)
    model(torch.ones(4, SIDE)).square().sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    of_first = layers[0].weight.grad.norm().item()
    return norm, handle.clip_grad_norm_(1.0).item(), layers[0].weight.grad.norm().item() / of_first


def test_the_gradients_of_other_optimizers_are_clipped_too_or_the_clip_is_refused(two_ranks):
    for by_torch, by_handle, factor in two_ranks.run(norms_of_two_optimizers, "AdamW"):
        assert by_torch > 10 and by_handle == pytest.approx(by_torch)
        assert factor == pytest.approx(1 / by_torch, rel=1e-3)
    refused = (
        r"\[handle.clip_grad_norm_\] OneBitAdamW clips its own gradients, and lacks 1 parameters .* such as 0.weight"
    )
    with pytest.raises(Exception, match=refused):
        two_ranks.run(norms_of_two_optimizers, "OneBitAdamW")


def test_a_factor_outside_0_to_1_is_refused(two_ranks):
    with pytest.raises(Exception, match=r"\[comm.scale_step\] expected a factor from 0 to 1, got 2"):
        two_ranks.run(scale_by_two)


def scale_by_two(rank: int) -> None:
    _, handle = wrapped("int4+ef")
    with pytest.raises(ValueError, match=r"\[handle.scaled_by\] expected a factor from 0 to 1, got 'x'"):
        handle.scaled_by("x")
    handle.scaled_by(2.0)


def test_a_sparse_gradient_is_not_clipped():
    with solo_world():
        model = DistributedDataParallel(nn.Embedding(50, 8, sparse=True))
        handle = octavo.compress(model, "int4+ef")
        model(torch.arange(5)).sum().backward()
        with pytest.raises(RuntimeError, match=r"^\[optim.clip_gradients\] sparse gradients cannot be clipped"):
            handle.clip_grad_norm_(1.0)


def refuse_norms(rank: int) -> list[bool]:
    """Returns whether gradients stayed as they were."""
    model, handle = wrapped("int4+ef")
    model(torch.ones(4, SIDE)).square().sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    for norm, error in ((-1.0, ValueError), (float("nan"), ValueError), (None, TypeError), ("1", TypeError)):
        with pytest.raises(error, match=r"^\[handle\.clip_grad_norm_\] expected max_norm as a number"):
            handle.clip_grad_norm_(norm)
    return [torch.equal(p.grad, kept) for p, kept in zip(model.parameters(), before, strict=True)]


def test_a_norm_that_is_none_is_refused_before_anything_is_clipped(two_ranks):
    assert all(map(all, two_ranks.run(refuse_norms)))


def test_a_scaler_that_is_none_is_refused():
    with solo_world(), pytest.raises(TypeError, match=r"^\[compression\.compress\] expected a GradScaler as scaler"):
        octavo.compress(DistributedDataParallel(nn.Linear(2, 2)), scaler="x")


@pytest.mark.parametrize("given", ["x", 1, None])
def test_a_paging_that_is_none_is_refused(given):
    with (
        solo_world(),
        pytest.raises(ValueError, match=r"^\[compression\.compress\] expected is_paged as True or False"),
    ):
        octavo.compress(DistributedDataParallel(nn.Linear(2, 2)), is_paged=given)
