# SPDX-License-Identifier: Apache-2.0
"""The outer loop: what its rounds compute and send."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from ddp_runs import digest
from outer_runs import Net, digest_of_shared, give_gradients, train, values_of
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


def digests_of_anchors(rank: int, plan: str, options: dict) -> tuple[str, str, dict]:
    model, outer = train(rank, 12, plan=plan, every=4, **options)
    assert all(bool(torch.isfinite(values).all()) for values in outer.state_dict()["shared"].values())
    with outer.at_anchor():
        inside = digest(model)
    return digest_of_shared(outer), inside, outer.stats()


@pytest.mark.parametrize("plan", ["sign+ef", "int4+ef", "topk:0.05+ef", "powersgd:2+ef", "threshold:2+ef", "bf16"])
def test_anchors_are_the_same_on_all_ranks(three_ranks, plan):
    results = three_ranks.run(digests_of_anchors, plan, dict(fragments=2, delay=1))
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
    "plan", ["dense", "int4+ef", "int2+ef", "sign+ef", "topk:0.05+ef", "topk:0.05+ef:0.9+hits", "int4+ef:8bit"]
)
def test_rounds_learn_whatever_the_plan(two_ranks, plan):
    assert two_ranks.run(learn, plan, {})[0] < 2  # the loss is 64 at first


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("sign+ef", dict(delay=2, fragments=2)),
        ("topk:0.05+ef", dict(delay=2, fragments=2)),
        ("sign+ef", dict(delay=2, fragments=2, mix=0.5)),
        ("topk:0.05+down:int8+ef", dict(delay=2, fragments=2, mix=0.5)),  # otherwise both ways would be owed
    ],
    ids=str,
)
def test_delayed_and_mixed_rounds_learn(two_ranks, plan, options):
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


@pytest.fixture(scope="module")
def dense_movement(three_ranks):
    return cache(lambda **options: three_ranks.run(movement, "dense", options)[0])


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
def test_what_ranks_keep_of_their_own_is_neither_lost_nor_sent_twice(three_ranks, dense_movement, plan, options):
    dense, ours = dense_movement(**options), three_ranks.run(movement, plan, options)[0]
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
        stats = ranks.run(digests_of_anchors, "dense", {})[0][2]
        assert stats["dense_bytes"] / stats["wire_bytes"] == pytest.approx(4, rel=0.02)
        assert (stats["steps"], stats["rounds"]) == (12, 3)


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
