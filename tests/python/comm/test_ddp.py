# SPDX-License-Identifier: Apache-2.0
"""The DDP hook: replicas stay equal bit by bit, odd parameters work, a NaN leaves no trace, state can be resumed."""

import random

import pytest
import torch
import torch.distributed as dist
from ddp_runs import Odd, batch_of, digest, loss_of, make, step_once, wrap
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
    model = DistributedDataParallel(Odd(), bucket_cap_mb=0.02)
    before = torch.get_rng_state(), random.getstate()
    octavo.compress(model, plan)
    for step in range(3):
        step_once(model, torch.optim.SGD(model.parameters(), lr=0.05), rank, step)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


@pytest.mark.parametrize("plan", ["int8:stochastic", "sign+ef", "randomk:0.1+ef", "powersgd:4+ef", "sketch:0.2+ef"])
def test_what_plans_draw_leaves_the_users_random_numbers_alone(two_ranks, plan):
    two_ranks.run(drawn, plan)


def gradients_of(rank: int, plan: str | None) -> list[torch.Tensor]:
    model = DistributedDataParallel(Odd(), bucket_cap_mb=0.02)
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


def unlike_embedding(rank: int) -> str:
    """Rank 0 has sparse gradients and rank 1 dense ones, and a message longer than the one that rank 0 expects."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(2000, 80, sparse=rank == 0))
    octavo.compress(model, "int4+ef", timeout_s=10)
    with pytest.raises(RuntimeError) as raised:
        model(torch.tensor([rank, 5])).sum().backward()
    return str(raised.value)


def test_sparse_gradients_against_dense_ones_are_an_error_on_both_ranks(two_ranks):
    for rank, said in enumerate(two_ranks.run(unlike_embedding)):
        assert f"rank {rank} was sent a bucket of another step, plan or model by rank {1 - rank}" in said


def a_rank_that_is_late(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(80, 80))
    octavo.compress(model, "int4+ef", timeout_s=1)
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"\[comm.wire\] rank 0: a peer did not answer within 1000 ms"):
            model(torch.ones(1, 80)).sum().backward()
    dist.barrier()


def test_a_deadline_of_a_backward_pass_is_a_timeout_error(two_ranks):
    two_ranks.run(a_rank_that_is_late)


def choose_a_plan_with_a_momentum(rank: int) -> tuple[str, str]:
    model = DistributedDataParallel(Odd())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = octavo.compress(model, "int4+ef", optimizer=optimizer)
    with pytest.raises(ValueError, match="build it with momentum=0") as refused:
        handle.set_plan("dgc:0.01")
    optimizer.param_groups[0]["momentum"] = 0.0
    handle.set_plan("dgc:0.01")
    return str(refused.value), str(handle.plan)


def test_a_later_plan_with_a_momentum_is_refused_beside_that_of_the_optimizer(two_ranks):
    for said, plan in two_ranks.run(choose_a_plan_with_a_momentum):
        assert said.startswith("[handle.set_plan] the plan topk:0.01+dgc keeps the momentum")
        assert plan == "topk:0.01+dgc"


def compiled_models(rank: int) -> tuple[bool, bool]:
    """Wraps a compiled module in DDP and compiles a DDP model: parameters have the module's own names."""
    inside = DistributedDataParallel(torch.compile(Odd(), backend="eager"))
    handle = octavo.compress(inside, "int4+ef;wide*=int8+ef", exempt=["norm*"])
    around = torch.compile(DistributedDataParallel(Odd()), backend="eager")
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


def refuse_arguments(rank: int) -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        octavo.compress(nn.Linear(2, 2), "sign+ef")
    model, handle, _ = make("sign+ef")
    with pytest.raises(ValueError, match="set_plan"):
        octavo.compress(model, "int4")
    with pytest.raises(ValueError, match="sign"):
        handle.set_plan("nonsense")
    with pytest.raises(TypeError, match="expected an octavo"):
        handle.set_plan(4)
    with pytest.raises(TypeError, match=r"expected exempt as patterns of parameters' names or as a function .*, got 3"):
        octavo.compress(DistributedDataParallel(Odd()), "sign+ef", exempt=["norm*", 3])
    with pytest.raises(ValueError, match=r"the exempt pattern 'norn\*' matches none of"):
        octavo.compress(DistributedDataParallel(Odd()), "sign+ef", exempt=["norn*"])
    elsewhere = DistributedDataParallel(Odd())
    elsewhere.module.late = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(NotImplementedError, match="expected a tensor on cpu, cuda, xpu or sycl, got one on meta"):
        octavo.compress(elsewhere, "int4")
    late = Odd()
    delayed = dict(
        delay_all_reduce_named_params=[("wide.weight", late.wide.weight)], param_to_hook_all_reduce=late.norm.weight
    )
    with pytest.raises(ValueError, match=r"\[ddp\.compress\] this model delays gradients"):
        octavo.compress(DistributedDataParallel(late, **delayed), "int4")


def disagree(rank: int) -> None:
    for plan, exempt, what in [
        ("int4" if rank else "sign", None, "plan"),
        ("sign", ["norm*", "wide*"][rank], "exempt"),
    ]:
        with pytest.raises(ValueError, match=f"all ranks must have the same {what}.*; rank 1 differs from rank 0"):
            octavo.compress(DistributedDataParallel(Odd()), plan, exempt=exempt)


def test_ranks_that_disagree_are_told_so(two_ranks):
    two_ranks.run(disagree)


def set_plans_that_differ(rank: int, plans: tuple[str, str]) -> str:
    model, handle, optimizer = make("dense")
    handle.set_plan(plans[rank])
    try:
        step_once(model, optimizer, rank, 0)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("plans", [("int4+ef", "int8+ef"), ("sign", "int8:8"), ("powersgd:1", "int8")])
def test_plans_that_differ_are_told_whatever_their_sizes(two_ranks, plans):
    for said in two_ranks.run(set_plans_that_differ, plans):
        assert "another step, plan or model" in said


def test_arguments_that_make_no_sense_are_refused(two_ranks):
    two_ranks.run(refuse_arguments)


def plan_change(rank: int) -> tuple[list[str], list[int]]:
    """Returns a digest of the model and the bytes that were sent, after each step."""
    model, handle, optimizer = make("int4+ef")
    digests, sent = [], []
    for step, plan in enumerate(["int4+ef", "sign+ef", "dense", "sign-vote", "bf16"]):
        handle.set_plan(plan)
        before = handle.stats()["wire_bytes"]
        step_once(model, optimizer, rank, step)
        assert str(handle.plan) == plan
        digests.append(digest(model))
        sent.append(handle.stats()["wire_bytes"] - before)
    return digests, sent


def test_the_plan_can_change_between_steps(two_ranks):
    (first, sent), (second, _) = two_ranks.run(plan_change)
    assert first == second
    int4, sign, dense, vote, bf16 = sent
    assert sign < vote < int4 < bf16 < dense


def bytes_of(rank: int) -> tuple[int, int]:
    model = DistributedDataParallel(nn.Linear(512, 512, bias=False))
    handle = octavo.compress(model, "sign:1024+ef")
    model(torch.randn(2, 512)).sum().backward()
    stats = handle.stats()
    return stats["wire_bytes"], stats["dense_bytes"]


def test_the_bytes_on_the_wire_are_the_bits_and_the_scales(two_ranks):
    elements = 512 * 512
    up_and_down = 2 * (elements / 2 / 8 + elements / 2 / 1024 * 4)
    headers = 2 * 16 + 4  # digest and checksum each way; upwards also the gradient's power
    for wire, dense in two_ranks.run(bytes_of):
        assert wire == up_and_down + headers and dense == 4 * elements


def set_plan_without_kernels(rank: int) -> None:
    from octavo import _C

    model, handle, optimizer = make("dense")
    require, _C.require_kernels = _C.require_kernels, lambda _: (_ for _ in ()).throw(NotImplementedError("no kernels"))
    try:
        with pytest.raises(NotImplementedError, match="no kernels"):
            handle.set_plan("int4+ef")
    finally:
        _C.require_kernels = require
    step_once(model, optimizer, rank, 0)
    assert str(handle.plan) == "dense"


def test_a_plan_without_kernels_is_refused_before_the_next_backward_pass(two_ranks):
    two_ranks.run(set_plan_without_kernels)


def bytes_by_step(rank: int) -> list[int]:
    model = DistributedDataParallel(nn.Linear(512, 512, bias=False))
    handle = octavo.compress(model, "topk:64/4096:sign+ef+warmup:4")
    sent = []
    for _ in range(6):
        model.zero_grad()
        model(torch.randn(2, 512)).sum().backward()
        sent.append(handle.stats()["wire_bytes"] - sum(sent))
    return sent


def test_a_warm_up_sends_less_and_less(two_ranks):
    sent = two_ranks.run(bytes_by_step)[0]
    # 1024, 256, then 64 values of each of an owner's 32 tiles: their places, signs and a scale; 36 bytes of headers
    words_of_places = {1024: 128, 256: 48, 64: 16}
    expected = [2 * 32 * (4 * words + kept // 8 + 4) + 36 for kept, words in words_of_places.items()]
    assert sent == [expected[stage] for stage in (0, 0, 1, 1, 2, 2)]


def bytes_by_rule(rank: int) -> tuple[dict[str, int], str]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)))
    handle = octavo.compress(model, "sign+ef;1.*=int8+ef;2.weight=dense")
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(8, 128)).square().sum().backward()
    sent = {one["name"]: one["wire_bytes"] for one in handle.parameter_stats()}
    assert set(handle.state_dict()) & {"worker/0.weight", "worker/1.weight", "worker/2.weight"} == {
        "worker/0.weight",
        "worker/1.weight",
    }
    handle.set_plan("int4+ef;0.*=dense")
    assert "worker/1.weight" in handle.state_dict() and "worker/0.weight" not in handle.state_dict()
    with pytest.raises(ValueError, match=r"the rule for 3\.\* in sign\+ef;3\.\*=int8 fits no parameter"):
        handle.set_plan("sign+ef;3.*=int8")
    with pytest.raises(ValueError, match="fits no parameter that has a gradient and is not exempt"):
        handle.set_plan("sign+ef;*.bias=int8")
    assert str(handle.plan) == "int4+ef;0.*=dense"
    model(torch.randn(8, 128)).square().sum().backward()
    return sent, digest(model, grads=True)


def test_rules_choose_the_plan_of_a_parameter(two_ranks):
    (sent, first), (_, second) = two_ranks.run(bytes_by_rule)
    values = 128 * 128
    assert sent["0.weight"] == values / 8 + values / 256 * 4
    assert sent["1.weight"] == values + values / 256 * 4
    assert sent["2.weight"] == 4 * values and sent["1.bias"] == 4 * 128
    assert first == second


def stats_by_parameter(rank: int) -> tuple[list[dict], int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(512, 512))
    handle = octavo.compress(model, "sign+ef")
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 512)).square().sum().backward()
    return handle.parameter_stats(), handle.stats()["wire_bytes"] // 3


def test_statistics_by_parameter(two_ranks):
    for parameters, wire_bytes in two_ranks.run(stats_by_parameter):
        weight, bias = parameters
        assert (weight["name"], weight["count"], bias["name"], bias["count"]) == ("weight", 512 * 512, "bias", 512)
        assert weight["dense_bytes"] == 4 * 512 * 512 and bias["wire_bytes"] == bias["dense_bytes"] == 4 * 512
        headers = 2 * 16 + 2 * 4
        assert weight["wire_bytes"] + bias["wire_bytes"] + headers == wire_bytes
        assert 0.1 < weight["residual_rms"] / weight["gradient_rms"] < 10 and bias["residual_rms"] == 0


def stats_where_sizes_vary(rank: int, plan: str) -> list[tuple[int, int]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(512, 512))
    handle = octavo.compress(model, plan)
    bytes_of_steps, before = [], 0
    for step in range(3):
        model.zero_grad()
        model(torch.randn(8, 512) * torch.logspace(0, -step, 512)).square().sum().backward()
        weight, bias = handle.parameter_stats()
        bytes_of_steps.append((weight["wire_bytes"] + bias["wire_bytes"], handle.stats()["wire_bytes"] - before))
        before = handle.stats()["wire_bytes"]
    return bytes_of_steps


@pytest.mark.parametrize("plan", ["bf16:lossless", "threshold:5+ef"])
def test_statistics_where_sizes_depend_on_the_values(two_ranks, plan):
    """Each way a size of 24 bytes and a header are sent before the message; payloads begin at multiples of 4."""
    for bytes_of_steps in two_ranks.run(stats_where_sizes_vary, plan):
        for of_parameters, sent in bytes_of_steps:
            assert 0 <= sent - of_parameters - (2 * (24 + 16) + 2 * 4) < 8
        assert len({sent for _, sent in bytes_of_steps}) > 1


def hook_without_compressor(rank: int) -> str:
    model = DistributedDataParallel(nn.Linear(4, 4))
    try:
        octavo._C.register_ddp_hook(model.reducer, None, list(model.parameters()))
    except ValueError as error:
        return str(error)
    return ""


def test_a_hook_without_a_compressor_is_refused(two_ranks):
    for said in two_ranks.run(hook_without_compressor):
        assert said.startswith("[comm.register_ddp_hook] expected a compressor")
