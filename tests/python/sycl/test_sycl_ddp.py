# SPDX-License-Identifier: Apache-2.0
"""Two ranks on sycl: collectives over Gloo on the device's memory, DDP and the compressed hook, with the CPU's bits."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import octavo.sycl


def group_of(device: str, ranks: list[int] | None = None) -> dist.ProcessGroup:
    backend = "gloo" if device == "cpu" else octavo.sycl.COLLECTIVES
    return dist.new_group(ranks, backend=backend, timeout=timedelta(seconds=30))


def train(rank: int, device: str, plan: str | None) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 101), nn.ReLU(), nn.Linear(101, 64), nn.LayerNorm(64)).to(device)
    ddp = DistributedDataParallel(model, process_group=group_of(device), bucket_cap_mb=0.02)
    handle = octavo.compress(ddp, plan) if plan else None
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        x = torch.randn(16, 64, generator=generator).to(device)
        loss = (ddp(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if handle:
        assert handle.stats()["steps"] == 6
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("plan", [None, "dense", "int4+ef", "sign-vote"])
def test_ddp_has_the_bits_of_the_cpu(two_ranks, plan: str | None) -> None:
    expected, got = two_ranks.run(train, "cpu", plan), two_ranks.run(train, "sycl", plan)
    for (losses, weights), (cpu_losses, cpu_weights) in zip(got, expected, strict=True):
        assert losses == cpu_losses
        assert all(torch.equal(a, b) for a, b in zip(weights, cpu_weights, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(got[0][1], got[1][1], strict=True))


def rounds(rank: int, device: str, folder: str) -> list[list[Tensor]]:
    """Returns the parameters inside of a round, those of a rank that goes on alone from both ranks' states, and those
    of both ranks where the state of the second one is lost."""

    def outer_of(group: dist.ProcessGroup) -> tuple[nn.Module, octavo.Outer]:
        torch.manual_seed(0)
        model = nn.Linear(64, 101).to(device)
        inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, octavo.Outer(model, inner, "sign+ef", every=4, group=group)

    model, outer = outer_of(group_of(device))
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        x = torch.randn(16, 64, generator=generator).to(device)
        model(x).square().mean().backward()
        outer.step()
        outer.zero_grad()
    torch.save(outer.state_dict(), f"{folder}/{device}{rank}.pt")
    dist.barrier()
    states = [torch.load(f"{folder}/{device}{saved}.pt", map_location="cpu") for saved in range(2)]
    groups = [group_of(device, [one]) for one in range(2)]
    alone, outer_alone = outer_of(groups[rank])
    outer_alone.load_state_dict(states)
    both, outer_of_both = outer_of(group_of(device))
    outer_of_both.load_state_dict(states[:1])
    return [[p.detach().cpu() for p in trained.parameters()] for trained in (model, alone, both)]


def test_rounds_have_the_bits_of_the_cpu_and_states_go_to_another_world(two_ranks, tmp_path) -> None:
    expected, got = two_ranks.run(rounds, "cpu", str(tmp_path)), two_ranks.run(rounds, "sycl", str(tmp_path))
    for ours, of_cpu in zip(got, expected, strict=True):
        for parameters, cpu_parameters in zip(ours, of_cpu, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(parameters, cpu_parameters, strict=True))
    (inside, *_), (alone, *_), (with_another, *_) = got[0]
    assert torch.equal(inside, alone), "alone it sends nothing, and keeps what it owed as progress"
    assert not torch.equal(inside, with_another), "beside another rank it has what it owed in its parameters no longer"


def spread_rounds(rank: int, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(64, 101).to(device)
    outer = octavo.Outer(
        model, torch.optim.AdamW(model.parameters()), "int4+ef", 4, spread=True, group=group_of(device)
    )
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        model(torch.randn(16, 64, generator=generator).to(device)).square().mean().backward()
        outer.step()
        outer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


def test_a_momentum_that_is_spread_over_steps_has_the_bits_of_the_cpu(two_ranks) -> None:
    for got, expected in zip(two_ranks.run(spread_rounds, "sycl"), two_ranks.run(spread_rounds, "cpu"), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def train_sharded(rank: int, device: str) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]).to(device)
    mesh = DeviceMesh.from_group(group_of(device), device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        x = torch.randn(16, 64, generator=generator).to(device)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().to_local().cpu() for p in model.parameters()]


def test_fully_sharded_training_has_the_bits_of_the_cpu(two_ranks) -> None:
    """FSDP2 frees the storages of gathered parameters, and allocates them again for backward."""
    expected, got = two_ranks.run(train_sharded, "cpu"), two_ranks.run(train_sharded, "sycl")
    for (losses, weights), (cpu_losses, cpu_weights) in zip(got, expected, strict=True):
        assert losses == cpu_losses
        assert all(torch.equal(a, b) for a, b in zip(weights, cpu_weights, strict=True))


#: Optimizers that are joined to their handle, and what they send.
JOINED = {
    "OneBitAdamW": ("sign+ef", {"warmup_steps": 3}),
    "OneBitLamb": ("sign+ef", {"warmup_steps": 3}),
    "Signum": ("sign-vote", {}),
    "DistributedLion": ("int4+ef", {}),
    "ZeroOneAdam": ("sign+ef", {"var_freeze_step": 4, "local_step_scaler": 2, "local_step_clipper": 2}),
}


def momenta(rank: int, device: str, name: str) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(256, 64).to(device)
    ddp = DistributedDataParallel(model, process_group=group_of(device))
    plan, options = JOINED[name]
    optimizer = getattr(octavo.optim, name)(model.parameters(), lr=1e-3, **options)
    octavo.compress(ddp, plan, optimizer=optimizer)
    for step in range(8):
        ddp(torch.full((4, 256), 0.1 * (rank + step), device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", JOINED)
def test_momenta_on_the_wire(two_ranks, name: str) -> None:
    expected, got = two_ranks.run(momenta, "cpu", name), two_ranks.run(momenta, "sycl", name)
    for weights in got:
        assert all(torch.equal(a, b) for a, b in zip(weights, expected[0], strict=True))


def collectives(rank: int) -> None:
    group = group_of("sycl")
    mine = torch.full((4,), float(rank + 1), device="sycl")

    total = mine.clone()
    dist.all_reduce(total, group=group)
    assert total.tolist() == [3.0] * 4 and total.device.type == "sycl"
    work = dist.all_reduce(total, async_op=True, group=group)
    work.wait()
    assert total.tolist() == [6.0] * 4 and work.get_future().wait()[0].device.type == "sycl"

    sent = mine.clone()
    dist.broadcast(sent, src=1, group=group)
    assert sent.tolist() == [2.0] * 4
    dist.reduce(mine.clone(), dst=0, group=group)

    parts = [torch.empty(4, device="sycl") for _ in range(2)]
    dist.all_gather(parts, mine, group=group)
    whole = torch.empty(8, device="sycl")
    dist.all_gather_into_tensor(whole, mine, group=group)
    assert torch.cat(parts).tolist() == whole.tolist() == [1.0] * 4 + [2.0] * 4

    half = torch.empty(4, device="sycl")
    dist.reduce_scatter_tensor(half, whole, group=group)
    assert half.tolist() == [2.0 + 2 * rank] * 4
    swapped = torch.empty(8, device="sycl")
    dist.all_to_all_single(swapped, whole, group=group)
    assert swapped.tolist() == [rank + 1.0] * 8

    if rank == 0:
        dist.send(mine, dst=1, group=group)
        dist.scatter(half, [mine, mine * 5], src=0, group=group)
        dist.gather(half, parts, dst=0, group=group)
        assert parts[1].tolist() == [5.0] * 4
    else:
        dist.recv(half, src=0, group=group)
        assert half.tolist() == [1.0] * 4
        dist.scatter(half, src=0, group=group)
        assert half.tolist() == [5.0] * 4
        dist.gather(half, dst=0, group=group)
    dist.barrier(group=group)


def test_collectives(two_ranks) -> None:
    two_ranks.run(collectives)


def queued_before_a_collective(rank: int) -> None:
    group, x = group_of("sycl"), torch.zeros(1 << 20, device="sycl")
    for value in range(10):
        ready = torch.full((1 << 20,), float(value)).pin_memory()
        for _ in range(5):
            x.copy_(ready, non_blocking=True)
        dist.all_reduce(x, group=group)
        assert (x == 2 * value).all()
        x.copy_(ready, non_blocking=True)
        octavo.all_reduce(x, "bf16")
        assert (x == 2 * value).all()


def test_a_collective_waits_for_the_stream(two_ranks) -> None:
    two_ranks.run(queued_before_a_collective)


def one_tensor_a_bucket(rank: int) -> list[float]:
    model = nn.Linear(4, 1, bias=False).to("sycl")
    nn.init.constant_(model.weight, rank + 1.0)
    DistributedDataParallel(model, process_group=group_of("sycl"))
    return model.weight.flatten().tolist()


def test_ddp_of_one_tensor(two_ranks) -> None:
    assert two_ranks.run(one_tensor_a_bucket) == [[1.0] * 4] * 2


def sparse(rank: int, device: str, plan: str) -> Tensor:
    torch.manual_seed(0)
    model = nn.Embedding(4, 2, sparse=True).to(device)
    handle = octavo.compress(ddp := DistributedDataParallel(model, process_group=group_of(device)), plan)
    ddp(torch.tensor([rank, 2], device=device)).sum().backward()
    assert handle.stats()["wire_bytes"] > 0
    assert model.weight.grad.is_sparse and model.weight.grad.device.type == device
    return model.weight.grad.to_dense().cpu()


@pytest.mark.parametrize("plan", ["dense", "int4+ef"])
def test_sparse_gradients(two_ranks, plan: str) -> None:
    got, expected = two_ranks.run(sparse, "sycl", plan), two_ranks.run(sparse, "cpu", plan)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def kept_sparse_gradients(rank: int, device: str) -> list[float]:
    torch.manual_seed(0)
    model = nn.Embedding(50, 4, sparse=True).to(device)
    octavo.compress(ddp := DistributedDataParallel(model, process_group=group_of(device)), "int4+ef")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        ddp(torch.tensor([rank, 2, step], device=device)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return model.weight.flatten().tolist()


def test_sparse_gradients_that_are_zeroed_in_place(two_ranks) -> None:
    assert two_ranks.run(kept_sparse_gradients, "sycl") == two_ranks.run(kept_sparse_gradients, "cpu")


def sparse_collective(rank: int) -> None:
    x = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,), device="sycl", check_invariants=True)
    with pytest.raises(RuntimeError, match="takes only strided tensors on sycl; this one has layout Sparse"):
        dist.all_reduce(x, group=group_of("sycl"))
    ddp = DistributedDataParallel(nn.Embedding(4, 2, sparse=True).to("sycl"), process_group=group_of("sycl"))
    with pytest.raises(RuntimeError, match="takes only strided tensors on sycl; this one has layout Sparse"):
        ddp(torch.tensor([rank, 2], device="sycl")).sum().backward()


def test_sparse_sums_by_the_group_itself_are_refused(two_ranks) -> None:
    two_ranks.run(sparse_collective)


def versions(rank: int) -> None:
    x = torch.ones(4, device="sycl", requires_grad=True)
    for plan in ("bf16", "dense"):
        h = x * 1
        y = (h * h).sum()
        octavo.all_reduce(h.detach(), plan)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_autograd_sees_that_an_all_reduce_writes(two_ranks) -> None:
    two_ranks.run(versions)


def mesh(rank: int) -> list[int]:
    return dist.device_mesh.init_device_mesh("sycl", (2,)).mesh.tolist()


def test_a_mesh_of_devices(two_ranks) -> None:
    assert two_ranks.run(mesh) == [[0, 1]] * 2


def default_backends(rank: int) -> str:
    dist.destroy_process_group()
    store = dist.HashStore()
    dist.init_process_group(store=store, rank=0, world_size=1)
    x = torch.ones(3, device="sycl")
    dist.all_reduce(x)
    return dist.get_backend_config()


def test_a_group_without_a_named_backend_serves_sycl(two_ranks) -> None:
    assert all("sycl:octavo" in config for config in two_ranks.run(default_backends))
