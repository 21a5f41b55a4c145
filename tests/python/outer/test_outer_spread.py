# SPDX-License-Identifier: Apache-2.0
"""A momentum of the outer optimizer that ranks move along in each of their steps."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from ddp_runs import digest_of
from outer_runs import Net, digest_of_shared, give_gradients, train, values_of
from train_runs import solo_world

import octavo

pytestmark = pytest.mark.timeout(120)


def plain_spread(rank: int, world: int, steps: int, every: int, lr: float, momentum: float) -> list[torch.Tensor]:
    """Ranks move by a part of the momentum after each step. What they have moved beside it is averaged."""
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.AdamW(trained, lr=0.01)
    anchor = [p.detach().clone() for p in trained]
    moves = [torch.zeros_like(p) for p in trained]
    for step in range(steps):
        give_gradients(model, rank, step)
        inner.step()
        for p, move in zip(trained, moves, strict=True):
            p.data.add_(move, alpha=momentum / every)
        if (step + 1) % every == 0:
            for a, p, move in zip(anchor, trained, moves, strict=True):
                mean = (p.detach() - a - momentum * move) / world
                dist.all_reduce(mean)
                move.mul_(momentum).add_(mean, alpha=lr)
                a.add_(move)
                p.data.copy_(a)
    return values_of(model)


def distance_from_plain(rank: int, world: int, lr: float, momentum: float) -> float:
    ours, _ = train(rank, 13, plan="dense", every=4, lr=lr, momentum=momentum, spread=True)
    theirs = plain_spread(rank, world, 13, 4, lr, momentum)
    return max(float((a - b).abs().max()) for a, b in zip(values_of(ours), theirs, strict=True))


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.5), (0.7, 0.6), (1.0, 0.0)])
def test_the_move_of_a_round_goes_on_in_the_steps_of_the_next(three_ranks, lr, momentum):
    assert max(three_ranks.run(distance_from_plain, 3, lr, momentum)) < 1e-6


def steady(rank: int) -> list[float]:
    """Makes 60 steps of -1 in rounds of 4, and returns the moves of the anchor."""
    model = torch.nn.ParameterDict({"a": torch.zeros(1, 1)})
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=1.0), "dense", every=4, spread=True)
    moves, before = [], 0.0
    for _ in range(15):
        for _ in range(4):
            model["a"].grad = torch.ones(1, 1)
            outer.step()
        moves.append(before - model["a"].item())
        before = model["a"].item()
    return moves


def test_a_steady_move_becomes_longer_by_the_root_of_the_number_of_ranks(two_ranks):
    """Each rank makes the same moves, so their mean is one of them. What a rank could not move for noise is made up
    for."""
    moves = two_ranks.run(steady)[0]
    assert moves[0] == 4.0 and moves == sorted(moves)
    assert moves[-1] == pytest.approx(4.0 * 2**0.5, rel=1e-3)


def resumed(rank: int, at: int, options: dict) -> bool:
    model, _ = train(rank, 20, **options)
    expected = values_of(model)
    saved = train(rank, at, **options)[1].state_dict()
    again = Net(3.0)
    again.frozen.data.fill_(1.0)  # this is not part of the state
    other = octavo.Outer(again, torch.optim.AdamW(again.parameters(), lr=0.02), timeout_s=30, **options)
    other.load_state_dict(saved)
    for step in range(at, 20):
        give_gradients(again, rank, step)
        other.step()
    return other.spread and all(map(torch.equal, expected, values_of(again)))


@pytest.mark.parametrize("at", [7, 10, 12])
@pytest.mark.parametrize("delay", [0, 3])
def test_a_state_saved_within_a_round_goes_on_to_the_last_bit(two_ranks, at, delay):
    options = dict(plan="sign+ef", every=6, fragments=2, delay=delay, spread=True)
    assert two_ranks.run(resumed, at, options) == [True, True]


def anchors(rank: int) -> str:
    _, outer = train(rank, 13, plan="sign+ef", every=4, fragments=2, delay=1, spread=True)
    return digest_of_shared(outer)


def test_anchors_are_the_same_on_all_ranks(three_ranks):
    first, *others = three_ranks.run(anchors)
    assert others == [first, first]


def save_at_six(rank: int, folder: str) -> None:
    _, outer = train(rank, 6, plan="int4+ef", every=4, spread=True)
    torch.save(outer.state_dict(), f"{folder}/{rank}.pt")


def moved_since_the_anchor(rank: int, folder: str) -> float:
    """Joins ranks that are two steps into a round, and makes no step of its own. Returns its share of the momentum."""
    model = Net()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    outer = octavo.Outer(model, inner, "int4+ef", every=4, spread=True, timeout_s=30)
    outer.load_state_dict([torch.load(f"{folder}/{r}.pt") for r in range(2)])
    shared = outer.state_dict()["shared"]
    moved = model.last.weight.detach() - shared["anchor/last.weight"]
    momentum = shared["momentum/last.weight"]
    return float((moved * -momentum).sum() / momentum.square().sum())


def test_a_rank_that_joins_is_where_the_momentum_has_brought_the_others(two_ranks, three_ranks, tmp_path):
    two_ranks.run(save_at_six, str(tmp_path))
    of_two_ranks = 1 - 2**-0.5
    assert three_ranks.run(moved_since_the_anchor, str(tmp_path))[2] == pytest.approx(of_two_ranks * 2 / 4, rel=1e-4)


def after_a_nan(rank: int) -> tuple[float, str]:
    """Has a NaN on rank 1 in the second round. Returns how far the ranks' values are from those of plain moves along
    the momentum then, and a digest of the values after the round that follows."""
    model = Net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = octavo.Outer(model, inner, "dense", every=2, spread=True, timeout_s=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(4):
            give_gradients(model, rank, step)
            if step == 3 and rank == 1:
                model.last.weight.grad[0] = float("nan")
            outer.step()
    shared = outer.state_dict()["shared"]
    whole = shared["anchor/last.weight"] - outer.momentum * shared["momentum/last.weight"]
    off = float((model.last.weight.detach() - whole).abs().max())
    for step in range(4, 6):
        give_gradients(model, rank, step)
        outer.step()
    assert bool(torch.isfinite(model.last.weight).all())
    return off, digest_of([model.last.weight])


def test_a_rank_that_goes_back_after_a_nan_keeps_what_the_momentum_has_moved(two_ranks):
    (_, first), (off, second) = two_ranks.run(after_a_nan)
    assert off < 1e-6
    assert first == second


def test_a_skipped_round_does_not_lengthen_the_moves_along_the_momentum():
    """The momentum of a gradient of 1 with learning rates of 1 is 4 / (1 - 0.5) after many rounds of 4 steps."""
    with solo_world(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.ParameterDict({"a": torch.zeros(1, 1)})
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        outer = octavo.Outer(model, inner, "dense", every=4, spread=True, lr=1.0, momentum=0.5)
        for step in range(80):
            is_bad = step >= 64 and step % 4 == 3 and step < 76  # the ends of three rounds in a row
            model["a"].grad = torch.full((1, 1), float("nan") if is_bad else 1.0)
            outer.step()
        assert outer.stats()["skipped_rounds"] == 3
        assert outer.state_dict()["shared"]["momentum/a"].item() == pytest.approx(8, rel=1e-3)


def test_a_synchronized_model_begins_a_round_without_a_move(two_ranks):
    assert two_ranks.run(synchronized_within_a_round) == [True, True]


def synchronized_within_a_round(rank: int) -> bool:
    _, outer = train(rank, 10, plan="sign+ef", every=4, spread=True)
    outer.synchronize()
    return all(position[5:] == (0.0, 0.0) for position in outer._outer.positions())


def test_a_state_of_a_spread_momentum_goes_on_with_one():
    with solo_world():
        _, outer = train(0, 5, plan="int4+ef", every=4, spread=True)
        saved = outer.state_dict()
        _, other = train(0, 0, plan="int4+ef", every=4)
        with pytest.raises(ValueError, match="was saved with spread True, this outer loop has spread False"):
            other.load_state_dict(saved)


def test_a_spread_momentum_and_a_mix_exclude_each_other():
    with solo_world(), pytest.raises(ValueError, match=r"use mix=0 or spread=False"):
        model = torch.nn.Linear(8, 8)
        octavo.Outer(model, torch.optim.AdamW(model.parameters()), "dense", every=4, delay=1, mix=0.5, spread=True)
