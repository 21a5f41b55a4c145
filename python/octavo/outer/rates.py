# SPDX-License-Identifier: Apache-2.0
"""The rates of the outer optimizer that suit a run, and how many rounds a run should have."""

import math

from octavo._C import Plan

FEWEST_ROUNDS = 50
"""Runs with fewer rounds than this end well behind a run that exchanges gradients in every step."""

_MOST_RANKS_MEASURED = 4


def outer_rates(
    every: int,
    plan: Plan,
    ranks: int,
    lr: float | None,
    momentum: float | None,
    mix: float = 0.0,
    spread: bool = False,
) -> tuple[float, float]:
    """Returns `lr` and `momentum` of the outer optimizer. Where one of them is None, it is the one that suits rounds of
    `every` steps by that plan on so many ranks.

    A momentum counts the same direction several times: the shorter rounds are, the more alike are the directions of one
    round and the next, and the more a momentum overshoots. With rounds of 20 steps on two ranks a learning rate of 1
    did better than one of 0.7, and a momentum of 0.3 as well as others or better. Long rounds take the rates of DiLoCo.
    Where most values are not sent, error feedback sends a direction over and over, as a momentum does. A rank that
    keeps a share (`mix`) of its own progress sends that share once more: delayed rounds of 2-bit codes diverged because
    of it with a rate of 1.

    Optimizers such as AdamW and Muon make steps of one size, whatever the gradient's. A rank has fewer tokens of a step
    the more ranks there are, and so more noise in its gradient. Where noise prevails, a step contains only 1/√ranks of
    the common direction that a step of all tokens would have. The mean over ranks removes noise, and does not bring
    that back. So the rate grows with the square root of the number of ranks. It was measured on two and four
    (docs/quality/experiments.md), and grows no further beyond. A momentum that is `spread` over the steps of the next
    round does the same without a jump: one of 1 - 1/√ranks makes moves that continue in one direction √ranks times as
    long.
    """
    counted = min(ranks, _MOST_RANKS_MEASURED)
    own_lr, own_momentum = math.sqrt(counted / 2), 0.3
    if spread:
        own_lr, own_momentum = 1.0, 1 - 1 / math.sqrt(counted)
    elif plan.leaves_unsent or every <= 1:
        own_lr, own_momentum = 1.4 * own_lr, 0.0
    elif every >= 100:
        own_lr, own_momentum = 0.7, 0.9
    if mix > 0:
        own_lr = 0.7
    return own_lr if lr is None else lr, own_momentum if momentum is None else momentum


def warning_of_few_rounds(steps: int, every: int) -> str | None:
    """Returns a warning where a run of ``steps`` makes too few rounds to come near to a run that exchanges gradients,
    otherwise None."""
    rounds = steps // every
    if rounds >= FEWEST_ROUNDS:
        return None
    shorter = steps // FEWEST_ROUNDS
    made = "1 round" if rounds == 1 else f"{rounds} rounds"
    return (
        f"{steps} steps make {made} of {every}, and what counts is the number of rounds: with fewer than "
        f"{FEWEST_ROUNDS} the loss ends well above that of a run that exchanges gradients. Train longer"
        f"{f', or exchange every {shorter} steps' if shorter > 1 else ', or exchange gradients'}"
    )
