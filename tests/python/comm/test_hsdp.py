# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding: shards inside a host, replicas of them between hosts, and compression only between replicas."""

import pytest
import torch
import torch.distributed as dist
from fsdp_runs import TiedAndUnused as Model
from fsdp_runs import backward, batch_of, digest, refuse_momenta, shard, step_once, tensors_of, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import octavo


def mesh_of_four() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def make(plan: str) -> tuple[FSDPModule, octavo.Handle, torch.optim.Optimizer]:
    mesh = mesh_of_four()
    model = shard(Model(), mesh=mesh["shard"])
    handle = octavo.compress(model, plan, replicas=mesh.get_group("replicate"))
    return model, handle, torch.optim.SGD(model.parameters(), lr=0.05)


def gradients_of(rank: int, plan: str | None) -> dict[str, Tensor]:
    model = make(plan)[0] if plan else shard(Model(), mesh=mesh_of_four())
    backward(model, rank, 0)
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("plan", "tolerance"), [("dense", 0), ("bf16", 0.01), ("int4", 0.15)])
def test_averages_are_those_of_fsdps_own_hybrid_sharding(four_ranks, plan, tolerance):
    ours, theirs = four_ranks.run(gradients_of, plan), four_ranks.run(gradients_of, None)[0]
    assert ours[0].keys() == theirs.keys()
    for name, gradient in ours[0].items():
        assert (gradient - theirs[name]).abs().max() <= tolerance * theirs[name].abs().max() + (tolerance > 0) * 1e-12
        assert all(torch.equal(gradient, other[name]) for other in ours), name


def learn(rank: int, plan: str) -> tuple[str, float]:
    """Trains on one batch of all ranks. Returns the digest of the model and its loss."""
    model, handle, optimizer = make(plan)
    for _ in range(20):
        loss = torch.tensor(step_once(model, optimizer, rank, 0))
    dist.all_reduce(loss)
    assert handle.stats()["steps"] == 20
    return digest(model), loss.item() / 4


@pytest.fixture(scope="module")
def dense_loss(four_ranks) -> float:
    """Returns the loss of the same training without compression."""
    return four_ranks.run(learn, "dense")[0][1]


@pytest.mark.parametrize("plan", ["int4+ef", "sign+ef", "powersgd:4+ef"])
def test_it_learns_and_all_ranks_gather_the_same_model(four_ranks, dense_loss, plan):
    results = four_ranks.run(learn, plan)
    assert len({digests for digests, _ in results}) == 1
    assert results[0][1] < 1.3 * dense_loss < 0.5, "the loss began at 3.4"


def poison_one_shard(rank: int) -> None:
    """Rank 0 has a NaN in a row of the second shard, so the first shards stay finite."""
    model, handle, _ = make("int4+ef")
    backward(model, rank, 0)
    before = tensors_of(handle.state_dict())
    assert before
    model.zero_grad()
    loss = model(batch_of(rank, 1)).mean()
    if rank == 0:
        loss = loss + float("nan") * model.embedding.weight[-1].sum()
    loss.backward()
    finite = [torch.isfinite(p.grad.to_local()).all().item() for p in model.parameters() if p.grad is not None]
    assert all(finite) == (rank in (0, 2))
    after = tensors_of(handle.state_dict())
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert handle.stats()["nonfinite_steps"] == 1


def test_a_nan_in_one_shard_is_rolled_back_in_all(four_ranks):
    four_ranks.run(poison_one_shard)


def save_and_resume(rank: int) -> None:
    model, handle, optimizer = make("sign+ef")
    for step in range(3):
        step_once(model, optimizer, rank, step)
    states: list[dict] = [{}] * 4
    dist.all_gather_object(states, handle.state_dict())
    resumed, resumed_handle, resumed_optimizer = make("sign+ef")
    resumed.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"residuals of replicas of shard \d of 2, and this handle keeps those of"):
        resumed_handle.load_state_dict(states[rank ^ 1])
    resumed_handle.load_state_dict(states)
    for step in range(3, 6):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)


def test_state_dicts_of_all_ranks_resume_with_the_same_bits(four_ranks):
    four_ranks.run(save_and_resume)


def bytes_of(rank: int) -> tuple[int, int]:
    mesh = mesh_of_four()
    model = nn.Sequential(nn.Linear(512, 512, bias=False))
    fully_shard(model, mesh=mesh["shard"])
    handle = octavo.compress(model, "sign:512", replicas=mesh.get_group("replicate"))
    model(torch.randn(2, 512)).sum().backward()
    return handle.stats()["wire_bytes"], handle.stats()["dense_bytes"]


def test_the_bytes_between_replicas_are_the_bits_and_the_scales(four_ranks):
    rows = 256 // 2  # the rows of a shard that this replica owns
    expected = 2 * rows * (512 // 8 + 4) + 2 * 16 + 4 + 4  # plus headers, the gradient's power and the verdict
    for wire, dense in four_ranks.run(bytes_of):
        assert wire == expected and dense == 4 * 256 * 512


def refuse_momenta_between_replicas(rank: int) -> None:
    refuse_momenta(make("int4+ef")[1])


def test_momenta_are_refused(four_ranks):
    four_ranks.run(refuse_momenta_between_replicas)


def pass_another_plan(rank: int) -> None:
    """Rank 3 differs. Rank 0 is in none of its groups, and learns it from those that are."""
    mesh = mesh_of_four()
    model = shard(Model(), mesh=mesh["shard"])
    plan = "int4+ef" if rank == 3 else "sign+ef"
    with pytest.raises(
        ValueError, match=r"all ranks must have the same plan; rank 3 differs from rank [12] \(here, rank"
    ):
        octavo.compress(model, plan, replicas=mesh.get_group("replicate"), timeout_s=20)


def test_a_rank_with_another_plan_is_an_error_on_all_ranks(four_ranks):
    four_ranks.run(pass_another_plan)


def pass_a_mesh(rank: int) -> None:
    mesh = mesh_of_four()
    with pytest.raises(TypeError, match=r"\[fsdp.compress\] expected replicas as a process group"):
        octavo.compress(shard(Model(), mesh=mesh["shard"]), "sign+ef", replicas=mesh["replicate"])


def test_replicas_that_are_no_process_group_are_refused(four_ranks):
    four_ranks.run(pass_a_mesh)
