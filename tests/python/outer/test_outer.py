# SPDX-License-Identifier: Apache-2.0
"""The outer loop: what its rounds compute and send, and how it works with other parts of torch."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from outer_runs import Net, give_gradients, train, values_of
from torch import nn
from train_runs import solo_world

import octavo
from octavo.outer import outer_rates
from octavo.plan import as_plan

pytestmark = pytest.mark.timeout(120)


# ---- the arithmetic


def plain_diloco(rank: int, world: int, steps: int, every: int, lr: float, momentum: float) -> list[torch.Tensor]:
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.AdamW(trained, lr=0.01)
    anchor = [p.detach().clone() for p in trained]
    sgd = torch.optim.SGD(anchor, lr=lr, momentum=momentum, nesterov=momentum > 0)
    for step in range(steps):
        give_gradients(model, rank, step)
        inner.step()
        if (step + 1) % every == 0:
            differences = [(a - p.detach()) / world for a, p in zip(anchor, trained, strict=True)]
            # as one tensor, because Gloo's order of a value's summands depends on its place
            flat = torch.cat([d.as_strided((d.numel(),), (1,)) for d in differences])
            dist.all_reduce(flat)
            for a, d, mean in zip(anchor, differences, flat.split([d.numel() for d in differences]), strict=True):
                a.grad = d.as_strided((d.numel(),), (1,)).copy_(mean).as_strided(d.shape, d.stride())
            sgd.step()
            for a, p in zip(anchor, trained, strict=True):
                p.data.copy_(a)
    return values_of(model)


def differences_from_plain(rank: int, world: int, fragments: int, lr: float, momentum: float) -> list[str]:
    ours, _ = train(rank, 9, plan="dense", every=3, fragments=fragments, lr=lr, momentum=momentum)
    theirs = plain_diloco(rank, world, 9, 3, lr, momentum)
    names = [name for name, _ in ours.named_parameters()]
    return [n for n, a, b in zip(names, values_of(ours), theirs, strict=True) if not torch.equal(a, b)]


@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.6), (1.0, 0.0), (0.4, 0.9)])
def test_dense_is_plain_diloco_bit_by_bit(two_ranks, three_ranks, lr, momentum):
    assert two_ranks.run(differences_from_plain, 2, 1, lr, momentum) == [[]] * 2
    assert three_ranks.run(differences_from_plain, 3, 1, lr, momentum) == [[]] * 3


@pytest.mark.parametrize(
    ("every", "plan", "ranks", "mix", "rates"),
    [
        (1, "sign+ef", 2, 0.0, (1.4, 0.0)),
        (20, "sign+ef", 1, 0.0, (0.5**0.5, 0.3)),
        (20, "sign+ef", 2, 0.0, (1.0, 0.3)),
        (20, "sign+ef", 4, 0.0, (2**0.5, 0.3)),
        (20, "sign+ef", 64, 0.0, (2**0.5, 0.3)),
        (20, "sign+ef", 4, 0.5, (0.7, 0.3)),
        (20, "topk:0.05+ef", 2, 0.0, (1.4, 0.0)),
        (20, "topk:0.05+down:int8+ef", 2, 0.5, (0.7, 0.0)),
        (500, "dense", 4, 0.0, (0.7, 0.9)),
    ],
)
def test_rates_follow_from_the_rounds_and_ranks(every, plan, ranks, mix, rates):
    assert outer_rates(every, as_plan(plan), ranks, None, None, mix) == pytest.approx(rates)
    assert outer_rates(every, as_plan(plan), ranks, 0.4, 0.1, mix) == (0.4, 0.1)


@pytest.mark.parametrize(("ranks", "momentum"), [(1, 0.0), (2, 1 - 0.5**0.5), (4, 0.5), (64, 0.5)])
def test_a_spread_momentum_makes_moves_longer_by_the_root_of_the_ranks(ranks, momentum):
    assert outer_rates(20, as_plan("int4"), ranks, None, None, spread=True) == pytest.approx((1.0, momentum))


def differs_from_parameter_averaging(rank: int, world: int) -> float:
    ours, _ = train(rank, 4, plan="dense", every=1, lr=1.0, momentum=0.0)
    model = Net()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        give_gradients(model, rank, step)
        inner.step()
        for parameter in model.parameters():
            if parameter.requires_grad:
                dist.all_reduce(parameter.data.div_(world))
    return max(float((a - b).abs().max()) for a, b in zip(values_of(ours), values_of(model), strict=True))


def test_rounds_of_one_step_without_momentum_are_parameter_averaging(two_ranks):
    assert max(two_ranks.run(differs_from_parameter_averaging, 2)) < 1e-6


def fragment_masks(model: nn.Module, fragments: int) -> list[list[torch.Tensor]]:
    """Returns for each fragment and each trained parameter the rows that begin in that part of the model."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total, before, rows_of_all = sum(p.numel() for p in trained), 0, []
    for p in trained:
        row = p.numel() // p.shape[0] if p.ndim > 1 else p.numel()
        starts = before + row * torch.arange(p.numel() // row)
        rows_of_all.append(starts * fragments // total)
        before += p.numel()
    return [
        [(rows == f).view(-1, *[1] * (p.ndim - 1)).expand_as(p) for rows, p in zip(rows_of_all, trained, strict=True)]
        for f in range(fragments)
    ]


def plain_streaming(rank: int, world: int, steps: int, every: int, fragments: int, delay: int, mix: float):
    """Trains with Streaming DiLoCo as torchft publishes it: differences arrive `delay` steps later and are then mixed
    in."""
    model, lr, momentum = Net(), 0.7, 0.6
    trained = [p for p in model.parameters() if p.requires_grad]
    masks = fragment_masks(model, fragments)
    inner = torch.optim.AdamW(trained, lr=0.01)
    anchor = [p.detach().clone() for p in trained]
    buffers = [torch.zeros_like(p) for p in trained]
    sent: dict[int, list[torch.Tensor]] = {}
    for step in range(1, steps + 1):
        give_gradients(model, rank, step - 1)
        inner.step()
        for f in range(fragments):
            first = (f + 1) * every // fragments
            if step + delay >= first and (step + delay - first) % every == 0:
                sent[f] = [(a - p.detach()) / world for a, p in zip(anchor, trained, strict=True)]
                for difference in sent[f]:
                    dist.all_reduce(difference)
        for f in range(fragments):
            first = (f + 1) * every // fragments
            if step < first or (step - first) % every or f not in sent:
                continue
            for i, (p, mask, mean) in enumerate(zip(trained, masks[f], sent.pop(f), strict=True)):
                moved = momentum * buffers[i] + mean
                buffers[i] = torch.where(mask, moved, buffers[i])
                target = anchor[i].add(mean.add(moved, alpha=momentum), alpha=-lr)
                anchor[i] = torch.where(mask, target, anchor[i])
                p.data = torch.where(mask, target + mix * (p.data - target), p.data)
    return values_of(model)


def differences_from_streaming(rank: int, world: int, fragments: int, delay: int, mix: float) -> list[str]:
    options = dict(every=6, fragments=fragments, delay=delay, mix=mix)
    ours, _ = train(rank, 20, plan="dense", lr=0.7, momentum=0.6, **options)
    theirs = plain_streaming(rank, world, 20, **options)
    names = [name for name, _ in ours.named_parameters()]
    return [n for n, a, b in zip(names, values_of(ours), theirs, strict=True) if not torch.equal(a, b)]


@pytest.mark.parametrize(
    ("fragments", "delay", "mix"), [(1, 0, 0.0), (2, 0, 0.0), (3, 1, 0.0), (2, 2, 0.5), (2, 4, 0.25), (1, 5, 0.5)]
)
def test_fragments_delay_and_mix_are_those_of_streaming_diloco(two_ranks, fragments, delay, mix):
    assert two_ranks.run(differences_from_streaming, 2, fragments, delay, mix) == [[], []]


def steady(rank: int, delay: int, mix: float) -> tuple[float, float]:
    """Trains two fragments of one value each, which every step moves by -2."""
    model = nn.ParameterDict({"a": torch.ones(1, 1), "b": torch.ones(1, 1)})
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    options = dict(every=6, fragments=2, delay=delay, mix=mix, lr=2.0, momentum=0.0)
    outer = octavo.Outer(model, inner, "dense", **options)
    for _ in range(15):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        outer.step()
    return model["a"].item(), model["b"].item()


@pytest.mark.parametrize(
    ("delay", "mix", "ends"),
    [(0, 0.0, (-59.0, -53.0)), (0, 0.5, (-40.25, -38.0)), (1, 0.0, (-47.0, -45.0)), (1, 0.5, (-35.75, -35.0))],
)
def test_a_steady_move_ends_where_that_of_torchft_does(two_ranks, delay, mix, ends):
    """torchft's regression test of mocked updates expects these values after 15 steps (its commit 7eb7087)."""
    assert two_ranks.run(steady, delay, mix) == [ends, ends]


def alone(rank: int) -> bool:
    ours, outer = train(rank, 9, plan="sign+ef", every=3, lr=0.7, momentum=0.6)
    theirs = plain_diloco(rank, 1, 9, 3, 0.7, 0.6)
    return all(map(torch.equal, values_of(ours), theirs)) and outer.stats()["wire_bytes"] == 0


def test_one_rank_makes_outer_steps_of_its_own_and_sends_nothing():
    with solo_world():
        assert alone(0)


def anchor_after_standing_still(rank: int) -> bool:
    model = Net().bfloat16()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    outer = octavo.Outer(model, inner, plan="dense", every=1, lr=0.5, momentum=0.0)
    give_gradients(model, rank, 0)
    outer.step()
    moved = outer.state_dict()["shared"]
    inner.param_groups[0]["lr"] = 0.0
    outer.step()
    still = outer.state_dict()["shared"]
    between = any(not torch.equal(values, values.bfloat16().float()) for values in moved.values())
    return between and all(torch.equal(values, still[key]) for key, values in moved.items())


def test_rounding_a_bf16_parameter_does_not_move_the_anchor():
    with solo_world():
        assert anchor_after_standing_still(0)


# ---- several ranks


def digest_of_anchors(rank: int, plan: str, options: dict) -> tuple[list[float], float, dict]:
    model, outer = train(rank, 12, plan=plan, every=4, **options)
    anchors = [values for _, values in sorted(outer.state_dict()["shared"].items())]
    with outer.at_anchor():
        inside = values_of(model)
    exact = [float(a.double().sum()) for a in anchors] + [float(a.double().pow(2).sum()) for a in anchors]
    return exact, float(sum(v.double().sum() for v in inside)), outer.stats()


@pytest.mark.parametrize("plan", ["sign+ef", "int4+ef", "topk:0.05+ef", "powersgd:2+ef", "threshold:2+ef", "bf16"])
def test_anchors_are_the_same_on_all_ranks(three_ranks, plan):
    results = three_ranks.run(digest_of_anchors, plan, dict(fragments=2, delay=1))
    assert results[0][:2] == results[1][:2] == results[2][:2]


def learn(rank: int, plan: str, options: dict) -> float:
    """Fits one linear map on all ranks, each with data of its own. Returns the loss on new data at the anchor."""
    torch.manual_seed(5)
    truth = torch.randn(64, 64)
    model = nn.Linear(64, 64, bias=False)
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.02), plan=plan, every=5, **options)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(300):
        x = torch.randn(32, 64, generator=generator)
        nn.functional.mse_loss(model(x), x @ truth.T).backward()
        outer.step()
        outer.zero_grad()
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(99))
    with outer.at_anchor(), torch.no_grad():
        return float(nn.functional.mse_loss(model(x), x @ truth.T))


@pytest.mark.parametrize(
    "options",
    [{}, dict(delay=2, fragments=2), dict(delay=2, fragments=2, mix=0.5)],
    ids=["at once", "delayed", "mixed"],
)
@pytest.mark.parametrize(
    "plan", ["dense", "int4+ef", "int2+ef", "sign+ef", "topk:0.05+ef", "topk:0.05+ef:0.9+hits", "int4+ef:8bit"]
)
def test_rounds_learn_whatever_the_plan(two_ranks, plan, options):
    if "mix" in options:  # otherwise both ways would be owed
        plan = plan.replace("topk:0.05+", "topk:0.05+down:int8+")
    assert two_ranks.run(learn, plan, options)[0] < 2  # the loss is 64 at first


MIXED = dict(delay=1, mix=0.5)


def distance_after_long_rounds(rank: int, plan: str) -> float:
    """Returns the distance from the solution, relative to the distance at the beginning."""
    torch.manual_seed(1)
    truth = torch.randn(48, 64) / 8
    model = nn.Linear(64, 48, bias=False)
    nn.init.zeros_(model.weight)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.8), plan=plan, every=20, lr=1.0)
    generator = torch.Generator().manual_seed(rank + 7)
    for _ in range(600):
        x = torch.randn(16, 64, generator=generator)
        (3 * (model(x) - x @ truth.T).square().mean()).backward()
        outer.step()
        outer.zero_grad()
    with outer.at_anchor():
        return float((model.weight - truth).detach().norm() / truth.norm())


@pytest.mark.parametrize("plan", ["topk:0.02+ef", "topk:0.02+ef:8bit", "topk:64/4096:sign+ef"])
def test_rounds_of_few_values_come_near_to_a_solution(two_ranks, plan):
    """A rank makes its progress in a few steps of a round. While it does not know that an owner has not sent it on, it
    makes that progress again in each round, and all of it is sent in the end."""
    assert two_ranks.run(distance_after_long_rounds, plan)[0] < 0.5


def movement(rank: int, plan: str, options: dict) -> torch.Tensor:
    """Returns how far the anchor moves where every step of a rank moves its parameters in the same way."""
    torch.manual_seed(0)
    model = nn.Linear(128, 64, bias=False)
    start = model.weight.detach().clone()
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    outer = octavo.Outer(model, inner, plan, every=4, lr=1.0, momentum=0.0, **options)
    gradient = torch.randn(64, 128, generator=torch.Generator().manual_seed(rank))
    for step in range(4 * 200):
        if step == 4 * 150 + 2:  # in the middle of a round
            outer.synchronize()
        model.weight.grad = gradient
        outer.step()
    return outer.state_dict()["shared"]["anchor/weight"] - start


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("topk:0.05+ef", {}),
        ("topk:0.05+down:int8+ef", MIXED),
        ("sign+ef", {}),
        ("sign+ef", MIXED),
        ("sign+ef:8bit", MIXED),
    ],
)
def test_what_ranks_keep_of_their_own_is_neither_lost_nor_sent_twice(three_ranks, plan, options):
    dense, ours = three_ranks.run(movement, "dense", options)[0], three_ranks.run(movement, plan, options)[0]
    share = float((ours * dense).sum() / dense.square().sum())
    assert share == pytest.approx(1, abs=0.1)


def is_at_its_start(rank: int, plan: str, decay: float, dtype: torch.dtype, then: str) -> tuple[bool, bool]:
    """Whether after a round the rank's values are the anchor less what it owes, and whether it owes anything."""
    model = nn.Linear(128, 64, bias=False, dtype=dtype)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, every=2)
    for step in range(4):
        give_gradients(model, rank, step)
        outer.step()
    if then == "synchronized":
        outer.synchronize()
    state, owed = outer.state_dict(), torch.zeros(2, 64 * 128 // 2)
    owed[1 - rank] = state["own"]["fragment 0/worker/weight"].float() * decay  # the range of the other rank
    owed[rank] = state["own"]["fragment 0/own/weight"].float() * decay
    anchor = state["shared"]["anchor/weight"].view(2, -1)
    expected = (anchor if then == "synchronized" else anchor - owed).to(dtype)
    return torch.equal(model.weight.detach().view(2, -1), expected), bool(owed.any(dim=1).all())


@pytest.mark.parametrize("then", ["", "synchronized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("plan", "decay"), [("sign+ef", 1.0), ("int4+ef:0.5", 0.5), ("topk:0.1+ef", 1.0)])
def test_a_rank_begins_at_the_anchor_less_what_it_owes(two_ranks, plan, decay, dtype, then):
    assert two_ranks.run(is_at_its_start, plan, decay, dtype, then) == [(True, True)] * 2


def test_the_ratio_of_bytes_is_that_of_the_plan_times_the_steps_of_a_round(two_ranks, three_ranks, four_ranks):
    for ranks in (two_ranks, three_ranks, four_ranks):
        stats = ranks.run(digest_of_anchors, "dense", {})[0][2]
        assert stats["dense_bytes"] / stats["wire_bytes"] == pytest.approx(4, rel=0.02)
        assert (stats["steps"], stats["rounds"]) == (12, 3)


# ---- beside other parts of torch


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
        with pytest.raises((ValueError, ZeroDivisionError)):
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


def bytes_of_rounds(rank: int, plan: str, rounds: int) -> list[int]:
    model = nn.Linear(128, 128, bias=False)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plan, every=10)
    sent = [0]
    for step in range(10 * rounds):
        give_gradients(model, rank, step)
        outer.step()
        if (step + 1) % 10 == 0:
            sent.append(outer.stats()["wire_bytes"])
    return [after - before for before, after in pairwise(sent)]


def test_a_warm_up_counts_steps(two_ranks):
    warm = two_ranks.run(bytes_of_rounds, "topk:0.01+ef+warmup:30", 5)[0]
    usual = two_ranks.run(bytes_of_rounds, "topk:0.01+ef", 5)[0]
    assert warm[0] > warm[1] > warm[2] > 1.2 * usual[2]  # a stage every ten steps
    assert warm[3:] == pytest.approx(usual[3:], rel=0.2)


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
            with pytest.raises(AttributeError):
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


def closed_and_in_a_part(rank: int) -> list[float]:
    """Uses an optimizer that takes a closure, on two of three ranks."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return []
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
    return [float(values.double().sum()) for values in values_of(model)]


def test_a_closure_and_a_group_of_some_ranks(three_ranks):
    nothing, ours, theirs = three_ranks.run(closed_and_in_a_part)
    assert nothing == []
    assert ours == theirs != []


def at_the_anchor(rank: int) -> tuple[bool, bool, bool]:
    model, outer = train(rank, 5, plan="sign+ef", every=4)
    own = values_of(model)
    with outer.at_anchor():
        inside = values_of(model)
    outside = values_of(model)
    outer.synchronize()
    exact = [value.double().sum().item() for value in inside]
    gathered: list = [None, None]
    dist.all_gather_object(gathered, exact)
    after: list = [None, None]
    dist.all_gather_object(after, [value.double().sum().item() for value in values_of(model)])
    back = all(map(torch.equal, own, outside)) and not all(map(torch.equal, own, inside))
    return back, gathered[0] == gathered[1], after[0] == after[1] != gathered[0]


def test_the_anchor_is_shown_and_left_again_and_a_synchronized_model_is_the_same_everywhere(two_ranks):
    assert two_ranks.run(at_the_anchor) == [(True, True, True)] * 2


def stats_while_a_round_travels(rank: int) -> bool:
    """Rank 1 sends a second later; asking for figures must not wait for that."""
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="int4+ef", every=4, delay=3)
    if rank == 1:
        time.sleep(1.0)
    give_gradients(model, rank, 0)
    outer.step()
    begin = time.monotonic()
    before = outer.stats()["wire_bytes"]
    is_fast = rank == 1 or time.monotonic() - begin < 0.5
    outer.wait()
    return is_fast and before == outer.stats()["wire_bytes"] == 0


def test_figures_do_not_wait_for_a_round_that_travels(two_ranks):
    assert two_ranks.run(stats_while_a_round_travels) == [True, True]


def rules_by_fragment(rank: int) -> list[float]:
    _, outer = train(rank, 8, plan="sign+ef;last*=int8+ef", every=4, fragments=2)
    return [float(values.double().sum()) for _, values in sorted(outer.state_dict()["shared"].items())]


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
