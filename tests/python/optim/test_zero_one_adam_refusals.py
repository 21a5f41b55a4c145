# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam: what it refuses, and gradients of which it makes no step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ddp_runs import Switch, digest
from lion_runs import Given, gradients_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zero_one_runs import KINDS, build, published_of, require_close, run_step, step_published, wrap

import octavo
from octavo.optim import OneBitAdamW, ZeroOneAdam


def test_a_nan_in_one_process_is_not_a_step():
    module = Given()
    optimizer = build(module.parameters())
    for step, kind in enumerate(KINDS):
        before = digest(module)
        gradients = gradients_of(0, step)
        if step in (2, 5, 16):
            gradients[0][3, 3] = math.nan
        run_step(module, optimizer, gradients)
        assert (digest(module) == before) == (step in (2, 5, 16)), f"step {step}, {kind}"


def test_a_local_step_that_is_not_made_counts_for_nothing():
    """A sync makes the momentum from the updates and the sizes of the steps, of those alone that were made."""
    parameter = nn.Parameter(torch.ones(8))
    optimizer = build([parameter], weight_decay=0.0, var_freeze_step=2, local_step_scaler=1, local_step_clipper=4)
    kinds, momenta = [], []
    for step in range(14):
        kinds.append(optimizer.next_kind)
        parameter.grad = torch.full((8,), math.nan if step in (6, 7, 8) else 1.0)
        optimizer.step()
        if kinds[-1] == "sync":
            state = optimizer.state[parameter]
            momenta.append((state["exp_avg"] / state["preconditioner"])[0].item())
    assert kinds[6:10] == ["local", "local", "local", "sync"]
    assert state["step"] == 11 and momenta == sorted(momenta)  # of a constant gradient it grows


def poison(rank: int, at: int, bad: float) -> list[str]:
    """Makes rank 1's gradient of one step not finite. Compares every step with the published rule without what is left
    out."""
    model, handle, optimizer = wrap()
    published, digests, made_up = published_of(model.module, 2), [], False
    for step, kind in enumerate(KINDS):
        before = digest(model)
        gradients = gradients_of(rank, step)
        if step == at and rank == 1:
            gradients[0][5, 7] = bad
        made_up, now = False, "s" if made_up and kind == "l" else kind
        assert optimizer.next_kind[0] == now
        run_step(model, optimizer, gradients)
        if step != at:
            step_published(published, now, step, 2)
        elif kind == "l":
            step_published(published, kind, step, 2, without={1})
            assert (digest(model) == before) == (rank == 1)
        else:
            assert digest(model) == before
            made_up = kind == "s"
        require_close(model.module, published, rank, f"step {step}, {now}")
        is_common = now != "l" and (
            step != at or KINDS[at - 1] != "l"
        )  # a sync that failed leaves the ranks' parameters as they were
        digests.append(digest(model) if is_common else "")
    nonfinite = handle.stats()["nonfinite_steps"]
    assert nonfinite == (0 if KINDS[at] == "l" and rank == 0 else 1)
    return digests


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("at", [1, 3, 12, 13, 19, 22])
def test_a_nan_on_one_rank_costs_its_step_and_nothing_else(two_ranks, at, bad):
    first, second = two_ranks.run(poison, at, bad)
    assert first == second


def poison_under_scaler(rank: int, at: int) -> tuple[list[str], float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    model, _, optimizer = wrap("sign+ef", scaler=scaler)
    digests = []
    for step, kind in enumerate(KINDS):
        gradients = gradients_of(rank, step)
        if step == at and rank == 1:
            gradients[0][5, 7] = math.inf
        optimizer.zero_grad()
        scaler.scale(model(*gradients)).backward()
        scaler.step(optimizer)
        scaler.update()
        is_common = kind != "l" and (step != at or KINDS[at - 1] != "l")
        digests.append(digest(model) if is_common else "")
    return digests, scaler.get_scale()


@pytest.mark.parametrize("at", [3, 12, 13])
def test_a_scaler_may_skip_a_step_on_one_rank_alone(two_ranks, at):
    (first, first_scale), (second, second_scale) = two_ranks.run(poison_under_scaler, at)
    assert first == second
    assert second_scale == 512
    assert first_scale == (1024 if KINDS[at] == "l" else 512)


def find_no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("none")


def train_short_of_memory(model: nn.Module, optimizer: ZeroOneAdam, rank: int, without: str) -> list[str]:
    """Trains with a layer that has no gradient until the variance is frozen. Refuses memory once in each step and each
    synchronize(), in the method `without`, and calls again."""
    refused, digests = 0, []

    def call(what: Callable[[], object]) -> None:
        nonlocal refused
        if without:
            setattr(optimizer, without, find_no_memory)
            try:
                what()
                return
            except torch.OutOfMemoryError:
                refused += 1
            finally:
                delattr(optimizer, without)
        what()

    for step in range(len(KINDS)):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x, use_b=step >= 8).square().mean().backward()
        call(optimizer.step)
        if step in (17, 21):  # within a round
            call(optimizer.synchronize)
        digests.append(digest(model))
    assert (refused > 0) == bool(without)
    assert optimizer.param_groups[0]["steps"] == len(KINDS)
    return digests


def run_short_of_memory(rank: int, without: str) -> list[str]:
    torch.manual_seed(0)
    model, handle, optimizer = wrap("sign+ef", Switch(), {"find_unused_parameters": True})
    digests = train_short_of_memory(model, optimizer, rank, without if rank == 1 else "")
    return [*digests, str(handle.stats()["wire_bytes"])]


@pytest.mark.parametrize("without", ["_end_round", "_zeros_like", "_register", "_move_without_preconditioner"])
def test_a_rank_that_found_no_memory_makes_the_step_again(two_ranks, without):
    assert two_ranks.run(run_short_of_memory, without) == two_ranks.run(run_short_of_memory, "")


@pytest.mark.parametrize("without", ["_end_round", "_zeros_like", "_move_without_preconditioner"])
def test_a_single_process_that_found_no_memory_makes_the_step_again(without):
    digests = []
    for refused in (without, ""):
        torch.manual_seed(0)
        model = Switch()
        digests.append(train_short_of_memory(model, build(model.parameters()), 0, refused))
    assert digests[0] == digests[1]


def test_a_state_that_is_loaded_after_a_step_without_memory_has_nothing_left_of_it(monkeypatch):
    digests = []
    for is_short in (True, False):
        module = Given()
        optimizer = build(module.parameters())
        for step, kind in enumerate(KINDS):
            if is_short and kind == "s":
                saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
                with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
                    patch.setattr(optimizer, "_end_round", find_no_memory)
                    run_step(module, optimizer, gradients_of(0, step))
                module.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            run_step(module, optimizer, gradients_of(0, step))
        digests.append(digest(module))
    assert digests[0] == digests[1]


def disagree(rank: int) -> str:
    model = DistributedDataParallel(Given())
    handle = octavo.compress(model, "int4+ef", timeout_s=1.0)
    handle.set_exchange("nothing" if rank == 1 else "planned")
    try:
        model(*gradients_of(rank, 0)).backward()
        dist.barrier()
    except TimeoutError as error:
        dist.barrier()
        return str(error)
    return ""


def test_ranks_that_disagree_do_not_hang(two_ranks):
    alone, silent = two_ranks.run(disagree)
    assert "[comm.wire]" in alone and silent == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(lr=-1.0), "expected a finite lr of at least 0, got -1.0"),
        (dict(betas=(0.9, 1.0)), "expected two betas from 0 to below 1, got (0.9, 1.0)"),
        (dict(eps=-1e-8), "expected a finite eps of at least 0"),
        (dict(weight_decay=-0.1), "expected a finite weight_decay of at least 0"),
        (dict(variance_floor=-1), "expected a finite variance_floor of at least 0"),
        (dict(var_freeze_step=0), "expected var_freeze_step as a whole number of at least 1, got 0"),
        (dict(var_update_scaler=0), "expected var_update_scaler as a whole number of at least 1"),
        (dict(local_step_scaler=0.5), "expected local_step_scaler as a whole number of at least 1"),
        (dict(var_freeze_step=3.0), "expected var_freeze_step as a whole number of at least 1, got 3.0"),
        (dict(var_freeze_step=None), "expected var_freeze_step as a whole number of at least 1, got None"),
        (dict(is_paged="no"), "expected is_paged as True or False, got 'no'"),
        (dict(local_step_clipper=0), "expected local_step_clipper as a whole number of at least 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError) as caught:
        build([nn.Parameter(torch.zeros(2))], **options)
    assert f"[optim.ZeroOneAdam] {words}" in str(caught.value)


def test_groups_states_and_tensors_that_make_no_sense_are_refused():
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    groups = [{"params": [p], "local_step_clipper": n} for p, n in zip(parameters, (4, 8), strict=True)]
    with pytest.raises(ValueError, match=r"the same local_step_clipper in all parameter groups, got 4 and 8"):
        build(groups)
    with pytest.raises(ValueError, match=r"this is the state of another optimizer, not of ZeroOneAdam"):
        build(parameters).load_state_dict(OneBitAdamW(parameters, warmup_steps=1).state_dict())
    without_states = build(parameters).state_dict()
    without_states["param_groups"][0].update(steps=100, learnt=True)
    with pytest.raises(ValueError, match=r"a run of 100 steps, and has nothing of any parameter"):
        build(parameters).load_state_dict(without_states)
    with pytest.raises(TypeError, match=r"\[optim\.ZeroOneAdam\] complex parameters"):
        build([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    parameters[0].grad = torch.sparse_coo_tensor([[1]], torch.ones(1), (2,), check_invariants=True)
    with pytest.raises(RuntimeError, match=r"\[optim\.ZeroOneAdam\] sparse gradients are not supported"):
        build(parameters).step()


def refuse(rank: int) -> None:
    for plan in ("sign-vote", "dgc:0.01", "auto"):
        with pytest.raises(ValueError, match=r"\[optim\.ZeroOneAdam\] expected a plan that"):
            wrap(plan)
    different = build(Given().parameters(), local_step_clipper=4 if rank == 0 else 8)
    with pytest.raises(RuntimeError, match=r"pass it as octavo\.compress\(ddp, plan, optimizer=optimizer\)"):
        different.step()
    module = Given()
    different = build(module.parameters(), local_step_clipper=4 if rank == 0 else 8)
    with pytest.raises(ValueError, match="all ranks must have the same phase of the optimizer"):
        octavo.compress(DistributedDataParallel(module), "sign+ef", optimizer=different)

    model, handle, optimizer = wrap("sign+ef")
    with pytest.raises(ValueError, match="a plan that keeps magnitudes"):
        handle.set_plan("sign-vote")
    for step, kind in enumerate(KINDS[:13]):
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        before = digest(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if kind == "s":
            with pytest.raises(RuntimeError, match=r"\[optim\.ZeroOneAdam\] step: .*averaged their updates"):
                optimizer.step()
            assert digest(model) == before
        else:
            optimizer.step()
            assert digest(model) != before
    with pytest.raises(RuntimeError, match=r"\.grad of bias holds .* no_sync"):
        model(*gradients_of(rank, 1)).backward()


def test_what_cannot_be_done_right_is_refused(two_ranks):
    two_ranks.run(refuse)
