# SPDX-License-Identifier: Apache-2.0
"""FSDP2: the ranks' shards remain one model, a NaN leaves no trace, and state can be resumed."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from fsdp_runs import TiedAndUnused, backward, batch_of, digest, make, shard, step_once, tensors_of, whole
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import octavo

PLANS = ["dense", "bf16", "fp8", "int8:stochastic", "int4", "int4+ef", "ternary+ef", "sign+ef", "sign-vote"]
PLANS += ["topk:0.05+ef", "randomk:1/4:unbiased", "fp16:lossless", "threshold:3+ef", "int4+loco:0.8:2"]
PLANS += ["int4+down:bf16+ef:8bit"]


def gradients_of(rank: int, plan: str | None, prepare: Callable | None = None, **options: object) -> dict[str, Tensor]:
    model = shard(TiedAndUnused(), **options)
    if prepare is not None:
        prepare(model)
    if plan is not None:
        octavo.compress(model, plan)
    backward(model, rank, 0)
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
FP16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)


def sum_only(model: FSDPModule) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(3.0)
            module.set_force_sum_reduction_for_comms(True)


@pytest.mark.parametrize("policy", [MixedPrecisionPolicy(), MIXED, BF16, FP16], ids=["fp32", "mixed", "bf16", "fp16"])
@pytest.mark.parametrize("prepare", [None, sum_only])
def test_dense_is_what_fsdp_does_to_the_last_bit(four_ranks, policy, prepare):
    def gradients(plan):
        return four_ranks.run(gradients_of_policy, plan, prepare, policy)[0]

    ours, theirs = gradients("dense"), gradients(None)
    assert ours.keys() == theirs.keys() and "unused.weight" not in ours
    for name, gradient in ours.items():
        assert torch.equal(gradient, theirs[name]), name


def gradients_of_policy(rank: int, plan: str | None, prepare: Callable | None, policy: MixedPrecisionPolicy) -> dict:
    return gradients_of(rank, plan, prepare, mp_policy=policy)


@pytest.mark.parametrize(("plan", "tolerance"), [("bf16", 0.01), ("int8", 0.02), ("int4", 0.15)])
def test_averages_are_close_to_fsdps(three_ranks, plan, tolerance):
    ours, theirs = three_ranks.run(gradients_of, plan)[0], three_ranks.run(gradients_of, None)[0]
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).abs().max() <= tolerance * theirs[name].abs().max() + 1e-12, name
    assert torch.equal(ours["silent"], torch.zeros(65, 64))


@pytest.mark.parametrize("policy", [MIXED, BF16, FP16], ids=["mixed", "bf16", "fp16"])
def test_averages_are_close_to_fsdps_in_other_dtypes(two_ranks, policy):
    ours = two_ranks.run(gradients_of_policy, "int8", sum_only, policy)[0]
    theirs = two_ranks.run(gradients_of_policy, None, sum_only, policy)[0]
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).abs().max() <= 0.02 * theirs[name].abs().max() + 1e-6, name


def train(rank: int, plan: str, steps: int = 4) -> tuple[list[str], list[float]]:
    model, handle, optimizer = make(plan)
    digests, losses = [], []
    for step in range(steps):
        losses.append(step_once(model, optimizer, rank, step))
        digests.append(digest(model))
    assert handle.stats()["steps"] == steps and handle.stats()["nonfinite_steps"] == 0
    assert all(torch.isfinite(whole(p)).all() for p in model.parameters())
    return digests, losses


@pytest.mark.parametrize("plan", PLANS)
def test_all_ranks_gather_the_same_model_after_every_step(two_ranks, plan):
    (first, _), (second, _) = two_ranks.run(train, plan)
    assert first == second and len(set(first)) == len(first)


def train_compiled(rank: int, plan: str, compiles: str) -> tuple[list[str], int]:
    """Returns the digests of the model after each step, and how many graphs were compiled."""
    torch._dynamo.reset()
    counters.clear()
    model = TiedAndUnused()
    if compiles == "blocks":
        for block in model.blocks:
            block.compile(backend="aot_eager")
    model = shard(model)
    if compiles == "before":
        model = torch.compile(model, backend="aot_eager")
    handle = octavo.compress(model, plan)
    if compiles == "after":
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    digests = []
    for step in range(4):
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    assert handle.stats()["steps"] == 4
    return digests, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("compiles", ["before", "after", "blocks"])
def test_a_compiled_model_trains_to_the_same_bits(two_ranks, compiles):
    """It is compiled before octavo.compress or after it, or its blocks are, before they are sharded."""
    for plan in ("dense", "int4+ef"):
        eager, compiled = two_ranks.run(train_compiled, plan, "not"), two_ranks.run(train_compiled, plan, compiles)
        assert [digests for digests, _ in compiled] == [digests for digests, _ in eager]
        assert all(graphs > 0 for _, graphs in compiled)


@pytest.fixture(scope="module")
def dense_loss(four_ranks) -> float:
    """Returns the loss of the same training without compression."""
    return four_ranks.run(learn, "dense")[0][1]


@pytest.mark.parametrize("plan", ["int4+ef", "sign+ef"])
def test_it_learns_on_four_ranks(four_ranks, dense_loss, plan):
    results = four_ranks.run(learn, plan)
    assert len({digests for digests, _ in results}) == 1
    assert results[0][1] < 1.25 * dense_loss < 0.5, "the loss began at 3.4"


def learn(rank: int, plan: str) -> tuple[str, float]:
    """Trains on one batch of all ranks. Returns the digest of the model and its loss."""
    model, _, optimizer = make(plan)
    for _ in range(20):
        loss = torch.tensor(step_once(model, optimizer, rank, 0))
    dist.all_reduce(loss)
    return digest(model), loss.item() / dist.get_world_size()


def poison(rank: int, plan: str, bad: float) -> None:
    model, handle, optimizer = make(plan)
    for step in range(2):
        step_once(model, optimizer, rank, step)
    before = handle.state_dict()
    loss_scale = bad if rank == 1 else 1.0
    optimizer.zero_grad()
    (model(batch_of(rank, 2)).square().mean() * loss_scale).backward()
    after = handle.state_dict()
    assert before.keys() == after.keys() and (before.pop("step"), after.pop("step")) == (2, 3)
    for key, value in before.items():
        assert torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key], key
    assert handle.stats()["nonfinite_steps"] == 1
    step_once(model, optimizer, rank, 3)
    assert all(torch.isfinite(whole(p.grad)).all() for p in model.parameters() if p.grad is not None)
    assert handle.stats()["nonfinite_steps"] == 1


@pytest.mark.parametrize("plan", ["dense", "int4+ef", "sign+ef", "topk:0.05+ef"])
def test_a_nan_on_one_rank_leaves_no_trace_on_any(three_ranks, plan):
    three_ranks.run(poison, plan, float("nan"))


def poison_one_shard(rank: int) -> None:
    """Rank 0 has a NaN in a row that rank 1 owns, so rank 0 gets a finite shard."""
    model, handle, _ = make("int4+ef")
    backward(model, rank, 0)
    before = tensors_of(handle.state_dict())
    assert before
    model.zero_grad()
    out = model(batch_of(rank, 1))
    loss = out.mean()
    if rank == 0:
        # the root keeps the embedding whole until backward
        loss = loss + float("nan") * model.embedding.weight[-1].sum()
    loss.backward()
    finite = [torch.isfinite(p.grad.to_local()).all().item() for p in model.parameters() if p.grad is not None]
    assert all(finite) == (rank == 0)
    after = tensors_of(handle.state_dict())
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert handle.stats()["nonfinite_steps"] == 1


def test_a_nan_in_one_shard_is_rolled_back_by_ranks_that_see_finite_shards_too(two_ranks):
    two_ranks.run(poison_one_shard)


def train_on_one_rank(rank: int) -> None:
    model, handle, _ = make("sign-vote")
    backward(model, rank, 0)
    assert handle.end_step() and handle.step == 1
    weight = whole(model.embedding.weight.grad)
    assert set(weight.abs().unique().tolist()) == {1.0}
    (model(batch_of(rank, 1)).mean() * float("nan")).backward()
    assert not handle.end_step() and handle.stats()["nonfinite_steps"] == 1


def test_one_rank_votes_and_sees_its_nan(one_rank):
    one_rank.run(train_on_one_rank)


def resume(rank: int, plan: str) -> None:
    model, handle, optimizer = make(plan)
    for step in range(3):
        step_once(model, optimizer, rank, step)
    resumed, resumed_handle, resumed_optimizer = make(plan)
    resumed.load_state_dict(model.state_dict())
    assert tensors_of(handle.state_dict())
    resumed_handle.load_state_dict(handle.state_dict())
    for step in range(3, 6):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)


@pytest.mark.parametrize("plan", ["sign+ef", "topk:0.05:int8+ef"])
def test_state_dict_resumes_with_the_same_bits(three_ranks, plan):
    three_ranks.run(resume, plan)


def save(rank: int) -> dict:
    model, handle, optimizer = make("sign+ef")
    for step in range(2):
        step_once(model, optimizer, rank, step)
    rows = {name: p.to_local().shape[0] * 64 for name, p in model.named_parameters() if name == "silent"}
    return {"handle": handle.state_dict(), "model": {k: whole(v) for k, v in model.state_dict().items()}, "rows": rows}


def owed(states: list[dict], key: str, count: int, row: int) -> Tensor:
    """Returns what is owed to the average: the mean over ranks of what they did not send, with zeros for their own
    shards."""
    size, total = len(states), torch.zeros(count)
    share = -(-count // (row * size)) * row
    for rank, state in enumerate(states):
        first, last = min(count, share * rank), min(count, share * (rank + 1))
        sent = torch.cat([torch.arange(first), torch.arange(last, count)])
        total[sent] += state[key].float()
    return total / size


def resume_elsewhere(rank: int, saved: list[dict]) -> dict:
    model, handle, _ = make("sign+ef")
    states = [one["handle"] for one in saved]
    with pytest.raises(ValueError, match="the list of the states of all 3 ranks"):
        handle.load_state_dict(states[2])
    handle.load_state_dict(states)
    backward(model, rank, 9)
    fresh = make("sign+ef")[1]
    fresh.load_state_dict(states)
    return fresh.state_dict()


def test_residuals_are_redistributed_over_another_number_of_shards(two_ranks, three_ranks):
    saved = three_ranks.run(save)
    old = [one["handle"] for one in saved]
    new = two_ranks.run(resume_elsewhere, saved)
    for key, count, row in [
        ("worker/blocks.0.wide.weight", 101 * 64, 64),
        ("worker/blocks.1.narrow.weight", 6464, 101),
    ]:
        before, after = owed(old, key, count, row), owed(new, key, count, row)
        assert before.abs().max() > 0
        assert torch.allclose(before, after, rtol=0.01, atol=1e-3 * before.abs().max())


def accumulate(rank: int, plan: str | None) -> tuple[int, dict]:
    """Makes two passes without a reduce-scatter and one with it, then one more without resetting the shards'
    gradients."""
    model = shard(TiedAndUnused())
    handle = octavo.compress(model, plan) if plan else None
    for last in (False, False, True):
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)
        backward(model, rank, int(last))
    steps = handle.stats()["steps"] if handle else 1
    backward(model, rank, 2)
    return steps, {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def test_accumulated_gradients_are_sent_once(two_ranks):
    for plan, tolerance in [("dense", 0), ("int8", 0.02)]:
        (steps, ours), (_, theirs) = two_ranks.run(accumulate, plan)[0], two_ranks.run(accumulate, None)[0]
        assert steps == 1
        for name, gradient in ours.items():
            assert (gradient - theirs[name]).abs().max() <= tolerance * theirs[name].abs().max() + 1e-12, name


class Twice(nn.Module):
    """A model whose forward passes all come before its backward passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(64, 64, bias=False)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)


def freeze_and_unfreeze(rank: int, plan: str | None, when: str) -> list[Tensor]:
    """Trains where a block is frozen before `octavo.compress` and trained later, or frozen between that and the first
    pass. Returns the norms of the gradients and the parameters in the end."""
    model = shard(TiedAndUnused())
    model.blocks[0].requires_grad_(when == "after")
    handle = None if plan is None else octavo.compress(model, plan)
    model.blocks[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ends = []
    for step in range(4):
        model.blocks[0].requires_grad_(step > 1)
        backward(model, rank, step)
        clip = handle.clip_grad_norm_ if handle else lambda most: nn.utils.clip_grad_norm_(model.parameters(), most)
        ends.append(whole(clip(0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return [*ends, *(whole(parameter.detach()) for parameter in model.parameters())]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_group_may_be_frozen_for_a_time(two_ranks, when):
    """What was frozen at octavo.compress is sent by FSDP2 itself, and clipped with the others."""
    for ours, theirs in zip(
        two_ranks.run(freeze_and_unfreeze, "dense", when), two_ranks.run(freeze_and_unfreeze, None, when), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def use_twice(rank: int) -> tuple[dict, int]:
    model = shard(Twice())
    handle = octavo.compress(model, "sign:64+ef")
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    model(x).square().mean().backward()
    first = handle.stats()["steps"]
    losses = model(x).square().mean(), model(2 * x).square().mean()
    for loss in losses:
        loss.backward()
    residuals = tensors_of(handle.state_dict())
    return residuals, handle.stats()["steps"] - first


def test_a_group_that_is_reduced_again_begins_a_step(two_ranks):
    for residuals, steps in two_ranks.run(use_twice):
        assert steps == 2 and all(torch.isfinite(one.float()).all() for one in residuals.values())


def bytes_of(rank: int, plan: str) -> tuple[int, int, list[dict]]:
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.Linear(512, 511, bias=False)))
    handle = octavo.compress(model, plan)
    model(torch.randn(2, 512)).sum().backward()
    stats = handle.stats()
    return stats["wire_bytes"], stats["dense_bytes"], handle.parameter_stats()


def test_the_bytes_on_the_wire_are_the_bits_and_the_scales(three_ranks):
    rows = {0: 171, 1: 171, 2: 169}
    verdict = 4 * 4 // 3  # a ring all-reduce of 4 bytes
    for rank, (wire, dense, parameters) in enumerate(three_ranks.run(bytes_of, "sign:512")):
        others = sum(rows[other] for other in rows if other != rank)
        payloads = others * (512 // 8 + 4)
        headers = 2 * (16 + 4)  # digest, checksum and the gradient's power, to each of the others
        assert wire == payloads + headers + verdict and dense == 2 * 4 * 513 * 512 // 3
        assert parameters[0]["wire_bytes"] == payloads
    for wire, dense, _ in three_ranks.run(bytes_of, "dense"):
        assert wire == dense + verdict + 4 * 8 // 3  # plus the gradient's power, in float64


def change_plans(rank: int) -> list[str]:
    model, handle, optimizer = make("int4+ef;blocks.0.*=sign+ef;*embedding*=dense")
    digests = []
    for step, plan in enumerate([None, "sign+ef", "dense", "bf16", "int4+ef"]):
        if plan is not None:
            handle.set_plan(plan)
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    assert "worker/unused.weight" not in handle.state_dict()
    return digests


def test_the_plan_can_change_between_steps_and_have_rules(two_ranks):
    first, second = two_ranks.run(change_plans)
    assert first == second


def grouped(rank: int, plan: str | None) -> dict[str, Tensor]:
    """Trains modules that share a group and are given in another order than they were made in. One parameter is sharded
    along another dimension than the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 65), nn.Linear(65, 33), nn.Linear(33, 64))
    place = {model[2].weight: Shard(1) if dist.get_world_size() == 3 else Shard(0)}
    fully_shard([model[1], model[0]])
    fully_shard(model, shard_placement_fn=place.get)
    if plan:
        octavo.compress(model, plan, exempt=[])
    model(torch.randn(4, 30, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def test_grouped_modules_and_other_dimensions(three_ranks):
    theirs = three_ranks.run(grouped, None)[0]
    for plan, tolerance in [("dense", 0), ("int8", 0.02)]:
        for name, gradient in three_ranks.run(grouped, plan)[0].items():
            assert (gradient - theirs[name]).abs().max() <= tolerance * theirs[name].abs().max(), name


def scaled(rank: int, scale: float | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = shard(TiedAndUnused())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
    handle = octavo.compress(model, "sign+ef", scaler=scaler)
    for step in range(2):
        model.zero_grad()
        loss = model(batch_of(rank, step)).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
    return tensors_of(handle.state_dict()), {
        n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None
    }


def test_residuals_are_in_unscaled_units(two_ranks):
    (residuals, gradients), _ = two_ranks.run(scaled, None)
    (of_scaled, scaled_gradients), _ = two_ranks.run(scaled, 1024.0)
    assert residuals and all(torch.equal(residuals[key], of_scaled[key]) for key in residuals)
    assert all(torch.equal(1024 * gradients[name], scaled_gradients[name]) for name in gradients)
