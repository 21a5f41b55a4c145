# SPDX-License-Identifier: Apache-2.0
"""Kinds of feedback other than +ef: momentum before compression (dgc) and compressed differences (ef21, econtrol). They
are compared with a float reference, across NaNs and checkpoints. test_packed_feedback.py tests
feedback in 8 bits, test_feedback_hits.py averages over hits, test_feedback_worlds.py other numbers of ranks."""

import copy

import pytest
import torch
from ddp_runs import digest, make, step_once
from feedback_rules import (
    COUNT,
    SIDE,
    Dgc,
    EControl,
    Ef14,
    Ef21,
    averaged,
    make_weight,
    normal_gradient,
    owned_ranges,
    require_same,
    results_of,
    small_numbers,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo


@pytest.mark.parametrize("world", [2, 3])
def test_dgc_is_its_float_reference(ranks_of, world):
    results = ranks_of(world).run(results_of, world, "topk:0.03+dgc:0.5", small_numbers, 4)
    require_same(results, small_numbers, Dgc(world, "topk:0.03", 0.5))


@pytest.mark.parametrize("ways", [("topk:0.03", "topk:0.1"), ("topk:0.03", "dense"), ("dense", "topk:0.1")], ids=str)
def test_each_way_feeds_back_the_errors_of_its_own_codec(two_ranks, ways):
    up, down = ways
    results = two_ranks.run(results_of, 2, f"{up}+down:{down}+ef", small_numbers, 4)
    require_same(results, small_numbers, Ef14(2, up, down))


@pytest.mark.parametrize("world", [2, 3])
def test_what_ranks_owe_decays_and_what_owners_owe_does_not(ranks_of, world):
    results = ranks_of(world).run(results_of, world, "topk:0.03+ef:0.5", small_numbers, 5)
    require_same(results, small_numbers, Ef14(world, "topk:0.03", "topk:0.03", decay=0.5))


def owe(rank: int, plan: str, steps: int) -> Tensor:
    """Returns what a rank still owes of gradients of 1, none of which is sent because some others are larger."""
    ddp, handle = make_weight(plan)
    gradient, large = torch.ones(COUNT), torch.arange(COUNT) % (COUNT // 2) < 3
    for _ in range(steps):
        averaged(ddp, torch.where(large, 1000.0, gradient))
    return handle.state_dict()["worker/weight"].float()[3:]


def test_a_decay_that_bfloat16_does_not_hold_is_one_on_average(two_ranks):
    decay, steps = 0.95, 20
    for unsent in two_ranks.run(owe, f"topk:0.001+ef:{decay}", steps):
        expected = (1 - decay**steps) / (1 - decay)
        assert float(unsent.min()) > 0.9 * expected
        assert abs(float(unsent.mean()) - expected) < 0.001 * expected, "rounded without bias"


def require_same_state(state: dict, expected: dict) -> None:
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state[key], value) if isinstance(value, Tensor) else state[key] == value, key


def roll_back(rank: int, plan: str) -> None:
    ddp, handle = make_weight(plan)
    twin, twin_handle = make_weight(plan)
    for step in range(3):
        averaged(ddp, normal_gradient(rank, step, 2))
    before = copy.deepcopy(handle.state_dict())
    twin_handle.load_state_dict(before)
    bad = normal_gradient(rank, 3, 2)
    bad[5 + rank * (COUNT - 10)] = float("nan")
    assert not torch.isfinite(averaged(ddp, bad)).all()
    after = handle.state_dict()
    assert (before["step"], after["step"]) == (3, 4)
    require_same_state(after | {"step": 3}, before)
    twin_handle.load_state_dict(after)
    for step in range(4, 6):
        assert torch.equal(
            averaged(ddp, normal_gradient(rank, step, 2)), averaged(twin, normal_gradient(rank, step, 2))
        )


@pytest.mark.parametrize(
    "plan", ["topk:0.03+ef:0.9", "int4+ef:0.5", "topk:0.03+ef:0.9+hits", "topk:0.03+ef:0.9:8bit+hits"]
)
def test_a_step_that_is_rolled_back_decays_nothing(two_ranks, plan):
    two_ranks.run(roll_back, plan)


def with_threads(rank: int, plan: str, threads: int) -> tuple[Tensor, dict]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(1024, 2048))  # each rank sends two parts of it
        model.forward = lambda gradient: (model.weight * gradient).sum()
        ddp = DistributedDataParallel(model)
        handle = octavo.compress(ddp, plan)
        for step in range(3):
            ddp.zero_grad()
            random = torch.Generator().manual_seed(10 * step + rank)
            ddp(torch.randn(1024, 2048, generator=random)).backward()
        return model.weight.grad, handle.state_dict()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "plan", ["topk:64/4096:sign+ef:0.9", "topk:64/4096:sign+ef:0.9+hits", "topk:64/4096:sign+ef:0.9:8bit+hits"]
)
def test_threads_change_no_bit(two_ranks, plan):
    for (one, state), (three, state_of_three) in zip(
        two_ranks.run(with_threads, plan, 1), two_ranks.run(with_threads, plan, 3), strict=True
    ):
        assert torch.equal(one, three)
        require_same_state(state_of_three, state)


@pytest.mark.parametrize("codec", ["topk:0.05", "int4", "sign"])
@pytest.mark.parametrize("world", [2, 3])
def test_ef21_is_its_float_reference(ranks_of, world, codec):
    results = ranks_of(world).run(results_of, world, f"delta+{codec}", normal_gradient, 6)
    require_same(results, normal_gradient, Ef21(world, codec))


@pytest.mark.parametrize(
    ("world", "codec", "eta"),
    [(2, "topk:0.05", 0.02), (2, "int4", 0.5), (2, "sign", 0.1), (3, "topk:0.05", 0.02), (4, "int4", 0.5)],
)
def test_econtrol_is_its_float_reference(ranks_of, world, codec, eta):
    results = ranks_of(world).run(results_of, world, f"{codec}+econtrol:{eta}", normal_gradient, 6)
    require_same(results, normal_gradient, EControl(world, codec, eta))


def settle_on(rank: int, plan: str) -> float:
    ddp, _ = make_weight(plan)
    gradient = normal_gradient(rank, 0, 2)
    for _ in range(80):
        result = averaged(ddp, gradient)
    wanted = (normal_gradient(0, 0, 2) + normal_gradient(1, 0, 2)) / 2
    return float((result - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("delta+int4", 1e-6),
        ("delta+topk:0.05", 1e-6),
        ("delta+randomk:0.25:unbiased", 1e-6),  # DIANA
        ("delta+randomk:0.25", 1e-6),
        ("int4+econtrol:0.5", 1e-6),
    ],
)
def test_differences_to_a_steady_gradient_go_to_zero(two_ranks, plan, error):
    assert max(two_ranks.run(settle_on, plan)) < error
    codec = plan.removeprefix("delta+").removesuffix("+econtrol:0.5")
    feedback = codec + ("" if "unbiased" in plan else "+ef")
    assert min(two_ranks.run(settle_on, feedback)) > 1000 * error, "what there is to gain"


def train_with_momentum(rank: int, plan: str, momentum: float) -> list[Tensor]:
    model, _, _ = make(plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    for step in range(5):
        step_once(model, optimizer, rank, step)
    return [p.detach() for p in model.parameters()]


def test_where_all_is_sent_momentum_before_the_wire_is_the_optimizers(two_ranks):
    ours, theirs = (two_ranks.run(train_with_momentum, *run)[0] for run in [("dense+dgc:0.8", 0.0), ("dense", 0.8)])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def move_bias(rank: int, plan: str) -> Tensor:
    model = nn.Linear(64, 64)
    ddp = DistributedDataParallel(model)
    octavo.compress(ddp, plan)  # the bias is exempt
    sent = []
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.ones(1, 64)).sum().backward()
        sent.append(model.bias.grad[0].clone())
    return torch.stack(sent)


def test_exempt_parameters_have_the_momentum_too(two_ranks):
    for plan in ("dgc:0.05", "dgc:0.05:int4+warmup:2", "sketch:0.2+fetchsgd", "sketch:0.2+fetchsgd+warmup:2"):
        expected = torch.tensor([1, 1.9, 2.71])
        for sent in two_ranks.run(move_bias, plan):
            torch.testing.assert_close(sent, expected)


def clipped(rank: int) -> tuple[Tensor, Tensor]:
    ddp, _ = make_weight("dense+dgc:0+clip:64")
    large, small = torch.full((COUNT,), 4.0), torch.full((COUNT,), 0.25)  # their norms are 256 and 16
    return averaged(ddp, large if rank == 0 else small), averaged(ddp, small)


def test_local_gradients_are_clipped_to_their_share_of_the_norm(two_ranks):
    for first, second in two_ranks.run(clipped):
        share = 64 / 2**0.5  # a rank's share of the limit; the ranks' norms are 256 and 16
        torch.testing.assert_close(first, torch.full((COUNT,), (4.0 * share / 256 + 0.25) / 2))
        assert torch.equal(second, torch.full((COUNT,), 0.25))


def resume(rank: int, plan: str) -> None:
    model, handle, optimizer = make(plan)
    for step in range(3):
        step_once(model, optimizer, rank, step)
    resumed, resumed_handle, resumed_optimizer = make(plan)
    resumed.module.load_state_dict(model.module.state_dict())
    resumed_handle.load_state_dict(handle.state_dict())
    for step in range(3, 6):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)
    require_same_state(resumed_handle.state_dict(), handle.state_dict())


@pytest.mark.parametrize(
    "plan",
    [
        "dgc:0.05+warmup:4",
        "delta+int4",
        "delta+randomk:0.25:unbiased",
        "topk:0.05+econtrol",
        "lsh:0.45:int4",
        "lsh:0.45:topk:0.2+econtrol:0.1+warmup:4",
        "int4+loco:0.8:4",
        "sketch:0.2+fetchsgd",
        "topk:0.05+ef:0.9",
        "topk:0.05:int4+ef:0.9+hits",
        "int4+ef:8bit",
        "topk:0.05:int4+ef:0.9:8bit+hits",
    ],
)
def test_a_run_resumes_with_the_same_bits(two_ranks, plan):
    two_ranks.run(resume, plan)


def change_kind(rank: int) -> list[str]:
    model, handle, optimizer = make("int4+ef")
    digests = []
    plans = ["int4+ef", "dgc:0.1", "delta+int4", "int4+econtrol", "delta+topk:0.1", "int4+loco", "topk:0.1+ef"]
    for step, plan in enumerate([*plans, "dgc:0.1", "int4+ef:8bit"]):
        handle.set_plan(plan)
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
        kept = {
            key.split("/")[0] for key in handle.state_dict() if "/wide.weight" in key or key.endswith("wide.weight")
        }
        assert (
            kept
            == {
                "ef": {"worker", "owner"},
                "dgc": {"worker", "owner", "velocity"},
                "ef21": {"sent_estimate", "received_estimates", "shared_estimate"},
                "econtrol": {"sent_estimate", "received_estimates", "shared_estimate", "owed", "owed_to_all"},
                "loco": {"packed_owed", "packed_owed_to_all"},
                "ef:8bit": {"packed_owed", "packed_owed_to_all"},
            }[str(handle.plan).split("+")[1]]
        )
    return digests


def test_a_plan_of_another_kind_drops_what_it_cannot_use(two_ranks):
    first, second = two_ranks.run(change_kind)
    assert first == second


def lose_estimates(rank: int) -> None:
    ddp, handle = make_weight("delta+int4")
    averaged(ddp, normal_gradient(rank, 0, 2))
    if rank == 1:
        handle.drop_residuals()
    with pytest.raises(RuntimeError, match="another step, plan or model"):
        averaged(ddp, normal_gradient(rank, 1, 2))


def test_a_rank_without_the_estimates_of_the_others_is_told(two_ranks):
    two_ranks.run(lose_estimates)


# ---- what it is for


def distance_after(rank: int, plan: str, lr: float) -> float:
    """Descends towards ones. Each rank sees the way only for the elements that the other rank owns. It also has large
    gradients that cancel out, more of them than it sends, so that the largest values carry no information."""
    ddp, _ = make_weight(plan)
    weight = ddp.module.weight
    sees, cancels = torch.zeros(COUNT), torch.zeros(COUNT)
    sees[owned_ranges(2)[1 - rank]] = 1
    for own in owned_ranges(2):
        cancels[own][:: 2048 // 64] = 20 * (1 if rank else -1)
    with torch.no_grad():
        for _ in range(400):
            gradient = sees * (weight.flatten() - 1) + cancels
            with torch.enable_grad():
                result = averaged(ddp, gradient.detach())
            weight -= lr * result.view(SIDE, SIDE)
        return float((weight - 1).norm() / SIDE)


def test_feedback_of_each_kind_descends_where_the_largest_values_alone_do_not(two_ranks):
    assert min(two_ranks.run(distance_after, "topk:0.03", 0.2)) > 0.9
    assert max(two_ranks.run(distance_after, "dgc:0.03", 0.003)) < 0.4
    assert max(two_ranks.run(distance_after, "delta+topk:0.03", 0.2)) < 0.02
    assert max(two_ranks.run(distance_after, "topk:0.03+econtrol", 0.05)) < 0.02


def sum_of_results(rank: int, plan: str, steps: int) -> float:
    """Returns how far the sum of the averages is from the exact sum, for gradients that vary from step to step."""
    ddp, _ = make_weight(plan)
    applied, exact = torch.zeros(COUNT), torch.zeros(COUNT)
    for step in range(steps):
        applied += averaged(ddp, normal_gradient(rank, step, 2))
        exact += (normal_gradient(0, step, 2) + normal_gradient(1, step, 2)) / 2
    return float((applied - exact).norm() / exact.norm())


def test_what_estimates_miss_is_made_up_for(two_ranks):
    """The estimates of EF21 lag behind: what they miss in a step is lost."""
    missed = min(two_ranks.run(sum_of_results, "topk:0.1+ef21", 60))
    made_up = max(two_ranks.run(sum_of_results, "topk:0.1+econtrol:0.05", 60))
    assert made_up < 0.8 * missed


def unfinished(rank: int, plan: str) -> float:
    ddp, handle = make_weight(plan)
    averaged(ddp, normal_gradient(rank, 0, 2))
    (weight,) = handle.parameter_stats()
    return weight["residual_rms"] / weight["gradient_rms"]


def test_what_is_owed_is_among_the_statistics(two_ranks):
    for kind in ("ef", "ef:8bit", "econtrol", "loco"):
        assert all(0.05 < one < 0.3 for one in two_ranks.run(unfinished, f"int4:512+{kind}")), kind


def owed_after_a_change_of_momenta(rank: int) -> list[set[str]]:
    """Sends momenta of both layers, of the first alone, and of both again. Returns for each change of which layers
    something is still owed."""
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(2))))
    handle = octavo.compress(model, "sign+ef")
    momenta = {layer.weight: (torch.zeros(SIDE, SIDE), torch.ones(SIDE, SIDE)) for layer in model.module}
    owed = []
    for count in (2, 1, 2):
        handle.set_momentum(dict(list(momenta.items())[:count]), 0.5)
        owed.append({key.partition("/")[2] for key in handle.state_dict() if key.startswith("worker/")})
        model.zero_grad()
        model(torch.randn(3, SIDE)).square().sum().backward()
    return owed


def test_what_is_owed_of_gradients_is_not_owed_to_momenta(two_ranks):
    for owed in two_ranks.run(owed_after_a_change_of_momenta):
        assert owed == [set(), {"0.weight"}, {"0.weight"}]


# ---- what makes no sense


def refuse(rank: int) -> None:
    ddp, _ = make_weight("dense")
    parameters = list(ddp.parameters())
    for optimizer in (
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        torch.optim.AdamW(parameters),
        torch.optim.Adamax(parameters),
    ):
        with pytest.raises(ValueError, match=r"momentum.*(momentum=0|betas=\(0, ).*topk:0\.01\+ef"):
            make_weight("dgc:0.01", optimizer=optimizer)
    onebit = octavo.optim.OneBitAdamW(parameters, warmup_steps=3)
    with pytest.raises(ValueError, match=r"keeps no momentum.*sign\+ef"):
        octavo.compress(DistributedDataParallel(ddp.module), "dgc:0.01", optimizer=onebit)
    with pytest.raises(ValueError, match=r"keeps no momentum"):
        octavo.optim.OneBitAdamW(parameters, warmup_steps=3, warmup_plan="dgc:0.01")
    own, handle = make_weight("dgc:0.01")
    pair = torch.zeros(SIDE, SIDE), torch.ones(SIDE, SIDE)
    with pytest.raises(ValueError, match=r"has a momentum of its own.*sign\+ef"):
        handle.set_momentum({own.module.weight: pair}, 0.5)
    handle.set_plan("int4+ef")
    handle.set_momentum({own.module.weight: pair}, 0.5)
    with pytest.raises(ValueError, match=r"has a momentum of its own"):
        handle.set_plan("dgc:0.01")
    make_weight("dgc:0.01", optimizer=torch.optim.SGD(parameters, lr=0.1))
    make_weight("dgc:0.01", optimizer=torch.optim.AdamW(parameters, betas=(0.0, 0.99)))


def test_two_momenta_are_refused(two_ranks):
    two_ranks.run(refuse)


def refuse_calls(rank: int) -> None:
    for plan in ("dgc:0.01", "delta+int4", "int4+econtrol", "int4+loco", "sketch:0.1+fetchsgd", "int4+ef:8bit"):
        with pytest.raises(ValueError, match="a single call keeps nothing"):
            octavo.all_reduce(torch.ones(100), plan)


def test_a_single_call_remembers_nothing(two_ranks):
    two_ranks.run(refuse_calls)
