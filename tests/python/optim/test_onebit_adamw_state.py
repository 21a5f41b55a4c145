# SPDX-License-Identifier: Apache-2.0
"""The state of OneBitAdamW: equal on all ranks, copied, and resumed with the same bits in both phases."""

import copy
import io

import pytest
import torch
from ddp_runs import OddShapes, batch_of, digest
from onebit_runs import quadratic, step_once, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW


def train(
    rank: int, plan: str, begin: int = 0, state: tuple[dict, dict, dict] | None = None, places: tuple[int, ...] = ()
) -> tuple[list[str], dict[int, tuple[dict, dict, dict]]]:
    """Makes the steps from `begin` to 10. Returns their digests, and the states before the steps that are `places`."""
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    optimizer = OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=4)
    handle = octavo.compress(model, plan, optimizer=optimizer)
    if state is not None:
        for part, values in zip((model.module, handle, optimizer), state, strict=True):
            part.load_state_dict(values)
    digests, saved = [], {}
    for step in range(begin, 10):
        if step in places:
            saved[step] = copy.deepcopy((model.module.state_dict(), handle.state_dict(), optimizer.state_dict()))
        tokens = batch_of(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        digests.append(digest(model))
    assert str(handle.plan) == ("sign:262144+ef" if plan == "sign+ef" else plan)
    return digests, saved


def replicas(rank: int) -> list[str]:
    return train(rank, "sign+ef")[0]


def test_replicas_are_bit_identical_in_both_phases(two_ranks):
    first, second = two_ranks.run(replicas)
    assert first == second and len(first) == 10


PLACES = (2, 4, 7)  # in the warm-up, at the freeze and after it


def resume_at_each_place(rank: int, plan: str) -> None:
    expected, _ = train(rank, plan)
    digests, saved = train(rank, plan, places=PLACES)
    assert digests == expected, "to save a state changes nothing"
    assert tuple(saved) == PLACES
    for place, state in saved.items():
        assert train(rank, plan, place, state)[0] == expected[place:], place


@pytest.mark.parametrize("plan", ["sign+ef", "powersgd:4+ef", "sketch:0.5:exact+ef"])
def test_resuming_gives_the_same_bits_before_and_after_the_freeze(two_ranks, plan):
    """State is loaded in the documented order: the handle before the optimizer, whose phase then sets the plan."""
    two_ranks.run(resume_at_each_place, plan)


def through_torchs_state_dict(rank: int) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    for stop in (1, 4):  # in the warm-up, and after the freeze
        model, handle, optimizer = wrap()
        for step in range(stop):
            step_once(model, optimizer, rank, step)
        saved = copy.deepcopy(get_optimizer_state_dict(model.module, optimizer))
        resumed, resumed_handle, resumed_optimizer = wrap()
        resumed.module.load_state_dict(model.module.state_dict())
        set_optimizer_state_dict(resumed.module, resumed_optimizer, saved)
        resumed_handle.load_state_dict(handle.state_dict())
        assert resumed_optimizer.frozen == optimizer.frozen == (stop == 4)
        for step in range(stop, stop + 3):
            step_once(model, optimizer, rank, step)
            step_once(resumed, resumed_optimizer, rank, step)
            assert digest(model) == digest(resumed)


def test_torchs_distributed_state_dict_keeps_all_of_it(two_ranks):
    two_ranks.run(through_torchs_state_dict)


def test_a_deep_copy_goes_on_alike():
    model, x, y = quadratic()
    optimizer = OneBitAdamW(model.parameters(), lr=1e-2, warmup_steps=3)

    def step(model, optimizer):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    for _ in range(5):
        step(model, optimizer)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin_optimizer.frozen
    for one in ((model, optimizer), (twin, twin_optimizer)):
        step(*one)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_the_length_of_the_warmup_is_history_after_the_freeze():
    parameters = [nn.Parameter(torch.zeros(2))]
    for stop, frozen in ((2, False), (4, True)):
        short, long = (OneBitAdamW(parameters, warmup_steps=steps) for steps in (3, 100))
        for _ in range(stop):
            parameters[0].grad = torch.ones(2)
            short.step()
        long.load_state_dict(short.state_dict())
        assert long.frozen == frozen and long.warmup_steps == 100
        parameters[0].grad = torch.ones(2)
        long.step()
        assert long.frozen == frozen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_state_of_half_parameters_survives_a_reload_in_float32(dtype):
    parameter = nn.Parameter(torch.ones(300, dtype=dtype))
    optimizer = OneBitAdamW([parameter], lr=1e-3, warmup_steps=1)
    parameter.grad = torch.full((300,), 1e-6, dtype=dtype)  # 1 / sqrt(v) exceeds float16
    optimizer.step()
    resumed = OneBitAdamW([parameter], lr=1e-3, warmup_steps=1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for key in ("exp_avg", "exp_avg_sq"):
        ours, theirs = resumed.state[parameter][key], optimizer.state[parameter][key]
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs) and ours.isfinite().all()


def leave_the_momentum_phase(rank: int) -> None:
    model, handle, optimizer = wrap(warmup_steps=3)
    step_once(model, optimizer, rank, 0)
    warm = model.module.state_dict(), handle.state_dict(), copy.deepcopy(optimizer.state_dict())
    warm = copy.deepcopy(warm)
    digests = []
    for order in ("handle first", "optimizer first"):
        for step in range(1, 6):
            step_once(model, optimizer, rank, step)
        assert optimizer.frozen and str(handle.plan) == "sign:262144+ef"
        digests.append(digest(model))
        model.module.load_state_dict(warm[0])
        loads = [(handle, warm[1]), (optimizer, copy.deepcopy(warm[2]))]
        for part, state in loads if order == "handle first" else reversed(loads):
            part.load_state_dict(state)
        assert not optimizer.frozen and str(handle.plan) == "int4+ef"
    for step in range(1, 6):
        step_once(model, optimizer, rank, step)
    assert digests == [digest(model)] * 2, "a warm-up checkpoint did not bring the warm-up back"


def test_a_warmup_checkpoint_loaded_after_the_freeze_brings_the_warmup_back(two_ranks):
    two_ranks.run(leave_the_momentum_phase)


def resume_in_another_memory_format(rank: int) -> float:
    def make(memory_format):
        torch.manual_seed(0)
        module = nn.Conv2d(8, 16, 3, bias=False).to(memory_format=memory_format)
        optimizer = OneBitAdamW(module.parameters(), lr=1e-2, warmup_steps=2)
        model = DistributedDataParallel(module)
        return model, octavo.compress(model, "bf16", optimizer=optimizer), optimizer

    def step(model, optimizer, number):
        x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(10 * number + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    model, _, optimizer = make(torch.contiguous_format)
    for number in range(3):
        step(model, optimizer, number)
    resumed, _, resumed_optimizer = make(torch.channels_last)
    resumed.module.load_state_dict(model.module.state_dict())
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, its_optimizer in ((model, optimizer), (resumed, resumed_optimizer)):
        step(one, its_optimizer, 3)
    return (model.module.weight - resumed.module.weight).norm().item() / model.module.weight.norm().item()


def test_a_state_resumes_in_another_memory_format(two_ranks):
    assert all(difference < 1e-3 for difference in two_ranks.run(resume_in_another_memory_format))


def save_whole(rank: int) -> tuple[bool, bool]:
    """Saves a wrapped model as torch.save takes it, and loads it in the same process."""
    model, _, optimizer = wrap(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    step_once(model, optimizer, rank, 0)
    memory = io.BytesIO()
    torch.save(model, memory)
    memory.seek(0)
    loaded = torch.load(memory, weights_only=False)
    loaded(torch.ones(2, 64)).sum().backward()  # without the hooks of the handle and of the optimizer
    return torch.equal(loaded.module.weight, model.module.weight), loaded.module.weight.grad is not None


def test_a_model_is_saved_whole_without_the_hooks_of_its_handle(two_ranks):
    assert two_ranks.run(save_whole) == [(True, True), (True, True)]
