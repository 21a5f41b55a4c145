# SPDX-License-Identifier: Apache-2.0
"""The outer loop as an optimizer: with scalers, schedules, hooks, closures, groups of ranks and models of all kinds."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ddp_runs import digest, digest_of
from outer_runs import Net, digest_of_shared, give_gradients, train, values_of
from torch import nn
from train_runs import solo_world
from turns import tell, wait_until

import octavo

pytestmark = pytest.mark.timeout(120)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("inner_steps", [False, True], ids=["outer", "inner"])
@pytest.mark.parametrize("clips", [False, True], ids=["", "clipped"])
def test_a_scaler_and_a_schedule_take_it_as_any_optimizer(inner_steps, clips):
    """With `inner_steps`, the scaler steps the inner optimizer, and the step is counted separately."""
    with solo_world():
        model = Net()
        start = model.first.weight.detach().clone()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=2, lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(outer, step_size=1, gamma=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        stepped = outer.inner if inner_steps else outer
        for _ in range(2):
            scaler.scale(model.first(torch.ones(1, 48)).sum()).backward()
            if clips:
                scaler.unscale_(stepped)
                assert torch.equal(model.first.weight.grad, torch.ones_like(start))
            scaler.step(stepped)
            if inner_steps:
                outer.count_step()
            scaler.update()
            outer.zero_grad()
            schedule.step()
        assert outer.param_groups is outer.inner.param_groups
        assert outer.param_groups[0]["lr"] == 0.025
        assert outer.stats()["rounds"] == 1
        # the first step of Nesterov's momentum
        assert torch.allclose(start - model.first.weight, torch.full_like(start, 1.3 * 0.15))


def test_a_step_that_a_scaler_leaves_out_counts():
    with solo_world():
        model = Net()
        before = values_of(model)
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(model.first(torch.ones(1, 48)).sum() * float("inf")).backward()
        scaler.step(outer)
        scaler.update()
        assert scaler.get_scale() == 2.0
        assert (outer.stats()["steps"], outer.stats()["rounds"], outer.stats()["skipped_rounds"]) == (1, 1, 0)
        assert all(map(torch.equal, values_of(model), before))


@pytest.mark.parametrize("fails", ["before", "inside"])
def test_a_step_that_fails_under_a_scaler_leaves_no_scale(fails):
    with solo_world():
        model = nn.Linear(4, 4)
        model.later = nn.Parameter(torch.zeros(3), requires_grad=False)
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan="dense", every=5)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        if fails == "before":
            model.later.requires_grad_(True)
            model.later.grad = torch.ones(3)
        else:
            handle = outer.register_step_pre_hook(lambda *_: 1 / 0)
        words = (
            r"the inner optimizer has a \(3,\) parameter with a gradient" if fails == "before" else "division by zero"
        )
        with pytest.raises((ValueError, ZeroDivisionError), match=words):
            scaler.step(outer)
        assert torch.equal(model.bias.grad, torch.full((4,), 1024.0))
        if fails == "before":
            model.later.requires_grad_(False)
            model.later.grad = None
        else:
            handle.remove()
        model.bias.grad.fill_(1.0)
        before = model.bias.detach().clone()
        outer.step()  # without the scaler
        assert torch.allclose(before - model.bias, torch.ones(4))


def test_hooks_are_around_the_inner_step():
    with solo_world():
        model, outer = train(0, 0, plan="dense", every=2)
        called = []
        outer.register_step_pre_hook(lambda *_: called.append("before"))
        outer.register_step_post_hook(lambda *_: called.append("after"))
        give_gradients(model, 0, 0)
        outer.step()
        assert called == ["before", "after"]


def test_what_it_was_made_with_can_be_read_and_not_changed():
    with solo_world():
        _, outer = train(0, 0, plan="dense", every=4, delay=1, fragments=2)
        assert (outer.every, outer.delay, outer.fragments, outer.lr, outer.momentum) == (4, 1, 2, 0.5**0.5, 0.3)
        assert str(outer.plan) == "dense"
        for name in ("plan", "every", "delay", "fragments", "lr", "momentum", "spread"):
            with pytest.raises(AttributeError, match=f"'{name}'"):
                setattr(outer, name, 1)


def test_a_parameter_without_elements_is_at_the_anchor_too():
    with solo_world():
        model = nn.Linear(4, 4)
        model.empty = nn.Parameter(torch.zeros(0, 3))
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=1)
        with outer.at_anchor():
            assert model.empty.shape == (0, 3)


def test_rules_name_the_parameters_of_a_compiled_model():
    with solo_world():
        compiled = torch.compile(Net(), backend="eager")
        _, outer = train(0, 1, compiled, plan="int4+ef;last*=int8", every=1)
        assert "anchor/last.weight" in outer.state_dict()["shared"]


def closed_and_in_a_part(rank: int) -> str:
    """Uses an optimizer that takes a closure, on two of three ranks."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return ""
    model = nn.Linear(8, 8)
    outer = octavo.Outer(model, torch.optim.LBFGS(model.parameters(), lr=0.1), plan="int4+ef", every=2, group=group)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(rank))

    def closure() -> torch.Tensor:
        outer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    losses = [float(outer.step(closure)) for _ in range(6)]
    assert losses[-1] < losses[0]
    outer.synchronize()
    return digest(model)


def test_a_closure_and_a_group_of_some_ranks(three_ranks):
    nothing, ours, theirs = three_ranks.run(closed_and_in_a_part)
    assert nothing == ""
    assert ours == theirs != ""


def at_the_anchor(rank: int) -> tuple[bool, bool, bool]:
    model, outer = train(rank, 5, plan="sign+ef", every=4)
    own = values_of(model)
    with outer.at_anchor():
        inside = values_of(model)
    outside = values_of(model)
    outer.synchronize()
    gathered: list = [None, None]
    dist.all_gather_object(gathered, digest_of(inside))
    after: list = [None, None]
    dist.all_gather_object(after, digest(model))
    back = all(map(torch.equal, own, outside)) and not all(map(torch.equal, own, inside))
    return back, gathered[0] == gathered[1], after[0] == after[1] != gathered[0]


def test_the_anchor_is_shown_and_left_again_and_a_synchronized_model_is_the_same_everywhere(two_ranks):
    assert two_ranks.run(at_the_anchor) == [(True, True, True)] * 2


def stats_while_a_round_travels(rank: int) -> bool:
    """Rank 1 sends when rank 0 has asked for figures, which must not wait for that."""
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="int4+ef", every=4, delay=3)
    if rank == 1:
        wait_until("rank 0 has asked")
    give_gradients(model, rank, 0)
    outer.step()
    before = outer.stats()["wire_bytes"]
    tell("rank 0 has asked")
    outer.wait()
    return before == outer.stats()["wire_bytes"] == 0


def test_figures_do_not_wait_for_a_round_that_travels(two_ranks):
    assert two_ranks.run(stats_while_a_round_travels) == [True, True]


def rules_by_fragment(rank: int) -> str:
    _, outer = train(rank, 8, plan="sign+ef;last*=int8+ef", every=4, fragments=2)
    return digest_of_shared(outer)


def test_a_rule_may_fit_parameters_of_one_fragment_alone(two_ranks):
    ours, theirs = two_ranks.run(rules_by_fragment)
    assert ours == theirs


def moved_model(rank: int) -> bool:
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=1)
    model.double().float()  # moves the parameters to other memory
    before = {key: values.clone() for key, values in outer.state_dict()["shared"].items()}
    give_gradients(model, rank, 0)
    outer.step()
    return any(not torch.equal(before[key], values) for key, values in outer.state_dict()["shared"].items())


def test_parameters_in_other_memory_are_still_exchanged(two_ranks):
    assert two_ranks.run(moved_model) == [True, True]


def averaged(rank: int, average: str) -> list[float]:
    """Each rank moves values of its own, and one that both move."""
    model = nn.ParameterDict({"a": torch.zeros(1, 8192)})
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    options = dict(every=1, lr=1.0, momentum=0.0, average=average, exempt=lambda name, parameter: False)
    outer = octavo.Outer(model, inner, "topk:8/4096+ef", **options)
    gradient = torch.zeros(1, 8192)
    gradient[0, [rank, 5000]] = -4.0
    model["a"].grad = gradient
    outer.step()
    with outer.at_anchor():
        return model["a"].detach()[0, [0, 1, 5000]].tolist()


def test_an_average_over_hits_counts_the_ranks_that_moved_a_value(two_ranks):
    for found in two_ranks.run(averaged, "ranks"):
        assert found == pytest.approx([2.0, 2.0, 4.0], rel=0.01)
    for found in two_ranks.run(averaged, "hits"):
        assert found == pytest.approx([4.0, 4.0, 4.0], rel=0.01)
