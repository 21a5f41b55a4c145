# SPDX-License-Identifier: Apache-2.0
"""The outer loop: what its rounds compute, what they send, and what they survive."""

from __future__ import annotations

import copy
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from train_runs import solo_world

import octavo

pytestmark = pytest.mark.timeout(120)


class Net(nn.Module):
    """Of several sizes and memory orders; `scale` makes ranks begin differently, which Outer must undo."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(48, 96)
        self.conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
        self.last = nn.Linear(96, 50)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("count", torch.ones(2) * scale)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(scale)


def give_gradients(model: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def values_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(rank: int, steps: int, model: nn.Module | None = None, **options) -> tuple[nn.Module, octavo.Outer]:
    model = Net(1.0 + rank) if model is None else model
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.01), timeout_s=30, **options)
    for step in range(steps):
        give_gradients(model, rank, step)
        outer.step()
    return model, outer


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
            for a, p in zip(anchor, trained, strict=True):
                a.grad = (a - p.detach()) / world
                dist.all_reduce(a.grad)
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
def test_dense_is_plain_diloco_bit_by_bit(two_ranks, lr, momentum):
    assert two_ranks.run(differences_from_plain, 2, 1, lr, momentum) == [[], []]


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
    """By fragment, of each trained parameter, the rows that are in it: those that begin in that part of the model."""
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
    """Streaming DiLoCo as torchft publishes it: sent `delay` steps before it arrives, then mixed in."""
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
    """Ranks fit one linear map, each with data of its own; returns the loss on new data at the anchor."""
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
    assert two_ranks.run(learn, plan, options)[0] < 2  # of 64 at first


def movement(rank: int, plan: str, options: dict) -> torch.Tensor:
    """Of the anchor, where every step of a rank moves its parameters alike."""
    torch.manual_seed(0)
    model = nn.Linear(128, 64, bias=False)
    start = model.weight.detach().clone()
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    outer = octavo.Outer(model, inner, plan, every=4, lr=1.0, momentum=0.0, **options)
    gradient = torch.randn(64, 128, generator=torch.Generator().manual_seed(rank))
    for step in range(4 * 200):
        if step == 4 * 150 + 2:  # inside of a round
            outer.synchronize()
        model.weight.grad = gradient
        outer.step()
    return outer.state_dict()["shared"]["anchor/weight"] - start


@pytest.mark.parametrize("options", [{}, dict(delay=1, mix=0.5)], ids=["at once", "mixed"])
@pytest.mark.parametrize("plan", ["topk:0.05+ef", "sign+ef", "sign+ef:8bit"])
def test_what_ranks_keep_of_their_own_is_neither_lost_nor_sent_twice(three_ranks, plan, options):
    dense, ours = three_ranks.run(movement, "dense", options)[0], three_ranks.run(movement, plan, options)[0]
    share = float((ours * dense).sum() / dense.square().sum())
    assert share == pytest.approx(1, abs=0.1)


def is_at_its_start(rank: int, plan: str, decay: float, dtype: torch.dtype, then: str) -> tuple[bool, bool]:
    """Whether the rank's values are the anchor less what it owes, after a round, and what it owes is not nothing."""
    model = nn.Linear(128, 64, bias=False, dtype=dtype)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, every=2)
    for step in range(4):
        give_gradients(model, rank, step)
        outer.step()
    if then == "synchronized":
        outer.synchronize()
    state, owed = outer.state_dict(), torch.zeros(2, 64 * 128 // 2)
    owed[1 - rank] = state["own"]["fragment 0/worker/weight"].float() * decay  # the range of the other rank
    anchor = state["shared"]["anchor/weight"].view(2, -1)
    expected = (anchor if then == "synchronized" else anchor - owed).to(dtype)
    return torch.equal(model.weight.detach().view(2, -1), expected), bool(owed.any())


@pytest.mark.parametrize("then", ["", "synchronized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("plan", "decay"), [("sign+ef", 1.0), ("int4+ef:0.5", 0.5), ("topk:0.1+ef", 1.0)])
def test_a_rank_begins_at_the_anchor_less_what_it_owes(two_ranks, plan, decay, dtype, then):
    assert two_ranks.run(is_at_its_start, plan, decay, dtype, then) == [(True, True)] * 2


@pytest.mark.parametrize("plan", ["powersgd:2+ef", "int4+econtrol", "int4;last*=int8+loco"])
def test_feedback_is_refused_where_ranks_keep_their_own(plan):
    """What a rank keeps is part of its next difference, and owed besides: int2 and topk then diverge."""
    with solo_world():
        assert "both would be sent. Use mix=0" in refusal(0, dict(plan=plan, delay=1, mix=0.5))
        assert refusal(0, dict(plan=plan, delay=1)) == ""


def test_the_ratio_of_bytes_is_that_of_the_plan_times_the_steps_of_a_round(two_ranks, three_ranks, four_ranks):
    for ranks in (two_ranks, three_ranks, four_ranks):
        stats = ranks.run(digest_of_anchors, "dense", {})[0][2]
        assert stats["dense_bytes"] / stats["wire_bytes"] == pytest.approx(4, rel=0.02)
        assert (stats["steps"], stats["rounds"]) == (12, 3)


# ---- what goes wrong


def poison(rank: int, fragments: int, delay: int):
    """Rank 1's gradient at step 5 is NaN; rounds of 4 steps. What the ranks were told, and where they end."""
    model = Net()
    outer = octavo.Outer(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), plan="int4+ef", every=4, fragments=fragments, delay=delay
    )
    told = []
    for step in range(12 if fragments == 1 else 16):
        give_gradients(model, rank, step)
        if (rank, step) == (1, 4):
            model.last.weight.grad[3, 3] = float("nan")
            for parameter in model.parameters():  # as a backward pass through a NaN
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))
        if step == 5:
            before = {key: value.clone() for key, value in outer.state_dict()["shared"].items()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outer.step()
        told += [f"{step}: {one.message}" for one in caught if "[outer" in str(one.message)]
        if step == 7 and fragments == 1 and delay == 0:
            after = outer.state_dict()["shared"]
            assert all(torch.equal(before[key], after[key]) for key in before)
    anchors = outer.state_dict()["shared"]
    assert all(bool(torch.isfinite(values).all()) for values in [*anchors.values(), *values_of(model)])
    return (
        told,
        [float(values.double().sum()) for _, values in sorted(anchors.items())],
        outer.stats()["skipped_rounds"],
    )


def test_a_nan_on_one_rank_skips_that_round_on_all_and_the_next_is_clean(two_ranks):
    (told_0, anchors_0, skipped_0), (told_1, anchors_1, skipped_1) = two_ranks.run(poison, 1, 0)
    assert anchors_0 == anchors_1
    assert skipped_0 == skipped_1 == 1
    said = (
        "7: [outer.step] round 2 of fragment 0 was skipped by all ranks, because rank 1 had a NaN or an infinity in it"
    )
    assert told_0 == [f"{said}; this rank, 0, goes on from its own parameters"]
    assert told_1 == [f"{said}; this rank, 1, goes back to where its round began"]


def test_a_nan_does_not_spread_from_fragment_to_fragment(two_ranks):
    (told_0, anchors_0, _), (told_1, anchors_1, _) = two_ranks.run(poison, 2, 1)
    assert anchors_0 == anchors_1
    assert 1 <= len(told_0) == len(told_1) <= 2
    assert all("because rank 1 had" in one for one in told_0 + told_1)


def refusal(rank: int, options: dict) -> str:
    model = Net()
    try:
        octavo.Outer(model, torch.optim.SGD(model.parameters()), timeout_s=20, **options)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(plan="auto"), "measures the exchanges of every step: name the plan of rounds"),
        (dict(plan="sign-vote"), "keeps no magnitudes"),
        (dict(plan="dgc:0.01"), "has a momentum of its own"),
        (dict(every=0), "every must be at least 1"),
        (dict(every=2.5), "every must be a whole number"),
        (dict(every=4, delay=4), "delay must be below every"),
        (dict(every=4, fragments=5), "fragments must be between 1 and every"),
        (dict(every=4000, fragments=900), "make no 900 fragments"),
        (dict(mix=1.0), "mix must be in [0, 1)"),
        (dict(lr=0.0), "lr must be above 0"),
        (dict(lr=float("inf")), "lr must be a finite number, got inf"),
        (dict(mix="a"), "mix must be a finite number, got 'a'"),
        (dict(every="20"), "every must be a whole number of 0 or more, got '20'"),
        (dict(plan="int4+ef;none*=int8"), "none*"),
        (dict(momentum=1.0), "momentum must be in [0, 1)"),
        (dict(average="votes"), "average must be 'ranks' or 'hits'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(options, words):
    with solo_world():
        said = refusal(0, options)
    assert said.startswith("[")
    assert words in said


def refusal_by_rank(rank: int) -> str:
    return refusal(rank, dict(every=4 + rank))


def test_ranks_that_differ_are_told(two_ranks):
    assert all(
        "all ranks must have the same options; rank 1 differs" in said for said in two_ranks.run(refusal_by_rank)
    )


def unlike_models_that_were_refused(rank: int) -> list[bool]:
    kept = []
    for options in (
        dict(plan="sign-vote"),
        dict(mix=1.5),
        dict(every=4000, fragments=900),
        dict(plan="int4;none*=int8"),
    ):
        model = Net(1.0 + rank)
        refused = ""
        try:
            octavo.Outer(model, torch.optim.SGD(model.parameters()), timeout_s=30, **options)
        except ValueError as error:
            refused = str(error)
        kept.append(bool(refused) and all(map(torch.equal, values_of(model), values_of(Net(1.0 + rank)))))
    return kept


def test_a_model_is_not_changed_where_arguments_are_refused(two_ranks):
    assert two_ranks.run(unlike_models_that_were_refused) == [[True] * 4] * 2


def buffers_of_any_dtype(rank: int) -> list[torch.Tensor]:
    model = Net()
    for i, dtype in enumerate((torch.int16, torch.uint16, torch.float8_e4m3fn, torch.bool, torch.complex64)):
        model.register_buffer(f"buffer{i}", torch.full((2, 3), rank + 1).to(dtype))
    model.register_buffer("transposed", torch.full((2, 3), rank + 1, dtype=torch.int16).t())
    model.register_buffer("number", torch.tensor(rank + 1, dtype=torch.int16))
    train(rank, 0, model)
    return [buffer.to(torch.complex64) for name, buffer in model.named_buffers() if name != "count"]


def test_buffers_of_any_dtype_are_sent_around(two_ranks):
    for buffers in two_ranks.run(buffers_of_any_dtype):
        assert len(buffers) == 7
        assert all(torch.equal(buffer, torch.ones_like(buffer)) for buffer in buffers)


def test_a_model_that_averages_gradients_already_is_refused():
    with solo_world():
        wrapped = nn.parallel.DistributedDataParallel(Net())
        with pytest.raises(TypeError, match=r"ddp\.module"):
            octavo.Outer(wrapped, torch.optim.SGD(wrapped.parameters()))


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD(Net().parameters())])
def test_an_optimizer_of_another_model_is_refused(optimizer):
    with solo_world(), pytest.raises(ValueError, match="expected an inner optimizer of this model's parameters"):
        octavo.Outer(Net(), optimizer)


def test_it_has_no_copies():
    with solo_world():
        outer = octavo.Outer(model := Net(), torch.optim.SGD(model.parameters()))
        with pytest.raises(TypeError, match=r"save state_dict\(\)"):
            copy.deepcopy(outer)


def test_a_run_of_few_rounds_is_told_so():
    with solo_world():
        model = Net()
        with pytest.warns(UserWarning, match=r"400 steps make 20 rounds of 20.*every 8 steps"):
            octavo.Outer(model, torch.optim.SGD(model.parameters()), every=20, steps=400)


# ---- beside other parts of torch


def test_it_is_an_optimizer_to_schedules_and_its_inner_one_to_scalers():
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=2)
        schedule = torch.optim.lr_scheduler.StepLR(outer, step_size=1, gamma=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(2):
            scaler.scale(model.first(torch.ones(1, 48)).sum()).backward()
            scaler.step(outer.inner)
            outer.count_step()
            scaler.update()
            outer.zero_grad()
            schedule.step()
        assert outer.param_groups is outer.inner.param_groups
        assert outer.param_groups[0]["lr"] == 0.025
        assert outer.stats()["rounds"] == 1


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


# ---- state


def test_an_anchor_that_cannot_be_set_leaves_the_ranks_own_parameters(monkeypatch):
    with solo_world():
        model, outer = train(0, 5, plan="dense", every=4)
        own = values_of(model)
        with monkeypatch.context() as patch:
            anchors = {**outer._outer.anchors(), "last.weight": torch.zeros(2, 2)}
            patch.setattr(outer, "_outer", SimpleNamespace(anchors=lambda: anchors))
            with pytest.raises(RuntimeError, match="size"), outer.at_anchor():
                pass
        assert all(map(torch.equal, values_of(model), own))
        outer.synchronize()


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


def inside_of_anchor(rank: int) -> bool:
    _, outer = train(rank, 5, plan="int4+ef", every=4)
    outside = outer.state_dict()["own"]
    with outer.at_anchor():
        inside = outer.state_dict()["own"]
        for call in (outer.step, outer.synchronize, lambda: outer.load_state_dict({})):
            with pytest.raises(RuntimeError, match=r"leave at_anchor\(\) first"):
                call()
    return outside.keys() == inside.keys() and all(torch.equal(outside[key], inside[key]) for key in outside)


def test_a_state_that_is_saved_at_the_anchor_has_the_ranks_own_parameters(two_ranks):
    assert two_ranks.run(inside_of_anchor) == [True, True]


def synchronized_with_a_nan(rank: int) -> tuple[list[str], list[float]]:
    model, outer = train(rank, 5, plan="int4+ef", every=4)
    if rank == 1:
        model.first.weight.data[0, 0] = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outer.synchronize()
        outer.synchronize()
    ends = [float(values.double().sum()) for values in values_of(model) if values.shape != (3,)]
    return [str(one.message) for one in caught if "[outer" in str(one.message)], ends


def test_a_synchronization_that_is_skipped_ends_at_the_anchor_on_all_ranks(two_ranks):
    (told_0, ends_0), (told_1, ends_1) = two_ranks.run(synchronized_with_a_nan)
    assert ends_0 == ends_1
    assert len(told_0) == len(told_1) == 1
    assert told_0[0].endswith("because rank 1 had a NaN or an infinity in it; this rank, 0, goes back to the anchor")


def moved_model(rank: int) -> bool:
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=1)
    model.double().float()  # other memory
    before = {key: values.clone() for key, values in outer.state_dict()["shared"].items()}
    give_gradients(model, rank, 0)
    outer.step()
    return any(not torch.equal(before[key], values) for key, values in outer.state_dict()["shared"].items())


def test_parameters_in_other_memory_are_still_exchanged(two_ranks):
    assert two_ranks.run(moved_model) == [True, True]


def replaced(rank: int, folder: str) -> list[float]:
    """The state of rank 1 is lost; both ranks load what there is."""
    model = Net()
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.01), plan="int4+ef", every=4, timeout_s=30)
    outer.load_state_dict([torch.load(f"{folder}/0.pt")])
    for step in range(9, 13):
        give_gradients(model, rank, step)
        outer.step()
    return [float(values.double().sum()) for _, values in sorted(outer.state_dict()["shared"].items())]


def test_a_lost_rank_is_replaced_in_a_world_of_the_same_size(two_ranks, tmp_path):
    two_ranks.run(save_at, 9, dict(plan="int4+ef", every=4), str(tmp_path))
    ours, theirs = two_ranks.run(replaced, str(tmp_path))
    assert ours == theirs


def at_anchor_and_back(rank: int) -> bool:
    options = dict(plan="sign+ef", every=4)
    model, outer = train(rank, 8, **options)
    state = copy.deepcopy(outer.state_dict())
    outer.synchronize()
    again = Net()
    other = octavo.Outer(again, torch.optim.AdamW(again.parameters(), lr=0.01), timeout_s=30, **options)
    other.load_state_dict(state)
    other.synchronize()
    return all(map(torch.equal, values_of(model), values_of(again)))


def test_a_state_saved_at_the_anchor_is_not_exchanged_again(two_ranks):
    assert two_ranks.run(at_anchor_and_back) == [True, True]


def save_at(rank: int, steps: int, options: dict, folder: str) -> None:
    _, outer = train(rank, steps, **options)
    torch.save(outer.state_dict(), f"{folder}/{rank}.pt")


def go_on(rank: int, begin: int, end: int, options: dict, states: list[str]) -> list[torch.Tensor]:
    model = Net(3.0)
    model.frozen.data.fill_(1.0)  # no part of the state
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.02), timeout_s=30, **options)
    loaded = [torch.load(path) for path in states]
    outer.load_state_dict(loaded if len(loaded) > 1 or dist.get_world_size() == 1 else loaded[0])
    for step in range(begin, end):
        give_gradients(model, rank, step)
        outer.step()
    shared = [value for _, value in sorted(outer.state_dict()["shared"].items())]
    return [*values_of(model), *shared]


def go_on_as(ranks: int, three_ranks, *arguments) -> list[list[torch.Tensor]]:
    """Of one rank or three."""
    if ranks == 3:
        return three_ranks.run(go_on, *arguments)
    with solo_world():
        return [go_on(0, *arguments)]


def resumed(rank: int, at: int, options: dict, folder: str) -> bool:
    save_at(rank, at, options, folder)
    model, outer = train(rank, 20, **options)
    expected = [*values_of(model), *(value for _, value in sorted(outer.state_dict()["shared"].items()))]
    return all(map(torch.equal, expected, go_on(rank, at, 20, options, [f"{folder}/{rank}.pt"])))


@pytest.mark.parametrize("at", [4, 5, 7, 8, 9])
@pytest.mark.parametrize("plan", ["sign+ef", "topk:0.05+ef", "sign+ef:8bit"])
def test_a_saved_state_goes_on_to_the_last_bit(two_ranks, tmp_path, plan, at):
    options = dict(plan=plan, every=6, fragments=2, delay=2, seed=7)
    assert two_ranks.run(resumed, at, options, str(tmp_path)) == [True, True]


@pytest.mark.parametrize("new_ranks", [1, 3])
def test_in_another_world_a_rank_has_what_it_owed_in_its_parameters_no_longer(
    two_ranks, three_ranks, tmp_path, new_ranks
):
    options = dict(plan="sign+ef", every=4, fragments=2)
    two_ranks.run(save_at, 4, options, str(tmp_path))  # the second fragment has just begun a round
    states = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
    saved = [torch.load(path) for path in states]
    last = next(key for key in saved[0]["own"] if key.startswith("fragment 1/worker/")).rpartition("/")[2]
    anchor = saved[0]["shared"][f"anchor/{last}"]
    ends = go_on_as(new_ranks, three_ranks, 4, 4, options, states)
    names = [name for name, _ in Net().named_parameters()]
    for rank, end in enumerate(ends):
        assert torch.allclose(end[names.index(last)], anchor, rtol=0, atol=1e-6)
        if rank < len(saved):
            assert not torch.allclose(saved[rank]["own"][f"parameter/{last}"], anchor, rtol=0, atol=1e-4)


def test_alone_a_rank_has_no_start_but_the_anchor(two_ranks, tmp_path):
    options = dict(plan="topk:0.05+ef+hits", every=4, momentum=0.5)
    two_ranks.run(save_at, 9, options, str(tmp_path))
    with solo_world():
        end = go_on(0, 9, 12, options, [str(tmp_path / f"{rank}.pt") for rank in range(2)])
    values = {name: value for value, (name, p) in zip(end, Net().named_parameters(), strict=False) if p.requires_grad}
    anchors = dict(zip(sorted(values), end[-2 * len(values) :], strict=False))  # before the momenta
    assert all(torch.equal(anchors[name], value) for name, value in values.items())


@pytest.mark.parametrize("new_ranks", [1, 3])
def test_states_of_another_world_are_redistributed(two_ranks, three_ranks, tmp_path, new_ranks):
    options = dict(plan="int4+ef", every=4, fragments=2)
    two_ranks.run(save_at, 9, options, str(tmp_path))
    states = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
    saved = torch.load(states[0])["shared"]
    ends = go_on_as(new_ranks, three_ranks, 9, 9, options, states)
    if new_ranks == 3:
        further = three_ranks.run(go_on, 9, 21, options, states)
        count = len(saved)
        for end in further[1:]:
            assert all(map(torch.equal, end[-count:], further[0][-count:]))
    for end in ends:
        assert all(map(torch.equal, end[-len(saved) :], [value for _, value in sorted(saved.items())]))
    if new_ranks == 3:  # a rank that joins begins at the anchor
        anchors = [saved[f"anchor/{name}"] for name, p in Net().named_parameters() if p.requires_grad]
        trained = [v for v, (_, p) in zip(ends[2], Net().named_parameters(), strict=False) if p.requires_grad]
        assert all(map(torch.equal, trained, anchors))


def test_the_state_of_a_lost_rank_costs_what_it_owed(two_ranks, tmp_path):
    options = dict(plan="int4+ef", every=4)
    two_ranks.run(save_at, 9, options, str(tmp_path))
    saved = torch.load(tmp_path / "1.pt")["shared"]
    with solo_world():
        end = go_on(0, 9, 9, options, [str(tmp_path / "1.pt")])
    assert all(map(torch.equal, end[-len(saved) :], [value for _, value in sorted(saved.items())]))


def test_a_state_that_does_not_fit_changes_nothing(tmp_path):
    with solo_world():
        _, outer = train(0, 5, plan="dense", every=4)
        before = copy.deepcopy(outer.state_dict())
        strange = copy.deepcopy(before)
        strange["shared"]["anchor/first.weight"] = torch.zeros(2)
        strange["shared"]["anchor/last.weight"].zero_()
        for wrong, words in (
            (strange, "anchor/first.weight with the shape"),
            ({**before, "schema": 0}, "schema 2"),
            ({**before, "options": {**before["options"], "plan": "int4+ef"}}, "saved with plan int4"),
            (
                {**before, "options": {**before["options"], "delay": 1}},
                "saved with delay 1, this outer loop has delay 0",
            ),
            ({**before, "inner": torch.optim.SGD([torch.zeros(1)]).state_dict()}, "another inner optimizer"),
            ({**before, "rank": 1}, "this is rank 0 of 1, the state is of rank 1 of 1"),
            ([before, {**before, "step": 6}], r"of one step, got those of .*\(1, 5\), \(1, 6\)"),
            ({**before, "positions": [[1, 0, 0, False, False]] * 2}, "the state has 2 fragments"),
        ):
            with pytest.raises(ValueError, match=words):
                outer.load_state_dict(wrong)
        after = outer.state_dict()
        for part in ("shared", "own"):
            assert all(torch.equal(before[part][key], after[part][key]) for key in before[part])


def test_a_state_that_fails_in_another_way_changes_nothing_either(tmp_path):
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()), plan="powersgd:2+ef", every=4, fragments=2)
        state = outer.state_dict()
        key = next(f"fragment {f}" for f in (1,)) + "/residual/last.weight"
        good = {**state["own"], "fragment 0/residual/first.weight": torch.ones(48 * 96, dtype=torch.bfloat16)}
        bad = {**good, key: torch.zeros(96 * 50, dtype=torch.bfloat16).to_sparse()}
        with pytest.raises((RuntimeError, ValueError)):
            outer.load_state_dict({**state, "own": bad})
        assert outer.state_dict()["own"].keys() == state["own"].keys()
