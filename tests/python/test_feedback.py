# SPDX-License-Identifier: Apache-2.0
"""Kinds of feedback other than +ef: momentum before compression (dgc) and compressed differences (ef21, econtrol). They
are compared with a float reference, across NaNs, checkpoints and other numbers of ranks. test_packed_feedback.py tests
feedback in 8 bits."""

import copy
import math

import pytest
import torch
from test_ddp import digest, make, step_once
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo import _C

SIDE = 64
COUNT = SIDE * SIDE  # too large to be exempt by default


def owned_ranges(world: int, count: int = COUNT) -> list[slice]:
    share = math.ceil(count / world)
    step = math.ceil(share / 64) * 64
    return [slice(min(count, step * rank), min(count, step * (rank + 1))) for rank in range(world)]


def sent_by(plan: str, values: Tensor) -> Tensor:
    """Returns what receivers decode of values that are encoded together."""
    codec = octavo.Plan(plan)
    payload, decoded = torch.empty(codec.payload_bytes(values.numel()), dtype=torch.uint8), torch.empty_like(values)
    _C.encode(codec, values.contiguous(), payload)
    _C.decode(codec, payload, decoded)
    return decoded


class Dgc:
    """Lin et al. (2018) both ways: each rank's velocities u and accumulations v, and what the owners owe."""

    def __init__(self, world: int, plan: str, momentum: float):
        self.u, self.v, self.owed = torch.zeros(world, COUNT), torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.world, self.plan, self.momentum = world, plan, momentum

    def step(self, gradients: list[Tensor]) -> Tensor:
        result = torch.empty(COUNT)
        self.u = self.momentum * self.u + torch.stack(gradients)
        for owner, own in enumerate(owned_ranges(self.world)):
            others = torch.zeros_like(result[own])
            for rank in set(range(self.world)) - {owner}:
                self.v[rank, own] += self.u[rank, own]
                sent = sent_by(self.plan, self.v[rank, own])
                self.v[rank, own] -= sent
                self.u[rank, own] *= sent == 0
                others += sent
            value = (self.u[owner, own] + others) * (1 / self.world) + self.owed[own]
            result[own] = sent_by(self.plan, value)
            self.owed[own] = value - result[own]
            self.u[owner, own] *= result[own] == 0
        return result


class Ef14:
    """Error feedback both ways, each with its codec: what each rank owes to the owners, and what they owe to all
    ranks."""

    def __init__(self, world: int, up: str, down: str, decay: float = 1):
        self.owed, self.owed_by_owners = torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.world, self.up, self.down, self.decay = world, up, down, decay

    def step(self, gradients: list[Tensor]) -> Tensor:
        result = torch.empty(COUNT)
        for owner, own in enumerate(owned_ranges(self.world)):
            others = torch.zeros_like(result[own])
            for rank in set(range(self.world)) - {owner}:
                self.owed[rank, own] = self.decay * self.owed[rank, own] + gradients[rank][own]
                sent = sent_by(self.up, self.owed[rank, own])
                self.owed[rank, own] -= sent
                others += sent
            value = (gradients[owner][own] + others) * (1 / self.world) + self.owed_by_owners[own]
            result[own] = sent_by(self.down, value)
            self.owed_by_owners[own] = value - result[own]
        return result


class OverHits:
    """Error feedback where owners encode their own values, too, and divide by the number of ranks that sent a value."""

    def __init__(self, world: int, up: str, down: str, decay: float = 1):
        self.owed, self.owed_by_owners = torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.world, self.up, self.down, self.decay = world, up, down, decay

    def step(self, gradients: list[Tensor]) -> Tensor:
        result = torch.empty(COUNT)
        for own in owned_ranges(self.world):
            total, hits = torch.zeros_like(result[own]), torch.zeros_like(result[own])
            for rank in range(self.world):
                value = self.decay * self.owed[rank, own] + gradients[rank][own]
                sent = sent_by(self.up, value)
                self.owed[rank, own] = value - sent
                total += sent
                hits += sent != 0
            value = total * (1 / hits.clamp(min=1)) + self.owed_by_owners[own]
            result[own] = sent_by(self.down, value)
            self.owed_by_owners[own] = value - result[own]
        return result

    def owed_by(self, rank: int, role: str) -> Tensor:
        own = owned_ranges(self.world)[rank]
        if role == "worker":
            return torch.cat([self.owed[rank, : own.start], self.owed[rank, own.stop :]])
        return (self.owed[rank] if role == "own" else self.owed_by_owners)[own]


class Ef21:
    """Richtarik et al. (2021) both ways: the owners' estimate of each rank, and all ranks' estimate of the average."""

    def __init__(self, world: int, plan: str):
        self.h, self.average = torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.world, self.plan = world, plan

    def step(self, gradients: list[Tensor]) -> Tensor:
        for owner, own in enumerate(owned_ranges(self.world)):
            others = torch.zeros_like(self.average[own])
            for rank in set(range(self.world)) - {owner}:
                self.h[rank, own] += sent_by(self.plan, gradients[rank][own] - self.h[rank, own])
                others += self.h[rank, own]
            value = (gradients[owner][own] + others) * torch.tensor(1 / self.world, dtype=torch.float32)
            self.average[own] += sent_by(self.plan, value - self.average[own])
        return self.average.clone()


class EControl:
    """Gao, Islamov and Stich (2024) both ways: the estimates of EF21, and what each rank owes in addition."""

    def __init__(self, world: int, plan: str, eta: float):
        self.h, self.average = torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.e, self.owed = torch.zeros(world, COUNT), torch.zeros(COUNT)
        self.world, self.plan, self.eta = world, plan, torch.tensor(eta, dtype=torch.float32)

    def step(self, gradients: list[Tensor]) -> Tensor:
        for owner, own in enumerate(owned_ranges(self.world)):
            others = torch.zeros_like(self.average[own])
            for rank in set(range(self.world)) - {owner}:
                value, h, e = gradients[rank][own], self.h[rank, own], self.e[rank, own]
                h += sent_by(self.plan, value + self.eta * e - h)
                e.copy_(value + e - h)
                others += h
            value = (gradients[owner][own] + others) * torch.tensor(1 / self.world, dtype=torch.float32)
            average, owed = self.average[own], self.owed[own]
            average += sent_by(self.plan, value + self.eta * owed - average)
            owed.copy_(value + owed - average)
        return self.average.clone()


def make_weight(plan: str, **options) -> tuple[DistributedDataParallel, octavo.Handle]:
    """Returns a model whose gradient is the argument of its forward pass, and its handle."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(SIDE, SIDE))
    model.forward = lambda gradient: (model.weight * gradient).sum()
    ddp = DistributedDataParallel(model)
    return ddp, octavo.compress(ddp, plan, **options)


def averaged(ddp: DistributedDataParallel, gradient: Tensor) -> Tensor:
    ddp.zero_grad()
    ddp(gradient.view(SIDE, SIDE)).backward()
    return ddp.module.weight.grad.flatten().clone()


def normal_gradient(rank: int, step: int, world: int) -> Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(100 * step + rank))


def small_numbers(rank: int, step: int, world: int) -> Tensor:
    """Returns values such that bfloat16 holds all sums of four steps, and their averages."""
    random = torch.Generator().manual_seed(100 * step + rank)
    signs = torch.randint(0, 2, (COUNT,), generator=random) * 2 - 1
    return world * signs * (torch.rand(COUNT, generator=random) < 0.1)


def results_of(rank: int, world: int, plan: str, gradient_of, steps: int) -> list[Tensor]:
    ddp, _ = make_weight(plan)
    return [averaged(ddp, gradient_of(rank, step, world)) for step in range(steps)]


def require_same(by_rank: list[list[Tensor]], gradient_of, reference) -> None:
    world = len(by_rank)
    for step, results in enumerate(zip(*by_rank, strict=True)):
        expected = reference.step([gradient_of(rank, step, world) for rank in range(world)])
        for rank, result in enumerate(results):
            wrong = int((result != expected).sum())
            assert wrong == 0, f"step {step}, rank {rank}: {wrong} elements differ"


@pytest.mark.parametrize("world", [2, 3])
def test_dgc_is_its_float_reference(request, world):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    results = ranks.run(results_of, world, "topk:0.03+dgc:0.5", small_numbers, 4)
    require_same(results, small_numbers, Dgc(world, "topk:0.03", 0.5))


@pytest.mark.parametrize("ways", [("topk:0.03", "topk:0.1"), ("topk:0.03", "dense"), ("dense", "topk:0.1")], ids=str)
def test_each_way_feeds_back_the_errors_of_its_own_codec(two_ranks, ways):
    up, down = ways
    results = two_ranks.run(results_of, 2, f"{up}+down:{down}+ef", small_numbers, 4)
    require_same(results, small_numbers, Ef14(2, up, down))


@pytest.mark.parametrize("world", [2, 3])
def test_what_ranks_owe_decays_and_what_owners_owe_does_not(request, world):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    results = ranks.run(results_of, world, "topk:0.03+ef:0.5", small_numbers, 5)
    require_same(results, small_numbers, Ef14(world, "topk:0.03", "topk:0.03", decay=0.5))


def results_and_state(rank: int, world: int, plan: str, gradient_of, steps: int) -> tuple[list[Tensor], dict]:
    ddp, handle = make_weight(plan)
    results = [averaged(ddp, gradient_of(rank, step, world)) for step in range(steps)]
    return results, handle.state_dict()


HITS = [("topk:0.03", "topk:0.03", 1), ("topk:64/1024", "topk:0.1", 0.5), ("threshold:2.5", "dense", 1)]


@pytest.mark.parametrize("ways", HITS, ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_an_average_over_hits_is_its_float_reference(request, world, ways):
    """In addition, what was not sent is owed for every value that a rank has, including those of its own range."""
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    up, down, decay = ways
    plan = f"{up}+down:{down}+ef:{decay}+hits"
    results = ranks.run(results_and_state, world, plan, small_numbers, 4)
    reference = OverHits(world, up, down, decay)
    require_same([result for result, _ in results], small_numbers, reference)
    for rank, (_, state) in enumerate(results):
        for role in ("worker", "own") + (("owner",) if down != "dense" else ()):
            assert torch.equal(state[f"{role}/weight"].float(), reference.owed_by(rank, role)), (rank, role)


@pytest.mark.parametrize("world", [2, 3])
def test_bits_of_values_are_sent_over_hits_too(request, world):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    codec = "topk:64/1024:sign"
    results = ranks.run(results_and_state, world, f"{codec}+ef:0.95+hits", normal_gradient, 1)
    reference = OverHits(world, codec, codec)
    require_same([result for result, _ in results], normal_gradient, reference)
    for rank, (_, state) in enumerate(results):
        for role in ("worker", "own", "owner"):
            kept, exact = state[f"{role}/weight"].float(), reference.owed_by(rank, role)
            torch.testing.assert_close(kept, exact, rtol=2**-7, atol=0), (rank, role)


def averages_of_disjoint(rank: int, world: int) -> None:
    """Each value is on one rank only: divided by the number of ranks that sent it, it arrives whole."""
    whole = (torch.arange(COUNT) % 100 + 1.0) * 3
    own = torch.where(torch.arange(COUNT) % world == rank, whole, 0.0)
    over_hits, over_ranks = own.clone(), own.clone()
    octavo.all_reduce(over_hits, "topk:0.5+down:dense+hits", op=torch.distributed.ReduceOp.AVG)
    octavo.all_reduce(over_ranks, "topk:0.5+down:dense", op=torch.distributed.ReduceOp.AVG)
    assert torch.equal(over_hits, whole)
    torch.testing.assert_close(over_ranks * world, whole)


@pytest.mark.parametrize("world", [2, 3])
def test_of_disjoint_values_the_two_averages_differ_by_the_number_of_ranks(request, world):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    ranks.run(averages_of_disjoint, world)


def same_places(rank: int) -> None:
    values = normal_gradient(rank, 0, 2)
    over_hits, over_ranks = values.clone(), values.clone()
    octavo.all_reduce(over_hits, "topk:1+hits", op=torch.distributed.ReduceOp.AVG)
    octavo.all_reduce(over_ranks, "topk:1", op=torch.distributed.ReduceOp.AVG)
    assert torch.equal(over_hits, over_ranks), "all ranks sent all values"
    with pytest.raises(ValueError, match="a sum is no average"):
        octavo.all_reduce(over_hits, "topk:0.5+hits")


def test_where_all_ranks_send_a_value_the_two_averages_are_one(two_ranks):
    two_ranks.run(same_places)


def leave_hits(rank: int) -> None:
    ddp, handle = make_weight("topk:0.1+ef+hits")
    averaged(ddp, normal_gradient(rank, 0, 2))
    assert {"worker/weight", "owner/weight", "own/weight"} <= set(handle.state_dict())
    handle.set_plan("topk:0.1+ef")
    assert "own/weight" not in handle.state_dict(), "own values are taken as they are now"
    averaged(ddp, normal_gradient(rank, 1, 2))
    handle.set_plan(octavo.Plan("topk:0.1+ef").averaged_over_hits().with_decay(0.5))
    assert str(handle.plan) == "topk:0.1+ef:0.5+hits"
    averaged(ddp, normal_gradient(rank, 2, 2))


def test_a_plan_over_ranks_drops_what_is_owed_to_the_own_range(two_ranks):
    two_ranks.run(leave_hits)


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
    for key, value in handle.state_dict().items():
        assert torch.equal(value, before[key]) if isinstance(value, Tensor) else True, key
    twin_handle.load_state_dict(handle.state_dict())
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
        for key, value in state.items():
            assert torch.equal(value, state_of_three[key]) if isinstance(value, Tensor) else True, key


@pytest.mark.parametrize("codec", ["topk:0.05", "int4", "sign"])
@pytest.mark.parametrize("world", [2, 3])
def test_ef21_is_its_float_reference(request, world, codec):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[world])
    results = ranks.run(results_of, world, f"delta+{codec}", normal_gradient, 6)
    require_same(results, normal_gradient, Ef21(world, codec))


@pytest.mark.parametrize(("codec", "eta"), [("topk:0.05", 0.02), ("int4", 0.5), ("sign", 0.1)])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_econtrol_is_its_float_reference(request, world, codec, eta):
    ranks = request.getfixturevalue({2: "two_ranks", 3: "three_ranks", 4: "four_ranks"}[world])
    results = ranks.run(results_of, world, f"{codec}+econtrol:{eta}", normal_gradient, 6)
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
    for key, value in handle.state_dict().items():
        assert torch.equal(value, resumed_handle.state_dict()[key]) if isinstance(value, Tensor) else True, key


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


# ---- other numbers of ranks


def state_after(rank: int, world: int, plan: str, states: list[dict] | None, steps: int) -> dict:
    ddp, handle = make_weight(plan)
    if states is not None:
        handle.load_state_dict(states)
    for step in range(steps):
        averaged(ddp, small_numbers(rank, step, world))
    return copy.deepcopy(handle.state_dict())


def whole(states: list[dict], key: str) -> Tensor:
    """Returns for each rank what it sends of the tensor, with zeros in its own range."""
    all_ranks = torch.zeros(len(states), COUNT)
    for rank, own in enumerate(owned_ranges(len(states))):
        values = states[rank][key].float()
        all_ranks[rank, : own.start], all_ranks[rank, own.stop :] = values[: own.start], values[own.start :]
    return all_ranks


def owed_to_the_average(states: list[dict]) -> Tensor:
    """Returns what is owed of contributions, which include an owner's own, and of sums."""
    contributions = whole(states, "worker/weight").sum(0)
    if "own/weight" in states[0]:
        contributions += torch.cat([one["own/weight"] for one in states])
    return contributions / len(states) + torch.cat([one["owner/weight"] for one in states])


def test_what_dgc_owes_survives_two_three_and_two_ranks(two_ranks, three_ranks):
    first = two_ranks.run(state_after, 2, "dgc:0.03", None, 4)
    three = three_ranks.run(state_after, 3, "dgc:0.03", first, 0)
    again = two_ranks.run(state_after, 2, "dgc:0.03", three, 0)
    velocity = (first[0]["velocity/weight"] + first[1]["velocity/weight"]) / 2
    for states in (three, again):
        torch.testing.assert_close(owed_to_the_average(states), owed_to_the_average(first), rtol=0.02, atol=0.03)
        for one in states:
            torch.testing.assert_close(one["velocity/weight"], velocity)
    three_ranks.run(state_after, 3, "dgc:0.03", first, 2)  # the run goes on from there


def require_same_estimates(states: list[dict]) -> None:
    """Checks that an owner's estimate of a sender is, bit by bit, the estimate that the sender itself has."""
    sent = whole(states, "sent_estimate/weight")
    for owner, own in enumerate(owned_ranges(len(states))):
        assert torch.equal(states[owner]["shared_estimate/weight"], states[0]["shared_estimate/weight"])
        received = states[owner]["received_estimates/weight"].view(len(states) - 1, -1)
        senders = [rank for rank in range(len(states)) if rank != owner]
        for number, sender in enumerate(senders):
            assert torch.equal(received[number], sent[sender, own])


def test_estimates_agree_on_two_three_and_two_ranks(two_ranks, three_ranks):
    first = two_ranks.run(state_after, 2, "delta+int4", None, 4)
    three = three_ranks.run(state_after, 3, "delta+int4", first, 0)
    again = two_ranks.run(state_after, 2, "delta+int4", three, 0)
    for states in (first, three, again):
        require_same_estimates(states)
        assert torch.equal(states[0]["shared_estimate/weight"], first[0]["shared_estimate/weight"])
    estimate = whole(first, "sent_estimate/weight").sum(0)  # of two ranks, only one sends an element
    torch.testing.assert_close(whole(three, "sent_estimate/weight").sum(0), 2 * estimate)
    torch.testing.assert_close(whole(again, "sent_estimate/weight").sum(0), estimate)
    require_same_estimates(three_ranks.run(state_after, 3, "delta+int4", first, 2))


def test_what_econtrol_owes_survives_two_and_three_ranks(two_ranks, three_ranks):
    def owed(states):
        sent = whole(states, "owed/weight").sum(0) / len(states)
        return sent + torch.cat([one["owed_to_all/weight"] for one in states])

    first = two_ranks.run(state_after, 2, "int4+econtrol", None, 4)
    three = three_ranks.run(state_after, 3, "int4+econtrol", first, 0)
    torch.testing.assert_close(owed(three), owed(first))
    require_same_estimates(three)
    require_same_estimates(three_ranks.run(state_after, 3, "int4+econtrol", first, 2))


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


def test_what_ranks_owe_to_their_own_ranges_survives_two_three_and_two_ranks(two_ranks, three_ranks):
    plan = "topk:0.03+ef+hits"
    first = two_ranks.run(state_after, 2, plan, None, 4)
    three = three_ranks.run(state_after, 3, plan, first, 0)
    again = two_ranks.run(state_after, 2, plan, three, 0)
    own = torch.cat([one["own/weight"] for one in first])
    assert own.count_nonzero() > 0
    for states in (three, again):
        share = len(states) / len(first)  # contributions are divided by the number of ranks
        found = torch.cat([one["own/weight"] for one in states])
        torch.testing.assert_close(found, own * share, rtol=0.01, atol=0)
        torch.testing.assert_close(owed_to_the_average(states), owed_to_the_average(first), rtol=0.02, atol=0.03)
    three_ranks.run(state_after, 3, plan, first, 2)  # the run goes on from there
