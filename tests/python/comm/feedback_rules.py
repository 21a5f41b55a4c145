# SPDX-License-Identifier: Apache-2.0
"""Each kind of feedback in float32 and in plain torch, which the tests compare with, and a model of one weight."""

import math

import torch
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
