# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from test_ddp import Odd, batch_of, digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW


def quadratic(seed: int = 0):
    torch.manual_seed(seed)
    return nn.Linear(40, 30), torch.randn(64, 40), torch.randn(64, 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_warmup_is_adamw(dtype):
    model, x, y = quadratic()
    model, x, y = model.to(dtype), x.to(dtype), y.to(dtype)
    twin = copy.deepcopy(model)
    ours = OneBitAdamW(model.parameters(), lr=1e-2, weight_decay=0.1, warmup_steps=100)
    theirs = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(20):
        for m, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            nn.functional.mse_loss(m(x), y).backward()
            optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_after_the_freeze_the_denominator_stays_and_the_loss_still_falls():
    model, x, y = quadratic()
    optimizer = OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=10)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 10:
            frozen = optimizer.state[model.weight]["exp_avg_sq"].clone()
    assert torch.equal(frozen, optimizer.state[model.weight]["exp_avg_sq"])
    assert losses[-1] < losses[10] < losses[0]


def test_the_frozen_denominator_has_a_floor():
    square = torch.zeros(600)
    square[:256] = 4.0
    square[300] = 16.0
    torch.ops.octavo.freeze_variance_(square, 10_000_000, 0.999, 1e-8, 0.3)
    assert torch.allclose(1 / square[:256], torch.tensor(2.0))
    assert torch.allclose(1 / square[300], torch.tensor(4.0))
    assert torch.allclose(1 / square[301], torch.tensor(0.3 * 4.0 / 256))
    mean = (256 * 2 + 4) / 600  # the last block never had a gradient: the tensor's mean
    assert torch.allclose(1 / square[512:], torch.tensor(0.3 * mean))


def test_the_frozen_variance_follows_the_size_of_the_gradients():
    steps = []
    for factor in (1.0, 100.0):
        parameter = nn.Parameter(torch.zeros(100))
        optimizer = OneBitAdamW([parameter], lr=1e-2, betas=(0.9, 0.9), weight_decay=0.0, warmup_steps=5)
        for step in range(60):
            before = parameter.detach().clone()
            parameter.grad = torch.ones(100) * (1.0 if step < 5 else factor)
            optimizer.step()
        steps.append((before - parameter.detach()).mean().item())
    assert steps[0] == pytest.approx(1e-2, rel=0.01)
    assert steps[1] == pytest.approx(1e-2, rel=0.05), "the step must not grow with the gradient"


def test_memory_formats_and_strides_do_not_matter():
    torch.manual_seed(0)
    weight = torch.randn(8, 4, 3, 3)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(weight.clone().to(memory_format=layout))
        optimizer = OneBitAdamW([parameter], lr=1e-2, warmup_steps=2)
        for step in range(4):
            parameter.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        results.append(parameter.detach().contiguous())
    assert torch.equal(*results)


def train(rank: int, steps: int, resume_at: int | None) -> list[str]:
    def make():
        model = DistributedDataParallel(Odd(), bucket_cap_mb=0.02)
        handle = octavo.compress(model, "sign+ef")
        return model, handle, OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=4, handle=handle)

    model, handle, optimizer = make()
    digests = []
    for step in range(steps):
        if step == resume_at:
            saved = model.module.state_dict(), handle.state_dict(), copy.deepcopy(optimizer.state_dict())
            model, handle, optimizer = make()
            model.module.load_state_dict(saved[0])
            handle.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[2])
        tokens = batch_of(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        digests.append(digest(model))
    assert str(handle.plan) == ("sign:262144+ef" if steps >= 4 else "int4+ef")
    return digests


def test_replicas_are_bit_identical_in_both_phases(two_ranks):
    first, second = two_ranks.run(train, 10, None)
    assert first == second


@pytest.mark.parametrize("resume_at", [2, 4, 7])
def test_resuming_gives_the_same_bits_before_and_after_the_freeze(two_ranks, resume_at):
    assert two_ranks.run(train, 10, resume_at) == two_ranks.run(train, 10, None)


def momentum_in_the_hook(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    handle = octavo.compress(model, "int4+ef")
    optimizer = OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=1, handle=handle, frozen_beta=0.75)
    weight = model.module.weight
    for _ in range(2):
        state = {key: value.clone() for key, value in optimizer.state[weight].items() if torch.is_tensor(value)}
        optimizer.zero_grad()
        model(torch.ones(1, 64) * (rank + 1)).sum().backward()
        assert handle.gradient_powers()[weight] == pytest.approx((1 + 4) / 2)
        if optimizer.frozen:
            expected = 0.75 * state["exp_avg"] + 0.25 * 1.5 * state["exp_avg_sq"]
            assert torch.allclose(weight.grad, expected, rtol=0.05), "grad is not the averaged momentum"
            assert torch.equal(optimizer.state[weight]["exp_avg"], state["exp_avg"]), "the hook must only read it"
        optimizer.step()


def test_after_the_freeze_grad_holds_the_averaged_preconditioned_momentum(two_ranks):
    two_ranks.run(momentum_in_the_hook)


def test_arguments_that_make_no_sense_are_refused():
    parameters = [nn.Parameter(torch.zeros(2))]
    for arguments in ({"lr": -1.0}, {"warmup_steps": 0}, {"betas": (1.0, 0.9)}, {"frozen_beta": 1.0}):
        with pytest.raises(ValueError, match="OneBitAdamW"):
            OneBitAdamW(parameters, **{"warmup_steps": 1, **arguments})
    with pytest.raises(ValueError, match="OneBitAdamW"):
        OneBitAdamW(parameters, warmup_steps=1).load_state_dict(torch.optim.AdamW(parameters).state_dict())


def refuse_votes(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    handle = octavo.compress(model, "sign-vote")
    with pytest.raises(ValueError, match="magnitude"):
        OneBitAdamW(model.parameters(), warmup_steps=1, handle=handle)


def refuse_handles(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"expected handle=octavo.compress\(...\), since there are 2 ranks"):
        OneBitAdamW(model.parameters(), warmup_steps=1)
    handle = octavo.compress(model, "sign+ef")
    with pytest.raises(ValueError, match="parameters of the model that the handle compresses, got 1 others"):
        OneBitAdamW([*model.parameters(), nn.Parameter(torch.zeros(2))], warmup_steps=1, handle=handle)
    with pytest.raises(TypeError, match="got str"):
        OneBitAdamW(model.parameters(), warmup_steps=1, handle="sign+ef")
    OneBitAdamW(model.parameters(), warmup_steps=1, handle=handle)


def test_a_missing_or_a_strange_handle_is_refused(two_ranks):
    two_ranks.run(refuse_handles)


def test_a_voting_plan_is_refused(two_ranks):
    two_ranks.run(refuse_votes)
