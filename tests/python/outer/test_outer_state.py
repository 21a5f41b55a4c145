# SPDX-License-Identifier: Apache-2.0
"""The outer loop's states: saved, resumed bit by bit, taken to another number of ranks, refused."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from outer_runs import Net, digest_of_shared, give_gradients, train, values_of
from torch import nn
from train_runs import solo_world

import octavo

pytestmark = pytest.mark.timeout(120)


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


def with_buffers(rank: int) -> tuple[dict, list[float]]:
    """Returns this rank's state, and what the buffer is in an object that has loaded it, before and after the load."""
    model, outer = train(rank, 3, plan="int4+ef", every=4)
    model.count.fill_(5.0 + rank)
    state = copy.deepcopy(outer.state_dict())
    again = Net()
    other = octavo.Outer(again, torch.optim.AdamW(again.parameters(), lr=0.01), plan="int4+ef", every=4, timeout_s=30)
    counts = [again.count[0].item()]
    of_three = {"count": torch.ones(3)}
    for buffers, words in (({}, "no buffer count"), (of_three, r"a buffer of \(3,\) count, not \(2,\)")):
        with pytest.raises(ValueError, match=f"the state is of another model: it has {words}"):
            other.load_state_dict({**state, "buffers": buffers})
    other.load_state_dict(state)
    return state, [*counts, again.count[0].item()]


def test_each_rank_gets_back_its_buffers(two_ranks):
    results = two_ranks.run(with_buffers)
    assert [counts for _, counts in results] == [[1.0, 5.0], [1.0, 6.0]]
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.01), plan="int4+ef", every=4)
        outer.load_state_dict([state for state, _ in results])
        assert model.count[0].item() == 5.0


def replaced(rank: int, folder: str) -> str:
    """Loses the state of rank 1; both ranks load the state that is left."""
    model = Net()
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.01), plan="int4+ef", every=4, timeout_s=30)
    outer.load_state_dict([torch.load(f"{folder}/0.pt")])
    for step in range(9, 13):
        give_gradients(model, rank, step)
        outer.step()
    return digest_of_shared(outer)


def test_a_lost_rank_is_replaced_in_a_world_of_the_same_size(two_ranks, tmp_path):
    two_ranks.run(save_at, 9, dict(plan="int4+ef", every=4), str(tmp_path))
    ours, theirs = two_ranks.run(replaced, str(tmp_path))
    assert ours == theirs


def with_a_batch_norm(rank: int, states: list[dict], steps: range) -> tuple[list[float], dict]:
    """Has a NaN in its fifth step, so that the statistics return to what they were after the fourth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), "sign+ef", every=4)
    for state in states:
        outer.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps:
            inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(step)) + 3
            loss = model(inputs).square().mean() * (float("nan") if step == 4 else 1.0)
            loss.backward()
            outer.step()
            outer.zero_grad()
    return model[1].running_mean.tolist(), copy.deepcopy(outer.state_dict())


def test_a_resumed_rank_returns_to_the_buffers_of_the_last_round_too():
    with solo_world():
        expected, _ = with_a_batch_norm(0, [], range(8))
        _, saved = with_a_batch_norm(0, [], range(6))
        assert with_a_batch_norm(0, [saved], range(6, 8))[0] == expected


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
    model.frozen.data.fill_(1.0)  # this is not part of the state
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.02), timeout_s=30, **options)
    loaded = [torch.load(path) for path in states]
    outer.load_state_dict(loaded if len(loaded) > 1 or dist.get_world_size() == 1 else loaded[0])
    for step in range(begin, end):
        give_gradients(model, rank, step)
        outer.step()
    shared = [value for _, value in sorted(outer.state_dict()["shared"].items())]
    return [*values_of(model), *shared]


def go_on_as(ranks: int, three_ranks, *arguments) -> list[list[torch.Tensor]]:
    """Goes on as one rank or as three."""
    if ranks == 3:
        return three_ranks.run(go_on, *arguments)
    with solo_world():
        return [go_on(0, *arguments)]


def unbroken(rank: int, places: list[int], options: dict, folder: str) -> list[torch.Tensor]:
    """Trains 20 steps, and saves the state after each number of steps that is one of `places`."""
    model, outer = train(rank, 0, **options)
    for step in range(20):
        if step in places:
            torch.save(outer.state_dict(), f"{folder}/{rank}-{step}.pt")
        give_gradients(model, rank, step)
        outer.step()
    return [*values_of(model), *(value for _, value in sorted(outer.state_dict()["shared"].items()))]


def places_that_go_on_alike(rank: int, places: list[int], options: dict, folder: str) -> list[int]:
    expected = unbroken(rank, [], options, folder)
    kept = unbroken(rank, places, options, folder)
    assert len(expected) == len(kept) and all(map(torch.equal, expected, kept)), "to save a state changes nothing"
    alike = []
    for at in places:
        ours = go_on(rank, at, 20, options, [f"{folder}/{rank}-{at}.pt"])
        if len(ours) == len(expected) and all(map(torch.equal, expected, ours)):
            alike.append(at)
    return alike


@pytest.mark.parametrize("plan", ["sign+ef", "topk:0.05+ef", "sign+ef:8bit"])
def test_a_saved_state_goes_on_to_the_last_bit(two_ranks, tmp_path, plan):
    options = dict(plan=plan, every=6, fragments=2, delay=2, seed=7)
    places = [4, 5, 7, 8, 9]
    assert two_ranks.run(places_that_go_on_alike, places, options, str(tmp_path)) == [places, places]


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
        if rank < len(saved):
            own = saved[rank]["own"][f"parameter/{last}"]
            assert not torch.allclose(own, anchor, rtol=0, atol=1e-4)
        # a rank alone sends nothing, and what it owes is progress of its own
        expected = own if new_ranks == 1 else anchor
        assert torch.allclose(end[names.index(last)], expected, rtol=0, atol=1e-6)


def test_alone_a_rank_has_no_start_but_the_anchor(two_ranks, tmp_path):
    options = dict(plan="topk:0.05+ef+hits", every=4, momentum=0.5)
    two_ranks.run(save_at, 9, options, str(tmp_path))
    with solo_world():
        end = go_on(0, 9, 12, options, [str(tmp_path / f"{rank}.pt") for rank in range(2)])
    values = {name: value for value, (name, p) in zip(end, Net().named_parameters(), strict=False) if p.requires_grad}
    anchors = dict(zip(sorted(values), end[-2 * len(values) :], strict=False))  # the anchors come before the momenta
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


def test_a_state_of_another_inner_optimizer_changes_nothing():
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, octavo.optim.AdamW(model.parameters(), lr=0.01), plan="dense", every=4)
        give_gradients(model, 0, 0)
        outer.step()
        before, values = copy.deepcopy(outer.state_dict()), values_of(model)
        of_sgd = torch.optim.SGD(Net(2.0).parameters(), momentum=0.9)
        strange = copy.deepcopy(before) | {"step": 3, "inner": of_sgd.state_dict()}
        strange["inner"]["state"] = {0: {"momentum_buffer": torch.ones(96, 48)}}
        with pytest.raises(ValueError, match="this is the state of another optimizer, not of AdamW"):
            outer.load_state_dict(strange)
        after = outer.state_dict()
        assert after["step"] == before["step"] == 1
        assert all(map(torch.equal, values_of(model), values))
        assert after["inner"]["state"].keys() == before["inner"]["state"].keys()


def progress(rank: int, steps: int, states: list[str], keep: str, synchronized: bool = False) -> float:
    """Returns how much of a steady move of one per step has reached the parameters; topk sends it little by little."""
    model = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = octavo.Outer(model, inner, plan="topk:0.05+ef", every=1, lr=1.0, momentum=0.0)
    if states:
        outer.load_state_dict([torch.load(path) for path in states])
        outer.synchronize()
    direction = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    for _ in range(steps):
        model.weight.grad = -direction
        outer.step()
    if synchronized:
        outer.synchronize()
    if keep:
        torch.save(outer.state_dict(), f"{keep}/{rank}.pt")
    return float((model.weight.detach() * direction).sum() / direction.square().sum())


def test_a_rank_that_goes_on_alone_keeps_what_it_owed(two_ranks, tmp_path):
    before = two_ranks.run(progress, 60, [], str(tmp_path))[0]
    with solo_world():
        after = progress(0, 0, [str(tmp_path / f"{rank}.pt") for rank in range(2)], "")
    assert after == pytest.approx(before, rel=1e-3)


def go_on_in_small_steps(rank: int, paths: list[str]) -> float:
    model, direction = nn.Linear(64, 64, bias=False), torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = octavo.Outer(model, inner, plan="topk:0.05+ef", every=1, lr=1.0, momentum=0.0)
    outer.load_state_dict([torch.load(path) for path in paths])
    outer.param_groups[0]["lr"] = 1e-4
    for _ in range(60):
        model.weight.grad = -direction
        outer.step()
    outer.synchronize()
    return float((model.weight.detach() * direction).sum() / direction.square().sum())


@pytest.mark.parametrize("synchronized", [False, True])
def test_a_world_that_grows_from_one_rank_is_sent_what_was_owed_once(two_ranks, tmp_path, synchronized):
    """What a rank owed is in its own parameters, unless they have become the anchor."""
    two_ranks.run(progress, 6, [], str(tmp_path), synchronized)
    (tmp_path / "alone").mkdir()
    with solo_world():
        progress(0, 1, [str(tmp_path / f"{rank}.pt") for rank in range(2)], str(tmp_path / "alone"))
    for after in two_ranks.run(go_on_in_small_steps, [str(tmp_path / "alone" / "0.pt")]):
        assert after == pytest.approx(6 + 1 + 60e-4, abs=0.02)


def move_unlike(rank: int, plan: str, steps: int, lr: float, paths: list[str], keep: str) -> torch.Tensor:
    """Moves by another direction on each rank, times lr in each step, and synchronizes."""
    model = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=lr)
    outer = octavo.Outer(model, inner, plan=plan, every=1, lr=1.0, momentum=0.0)
    if paths:
        outer.load_state_dict([torch.load(path) for path in paths])
        outer.param_groups[0]["lr"] = lr
    for _ in range(steps):
        model.weight.grad = -unlike_direction(rank)
        outer.step()
    outer.synchronize()
    if keep:
        torch.save(outer.state_dict(), f"{keep}/{rank}.pt")
    return model.weight.detach()


def unlike_direction(rank: int) -> torch.Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("plan", ["topk:0.05+ef", "sign+ef", "int4+ef:8bit"])
def test_what_owners_owe_outlives_a_world_of_one_rank(two_ranks, tmp_path, plan):
    (tmp_path / "alone").mkdir()
    two_ranks.run(move_unlike, plan, 6, 1.0, [], str(tmp_path))
    with solo_world():
        saved = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
        move_unlike(0, plan, 1, 1.0, saved, str(tmp_path / "alone"))
    ours, theirs = two_ranks.run(move_unlike, plan, 80, 1e-4, [str(tmp_path / "alone" / "0.pt")], "")
    expected = 6.008 * (unlike_direction(0) + unlike_direction(1)) / 2 + unlike_direction(0)
    assert torch.equal(ours, theirs)
    assert (ours - expected).norm() < 0.02 * expected.norm()


def test_a_state_that_does_not_fit_changes_nothing(tmp_path):
    with solo_world():
        _, outer = train(0, 5, plan="dense", every=4)
        before = copy.deepcopy(outer.state_dict())
        strange = copy.deepcopy(before)
        strange["shared"]["anchor/first.weight"] = torch.zeros(2)
        strange["shared"]["anchor/last.weight"].zero_()
        for wrong, words in (
            (strange, "anchor/first.weight with the shape"),
            (outer.own_state(), "a state has no 'shared'"),
            ([], "schema 5"),
            ({**before, "schema": 0}, "schema 5"),
            ({**before, "options": {**before["options"], "plan": "int4+ef"}}, "saved with plan int4"),
            (
                {**before, "options": {**before["options"], "delay": 1}},
                "saved with delay 1, this outer loop has delay 0",
            ),
            (
                {**before, "inner": torch.optim.SGD([torch.zeros(1)]).state_dict()},
                "expected 7 parameters in group 0 of AdamW, got 1",
            ),
            ({**before, "world_size": 2}, "this is rank 0 of 1, the state is of rank 0 of 2"),
            (
                {**before, "own": before["own"] | {"parameter/first.weight": torch.zeros(1)}},
                r"its first.weight has the shape \(1,\), not \(96, 48\)",
            ),
            (
                {**before, "shared": before["shared"] | {"momentum/last.bias": torch.full((50,), torch.nan)}},
                "'momentum/last.bias' of the state of rank 0 has a NaN or an infinity",
            ),
            ([before, {**before, "step": 6}], r"of one step, got those of .*\(1, 5\), \(1, 6\)"),
            ([before, before], r"^\[outer\.load_state_dict\] there are two states of rank 0"),
            (
                [before, {**before, "rank": 1}],
                r"^\[outer\.load_state_dict\] a state is of rank 1, and those of a world of 1 are of ranks below 1",
            ),
            ({**before, "positions": [[1, 0, 0, False, False, 0.0, 0.0]] * 2}, "the state has 2 fragments"),
        ):
            with pytest.raises(ValueError, match=words):
                outer.load_state_dict(wrong)
        wrong_kinds = {
            "inner": None,
            "last_buffers": None,
            "own": [],
            "step": "5",
            "buffers": {"mean": 0.0},
            "options": 1,
        }
        damaged = [{**before, key: value} for key, value in wrong_kinds.items()]
        for wrong in (None, 3, "outer-0.pt", ["outer-0.pt", "outer-1.pt"], *damaged):
            with pytest.raises(TypeError, match=r"^\[outer\.load_state_dict\] pass what state_dict\(\) returned"):
                outer.load_state_dict(wrong)
        after = outer.state_dict()
        for part in ("shared", "own"):
            assert all(torch.equal(before[part][key], after[part][key]) for key in before[part])


def test_residuals_of_another_memory_order_are_refused():
    with solo_world():
        model = nn.Sequential(nn.Conv2d(4, 8, 3))
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()), "sign+ef", every=2)
        saved = outer.state_dict()
        saved["own"]["fragment 0/worker/0.weight"] = torch.zeros(4)  # a world of one rank owes nothing
        model = nn.Sequential(nn.Conv2d(4, 8, 3)).to(memory_format=torch.channels_last)
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()), "sign+ef", every=2)
        said = r"^\[outer\.load_state_dict\] the elements of 0\.weight have another order in memory"
        with pytest.raises(ValueError, match=said):
            outer.load_state_dict(saved)
        del saved["own"]["fragment 0/worker/0.weight"]
        outer.load_state_dict(saved)  # nothing in it has an order of its own


def with_a_residual_that_is_not_finite(rank: int) -> str:
    _, outer = train(rank, 4, plan="sign+ef", every=4)
    state = outer.state_dict()
    key = next(key for key in state["own"] if "/worker/" in key)
    state["own"][key][0] = torch.nan
    try:
        outer.load_state_dict(state)
    except ValueError as error:
        return str(error)
    return ""


def test_a_residual_that_is_not_finite_is_refused(two_ranks):
    for rank, said in enumerate(two_ranks.run(with_a_residual_that_is_not_finite)):
        assert f"of the state of rank {rank} has a NaN or an infinity, and all later rounds would be skipped" in said


def test_the_state_of_another_kind_of_inner_optimizer_is_refused():
    def outer_of(make) -> octavo.Outer:
        model = Net()
        return octavo.Outer(model, make(model.parameters()), plan="dense", every=2)

    with solo_world():
        saved = outer_of(torch.optim.AdamW).state_dict()
        sgd = outer_of(partial(torch.optim.SGD, lr=0.1, momentum=0.9))
        with pytest.raises(ValueError, match=r"another optimizer than SGD: its options have .*betas.*, and no"):
            sgd.load_state_dict(saved)
        scheduled = outer_of(torch.optim.AdamW)
        torch.optim.lr_scheduler.StepLR(scheduled, step_size=1)  # which adds an option to the groups
        scheduled.load_state_dict(saved)
        outer_of(torch.optim.AdamW).load_state_dict(scheduled.state_dict())


def test_a_state_that_fails_in_another_way_changes_nothing_either(tmp_path):
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()), plan="powersgd:2+ef", every=4, fragments=2)
        state = outer.state_dict()
        key = next(f"fragment {f}" for f in (1,)) + "/residual/last.weight"
        good = {**state["own"], "fragment 0/residual/first.weight": torch.ones(48 * 96, dtype=torch.bfloat16)}
        bad = {**good, key: torch.zeros(96 * 50, dtype=torch.bfloat16).to_sparse()}
        with pytest.raises(NotImplementedError, match="Could not run 'aten::"):  # torch's own
            outer.load_state_dict({**state, "own": bad})
        assert outer.state_dict()["own"].keys() == state["own"].keys()


def load_positions(rank: int) -> int:
    """Loads a state in which what a sketch remembers, the positions of the largest values, has the bits of a NaN."""
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="sketch:0.2:exact+ef", every=2)
    for step in range(2):
        give_gradients(model, rank, step)
        outer.step()
    state = outer.state_dict()
    remembered = [value for key, value in state["own"].items() if "/memory/" in key]
    for value in remembered:
        value.view(torch.int32).fill_(0x7FC00001)
    outer.load_state_dict(state)
    return len(remembered)


def test_positions_are_not_taken_for_numbers(two_ranks):
    assert min(two_ranks.run(load_positions)) > 0
