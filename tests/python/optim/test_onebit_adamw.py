# SPDX-License-Identifier: Apache-2.0
"""The steps of OneBitAdamW in its two phases, and what it keeps of a parameter for them."""

import copy
import gc
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from ddp_runs import Switch, digest
from lion_runs import Given, gradients_of
from onebit_runs import loss_of, quadratic, step_once, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW, OneBitLamb, ZeroOneAdam


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


def test_a_frozen_variance_does_not_depend_on_the_threads():
    torch.manual_seed(0)
    square = torch.randn(3000, 1024).square_()
    square[1500:] = 0  # these blocks have the mean of all
    frozen, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            frozen.append(square.clone())
            torch.ops.octavo.freeze_variance_(frozen[-1], 100, 0.999, 1e-8, 0.3)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(frozen[0], frozen[1]) and torch.equal(frozen[0], frozen[2])


def test_the_frozen_denominator_has_a_floor():
    square = torch.zeros(600)
    square[:256] = 4.0
    square[300] = 16.0
    torch.ops.octavo.freeze_variance_(square, 10_000_000, 0.999, 1e-8, 0.3)
    assert torch.allclose(1 / square[:256], torch.tensor(2.0))
    assert torch.allclose(1 / square[300], torch.tensor(4.0))
    assert torch.allclose(1 / square[301], torch.tensor(0.3 * 4.0 / 256))
    mean = (256 * 2 + 4) / 600  # the last block never had a gradient: it has the tensor's mean
    assert torch.allclose(1 / square[512:], torch.tensor(0.3 * mean))


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.rand(8, 4, 1, 1).to(memory_format=torch.channels_last),
        lambda: torch.rand(64, 1).t(),
        lambda: torch.rand(40, 30).t(),
        lambda: torch.rand(0, 4),
    ],
    ids=["1x1 in channels_last", "a column", "transposed", "nothing"],
)
def test_a_variance_is_frozen_in_any_memory_order(view):
    square = view()
    expected = square.clone(memory_format=torch.contiguous_format).view(square.shape)
    torch.ops.octavo.freeze_variance_(expected, 7, 0.999, 1e-8, 0.3)
    strides = square.stride()
    torch.ops.octavo.freeze_variance_(square, 7, 0.999, 1e-8, 0.3)
    assert square.stride() == strides
    assert torch.equal(square, expected)


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


class Part(nn.Module):
    """A layer whose weight is a transposed part of a larger matrix, or a dense copy of it."""

    def __init__(self, is_dense: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        part = torch.randn(40, 120)[:, :40].t()
        self.weight = nn.Parameter(part.contiguous() if is_dense else part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def train_part(rank: int, is_dense: bool, kind: type) -> list[float]:
    model = DistributedDataParallel(Part(is_dense))
    assert model.module.weight.is_contiguous() == is_dense
    timing = dict(warmup_steps=2) if kind is OneBitAdamW else dict(var_freeze_step=2, local_step_scaler=2)
    optimizer = kind(model.parameters(), lr=1e-2, **timing)
    octavo.compress(model, "int8+ef", optimizer=optimizer)
    losses = []
    for step in range(8):
        x = torch.randn(16, 40, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [OneBitAdamW, ZeroOneAdam])
def test_a_parameter_that_is_transposed_and_not_dense_is_trained_as_a_dense_one(two_ranks, kind):
    expected = two_ranks.run(train_part, True, kind)
    assert two_ranks.run(train_part, False, kind) == [pytest.approx(of_rank, rel=1e-4) for of_rank in expected]


def momentum_in_the_hook(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    optimizer = OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=1, frozen_beta=0.75)
    handle = octavo.compress(model, "int4+ef", optimizer=optimizer)
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


def unwrap(rank: int) -> str:
    class Wrapper(torch.optim.Optimizer):  # like Accelerate's AcceleratedOptimizer, which holds an optimizer
        def __init__(self, optimizer):
            self.optimizer = optimizer

    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    optimizer = OneBitAdamW(module.parameters(), warmup_steps=1)
    model = DistributedDataParallel(module)
    handle = octavo.compress(model, "sign+ef", optimizer=Wrapper(optimizer))
    step_once(model, optimizer, rank, 0)
    return str(handle.plan)


def test_a_wrapped_optimizer_is_found(two_ranks):
    assert two_ranks.run(unwrap) == ["sign:262144+ef"] * 2


def dense_warmup(rank: int) -> list[float]:
    model, handle, optimizer = wrap(warmup_steps=5, warmup_plan="dense")
    weight = model.module.weight
    norms = []
    for step in range(20):
        before = weight.detach().clone()
        optimizer.zero_grad()
        (loss_of(model, rank, step) * (1.0 if step < 8 else 100.0)).backward()
        assert handle.gradient_powers()[weight] > 0
        optimizer.step()
        norms.append((weight.detach() - before).norm().item())
    return norms


def test_after_a_dense_warmup_the_variance_follows_the_gradients(two_ranks):
    for norms in two_ranks.run(dense_warmup):
        assert max(norms[8:]) < 10 * max(norms[:8]), (
            "a loss that grew a hundredfold must not lengthen the steps as much"
        )


@pytest.mark.parametrize("frozen", [False, True])
def test_learning_rate_schedules_of_torch_rule_both_phases(frozen):
    parameter = nn.Parameter(torch.zeros(100))
    optimizer = OneBitAdamW([parameter], lr=1.0, betas=(0.0, 0.5), weight_decay=0.0, warmup_steps=1 if frozen else 100)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        ],
        milestones=[3],
    )
    for _ in range(8):
        before, rate = parameter.detach().clone(), optimizer.param_groups[0]["lr"]
        parameter.grad = torch.ones(100)
        optimizer.step()
        schedule.step()
    assert (before - parameter.detach()).mean().item() == pytest.approx(rate, rel=0.01)
    assert 0 < rate < 1


def leave_a_layer_unused(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = Switch()
    optimizer = OneBitAdamW(module.parameters(), lr=1e-2, warmup_steps=2)
    model = DistributedDataParallel(module, find_unused_parameters=True)
    octavo.compress(model, "int4+ef", optimizer=optimizer)
    for step in range(4):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad(set_to_none=False)
        model(x, step < 3).square().mean().backward()
        before = optimizer.state[module.b.weight].get("exp_avg", torch.zeros(1)).clone()
        optimizer.step()
    return [before, optimizer.state[module.b.weight]["exp_avg"]]


def test_the_momentum_of_an_unused_layer_decays(two_ranks):
    for before, after in two_ranks.run(leave_a_layer_unused):
        assert before.norm() > 0
        torch.testing.assert_close(after, 0.5 * before)


@pytest.mark.parametrize("make", [OneBitAdamW, OneBitLamb])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_gradient_that_is_not_finite_is_not_a_step(make, bad):
    ends = []
    for poisoned in (True, False):
        model, _, _ = quadratic()
        optimizer = make(model.parameters(), lr=1e-2, warmup_steps=5)
        for step in range(9):
            model.weight.grad = torch.randn(30, 40, generator=torch.Generator().manual_seed(step))
            model.bias.grad = torch.randn(30, generator=torch.Generator().manual_seed(step))
            if step in (1, 7):
                model.weight.grad[3, 5] = bad
            if poisoned or step not in (1, 7):
                optimizer.step()
        assert optimizer.frozen
        ends.append(digest(model))
    assert ends[0] == ends[1]


def poison(rank: int, make, poisoned: bool) -> str:
    """Trains with a loop that does not check gradients, where one rank's gradient is not finite in two steps, or with a
    loop that leaves these steps out."""
    model = DistributedDataParallel(Given())
    optimizer = make(model.parameters(), lr=1e-2, warmup_steps=3)
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    for step in range(8):
        if not poisoned and step in (1, 6):
            state = handle.state_dict()
            handle.load_state_dict(state | {"step": state["step"] + 1})  # the rounding depends on the step's number
            continue
        gradients = gradients_of(rank, step)
        if rank == 1 and step in (1, 6):
            gradients[step % 2][7] = math.nan
        optimizer.zero_grad()
        model(*gradients).backward()
        optimizer.step()
    assert optimizer.frozen
    return digest(model)


@pytest.mark.parametrize("make", [OneBitAdamW, OneBitLamb])
def test_a_nan_on_one_rank_is_a_step_of_none(two_ranks, make):
    poisoned, without = two_ranks.run(poison, make, True), two_ranks.run(poison, make, False)
    assert poisoned == without and poisoned[0] == poisoned[1]


class Weighed(nn.Module):
    """Two layers; the loss of the second one is multiplied by an argument."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, weight: float) -> torch.Tensor:
        return self.a(x).square().mean() + weight * self.b(x).square().mean()


def weigh_nothing_in_the_warmup(rank: int, make) -> list[float]:
    """Returns how far the second layer moves in the steps after a warm-up in which all of its gradients were zero."""
    model = DistributedDataParallel(Weighed())
    optimizer = make(model.parameters(), lr=1e-3, warmup_steps=3, weight_decay=0.0)
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    weight, moves = model.module.b.weight, []
    for step in range(8):
        optimizer.zero_grad()
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x, 0.0 if step < 3 else 1.0).backward()
        before = weight.detach().clone()
        optimizer.step()
        moves.append((weight.detach() - before).abs().max().item())
    assert optimizer.frozen and str(handle.plan) == "sign:262144+ef"
    assert optimizer.state[model.module.a.weight]["frozen"] and not optimizer.state[weight]["frozen"]
    return moves


@pytest.mark.parametrize("make", [OneBitAdamW, OneBitLamb])
def test_a_parameter_of_zero_gradients_in_the_warmup_stays_on_its_rule(two_ranks, make):
    for moves in two_ranks.run(weigh_nothing_in_the_warmup, make):
        assert moves[:3] == [0.0] * 3
        assert all(0 < move < 0.02 for move in moves[3:]), "by 1 / eps, the reciprocal of a variance of zero"


def threads_left_by(rank: int) -> int:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def train() -> None:
        model, _, optimizer = wrap(warmup_steps=1)
        for step in range(3):
            step_once(model, optimizer, rank, step)

    gc.collect()
    before = count()
    train()
    return count() - before


def test_a_model_that_is_let_go_of_takes_its_threads_and_connections_with_it(two_ranks):
    """This needs no garbage collector, which seldom runs. Gloo's threads wake up a hundred times a second: those of
    hundreds of models in one process took most of its time."""
    assert max(two_ranks.run(threads_left_by)) <= 0


def with_a_burst(rank: int, at: int) -> tuple[float, list[bool]]:
    """Makes steps with a clip; the gradients of one of them are finite, and their squares are not."""
    model, handle, optimizer = wrap(warmup_steps=5)
    moved = []
    for step in range(12):
        before = model.module.weight.detach().clone()
        optimizer.zero_grad()
        (loss_of(model, rank, step) * (1e22 if step == at else 1)).backward()
        handle.clip_grad_norm_(1.0)
        with pytest.warns(UserWarning, match="a step was left out") if step == at else nullcontext():
            optimizer.step()
        moved.append(not torch.equal(before, model.module.weight))
    return optimizer._growth(optimizer.state[model.module.weight], 0.999), moved


@pytest.mark.parametrize("at", [2, 8])
def test_a_gradient_whose_squares_leave_float32_is_skipped(two_ranks, at):
    for growth, moved in two_ranks.run(with_a_burst, at):
        assert 0.1 < growth < 10
        assert moved == [step != at for step in range(12)]
