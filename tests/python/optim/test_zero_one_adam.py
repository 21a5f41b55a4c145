# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam: its steps compared with the published rule, and what is sent and what is not."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from ddp_runs import OddShapes, Switch, batch_of, digest
from lion_runs import Given, gradients_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world
from zero_one_runs import KINDS, SCHEDULE, build, published_of, require_close, run_step, step_published, wrap

import octavo
from octavo._C import zero_one_kind
from octavo.optim import ZeroOneAdam

# ---- the schedule


def kinds(count: int, **schedule: int) -> str:
    return "".join(zero_one_kind(done, *schedule.values()).name[0] for done in range(count))


def test_the_schedule_is_the_published_one():
    assert kinds(len(KINDS), **SCHEDULE) == KINDS
    variance = kinds(5000, var_freeze_step=5000, var_update_scaler=16, local_step_scaler=1, local_step_clipper=16)
    at = [step for step, kind in enumerate(variance) if kind == "v"]
    assert [b - a for a, b in itertools.pairwise(at)] == [2 ** (j // 16) for j in range(len(at) - 1)]
    local = kinds(4000, var_freeze_step=1, var_update_scaler=1, local_step_scaler=300, local_step_clipper=12)
    syncs = [step for step, kind in enumerate(local) if kind == "s"]
    gaps = [b - a for a, b in itertools.pairwise(syncs)]
    assert max(gaps) == 12 and gaps[0] == 1 and gaps[-1] == 12
    far = zero_one_kind(2**40 + 1, 2**40, 16, 3, 2**20)
    assert far.name == "sync"


# ---- one process


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_process_needs_no_handle(dtype):
    module = Given().to(dtype)
    optimizer, published = build(module.parameters()), published_of(module, 1)
    for step, kind in enumerate(KINDS):
        assert optimizer.next_kind[0] == kind
        gradients = [gradient.to(dtype) for gradient in gradients_of(0, step)]
        for one, gradient in zip(published, gradients, strict=True):
            one.step(kind, [gradient])
        run_step(module, optimizer, gradients)
        if dtype == torch.float32:
            require_close(module, published, 0, f"step {step}")
    if dtype == torch.bfloat16:  # the anchor has the parameter's dtype: it is rounded once per round
        for parameter, one in zip(module.parameters(), published, strict=True):
            torch.testing.assert_close(parameter.detach().double(), one.x[0], rtol=0.05, atol=0.05)


def test_a_parameter_that_was_frozen_stays_where_it_is():
    moving, frozen = (nn.Parameter(torch.ones(300)) for _ in range(2))
    optimizer = build([moving, frozen], weight_decay=0.1)
    for _ in KINDS:
        moving.grad, frozen.grad = torch.randn(300), torch.randn(300)
        optimizer.step()
    optimizer.synchronize()
    frozen.requires_grad_(False)
    frozen.grad = None
    before = frozen.clone()
    for _ in range(12):
        moving.grad = torch.randn(300)
        optimizer.step()
    assert torch.equal(frozen, before)
    for _ in KINDS:  # gradients of zeros that were left there count as such
        moving.grad, frozen.grad = torch.randn(300), torch.zeros(300)
        optimizer.step()


def frozen_on_ranks(rank: int) -> list[float]:
    """Returns how far a parameter that was frozen has moved, after each of the syncs that follow."""
    module = Given()
    optimizer = build(module.parameters(), weight_decay=0.1)
    model = DistributedDataParallel(module, find_unused_parameters=True)
    octavo.compress(model, "dense", optimizer=optimizer, exempt=[])
    moved = []
    for step in range(6 * len(KINDS)):
        if step == len(KINDS):
            optimizer.synchronize()
            module.weight.requires_grad_(False)
            module.weight.grad = None
            before = module.weight.clone()
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        kind = optimizer.next_kind
        optimizer.step()
        if step >= len(KINDS) and kind == "sync":
            moved.append((module.weight - before).abs().max().item())
    return moved


def test_a_parameter_that_was_frozen_moves_by_what_is_left_of_its_momentum_alone(two_ranks):
    moved = two_ranks.run(frozen_on_ranks)[0]
    assert len(moved) > 4 and moved[-1] - moved[-2] < 0.2 * (moved[1] - moved[0]) + 1e-6, moved


def test_a_finite_gradient_whose_norm_overflows_is_a_gradient():
    parameter = nn.Parameter(torch.zeros(8))
    optimizer = build([parameter])
    parameter.grad = torch.full((8,), 1e19)
    optimizer.step()
    assert parameter.detach().any() and parameter.isfinite().all()


def test_memory_formats_and_strides_do_not_matter():
    torch.manual_seed(0)
    weight, results = torch.randn(8, 4, 3, 3), []
    for layout in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(weight.clone().to(memory_format=layout))
        optimizer = build([parameter])
        for step in range(len(KINDS)):
            parameter.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        results.append(parameter.detach().contiguous())
    assert torch.equal(*results)


def test_the_operators_are_traceable_and_refuse_what_does_not_fit():
    def lists(*sizes: int) -> list[torch.Tensor]:
        return [torch.randn(size) for size in sizes]

    ops = torch.ops.octavo
    torch.library.opcheck(ops.zero_one_local_.default, (*(lists(5, 0, 9) for _ in range(6)), 0.9, [0.1, 0.2, 0.3]))
    torch.library.opcheck(ops.zero_one_sync_.default, (*(lists(5, 9) for _ in range(4)), [1.0, 1.0], [0.1, 0.1]))
    variance = ([1, 2], [1, 2], [0.1, 0.2], [0.0, 0.1], 0.9, 0.99, 1e-8, 0.3)
    positive = [[torch.rand(5), torch.rand(300)] for _ in range(5)]
    torch.library.opcheck(ops.zero_one_variance_.default, (*positive, *variance))
    parameters = lists(5, 9)
    before = [parameter.clone() for parameter in parameters]
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_local\] expected as many step sizes as parameters, 2"):
        ops.zero_one_local_(parameters, *(lists(5, 9) for _ in range(5)), 0.9, [0.1])
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_sync\] expected an update as float32"):
        ops.zero_one_sync_(parameters, lists(5, 9), lists(5, 9), lists(5, 8), [1.0, 1.0], [0.1, 0.1])
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_sync\] expected as many anchors as parameters, 2"):
        ops.zero_one_sync_(parameters, [], lists(5, 9), lists(5, 9), [1.0, 1.0], [0.1, 0.1])
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_variance\] expected a gradient"):
        ops.zero_one_variance_(parameters, lists(5, 8), *(lists(5, 9) for _ in range(3)), *variance)
    momenta, kept = lists(5, 9), lists(5, 9)
    for momentum, copy in zip(momenta, kept, strict=True):
        copy.copy_(momentum)
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_variance\] expected a finite lr, got inf"):
        infinite = ([1, 2], [1, 2], [0.1, math.inf], *variance[3:])
        ops.zero_one_variance_(parameters, lists(5, 9), momenta, *(lists(5, 9) for _ in range(2)), *infinite)
    assert all(torch.equal(a, b) for a, b in zip(momenta, kept, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_may_be_its_own_anchor(dtype):
    def sync(is_its_own: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.randn(5, 7).to(dtype).t(), torch.randn(300).to(dtype)]
        momenta, updates = ([torch.randn(p.shape) for p in parameters] for _ in range(2))
        anchors = parameters if is_its_own else [p.clone() for p in parameters]
        torch.ops.octavo.zero_one_sync_(parameters, anchors, momenta, updates, [0.9, 0.8], [0.1, 0.0])
        return [*parameters, *anchors, *momenta, *updates]

    for own, other in zip(sync(True), sync(False), strict=True):
        assert torch.equal(own, other)


# ---- several ranks against the published rule


def follow(rank: int, world_size: int, plan: str = "dense") -> list[str]:
    """Compares every step with the published rule, whose gradients each rank knows. Returns digests of the
    parameters."""
    model, handle, optimizer = wrap(plan)
    published, digests = published_of(model.module, world_size), []
    for step, kind in enumerate(KINDS):
        assert optimizer.next_kind[0] == kind
        step_published(published, kind, step, world_size)
        run_step(model, optimizer, gradients_of(rank, step))
        require_close(model.module, published, rank, f"step {step}, {kind}")
        if kind == "l":
            for parameter, gradient in zip(model.module.parameters(), gradients_of(rank, step), strict=True):
                assert torch.equal(parameter.grad, gradient), "the bucket came back as it was"
        digests.append(digest(model))
    assert handle.stats()["steps"] == len(KINDS)
    return digests


def require_alike_after_sync(digests: list[list[str]]) -> None:
    """Checks digests that are indexed by rank, then by step of KINDS."""
    for step, kind in enumerate(KINDS):
        different = len({of_rank[step] for of_rank in digests})
        assert different == (len(digests) if kind == "l" else 1), f"step {step}, {kind}"


def test_under_a_dense_plan_it_is_the_published_rule(two_ranks, three_ranks):
    with solo_world():
        follow(0, 1)
    require_alike_after_sync(two_ranks.run(follow, 2))
    require_alike_after_sync(three_ranks.run(follow, 3))


def change_betas(rank: int, world_size: int) -> None:
    """Changes betas between steps, as a schedule with cycle_momentum does."""
    model, _, optimizer = wrap()
    published = published_of(model.module, world_size)
    for step, kind in enumerate(KINDS):
        betas = (0.5 + 0.02 * (step % 20), 0.99)
        for one in (*optimizer.param_groups, *(vars(one) for one in published)):
            one["betas"] = betas
        step_published(published, kind, step, world_size)
        run_step(model, optimizer, gradients_of(rank, step))
        require_close(model.module, published, rank, f"step {step}, {kind}")


def test_betas_may_change_between_steps(two_ranks):
    with solo_world():
        change_betas(0, 1)
    two_ranks.run(change_betas, 2)


def run_kinds(rank: int, plan: str) -> tuple[list[str], list[int], list[int]]:
    """Returns for each step the digest, the bytes that were sent and the bytes that DDP would have sent."""
    model, handle, optimizer = wrap(plan)
    digests, sent, dense = [], [], []
    seen = handle.stats()
    for step in range(len(KINDS)):
        run_step(model, optimizer, gradients_of(rank, step))
        stats = handle.stats()
        digests.append(digest(model))
        sent.append(stats["wire_bytes"] - seen["wire_bytes"])
        dense.append(stats["dense_bytes"] - seen["dense_bytes"])
        seen = stats
    return digests, sent, dense


@pytest.mark.parametrize("plan", ["sign+ef", "int4+ef21", "topk:0.1+ef", "powersgd:2+ef"])
def test_any_plan_gives_all_ranks_the_same_bits(two_ranks, three_ranks, plan):
    for ranks in (two_ranks, three_ranks):
        require_alike_after_sync([digests for digests, *_ in ranks.run(run_kinds, plan)])


def test_a_local_step_sends_nothing_and_the_others_what_their_plan_says(two_ranks):
    for _, sent, dense in two_ranks.run(run_kinds, "sign+ef"):
        by_kind = {kind: {sent[step] for step in range(len(KINDS)) if KINDS[step] == kind} for kind in "vsl"}
        assert by_kind["l"] == {0}
        assert len(by_kind["v"]) == len(by_kind["s"]) == 1, "every step of a kind sends as much"
        assert set(dense) == {4 * (64 * 40 + 40)}
        (variance,), (sync,) = by_kind["v"], by_kind["s"]
        assert dense[0] < variance < 1.01 * dense[0]  # plus the powers
        # in bytes: the codes and scales of the matrix, and the bias in float32
        bits = 64 * 40 * (1 + 32 / 1024) / 8 + 40 * 4
        assert bits < sync < bits + 200


def scale_losses(rank: int, scale: bool) -> list[str]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scale)
    model, _, optimizer = wrap("sign+ef", scaler=scaler)
    digests = []
    for step in range(len(KINDS)):
        optimizer.zero_grad()
        scaler.scale(model(*gradients_of(rank, step))).backward()
        scaler.step(optimizer)
        scaler.update()
        digests.append(digest(model))
    return digests


def test_a_loss_scale_that_grows_changes_nothing(two_ranks):
    assert two_ranks.run(scale_losses, True) == two_ranks.run(scale_losses, False)


# ---- DDP around it


def accumulate(rank: int) -> None:
    (model, _, optimizer), (twin, _, twin_optimizer) = wrap("sign+ef"), wrap("sign+ef")
    for step in range(len(KINDS)):
        for its_optimizer in (optimizer, twin_optimizer):
            its_optimizer.zero_grad(set_to_none=step % 2 == 0)
        with model.no_sync():
            model(*gradients_of(rank, 2 * step)).backward()
        model(*gradients_of(rank, 2 * step + 1)).backward()
        sums = [a + b for a, b in zip(gradients_of(rank, 2 * step), gradients_of(rank, 2 * step + 1), strict=True)]
        twin(*sums).backward()
        with torch.no_grad():  # an evaluation in between is not a step
            model(*gradients_of(rank, 0))
        for its_optimizer in (optimizer, twin_optimizer):
            its_optimizer.step()
        assert digest(model) == digest(twin), f"step {step}"


def test_accumulated_gradients_are_one_step(two_ranks):
    two_ranks.run(accumulate)


def use_now_and_then(rank: int) -> list[str]:
    """Trains with a layer that no rank uses in some steps, and that only one rank uses in others."""
    torch.manual_seed(0)
    model, _, optimizer = wrap("sign+ef", Switch(), {"find_unused_parameters": True})
    digests = []
    for step, kind in enumerate(KINDS):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        use_b = step < 8 or (step % 3 == 0 and rank == 0)
        model(x, use_b=use_b).square().mean().backward()
        optimizer.step()
        digests.append(digest(model) if kind != "l" else "")
    return digests


def test_a_layer_that_is_unused_now_and_then_keeps_replicas_alike(two_ranks):
    first, second = two_ranks.run(use_now_and_then)
    assert first == second


def use_late(rank: int) -> list[str]:
    """Trains with a layer that has no gradient until the variance is frozen."""
    torch.manual_seed(0)
    model, _, optimizer = wrap("sign+ef", Switch(), {"find_unused_parameters": True})
    digests, moves = [], []
    for step, kind in enumerate(KINDS):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        before = model.module.b.weight.detach().clone()
        model(x, use_b=step >= 8).square().mean().backward()
        optimizer.step()
        moves.append("x" if not torch.equal(before, model.module.b.weight) else ".")
        digests.append(digest(model) if kind != "l" else "")
    assert "".join(moves) == "".join("x" if step >= 8 and kind == "s" else "." for step, kind in enumerate(KINDS))
    return digests


def test_a_layer_that_no_variance_step_knew_moves_at_sync_steps(two_ranks):
    first, second = two_ranks.run(use_late)
    assert first == second


def synchronize(rank: int) -> list[str]:
    model, handle, optimizer = wrap()
    published, digests = published_of(model.module, 2), []
    for step, kind in enumerate(KINDS):
        step_published(published, kind, step, 2)
        run_step(model, optimizer, gradients_of(rank, step))
        before = handle.stats()["wire_bytes"]
        optimizer.synchronize()
        assert (handle.stats()["wire_bytes"] > before) == (kind == "l")
        if kind == "l":
            for one in published:
                one.end_round()
        require_close(model.module, published, rank, f"step {step}")
        digests.append(digest(model))
    assert optimizer.state_dict()["param_groups"][0]["steps"] == len(KINDS)
    return digests


def test_ranks_can_meet_between_steps(two_ranks):
    first, second = two_ranks.run(synchronize)
    assert first == second


def send_nothing(rank: int) -> None:
    """Uses the hook without a joined optimizer, as an outer loop of local steps does."""
    model = DistributedDataParallel(Given())
    handle = octavo.compress(model, "int4+ef")
    model(*gradients_of(rank, 0)).backward()
    state = handle.state_dict()
    for exchange in ("nothing", "gradients", "planned"):
        handle.set_exchange(exchange)
        model.zero_grad()
        before = handle.stats()["wire_bytes"]
        model(*gradients_of(rank, 1)).backward()
        assert handle.end_step()
        own, mean = gradients_of(rank, 1)[0], (gradients_of(0, 1)[0] + gradients_of(1, 1)[0]) / 2
        grad, sent = model.module.weight.grad, handle.stats()["wire_bytes"] - before
        if exchange == "nothing":
            assert torch.equal(grad, own) and sent == 0
            assert set(handle.gradient_powers().values()) == {0.0}
        else:
            assert torch.equal(grad, mean) == (exchange == "gradients")
        now = handle.state_dict()
        same = all(torch.equal(state[key], now[key]) for key in state if isinstance(state[key], torch.Tensor))
        assert same == (exchange != "planned"), "what feedback remembers waits"
    with pytest.raises(ValueError, match=r"\[handle\.set_exchange\] expected planned, gradients, nothing, got 'never'"):
        handle.set_exchange("never")
    handle.set_exchange("nothing")
    model.zero_grad()
    gradients = gradients_of(rank, 2)
    if rank == 1:
        gradients[1][0] = math.nan
    model(*gradients).backward()
    assert handle.end_step() == (rank == 0) and handle.end_step() == (rank == 0)


def test_the_hook_has_a_step_in_which_nothing_is_sent(two_ranks):
    two_ranks.run(send_nothing)


# ---- learning


def learn(rank: int, name: str) -> float:
    """Returns the mean loss over the last of 240 steps of a small task."""
    torch.manual_seed(0)
    steps, module = 240, OddShapes()
    if name == "zero-one-adam":
        options = dict(
            var_freeze_step=48, local_step_scaler=48, betas=(0.9, 0.999), weight_decay=0.0, variance_floor=0.3
        )
        model, _, optimizer = wrap("sign+ef", module, lr=3e-3, **{**options, "local_step_clipper": 8})
    else:
        model = DistributedDataParallel(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for step in range(steps):
        tokens = batch_of(rank, step)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 2 * (steps - step) / steps)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (7 * tokens.flatten() + 3) % 50)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-24:]) / 24


def test_it_learns_as_adamw_does(two_ranks):
    ours, theirs = (sum(two_ranks.run(learn, name)) / 2 for name in ("zero-one-adam", "adamw"))
    assert ours < theirs + 0.05 * math.log(50), f"{ours} against {theirs}"


def test_the_optimizer_is_the_packages_own():
    assert octavo.optim.ZeroOneAdam is ZeroOneAdam
