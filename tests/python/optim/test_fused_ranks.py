# SPDX-License-Identifier: Apache-2.0
"""The fused optimizers on several ranks: under a compressed DDP, and on the shards of fully_shard."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from ddp_runs import batch_of, digest
from fsdp_runs import TiedAndUnused, shard, whole
from fsdp_runs import batch_of as sharded_batch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo import _C
from octavo.optim import AdamW, AdamW8bit, PagedAdamW8bit
from octavo.optim.shards import first_element


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(50, 96), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 50))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), (7 * tokens.flatten() + 3) % 50)


def under_ddp(rank: int, name: str, stop: int | None) -> tuple[list[float], str]:
    """Trains with a save at `stop`, from which everything is built anew. Returns the losses and the digest."""
    build = {"paged": PagedAdamW8bit, "8 bits": AdamW8bit}[name]
    model = DistributedDataParallel(Small())
    handle, optimizer = octavo.compress(model, "int8+ef"), build(model.parameters(), lr=1e-2)
    losses = []
    for step in range(20):
        if step == stop:
            saved = model.module.state_dict(), handle.state_dict(), copy.deepcopy(optimizer.state_dict())
            model = DistributedDataParallel(Small())
            handle, optimizer = octavo.compress(model, "int8+ef"), build(model.parameters())
            for one, state in zip((model.module, handle, optimizer), saved, strict=True):
                one.load_state_dict(state)
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(rank, step % 4))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states = [optimizer.state[p].get("exp_avg_codes", optimizer.state[p].get("exp_avg")) for p in model.parameters()]
    assert all(_C.is_managed(state) == (name == "paged") for state in states)
    return losses, digest(model)


def test_under_a_compressed_ddp_ranks_stay_one_model(two_ranks):
    plain, paged = two_ranks.run(under_ddp, "8 bits", None), two_ranks.run(under_ddp, "paged", 7)
    assert plain == paged
    assert plain[0][1] == plain[1][1]
    assert all(losses[-1] < losses[0] / 2 for losses, _ in plain)


def sharded(rank: int, name: str, clip: bool) -> list[Tensor]:
    """Returns the whole parameters after five steps of torch's AdamW or of ours."""
    model = shard(TiedAndUnused())
    make = {"torch": torch.optim.AdamW, "32 bits": AdamW, "8 bits": AdamW8bit, "paged": PagedAdamW8bit}[name]
    optimizer = make(model.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)
    for step in range(5):
        optimizer.zero_grad()
        tokens = sharded_batch(rank, step)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        if clip and name == "torch":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        elif clip:
            assert not isinstance(optimizer.clip_grad_norm_(0.1), DTensor)
        optimizer.step()
    if name != "torch":
        for parameter in model.parameters():
            for key, state in optimizer.state[parameter].items():
                assert type(state) is Tensor
                assert _C.is_managed(state) == (name == "paged" and key != "step" and state.numel() > 0)
            shapes = {t.shape for name, t in optimizer.state[parameter].items() if name in ("exp_avg", "exp_avg_codes")}
            assert shapes <= {parameter.to_local().shape}
    return [whole(parameter.detach()).clone() for parameter in model.parameters()]


@pytest.mark.parametrize("clip", [False, True])
def test_shards_make_the_steps_of_torch(two_ranks, clip):
    expected, got = (two_ranks.run(sharded, name, clip) for name in ("torch", "32 bits"))
    for rank in range(2):
        for a, b in zip(got[rank], expected[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_shards_in_codes_paged_and_not(two_ranks):
    expected = two_ranks.run(sharded, "32 bits", False)
    plain, paged = two_ranks.run(sharded, "8 bits", False), two_ranks.run(sharded, "paged", False)
    for a, b, c in zip(plain[0], paged[1], expected[0], strict=True):
        assert torch.equal(a, b)
        assert (a - c).abs().max() < 0.02


def steps_in_backward_under_ddp(rank: int) -> list[str]:
    """Returns the refusals: where the model is wrapped after step_in_backward(), and where it is wrapped before."""
    model = Small()
    early, errors = AdamW8bit(model.parameters(), lr=1e-2), []
    handles = early.step_in_backward()
    loss_of(model, batch_of(rank, 0)).backward()
    before = [p.detach().clone() for p in model.parameters()]
    ddp = DistributedDataParallel(model)
    with pytest.raises(RuntimeError) as refused:
        loss_of(ddp, batch_of(rank, 0)).backward()
    errors.append(str(refused.value))
    for handle in handles:
        handle.remove()
    assert rank == 1 or all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    with pytest.raises(RuntimeError) as refused:
        AdamW8bit(ddp.parameters()).step_in_backward()
    errors.append(str(refused.value))
    del ddp
    gc.collect()
    late = AdamW8bit(model.parameters())
    late.step_in_backward()
    loss_of(model, batch_of(rank, 0)).backward()
    assert all(p.grad is None for p in model.parameters())
    return errors


def test_steps_in_backward_under_ddp_are_refused(two_ranks):
    for errors in two_ranks.run(steps_in_backward_under_ddp):
        assert all(error.startswith("[optim.AdamW8bit] the gradient of a ") for error in errors), errors
        assert all("Call step() after backward" in error for error in errors)


def steps_of_shards(rank: int, in_backward: bool) -> list[Tensor]:
    model = shard(TiedAndUnused())
    optimizer = AdamW8bit(model.parameters(), lr=1e-2, min_8bit_size=100)
    if in_backward:
        optimizer.step_in_backward()
    for step in range(3):
        tokens = sharded_batch(rank, step)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        assert all((p.grad is None) or not in_backward for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return [whole(parameter.detach()).clone() for parameter in model.parameters()]


def test_shards_step_in_backward_as_after_it(two_ranks):
    after, within = (two_ranks.run(steps_of_shards, in_backward) for in_backward in (False, True))
    for a, b in zip(after[0], within[0], strict=True):
        assert torch.equal(a, b)


def skips(rank: int) -> bool:
    """One rank's shard has a NaN: all ranks leave theirs as they are."""
    model = shard(TiedAndUnused())
    optimizer = AdamW8bit(model.parameters(), lr=1e-2, nonfinite="skip_step")
    for step in range(2):
        before = [whole(parameter.detach()).clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        tokens = sharded_batch(rank, step)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        if step == 1 and rank == 1:
            next(iter(model.parameters())).grad.to_local().view(-1)[0] = float("nan")
        optimizer.step()
    after = [whole(parameter.detach()) for parameter in model.parameters()]
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_shards_skip_a_step_together(two_ranks):
    assert two_ranks.run(skips) == [True, True]


def rounded_at_random(rank: int, placement: Placement | None) -> Tensor:
    """Returns a bfloat16 parameter after three steps, whole or in shards of one row and two."""
    mesh = init_device_mesh("cpu", (2,))

    def made(seed: int) -> Tensor:
        values = torch.randn(3, 700, generator=torch.Generator().manual_seed(seed)).bfloat16()
        return values if placement is None else distribute_tensor(values, mesh, [placement])

    parameter = nn.Parameter(made(0))
    optimizer = AdamW([parameter], lr=1e-3, bf16_rounding="stochastic")
    for step in range(3):
        parameter.grad = made(step + 1)
        optimizer.step()
    return whole(parameter.detach())


def test_random_rounding_does_not_depend_on_how_a_parameter_is_sharded(two_ranks):
    expected = two_ranks.run(rounded_at_random, None)
    for placement in (Shard(0), Replicate()):
        for got, of_rank in zip(two_ranks.run(rounded_at_random, placement), expected, strict=True):
            assert torch.equal(got, of_rank)
    with pytest.raises(AssertionError, match=r"sharded as.*Shard.dim=1.*along dimension 0"):
        two_ranks.run(rounded_at_random, Shard(1))


def places_of_shards(rank: int) -> tuple[int, int]:
    """Returns the first elements of a transposed parameter's shard, and of one for which rank 1 has no row."""
    mesh = init_device_mesh("cpu", (2,))
    transposed = distribute_tensor(torch.ones(64, 128).bfloat16().t(), mesh, [Shard(0)])
    column = nn.Parameter(distribute_tensor(torch.ones(8, 1), mesh, [Shard(1)]))
    optimizer = AdamW([column], lr=0.5, bf16_rounding="stochastic")  # which is for bfloat16: it does not matter here
    column.grad = torch.ones_like(column)
    optimizer.step()
    with pytest.raises(ValueError, match="shard along dimension 0 only"):
        first_element(distribute_tensor(torch.ones(8, 1).bfloat16(), mesh, [Shard(1)]))
    one_row = distribute_tensor(torch.ones(1, 4), mesh, [Shard(0)])
    return first_element(transposed), first_element(one_row)


def test_an_elements_place_is_that_in_the_rows_of_the_whole(two_ranks):
    assert two_ranks.run(places_of_shards) == [(0, 0), (64 * 64, 0)]


def step_a_row_and_a_column(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    row, column = (nn.Parameter(distribute_tensor(torch.ones(4, 4).bfloat16(), mesh, [Shard(d)])) for d in (0, 1))
    optimizer = AdamW([{"params": [row]}, {"params": [column]}], lr=0.5, bf16_rounding="stochastic")
    for parameter in (row, column):
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match="shard along dimension 0 only"):
        optimizer.step()
    assert torch.equal(row.to_local(), torch.ones(2, 4).bfloat16()), "the first group has moved"
    assert not optimizer.state.get(row)


def test_a_step_that_raises_has_moved_nothing(two_ranks):
    two_ranks.run(step_a_row_and_a_column)


def go_on_by_torch(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    parameter = nn.Parameter(distribute_tensor(torch.ones(64, 256), mesh, [Shard(0)]))
    optimizer = AdamW8bit([parameter], min_8bit_size=1)
    theirs = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    theirs.load_state_dict(octavo.optim.to_torch(optimizer))
    mean = theirs.state[parameter]["exp_avg"]
    torch.testing.assert_close(mean.to_local(), torch.full((32, 256), 0.1), rtol=0.02, atol=0.0)
    before = parameter.to_local().clone()
    theirs.step()
    assert not torch.equal(parameter.to_local(), before)
    with pytest.raises(ValueError, match=r"^\[optim\.to_bitsandbytes\] bitsandbytes has no states of DTensors"):
        octavo.optim.to_bitsandbytes(optimizer)


def test_torch_goes_on_with_the_states_of_shards(two_ranks):
    two_ranks.run(go_on_by_torch)


def load_flattened(rank: int) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 64, bias=False))  # a row is no whole number of blocks
    fully_shard(model)
    optimizer = AdamW8bit(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    said = []
    for flat in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        saved = get_optimizer_state_dict(model, optimizer, options=options)
        try:
            set_optimizer_state_dict(model, optimizer, saved, options=options)
        except ValueError as error:
            said.append(str(error))
    return " ".join(said)


def test_a_load_that_torch_gives_nothing_says_what_would_work(two_ranks):
    for said in two_ranks.run(load_flattened):
        assert said.startswith("[optim.AdamW8bit] torch found no saved exp_avg_codes, exp_avg_scale")
        assert "flatten_optimizer_state_dict=False" in said


def with_summands(rank: int) -> tuple[bool, bool]:
    """Gives gradients with other placements than the parameter's, as sequence parallelism does."""
    mesh = init_device_mesh("cpu", (2,))
    ends = []
    for make in (AdamW, torch.optim.AdamW):
        parameter = nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Replicate()]))
        optimizer = make([parameter], lr=0.1, weight_decay=0.0)
        for step in range(3):
            own = torch.linspace(-1, 1, 8) * (1 - 2 * rank) + 0.3 * (step + rank)
            parameter.grad = DTensor.from_local(own, mesh, [Partial()])
            optimizer.step()
        ends.append(parameter.to_local().detach())
    others = [torch.empty(8), torch.empty(8)]
    torch.distributed.all_gather(others, ends[0])
    return torch.allclose(*ends, rtol=0, atol=1e-6), torch.equal(*others)


def test_gradients_of_which_ranks_have_summands_are_added_up(two_ranks):
    assert two_ranks.run(with_summands) == [(True, True)] * 2


def clip_shards_without_a_step(rank: int, is_refused: bool) -> list[Tensor]:
    """Measures gradients, and makes a step by others, or by the same after one that was refused."""
    mesh = init_device_mesh("cpu", (2,))
    parameter = nn.Parameter(distribute_tensor(torch.ones(8), mesh, [Shard(0)]))
    optimizer = AdamW([parameter], lr=0.1, eps=1.0, weight_decay=0.0)
    parameter.grad = DTensor.from_local(torch.full((8,), 100.0), mesh, [Partial()])
    optimizer.clip_grad_norm_(1e-2)
    if is_refused:
        optimizer.param_groups[0]["nonfinite"] = "ignore"
        with pytest.raises(ValueError, match="nonfinite"):
            optimizer.step()
        optimizer.param_groups[0]["nonfinite"] = "skip_element"
    else:
        parameter.grad = DTensor.from_local(torch.full((8,), 1.0), mesh, [Partial()])
    optimizer.step()
    clipped = parameter.to_local().detach().clone()
    parameter.grad = distribute_tensor(torch.ones(8), mesh, [Shard(0)])
    optimizer.clip_grad_norm_(1e-2)
    parameter.grad.mul_(2.0)
    with pytest.raises(RuntimeError, match="gradients were added, replaced or changed"):
        optimizer.step()
    return [clipped - 1]


def test_a_clip_is_of_the_gradients_of_shards_that_were_measured(two_ranks):
    for (moved,) in two_ranks.run(clip_shards_without_a_step, True):
        assert bool((moved < 0).all()) and float(moved.abs().max()) < 1e-3
    for (moved,) in two_ranks.run(clip_shards_without_a_step, False):
        torch.testing.assert_close(moved, torch.full((4,), -0.1 * 2 / 3))
