# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam: its state between syncs, saved, resumed and taken to another number of ranks."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
import torch.distributed as dist
from ddp_runs import OddShapes, Switch, batch_of, digest
from lion_runs import Given, gradients_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world
from zero_one_runs import KINDS, build, run_step, wrap

import octavo


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


def test_a_copy_of_a_joined_optimizer_goes_on_from_the_last_sync_as_a_load_does():
    with solo_world():
        model, _, optimizer = wrap()
        for step in range(17):
            run_step(model, optimizer, gradients_of(0, step))
        assert KINDS[16] == "l"
        before = digest(model), copy.deepcopy(optimizer.state_dict())
        copy.copy(optimizer)
        assert digest(model) == before[0] and str(optimizer.state_dict()) == str(before[1])
        loaded = copy.deepcopy(model.module)
        loaded_optimizer = build(loaded.parameters())
        loaded_optimizer.load_state_dict(copy.deepcopy(before[1]))
        run_step(loaded, loaded_optimizer, gradients_of(0, 17))
        for copied, copied_optimizer in (
            copy.deepcopy((model.module, optimizer)),
            pickle.loads(pickle.dumps((model.module, optimizer))),
        ):
            run_step(copied, copied_optimizer, gradients_of(0, 17))
            assert digest(copied) == digest(loaded) != before[0]


def test_a_run_whose_gradients_were_all_bad_resumes():
    module = Given()
    optimizer = build(module.parameters())
    bad = [torch.full_like(gradient, math.inf) for gradient in gradients_of(0, 0)]
    run_step(module, optimizer, bad)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(1, 20):
        run_step(module, optimizer, gradients_of(0, step))
    lost = copy.deepcopy(optimizer.state_dict()) | {"state": {}}
    with pytest.raises(ValueError, match="has nothing of any parameter"):
        build(Given().parameters()).load_state_dict(lost)


def resume(rank: int, plan: str, stop: int | None, joins_last: bool = False) -> list[str]:
    """Returns digests of all steps. At `stop` everything is saved as a checkpoint does it, parameters and optimizer
    only of rank 0, and a new model goes on."""
    torch.manual_seed(0)
    model, handle, optimizer = wrap(plan, OddShapes(), {"bucket_cap_mb": 0.02}, lr=3e-3)
    digests = []
    for step in range(len(KINDS)):
        if step == stop:
            shared = [model.module.state_dict(), optimizer.state_dict()] if rank == 0 else [None, None]
            dist.broadcast_object_list(shared, src=0)
            own = handle.state_dict()
            load = load_and_join if joins_last else load_into_joined
            model, handle, optimizer = load(plan, *shared, own, optimizer_first=stop % 2 == 0)
        tokens = batch_of(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), (7 * tokens.flatten() + 3) % 50).backward()
        optimizer.step()
        digests.append(digest(model))
    return digests


def load_into_joined(plan: str, of_model: dict, of_optimizer: dict, of_handle: dict, optimizer_first: bool) -> tuple:
    model, handle, optimizer = wrap(plan, OddShapes(), {"bucket_cap_mb": 0.02}, lr=3e-3)
    model.module.load_state_dict(of_model)
    saved = [(handle, of_handle), (optimizer, of_optimizer)]
    for one, state in reversed(saved) if optimizer_first else saved:
        one.load_state_dict(state)
    return model, handle, optimizer


def load_and_join(plan: str, of_model: dict, of_optimizer: dict, of_handle: dict, optimizer_first: bool) -> tuple:
    """Loads model and optimizer as HF Trainer and Lightning do it, before a callback can call octavo.compress."""
    module = OddShapes()
    optimizer = build(module.parameters(), lr=3e-3)
    saved = [(module, of_model), (optimizer, of_optimizer)]
    for one, state in reversed(saved) if optimizer_first else saved:
        one.load_state_dict(state)
    model = DistributedDataParallel(module, bucket_cap_mb=0.02)
    handle = octavo.compress(model, plan, optimizer=optimizer)
    handle.load_state_dict(of_handle)
    return model, handle, optimizer


@pytest.mark.parametrize("stop", [1, 4, 8, 13, 18, 23])
def test_resuming_between_two_syncs_gives_the_same_bits(two_ranks, stop):
    ends = [of_rank[-1] for of_rank in two_ranks.run(resume, "sign+ef", stop)]
    assert ends == [of_rank[-1] for of_rank in two_ranks.run(resume, "sign+ef", None)]
    assert two_ranks.run(resume, "int4+ef", stop) == two_ranks.run(resume, "int4+ef", None)


@pytest.mark.parametrize("stop", [1, 8, 13, 18, 23])
def test_resuming_works_where_the_state_is_loaded_before_the_join(two_ranks, stop):
    assert two_ranks.run(resume, "int4+ef", stop, True) == two_ranks.run(resume, "int4+ef", None)


def wrap_switch():
    torch.manual_seed(0)
    model, handle, optimizer = wrap("sign+ef", Switch(), {"find_unused_parameters": True})

    def step(rank: int, number: int, use_b: bool) -> None:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * number + rank)
        model(torch.randn(8, 64, generator=generator), use_b).square().mean().backward()
        optimizer.step()

    return model, handle, optimizer, step


def load_into_a_run_that_has_begun(rank: int, handle_first: bool) -> str:
    """The run has made a step without the layer b, of which the saved state has momenta, updates and residuals."""
    model, handle, optimizer, step = wrap_switch()
    for number in range(13):
        step(rank, number, True)
    assert KINDS[12] == "l"
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), handle.state_dict()))
    model, handle, optimizer, step = wrap_switch()
    step(rank, 0, False)
    both = list(zip((model.module, optimizer, handle), saved, strict=True))
    for one, state in reversed(both) if handle_first else both:
        one.load_state_dict(state)
    for number in range(13, 18):
        step(rank, number, True)
    return digest(model)


def test_states_are_loaded_in_any_order_into_a_run_that_has_begun(two_ranks):
    assert two_ranks.run(load_into_a_run_that_has_begun, True) == two_ranks.run(load_into_a_run_that_has_begun, False)


def freeze_a_layer(rank: int, joins_first: bool) -> str:
    model, _, optimizer, step = wrap_switch()
    for number in range(13):
        step(rank, number, True)
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))
    module = Switch()
    module.a.requires_grad_(False)
    optimizer = build(module.parameters())
    if joins_first:
        model = DistributedDataParallel(module)
        octavo.compress(model, "sign+ef", optimizer=optimizer)
    module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    if not joins_first:
        model = DistributedDataParallel(module)
        octavo.compress(model, "sign+ef", optimizer=optimizer)
    for _ in range(13, 24):
        optimizer.zero_grad()
        model(torch.ones(8, 64), True).square().mean().backward()
        optimizer.step()
    assert torch.equal(module.a.weight, optimizer.state[module.a.weight]["anchor"])
    assert not torch.equal(module.b.weight, saved[0]["b.weight"])
    return digest(model)


def test_a_state_is_taken_on_where_a_layer_is_frozen_since(two_ranks):
    for joins_first in (True, False):
        ours, theirs = two_ranks.run(freeze_a_layer, joins_first)
        assert ours == theirs


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


def go_on_from_one_process(rank: int, of_optimizer: dict, of_model: dict) -> list[torch.Tensor]:
    model, _, optimizer = wrap("dense")
    model.module.load_state_dict(of_model)
    optimizer.load_state_dict(copy.deepcopy(of_optimizer))
    for step in range(23, 32):
        run_step(model, optimizer, gradients_of(0, step))
    assert not any("update" in state for state in optimizer.state.values())
    return [parameter.detach() for parameter in model.parameters()]


def test_several_ranks_go_on_from_the_midst_of_a_single_processs_round(two_ranks):
    """With the same gradients on all ranks they do what the single process does."""
    module = Given()
    optimizer = build(module.parameters())
    for step in range(32):
        if step == 23:
            saved = copy.deepcopy((optimizer.state_dict(), module.state_dict()))
            assert all(state["update"].any() for state in saved[0]["state"].values())
        run_step(module, optimizer, gradients_of(0, step))
    for of_rank in two_ranks.run(go_on_from_one_process, *saved):
        torch.testing.assert_close(of_rank, list(module.parameters()))


def test_another_number_of_ranks_goes_on_with_the_mean_of_the_updates(two_ranks, three_ranks):
    assert len(set(three_ranks.run(go_on_in_another_world, two_ranks.run(save, 23)))) == 1
    assert len(set(two_ranks.run(go_on_in_another_world, three_ranks.run(save, 23)))) == 1


def drop_the_first_sync_of_several_steps(rank: int) -> list[list[float]]:
    model, handle, optimizer = wrap("sign+ef")
    dropped = False
    for step in range(40):
        optimizer.zero_grad()
        kind = optimizer.next_kind
        model(*gradients_of(rank, step)).backward()
        if not dropped and kind == "sync" and any("anchor" in state for state in optimizer.state.values()):
            with pytest.raises(ValueError, match="ZeroOneAdam has sent updates of its own"):
                handle.scaled_by(0.5)
            handle.drop_gradients()
            dropped = True
        else:
            optimizer.step()
    assert dropped
    optimizer.synchronize()
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def test_a_sync_that_is_dropped_is_made_later(two_ranks):
    first, second = two_ranks.run(drop_the_first_sync_of_several_steps)
    assert first == second


def after_a_load(rank: int, drops: bool) -> list[list[float]]:
    """Makes ten steps, perhaps drops the next one, loads the state after six, and makes five steps again."""
    model, handle, optimizer = wrap("dense")
    for step in range(10):
        if step == 6:
            saved = copy.deepcopy((handle.state_dict(), optimizer.state_dict(), model.module.state_dict()))
        run_step(model, optimizer, gradients_of(rank, step))
    if drops:
        optimizer.zero_grad()
        model(*gradients_of(rank, 10)).backward()
        handle.drop_gradients()
    for part, state in zip((handle, optimizer, model.module), saved, strict=True):
        part.load_state_dict(state)
    for step in range(6, 12):
        run_step(model, optimizer, gradients_of(rank, step))
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def test_a_drop_is_forgotten_where_an_older_state_is_loaded(two_ranks):
    """The number of the dropped step comes again."""
    assert two_ranks.run(after_a_load, True) == two_ranks.run(after_a_load, False)
