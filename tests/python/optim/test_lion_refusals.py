# SPDX-License-Identifier: Apache-2.0
"""What Lion, Distributed Lion and Signum refuse, and what they do with gradients that are not finite."""

from __future__ import annotations

import math

import pytest
import torch
from ddp_runs import digest
from lion_runs import OPTIMIZERS, Given, build, gradients_of, wrap
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world

import octavo
from octavo.optim import DistributedLion, Lion, Signum

# ---- gradients that are not finite


def poison(rank: int, name: str, bad: float | None) -> tuple[str, list[Tensor]]:
    """Makes six steps. One rank poisons the fourth, or it is left out; the loop skips gradients that are not finite."""
    model, handle, optimizer = wrap(name)
    for step in range(6):
        if step == 3 and bad is None:
            continue
        optimizer.zero_grad()
        gradients = gradients_of(rank, step)
        if step == 3 and rank == 1:
            gradients[0][5, 7] = bad
        before = handle.state_dict()
        model(*gradients).backward()
        finite = all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())
        assert finite == (step != 3), "all ranks see it, on the very tensor"
        if finite:
            optimizer.step()
        else:
            after = handle.state_dict()
            assert all(torch.equal(before[f"momentum/{key}"], after[f"momentum/{key}"]) for key in ("weight", "bias"))
    assert handle.stats()["nonfinite_steps"] == (0 if bad is None else 1)
    state = handle.state_dict()
    return digest(model), [state["momentum/weight"], state["momentum/bias"]]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_nan_on_one_rank_leaves_no_trace(two_ranks, name, bad):
    poisoned, without = two_ranks.run(poison, name, bad), two_ranks.run(poison, name, None)
    for (ours, our_momenta), (theirs, their_momenta) in zip(poisoned, without, strict=True):
        assert ours == theirs
        assert all(torch.equal(a, b) for a, b in zip(our_momenta, their_momenta, strict=True))


def look_at_no_gradient(rank: int, name: str, nonfinite: str) -> None:
    """Makes six steps of a loop that leaves gradients that are not finite to its optimizer."""
    model, _, optimizer = wrap(name)
    for group in optimizer.param_groups:
        group["nonfinite"] = nonfinite
    for step in range(6):
        gradients = gradients_of(rank, step)
        is_bad = step in (2, 4)
        if is_bad and rank == 1:
            gradients[step // 2 - 1][7] = math.nan
        before = digest(model)
        optimizer.zero_grad()
        model(*gradients).backward()
        if is_bad and nonfinite == "raise":
            with pytest.raises(FloatingPointError, match=r"a gradient is not finite; all parameters and states are as"):
                optimizer.step()
        else:
            optimizer.step()
        assert (digest(model) == before) == is_bad
        assert optimizer.saw_nonfinite() == (is_bad and nonfinite != "raise")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("nonfinite", ["skip_element", "skip_step", "raise"])
def test_what_is_not_finite_is_no_step_of_any_rank(two_ranks, name, nonfinite):
    two_ranks.run(look_at_no_gradient, name, nonfinite)


# ---- what is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: Signum(p, lr=-1.0), "[optim.Signum] expected a finite lr of at least 0, got -1.0"),
        (lambda p: Signum(p, momentum=1.0), "[optim.Signum] expected two betas from 0 to below 1, got (1.0, 1.0)"),
        (lambda p: Lion(p, betas=(0.9, -0.1)), "[optim.Lion] expected two betas from 0 to below 1, got (0.9, -0.1)"),
        (
            lambda p: DistributedLion(p, weight_decay=-1),
            "[optim.DistributedLion] expected a finite weight_decay of at least 0",
        ),
        (
            lambda p: Signum([{"params": [q], "momentum": m} for q, m in zip(p, (0.5, 0.9), strict=True)]),
            "the same momentum in all parameter groups, got 0.5 and 0.9",
        ),
        (
            lambda p: Signum(p).load_state_dict(Lion(p).state_dict()),
            "[optim.Signum] this is the state of another optimizer, not of Signum",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError) as caught:
        make([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))])
    assert words in str(caught.value)


def test_complex_and_sparse_are_refused():
    with pytest.raises(TypeError, match=r"\[optim\.Lion\] complex parameters"):
        Lion([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4, 2))]
    parameters[0].grad = torch.ones(2)
    parameters[1].grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2), check_invariants=True)
    with pytest.raises(RuntimeError, match=r"\[optim\.Lion\] sparse gradients are not supported"):
        Lion(parameters).step()
    assert torch.equal(parameters[0], torch.ones(2)), "nothing may move"


def refuse(rank: int) -> None:
    model = DistributedDataParallel(Given())
    alone = build("signum", model.parameters())
    model(*gradients_of(rank, 0)).backward()
    before = digest(model)
    with pytest.raises(RuntimeError, match=r"\[optim\.Signum\] .* octavo\.compress\(ddp, plan, optimizer=optimizer\)"):
        alone.step()
    stranger = build("signum", [*model.parameters(), nn.Parameter(torch.zeros(2))])
    with pytest.raises(ValueError, match=r"\[optim\.Signum\] 1 of the optimizer's parameters are not of the model"):
        octavo.compress(model, "sign-vote", optimizer=stranger)
    different = build("lion", model.parameters(), betas=(0.9, 0.99 if rank == 0 else 0.98))
    with pytest.raises(ValueError, match="all ranks must have the same phase of the optimizer"):
        octavo.compress(model, "sign-vote", optimizer=different)
    handle = octavo.compress(model, "sign-vote", optimizer=alone)
    with pytest.raises(ValueError, match=r"joined to another octavo\.compress already"):
        octavo.compress(DistributedDataParallel(Given()), "sign-vote", optimizer=alone)
    handle.set_plan("int4+ef")
    assert str(handle.plan) == "int4+ef"
    alone.zero_grad()
    model(*gradients_of(rank, 0)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(RuntimeError, match=r"\[optim\.Signum\] step: .* every step has the size of the learning rate"):
        alone.step()
    alone.zero_grad()
    model(*gradients_of(rank, 1)).backward()
    with pytest.raises(RuntimeError, match=r"\.grad of bias holds .* no_sync"):
        model(*gradients_of(rank, 2)).backward()
    assert digest(model) == before


def test_what_would_take_a_vote_for_a_gradient_is_refused(two_ranks):
    two_ranks.run(refuse)


NOT_JOINED = [
    ({"bf16_rounding": "stochastic"}, "bf16_rounding='nearest' .*keep parameters in float32"),
    ({"bf16_rounding": "extra_bits"}, "bf16_rounding='nearest'"),
    ({"optim_bits": 8}, "optim_bits of 32"),
    ({"is_paged": True}, r"is_paged=False .*octavo\.compress\(\.\.\., is_paged=True\)"),
]


@pytest.mark.parametrize(("options", "words"), NOT_JOINED)
def test_options_of_a_state_that_the_handle_keeps_are_refused(options, words):
    refused = rf"\[optim\.DistributedLion\] expected {words}"
    with solo_world():
        for groups in ([{}, options], [options]):
            module = Given()
            given = [{"params": [p], **group} for p, group in zip(module.parameters(), groups, strict=False)]
            optimizer = DistributedLion(given)
            with pytest.raises(ValueError, match=refused):
                octavo.compress(DistributedDataParallel(module), "sign-vote", optimizer=optimizer)
        module = Given()
        optimizer = DistributedLion([module.weight])
        octavo.compress(DistributedDataParallel(module), "sign-vote", optimizer=optimizer)
        with pytest.raises(ValueError, match=refused):
            optimizer.add_param_group({"params": [module.bias], **options})
        assert len(optimizer.param_groups) == 1


def forget_zero_grad(rank: int) -> None:
    model, _, optimizer = wrap("lion")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=50)  # changes betas in every step
    with pytest.raises(RuntimeError, match="holds the averaged momentum of an earlier backward pass"):
        for step in range(3):
            model(*gradients_of(rank, step)).backward()
            optimizer.step()
            schedule.step()


def test_a_forgotten_zero_grad_is_seen_while_betas_change(two_ranks):
    two_ranks.run(forget_zero_grad)
