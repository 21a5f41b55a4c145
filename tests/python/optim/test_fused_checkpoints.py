# SPDX-License-Identifier: Apache-2.0
"""The fused optimizers under fully_shard through torch.distributed.checkpoint, onto the same number of ranks and
others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_runs import whole
from fused_rules import decoded as by_tables
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from octavo import _C
from octavo.optim import AdamW, AdamW4bit, AdamW8bit, Lion8bit, PagedAdamW8bit

MAKERS = {"32": AdamW, "8": AdamW8bit, "4": AdamW4bit, "paged": PagedAdamW8bit, "lion": Lion8bit}
BITS = {"32": 32, "8": 8, "4": 4, "paged": 8, "lion": 8}
OPTIONS = {"lr": 1e-2, "min_8bit_size": 100}
STOP, STEPS = 4, 8


class Mixed(nn.Module):
    """A model with rows of whole blocks, also of three dimensions, rows of odd sizes, a parameter of fewer rows than
    ranks, and odd numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(31, 256)
        self.narrow = nn.Linear(256, 101)
        self.wide = nn.Linear(101, 256)
        self.row = nn.Parameter(torch.randn(1, 256))
        self.kernel, self.odd_kernel = nn.Parameter(torch.randn(8, 64, 4)), nn.Parameter(torch.randn(4, 256, 3))
        self.head = nn.Linear(256, 31)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * (1 + self.kernel.square().mean() * self.odd_kernel.square().mean())
        return self.head(x + self.wide(torch.relu(self.narrow(x))) * self.row)


def batch_of(step: int) -> Tensor:
    """Returns the batch of all ranks together."""
    return torch.randint(0, 31, (8, 9), generator=torch.Generator().manual_seed(step))


def sharded(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fully_shard(Mixed().to(dtype), **options)
    rounding = {"bf16_rounding": "extra_bits"} if dtype == torch.bfloat16 else {}
    return model, MAKERS[name](model.parameters(), **OPTIONS, **rounding)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Returns the losses, each the mean over all ranks' batch."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        tokens = batch_of(step).chunk(dist.get_world_size())[dist.get_rank()]
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), (7 * tokens.flatten() + 3) % 31)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Returns the whole moments in float64, decoded by the tables."""
    bits, found = optimizer.param_groups[0]["optim_bits"], []
    for parameter in optimizer.param_groups[0]["params"]:
        state, part = optimizer.state[parameter], parameter.to_local()
        for name in optimizer._moments:
            kept = bits if f"{name}_codes" in state else 32
            values = by_tables(state, name, kept, part.numel()) if part.numel() else torch.zeros(0, dtype=torch.float64)
            mesh, size = parameter.device_mesh, dict(shape=parameter.shape, stride=parameter.stride())
            shard = DTensor.from_local(values.view(part.shape), mesh, parameter.placements, **size)
            found.append(whole(shard).clone())
    return found


def saves(rank: int, name: str, folder: str, *args: Any) -> Any:
    """Returns losses and states of a run that is saved at STOP and goes on."""
    model, optimizer = sharded(name, *args)
    train(model, optimizer, range(STOP))
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    for one in state["optimizer"]["state"].values():
        assert all(isinstance(tensor, DTensor) == (key != "step") for key, tensor in one.items())
    dcp.save(state, checkpoint_id=folder)
    saved = moments(optimizer)
    losses = train(model, optimizer, range(STOP, STEPS))
    return losses, saved, moments(optimizer), [whole(p.detach()).clone() for p in model.parameters()]


def loads(rank: int, name: str, folder: str, *args: Any) -> Any:
    model, optimizer = sharded(name, *args)
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    states = [t for s in optimizer.state.values() for key, t in s.items() if key != "step" and t.numel()]
    assert all(type(t) is Tensor and _C.is_managed(t) == (name == "paged") for t in states)
    loaded = moments(optimizer)
    losses = train(model, optimizer, range(STOP, STEPS))
    return losses, loaded, moments(optimizer), [whole(p.detach()).clone() for p in model.parameters()]


def is_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_as_many_ranks_go_on_to_the_bit(two_ranks, name, dtype, tmp_path):
    expected = two_ranks.run(saves, name, str(tmp_path), dtype)
    got = two_ranks.run(loads, name, str(tmp_path), dtype)
    for (losses, *tensors), (other_losses, *others) in zip(expected, got, strict=True):
        assert losses == other_losses
        assert all(is_equal(a, b) for a, b in zip(tensors, others, strict=True))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("onto", ["fewer", "more"])
def test_other_numbers_of_ranks_go_on(one_rank, two_ranks, name, onto, tmp_path):
    old, new = (two_ranks, one_rank) if onto == "fewer" else (one_rank, two_ranks)
    losses, saved, _, parameters = old.run(saves, name, str(tmp_path))[0]
    for other_losses, loaded, _, others in new.run(loads, name, str(tmp_path)):
        places = [p for p in range(len(parameters)) for _ in range(len(saved) // len(parameters))]
        for place, a, b in zip(places, saved, loaded, strict=True):
            shape = parameters[place].shape
            if BITS[name] == 32 or (len(shape) == 2 and shape[1] == 256):  # here each block is on one rank
                assert torch.equal(a, b)
            else:
                assert (a - b).abs().max() <= {8: 0.01, 4: 0.15}[BITS[name]] * a.abs().max()
        torch.testing.assert_close(torch.tensor(other_losses), torch.tensor(losses), rtol=2e-2, atol=2e-3)
        if BITS[name] == 32:
            for a, b in zip(parameters, others, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def columns(rank: int, name: str, folder: str) -> bool:
    """States that are sharded along another dimension are saved as floats."""
    cut = {"shard_placement_fn": lambda p: Shard(1) if p.ndim == 3 or p.shape[1:] == (256,) else Shard(0)}
    model, optimizer = sharded(name, torch.float32, **cut)
    train(model, optimizer, range(STOP))
    state = get_optimizer_state_dict(model, optimizer)
    assert all("exp_avg" in one for one in state["state"].values())
    dcp.save(state, checkpoint_id=folder)
    other_model, other = sharded(name, torch.float32, **cut)
    template = get_optimizer_state_dict(other_model, other)
    dcp.load(template, checkpoint_id=folder)
    set_optimizer_state_dict(other_model, other, template)
    pairs = zip(model.parameters(), other_model.parameters(), strict=True)
    return all(torch.equal(optimizer.state[p][key], t) for p, q in pairs for key, t in other.state[q].items())


@pytest.mark.parametrize("name", ["8", "4"])
def test_columns_go_round_to_the_bit(two_ranks, name, tmp_path):
    assert two_ranks.run(columns, name, str(tmp_path)) == [True, True]


def gathers(rank: int, name: str, path: str) -> list[Tensor]:
    """Saves the whole state in one file, on rank 0."""
    model, optimizer = sharded(name)
    train(model, optimizer, range(STOP))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    again_model, again = sharded(name)
    whole_state = torch.load(path, weights_only=True)
    set_optimizer_state_dict(again_model, again, whole_state, options=StateDictOptions(full_state_dict=True))
    assert is_equal(moments(again), moments(optimizer))
    return moments(optimizer)


@pytest.mark.parametrize("name", ["32", "8", "4"])
def test_a_gathered_state_loads_into_shards_and_into_one_process(two_ranks, name, tmp_path):
    expected = two_ranks.run(gathers, name, str(tmp_path / "state.pt"))[0]
    model = Mixed()
    optimizer = MAKERS[name](model.parameters(), **OPTIONS)
    set_optimizer_state_dict(model, optimizer, torch.load(tmp_path / "state.pt", weights_only=True))
    bits, got = BITS[name], []
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        for moment in optimizer._moments:
            kept = bits if f"{moment}_codes" in state else 32
            got.append(by_tables(state, moment, kept, parameter.numel()).view(parameter.shape))
    for a, b in zip(expected, got, strict=True):
        assert (a - b).abs().max() <= {32: 0, 8: 0.01, 4: 0.15}[bits] * a.abs().max()


def changes_bits(rank: int, folder: str) -> None:
    model, optimizer = sharded("8")
    train(model, optimizer, range(1))
    dcp.save(get_optimizer_state_dict(model, optimizer), checkpoint_id=folder)
    other_model, other = sharded("32")
    dcp.load(get_optimizer_state_dict(other_model, other), checkpoint_id=folder)


def test_codes_are_never_taken_for_floats(two_ranks, tmp_path):
    """torch.distributed.checkpoint copies tensors by name, whatever their dtype."""
    with pytest.raises(AssertionError, match=r"Missing key in checkpoint state_dict: state\..*\.exp_avg"):
        two_ranks.run(changes_bits, str(tmp_path))
