# SPDX-License-Identifier: Apache-2.0
"""The DDP hook: replicas stay equal bit by bit, odd shapes work, a NaN leaves no trace."""

import random

import pytest
import torch
from ddp_runs import OddShapes, batch_of, digest, loss_of, make, step_once, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW

#: By plan: the cosine between the gradients of a step and those of DDP without a hook, and the ratio of their norms. A
#: plan with feedback has them in its first step, when nothing is owed yet. A vote sends signs, whatever the norm.
LIKENESS = {
    "dense": (1.0, 1.0),
    "bf16": (1.0, 1.0),
    "fp8": (1.0, 1.0),
    "int8:stochastic": (1.0, 1.0),
    "int4": (0.99, 1.02),
    "int4+ef": (0.99, 1.02),
    "ternary+ef": (0.75, 0.60),
    "sign": (0.65, 0.65),
    "sign+ef": (0.64, 0.64),
    "sign-vote": (0.31, None),
    "powersgd:4+ef": (1.0, 1.0),
    "powersgd:2:alternating+ef": (0.32, 0.32),
    "dgc:0.05": (0.82, 0.82),
    "dgc:0.1:int4+clip:0.1": (0.90, 0.91),
    "delta+int4": (0.99, 1.02),
    "delta+topk:0.05": (0.82, 0.82),
    "delta+randomk:0.25:unbiased": (0.51, 2.0),
    "bf16:lossless": (1.0, 1.0),
    "threshold:3:int8+ef": (0.72, 0.72),
    "lsh:0.4:int4": (0.99, 1.02),
    "lsh:0.45:bf16:lossless+econtrol:0.1": (1.0, 1.0),
    "sketch:0.2": (0.25, 1.26),
    "sketch:0.2+ef": (0.26, 1.25),
    "sketch:0.1:exact+ef": (0.34, 0.34),
    "topk:0.1+down:int8+ef": (0.96, 0.96),
    "topk:0.05+ef:0.9+hits": (0.81, 1.58),
    "topk:0.05+econtrol": (0.82, 0.82),
    "int4+loco:0.8:2": (0.99, 1.02),
    "sketch:0.2+fetchsgd:0.5": (0.26, 1.25),
    "int4+ef:8bit": (0.99, 1.02),
    "topk:0.05+ef:0.9:8bit+hits": (0.81, 1.58),
}
PLANS = list(LIKENESS)

#: One plan for each way of exchanging.
SOME_PLANS = ["dense", "int4+ef", "sign-vote", "powersgd:4+ef", "topk:0.05+ef:0.9+hits", "bf16:lossless"]


def likeness(model: nn.Module, plain: nn.Module) -> tuple[float, float]:
    """Returns the cosine between the gradients of two copies of a model, and the ratio of their norms."""
    ours, exact = (
        torch.cat([p.grad.flatten().double() for p in one.parameters() if p.grad is not None]) for one in (model, plain)
    )
    return float(nn.functional.cosine_similarity(ours, exact, dim=0)), float(ours.norm() / exact.norm())


def train(rank: int, plan: str, options: dict) -> list[str]:
    model, handle, optimizer = make(plan, **options)
    plain = wrap(**options)
    digests, likenesses = [], []
    for step in range(5):  # DDP rebuilds its buckets after the first step
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        loss_of(plain, rank, step).backward()
        step_once(model, optimizer, rank, step)
        digests.append(digest(model) + digest(model, grads=True))
        likenesses.append(likeness(model, plain))
    assert handle.stats()["steps"] == 5
    assert all(torch.isfinite(p).all() for p in model.parameters())
    require_likeness(plan, likenesses)
    return digests


def require_likeness(plan: str, of_steps: list[tuple[float, float]]) -> None:
    usual, usual_ratio = LIKENESS[plan]
    varies = "+" in plan or plan.startswith(("dgc", "lsh", "sign-vote"))
    for step, (cosine, ratio) in enumerate(of_steps):
        if step == 0 or not varies:
            assert cosine == pytest.approx(usual, abs=0.005 + 0.1 * (1 - usual)), (step, cosine)
            assert usual_ratio is None or ratio == pytest.approx(usual_ratio, rel=0.05), (step, ratio)
        assert cosine > 0.1 and ratio > 0.3, (step, cosine, ratio)
        assert usual_ratio is None or ratio < 5, (step, ratio)


@pytest.mark.parametrize("plan", PLANS)
def test_replicas_are_bit_identical_after_every_step_and_close_to_ddps(two_ranks, plan):
    first, second = two_ranks.run(train, plan, {})
    assert first == second


@pytest.mark.parametrize("plan", SOME_PLANS)
@pytest.mark.parametrize(
    "options", [{"unused": True}, {"gradient_as_bucket_view": True}, {"dtype": torch.bfloat16}], ids=str
)
def test_replicas_of_other_options_are_bit_identical_after_every_step(two_ranks, plan, options):
    first, second = two_ranks.run(train, plan, options)
    assert first == second


def test_replicas_on_three_ranks_are_bit_identical_after_every_step(three_ranks):
    results = three_ranks.run(train, "sign+ef", {})
    assert results[0] == results[1] == results[2]


def train_beside_an_expert(rank: int) -> str:
    """Trains a model with a layer of the rank's own, which DDP leaves out, and which is larger on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64 + 64 * rank))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["1.weight", "1.bias"])
    ddp = DistributedDataParallel(model)
    handle = octavo.compress(ddp, "int4+ef")
    with pytest.raises(ValueError, match=r"parameter"):
        joined = OneBitAdamW(model.parameters(), warmup_steps=2)
        octavo.compress(DistributedDataParallel(model), "sign+ef", optimizer=joined)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        ddp(torch.randn(16, 64, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(handle.gradient_powers()) == 2
    return digest(model[0])


def test_what_ddp_leaves_out_belongs_to_the_rank(two_ranks):
    first, second = two_ranks.run(train_beside_an_expert)
    assert first == second


def drawn(rank: int, plan: str) -> None:
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    before = torch.get_rng_state(), random.getstate()
    octavo.compress(model, plan)
    for step in range(3):
        step_once(model, torch.optim.SGD(model.parameters(), lr=0.05), rank, step)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


@pytest.mark.parametrize("plan", ["int8:stochastic", "sign+ef", "randomk:0.1+ef", "powersgd:4+ef", "sketch:0.2+ef"])
def test_what_plans_draw_leaves_the_users_random_numbers_alone(two_ranks, plan):
    two_ranks.run(drawn, plan)


def gradients_of(rank: int, plan: str | None) -> list[torch.Tensor]:
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    if plan is not None:
        octavo.compress(model, plan)
    loss_of(model, rank, 0).backward()
    return [p.grad for p in model.parameters()]


def test_dense_is_what_ddp_does_to_the_last_bit(two_ranks):
    ours, theirs = two_ranks.run(gradients_of, "dense")[0], two_ranks.run(gradients_of, None)[0]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("plan", "tolerance"), [("bf16", 0.01), ("int4", 0.12)])
def test_averages_are_close_to_ddps(two_ranks, plan, tolerance):
    ours, theirs = two_ranks.run(gradients_of, plan)[0], two_ranks.run(gradients_of, None)[0]
    for a, b in zip(ours, theirs, strict=True):
        if b.numel():
            assert (a - b).abs().max() <= tolerance * b.abs().max() + 1e-12


def poison(rank: int, plan: str) -> None:
    model, handle, optimizer = make(plan)
    for step in range(3):
        step_once(model, optimizer, rank, step)
    for count, bad in enumerate((float("nan"), float("inf"))):
        poison_once(rank, model, handle, bad)
        step_once(model, optimizer, rank, 4 + count)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters()), f"the {bad} is not gone"
        assert handle.stats()["nonfinite_steps"] == 1 + count


def poison_once(rank: int, model: nn.Module, handle: octavo.Handle, bad: float) -> None:
    """Makes a backward pass in which rank 1 has a bad value. It reaches both ranks, and nothing of it is kept."""
    before = handle.state_dict()
    hook = model.module.wide.weight.register_hook(lambda g: g.index_fill(0, torch.tensor([7]), bad) if rank == 1 else g)
    model.zero_grad()
    model(batch_of(rank, 3)).sum().backward()
    hook.remove()
    assert not torch.isfinite(model.module.wide.weight.grad).all(), f"the {bad} did not arrive"
    after = handle.state_dict()
    assert before.keys() == after.keys()
    assert after.pop("step") == before.pop("step") + 1
    for key, value in before.items():
        assert torch.equal(value, after[key]) if isinstance(value, torch.Tensor) else value == after[key], key


@pytest.mark.parametrize("plan", PLANS)
def test_a_value_that_is_not_finite_on_one_rank_reaches_all_and_is_gone_in_the_next_step(two_ranks, plan):
    two_ranks.run(poison, plan)


def accumulate(rank: int) -> tuple[int, str]:
    model, handle, optimizer = make("sign+ef")
    for step in range(3):
        with model.no_sync():
            model(batch_of(rank, 2 * step)).square().mean().backward()
        model(batch_of(rank, 2 * step + 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return handle.stats()["steps"], digest(model)


def test_accumulation_under_no_sync_sends_once_a_step(two_ranks):
    first, second = two_ranks.run(accumulate)
    assert first == second and first[0] == 3


def sparse_embedding(rank: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(30, 80, sparse=True), nn.Linear(80, 80)))
    octavo.compress(model, "sign+ef")
    model(torch.tensor([rank, 5])).sum().backward()
    assert model.module[1].weight.grad.abs().sum() > 0
    return model.module[0].weight.grad.coalesce().to_dense()


def test_a_sparse_embedding_passes_as_it_is(two_ranks):
    first, second = two_ranks.run(sparse_embedding)
    assert torch.equal(first, second)
    assert first[5].abs().sum() > 0 and first[0].abs().sum() > 0 and first[2].abs().sum() == 0


def compiled_models(rank: int) -> tuple[bool, bool]:
    """Wraps a compiled module in DDP and compiles a DDP model: parameters have the module's own names."""
    inside = DistributedDataParallel(torch.compile(OddShapes(), backend="eager"))
    handle = octavo.compress(inside, "int4+ef;wide*=int8+ef", exempt=["norm*"])
    around = torch.compile(DistributedDataParallel(OddShapes()), backend="eager")
    other = octavo.compress(around, "int4+ef;wide*=int8+ef", exempt=["norm*"])
    names = [one["name"] for one in other.parameter_stats()]
    return names == [one["name"] for one in handle.parameter_stats()], not any("_orig_mod" in name for name in names)


def test_the_parameters_of_compiled_models_have_their_own_names(two_ranks):
    assert two_ranks.run(compiled_models) == [(True, True)] * 2


def norms_of_one_part(rank: int, factor: float) -> float:
    """Returns the norm of the first layer, which the 1-bit optimizer has; another optimizer would have the second
    one."""
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    ddp = DistributedDataParallel(nn.ModuleList([first, second]))
    ddp.module.forward = lambda x, factor: first(x).square().mean() + factor * second(x).square().mean()
    optimizer = octavo.optim.OneBitAdamW(first.parameters(), lr=1e-4, warmup_steps=3)
    octavo.compress(ddp, "sign+ef", optimizer=optimizer)
    for step in range(6):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        ddp.zero_grad()
        ddp(x, factor if step >= 3 else 1.0).backward()  # the factor applies from the freeze on
        norm = float(optimizer.clip_grad_norm_(1e9))
        optimizer.step()
    return norm


def test_the_norm_after_the_freeze_is_that_of_the_optimizers_own_parameters(two_ranks):
    small, large = (two_ranks.run(norms_of_one_part, factor)[0] for factor in (1.0, 100.0))
    assert large == pytest.approx(small, rel=0.05)
