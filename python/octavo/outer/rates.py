# SPDX-License-Identifier: Apache-2.0
"""What suits a run of so many steps, in rounds of so many."""

from octavo._C import Plan

FEWEST_ROUNDS = 50
"""Runs with fewer rounds than this end well behind a run that exchanges gradients in every step."""


def outer_rates(
    every: int, plan: Plan, lr: float | None, momentum: float | None, mix: float = 0.0
) -> tuple[float, float]:
    """`lr` and `momentum` of the outer optimizer; where one is None, what suits rounds of so many steps by that plan.

    A momentum counts the same direction several times: the shorter a round, the more alike are the directions of one
    and the next, and the more it overshoots. With rounds of 20 steps, which alone were measured, a learning rate of 1
    did better than one of 0.7, and a momentum of 0.3 as well as or better than others (docs/quality.md); long rounds
    take those of DiLoCo. Where most values are not sent, error feedback sends a direction over and over, as a momentum
    does. A rank that keeps a share (`mix`) of its own progress sends that once more: delayed rounds of 2-bit codes
    diverged so with a rate of 1.
    """
    own_lr, own_momentum = 1.0, 0.3
    if plan.leaves_unsent or every <= 1:
        own_momentum = 0.0
    elif every >= 100:
        own_lr, own_momentum = 0.7, 0.9
    if mix > 0:
        own_lr = 0.7
    return own_lr if lr is None else lr, own_momentum if momentum is None else momentum


def few_rounds(steps: int, every: int) -> str | None:
    """What to tell where a run of ``steps`` makes too few rounds to come near to one that exchanges gradients."""
    rounds = steps // every
    if rounds >= FEWEST_ROUNDS:
        return None
    shorter = steps // FEWEST_ROUNDS
    return (
        f"{steps} steps make {rounds} rounds of {every}, and what counts is the number of rounds: with fewer than "
        f"{FEWEST_ROUNDS} the loss ends well above that of a run that exchanges gradients. Train longer"
        f"{f', or exchange every {shorter} steps' if shorter > 1 else ', or exchange gradients'}"
    )
