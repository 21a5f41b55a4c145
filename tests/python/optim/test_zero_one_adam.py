# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam: its steps compared with the published rule, what is sent and what is not, NaNs, and the state between
syncs."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
import torch.distributed as dist
from ddp_runs import Odd, Switch, batch_of, digest
from lion_runs import Given, gradients_of
from octavo._C import zero_one_kind
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world
from zero_one_runs import KINDS, SCHEDULE, build, published_of, require_close, run_step, step_published, wrap

import octavo
from octavo.optim import OneBitAdamW, ZeroOneAdam

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


def test_the_state_goes_round_and_a_copy_is_whole():
    module = Given()
    optimizer = build(module.parameters())
    for step in range(18):
        run_step(module, optimizer, gradients_of(0, step))
    resumed = copy.deepcopy(module)
    resumed_optimizer = build(resumed.parameters(), lr=1.0)
    for _ in range(2):
        resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin, twin_optimizer = copy.deepcopy((module, optimizer))
    for step in range(18, 24):
        for one in ((module, optimizer), (resumed, resumed_optimizer), (twin, twin_optimizer)):
            run_step(*one, gradients_of(0, step))
    assert digest(module) == digest(resumed) == digest(twin)


def test_a_nan_in_one_process_is_not_a_step():
    module = Given()
    optimizer = build(module.parameters())
    for step, kind in enumerate(KINDS):
        before = digest(module)
        gradients = gradients_of(0, step)
        if step in (2, 5, 16):
            gradients[0][3, 3] = math.nan
        run_step(module, optimizer, gradients)
        assert (digest(module) == before) == (step in (2, 5, 16)), f"step {step}, {kind}"


def test_the_operators_are_traceable_and_refuse_what_does_not_fit():
    def lists(*sizes: int) -> list[torch.Tensor]:
        return [torch.randn(size) for size in sizes]

    ops = torch.ops.octavo
    torch.library.opcheck(ops.zero_one_local_.default, (*(lists(5, 0, 9) for _ in range(6)), 0.9, [0.1, 0.2, 0.3]))
    torch.library.opcheck(ops.zero_one_sync_.default, (*(lists(5, 9) for _ in range(4)), [1.0, 1.0], [0.1, 0.1]))
    variance = (1, 1, 0.1, 0.9, 0.99, 1e-8, 0.0, 0.3)
    torch.library.opcheck(ops.zero_one_variance_.default, (*(torch.rand(9) for _ in range(5)), *variance))
    parameters = lists(5, 9)
    before = [parameter.clone() for parameter in parameters]
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_local\] expected as many step sizes as parameters, 2"):
        ops.zero_one_local_(parameters, *(lists(5, 9) for _ in range(5)), 0.9, [0.1])
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_sync\] expected an update as float32"):
        ops.zero_one_sync_(parameters, [], lists(5, 9), lists(5, 8), [1.0, 1.0], [0.1, 0.1])
    with pytest.raises(ValueError, match=r"^\[optim\.zero_one_variance\] expected a gradient"):
        ops.zero_one_variance_(parameters[0], torch.rand(4), *(torch.rand(5) for _ in range(3)), *variance)
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))


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


# ---- NaNs


def poison(rank: int, at: int, bad: float) -> list[str]:
    """Makes rank 1's gradient of one step not finite. Compares every step with the published rule without what is left
    out."""
    model, handle, optimizer = wrap()
    published, digests, made_up = published_of(model.module, 2), [], False
    for step, kind in enumerate(KINDS):
        before = digest(model)
        gradients = gradients_of(rank, step)
        if step == at and rank == 1:
            gradients[0][5, 7] = bad
        made_up, now = False, "s" if made_up and kind == "l" else kind
        assert optimizer.next_kind[0] == now
        run_step(model, optimizer, gradients)
        if step != at:
            step_published(published, now, step, 2)
        elif kind == "l":
            step_published(published, kind, step, 2, without={1})
            assert (digest(model) == before) == (rank == 1)
        else:
            assert digest(model) == before
            made_up = kind == "s"
        require_close(model.module, published, rank, f"step {step}, {now}")
        is_common = now != "l" and (
            step != at or KINDS[at - 1] != "l"
        )  # a sync that failed leaves the ranks' parameters as they were
        digests.append(digest(model) if is_common else "")
    nonfinite = handle.stats()["nonfinite_steps"]
    assert nonfinite == (0 if KINDS[at] == "l" and rank == 0 else 1)
    return digests


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("at", [1, 3, 12, 13, 19, 22])
def test_a_nan_on_one_rank_costs_its_step_and_nothing_else(two_ranks, at, bad):
    first, second = two_ranks.run(poison, at, bad)
    assert first == second


def poison_under_scaler(rank: int, at: int) -> tuple[list[str], float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    model, _, optimizer = wrap("sign+ef", scaler=scaler)
    digests = []
    for step, kind in enumerate(KINDS):
        gradients = gradients_of(rank, step)
        if step == at and rank == 1:
            gradients[0][5, 7] = math.inf
        optimizer.zero_grad()
        scaler.scale(model(*gradients)).backward()
        scaler.step(optimizer)
        scaler.update()
        is_common = kind != "l" and (step != at or KINDS[at - 1] != "l")
        digests.append(digest(model) if is_common else "")
    return digests, scaler.get_scale()


@pytest.mark.parametrize("at", [3, 12, 13])
def test_a_scaler_may_skip_a_step_on_one_rank_alone(two_ranks, at):
    (first, first_scale), (second, second_scale) = two_ranks.run(poison_under_scaler, at)
    assert first == second
    assert second_scale == 512
    assert first_scale == (1024 if KINDS[at] == "l" else 512)


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


def disagree(rank: int) -> str:
    model = DistributedDataParallel(Given())
    handle = octavo.compress(model, "int4+ef", timeout_s=1.0)
    handle.set_exchange("nothing" if rank == 1 else "planned")
    try:
        model(*gradients_of(rank, 0)).backward()
        dist.barrier()
    except TimeoutError as error:
        dist.barrier()
        return str(error)
    return ""


def test_ranks_that_disagree_do_not_hang(two_ranks):
    alone, silent = two_ranks.run(disagree)
    assert "[comm.wire]" in alone and silent == ""


# ---- state


def resume(rank: int, plan: str, stop: int | None) -> list[str]:
    """Returns digests of all steps. At `stop` everything is saved as a checkpoint does it, parameters and optimizer
    only of rank 0, and a new model goes on."""
    torch.manual_seed(0)
    model, handle, optimizer = wrap(plan, Odd(), {"bucket_cap_mb": 0.02}, lr=3e-3)
    digests = []
    for step in range(len(KINDS)):
        if step == stop:
            shared = [model.module.state_dict(), optimizer.state_dict()] if rank == 0 else [None, None]
            dist.broadcast_object_list(shared, src=0)
            own = handle.state_dict()
            model, handle, optimizer = wrap(plan, Odd(), {"bucket_cap_mb": 0.02}, lr=3e-3)
            model.module.load_state_dict(shared[0])
            saved = [(handle, own), (optimizer, shared[1])]
            for one, state in saved if stop % 2 else reversed(saved):
                one.load_state_dict(state)
        tokens = batch_of(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), (7 * tokens.flatten() + 3) % 50).backward()
        optimizer.step()
        digests.append(digest(model))
    return digests


@pytest.mark.parametrize("stop", [1, 4, 8, 13, 18, 23])
def test_resuming_between_two_syncs_gives_the_same_bits(two_ranks, stop):
    ends = [of_rank[-1] for of_rank in two_ranks.run(resume, "sign+ef", stop)]
    assert ends == [of_rank[-1] for of_rank in two_ranks.run(resume, "sign+ef", None)]
    assert two_ranks.run(resume, "int4+ef", stop) == two_ranks.run(resume, "int4+ef", None)


def save(rank: int, steps: int) -> tuple[dict, dict, dict]:
    model, handle, optimizer = wrap("sign+ef")
    for step in range(steps):
        run_step(model, optimizer, gradients_of(rank, step))
    return handle.state_dict(), optimizer.state_dict(), model.module.state_dict()


def go_on_in_another_world(rank: int, saved: list[tuple[dict, dict, dict]]) -> str:
    model, handle, optimizer = wrap("sign+ef")
    model.module.load_state_dict(saved[0][2])
    optimizer.load_state_dict(copy.deepcopy(saved[0][1]))
    handle.load_state_dict([state for state, *_ in saved])
    with torch.no_grad():
        model(*gradients_of(rank, 23))  # the parameters are set at the next forward pass
    for name, parameter in model.module.named_parameters():
        mean = sum(state[f"update/{name}"] for state, *_ in saved) / len(saved)
        assert mean.abs().max() > 0
        anchor = optimizer.state[parameter]["anchor"]
        torch.testing.assert_close(parameter.detach(), anchor - mean.view_as(anchor))
    for step in range(23, 32):
        run_step(model, optimizer, gradients_of(rank, step))
    return digest(model)


def roll_back(rank: int) -> None:
    model, handle, optimizer = wrap("sign+ef")
    for step in range(3):
        run_step(model, optimizer, gradients_of(rank, step))
    saved = copy.deepcopy((model.module.state_dict(), handle.state_dict(), optimizer.state_dict()))
    for step in range(3, 15):
        run_step(model, optimizer, gradients_of(rank, step))
    for one, state in zip((model.module, handle, optimizer), saved, strict=True):
        one.load_state_dict(state)
    with torch.no_grad():
        model(*gradients_of(rank, 3))
    for name, parameter in model.module.named_parameters():
        assert torch.equal(parameter, saved[0][name])


def test_a_state_of_before_the_local_steps_brings_its_parameters_back(two_ranks):
    two_ranks.run(roll_back)


def test_a_single_process_goes_on_from_the_last_sync_of_several_ranks(two_ranks):
    _, of_optimizer, of_model = two_ranks.run(save, 15)[0]
    module = Given()
    module.load_state_dict(of_model)
    optimizer = build(module.parameters())
    optimizer.load_state_dict(copy.deepcopy(of_optimizer))
    for parameter in module.parameters():
        assert torch.equal(parameter, optimizer.state[parameter]["anchor"])
    run_step(module, optimizer, gradients_of(0, 15))
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_another_number_of_ranks_goes_on_with_the_mean_of_the_updates(two_ranks, three_ranks):
    assert len(set(three_ranks.run(go_on_in_another_world, two_ranks.run(save, 23)))) == 1
    assert len(set(two_ranks.run(go_on_in_another_world, three_ranks.run(save, 23)))) == 1


# ---- learning


def learn(rank: int, name: str) -> float:
    """Returns the mean loss over the last of 240 steps of a small task."""
    torch.manual_seed(0)
    steps, module = 240, Odd()
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


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(lr=-1.0), "expected lr of at least 0, got -1.0"),
        (dict(betas=(0.9, 1.0)), "expected two betas from 0 to below 1, got (0.9, 1.0)"),
        (dict(eps=-1e-8), "expected eps of at least 0"),
        (dict(weight_decay=-0.1), "expected weight_decay of at least 0"),
        (dict(variance_floor=-1), "expected variance_floor of at least 0"),
        (dict(var_freeze_step=0), "expected var_freeze_step of at least 1, got 0"),
        (dict(var_update_scaler=0), "expected var_update_scaler of at least 1"),
        (dict(local_step_scaler=0.5), "expected local_step_scaler of at least 1"),
        (dict(local_step_clipper=0), "expected local_step_clipper of at least 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError) as caught:
        build([nn.Parameter(torch.zeros(2))], **options)
    assert f"[optim.ZeroOneAdam] {words}" in str(caught.value)


def test_groups_states_and_tensors_that_make_no_sense_are_refused():
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    groups = [{"params": [p], "local_step_clipper": n} for p, n in zip(parameters, (4, 8), strict=True)]
    with pytest.raises(ValueError, match=r"the same local_step_clipper in all parameter groups, got 4 and 8"):
        build(groups)
    with pytest.raises(ValueError, match=r"this is the state of another optimizer, not of a ZeroOneAdam"):
        build(parameters).load_state_dict(OneBitAdamW(parameters, warmup_steps=1).state_dict())
    without_states = build(parameters).state_dict()
    without_states["param_groups"][0]["steps"] = 100
    with pytest.raises(ValueError, match=r"a run of 100 steps, and has nothing of any parameter"):
        build(parameters).load_state_dict(without_states)
    with pytest.raises(TypeError, match=r"\[optim\.ZeroOneAdam\] complex parameters"):
        build([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    parameters[0].grad = torch.sparse_coo_tensor([[1]], torch.ones(1), (2,), check_invariants=True)
    with pytest.raises(RuntimeError, match=r"\[optim\.ZeroOneAdam\] sparse gradients are not supported"):
        build(parameters).step()


def refuse(rank: int) -> None:
    for plan in ("sign-vote", "dgc:0.01", "auto"):
        with pytest.raises(ValueError, match=r"\[optim\.ZeroOneAdam\] expected a plan that"):
            wrap(plan)
    different = build(Given().parameters(), local_step_clipper=4 if rank == 0 else 8)
    with pytest.raises(RuntimeError, match=r"pass it as octavo\.compress\(ddp, plan, optimizer=optimizer\)"):
        different.step()
    module = Given()
    different = build(module.parameters(), local_step_clipper=4 if rank == 0 else 8)
    with pytest.raises(ValueError, match="all ranks must have the same phase of the optimizer"):
        octavo.compress(DistributedDataParallel(module), "sign+ef", optimizer=different)

    model, handle, optimizer = wrap("sign+ef")
    with pytest.raises(ValueError, match="a plan that keeps magnitudes"):
        handle.set_plan("sign-vote")
    for step, kind in enumerate(KINDS[:13]):
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        before = digest(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if kind == "s":
            with pytest.raises(RuntimeError, match=r"\[optim\.ZeroOneAdam\] step: .*averaged their updates"):
                optimizer.step()
            assert digest(model) == before
        else:
            optimizer.step()
            assert digest(model) != before
    with pytest.raises(RuntimeError, match=r"\.grad of bias holds .* no_sync"):
        model(*gradients_of(rank, 1)).backward()


def test_what_cannot_be_done_right_is_refused(two_ranks):
    two_ranks.run(refuse)


def test_the_optimizer_is_the_packages_own():
    assert octavo.optim.ZeroOneAdam is ZeroOneAdam
