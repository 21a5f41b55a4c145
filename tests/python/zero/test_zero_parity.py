# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine against DistributedDataParallel and against replicas that torch alone trains, case by case: the same
bits wherever the order of sums is the same.

``OCTAVO_ZERO_STEPS=200`` runs all cases on all numbers of ranks, eager and compiled, for as many steps.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from fsdp_runs import Block, batch_of
from rank_pool import RankPool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from zero_runs import average_gradients

import octavo

STEPS = int(os.environ.get("OCTAVO_ZERO_STEPS", "0"))


@dataclass(frozen=True)
class Case:
    accumulation: int = 1
    clip: float | None = None
    autocast: bool = False
    dtype: torch.dtype = torch.float32
    checkpointing: str | None = None  # how activations are checkpointed
    evaluates: bool = False  # whether it evaluates between steps
    passes: int = 1  # the number of forward passes before a backward pass
    changes_buffer: bool = True
    sgd: bool = False  # the optimizer: SGD with momentum in place of AdamW

    @property
    def compiles(self) -> bool:
        """Whether it can be compiled: ``torch.compile`` saves a buffer for backward that the next forward pass
        changes."""
        return self.passes == 1 or not self.changes_buffer

    @property
    def has_bfloat16(self) -> bool:
        return self.autocast or self.dtype == torch.bfloat16

    @property
    def tolerance(self) -> float:
        """The relative tolerance of losses where sums have another order. AdamW enlarges a rounding of float32 step by
        step, and one of bfloat16 much more. The cases in float64 and of SGD show that the differences are roundings."""
        if self.has_bfloat16:
            return 0.1
        return 1e-6 if self.keeps_roundings_small else 1e-3

    @property
    def keeps_roundings_small(self) -> bool:
        return self.sgd or self.dtype == torch.float64

    def has_bits(self, stage: int, backend: str | None) -> bool:
        """Whether a replica has the bits of ZeRO's engine. Inductor may fuse other operators where stage 3 partitions
        the graph differently into forward and backward. Each backward graph reduces its own gradients, while a replica
        first adds up those of several passes."""
        return backend is None or (self.passes == 1 and not (backend == "inductor" and stage == 3))

    def is_exact(self, stage: int, ranks: int) -> bool:
        """Whether the sums have DDP's order. For two ranks any order is the same. DDP and stage 1 add up micro-batches
        before ranks, the other stages after them. The norm of gradients is formed from the ranks' parts. The engine
        adds up float64 in float32."""
        if ranks > 2 or self.clip is not None or self.dtype == torch.float64:
            return False
        return self.accumulation == 1 or stage == 1


CASES = {
    "plain": Case(),
    "accumulated and clipped": Case(accumulation=4, clip=0.5),
    "accumulated": Case(accumulation=4),
    "clipped": Case(clip=0.5),
    "autocast": Case(autocast=True),
    "bfloat16": Case(dtype=torch.bfloat16),
    # without the buffer that changes: torch 2.13's aot_eager computes other values of a 0-dim buffer in float64
    "float64": Case(dtype=torch.float64, changes_buffer=False),
    "float64, accumulated and clipped": Case(dtype=torch.float64, accumulation=4, clip=0.5, changes_buffer=False),
    "SGD": Case(sgd=True),
    "SGD, accumulated and clipped": Case(sgd=True, accumulation=4, clip=0.5),
    "checkpointed": Case(checkpointing="not reentrant"),
    "checkpointed, reentrant": Case(checkpointing="reentrant"),
    "evaluated": Case(evaluates=True),
    "two forward passes": Case(passes=2),
    "two forward passes, no buffer": Case(passes=2, changes_buffer=False),
}
SHORT = ("plain", "accumulated and clipped", "SGD")


class Model(nn.Module):
    """A model of odd sizes, with parameters that are tied, frozen, never used, used twice, or used by odd batches only,
    and with a buffer that changes and counts."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.case = case
        self.embedding = nn.Embedding(50, 64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.twice = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64)
        self.frozen.requires_grad_(False)
        self.never = nn.Linear(3, 5)
        self.sometimes = nn.Linear(64, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(()))
        self.to(case.dtype)

    def forward(self, tokens: Tensor, odd: bool) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.case.checkpointing is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.case.checkpointing == "reentrant")
        x = self.twice(torch.tanh(self.twice(x)))
        if self.training and self.case.changes_buffer:
            self.scale.mul_(0.99).add_(0.01)
        x = self.frozen(x * self.scale.clone())
        return self.head(self.sometimes(x) if odd else x)


def loss_of(model: nn.Module, case: Case, rank: int, batch: int) -> Tensor:
    losses = []
    for number in range(batch * case.passes, (batch + 1) * case.passes):
        tokens = batch_of(rank, number)
        with torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext():
            out = model(tokens, odd=batch % 2 == 1)
        wide = out.to(torch.promote_types(out.dtype, torch.float32))
        losses.append(nn.functional.cross_entropy(wide.flatten(0, 1), tokens.flatten()))
    return torch.stack(losses).mean()


def evaluated(model: nn.Module, case: Case, rank: int) -> list[float]:
    if not case.evaluates:
        return []
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, case, rank, 1).item()
    model.train()
    return [loss]


def optimizer_of(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    if case.sgd:
        return torch.optim.SGD(model.parameters(), lr=5e-4, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=0.1)


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    parameters: list[Tensor]
    norms: list[float]  # the norm of each step, where gradients are clipped

    def equals(self, other: Trained) -> bool:
        same = all(a.equal(b) for a, b in zip(self.parameters, other.parameters, strict=True))
        return same and self.losses == other.losses

    def is_near(self, other: Trained, case: Case) -> bool:
        early = 5 * case.accumulation
        same = self.losses[:early] == pytest.approx(other.losses[:early], rel=1e-3 if case.has_bfloat16 else 1e-6)
        same &= self.losses == pytest.approx(other.losses, rel=case.tolerance)
        return same and (not case.keeps_roundings_small or self.has_parameters_near(other))

    def has_parameters_near(self, other: Trained) -> bool:
        pairs = zip(self.parameters, other.parameters, strict=True)
        return all(torch.linalg.vector_norm(a - b) <= 1e-6 * torch.linalg.vector_norm(b) for a, b in pairs)

    def has_norms(self, other: Trained, case: Case, has_bits: bool) -> bool:
        """Whether the norms are near: they are formed in another order, from ranks' parts, and without the same bits
        later ones are of other gradients."""
        early = None if has_bits else 5
        same = self.norms[:early] == pytest.approx(other.norms[:early], rel=1e-2 if case.has_bfloat16 else 1e-6)
        return same and self.norms == pytest.approx(other.norms, rel=0.1)

    def worst(self, other: Trained) -> str:
        return f"{max(abs(a / b - 1) for a, b in zip(self.losses, other.losses, strict=True)):.1e}"


@dataclass(frozen=True)
class ByEngine(Trained):
    # indexed by a parameter's number of elements: this rank's first element and its count
    owned: dict[int, tuple[int, int]]


def by_engine(rank: int, case: Case, stage: int, steps: int, backend: str | None) -> ByEngine:
    torch._dynamo.reset()
    model = Model(case)
    config = {
        "zero_stage": stage,
        "accumulation_steps": case.accumulation,
        "clip_norm": case.clip,
        "bucket_mib": 0.02,
        "gather_mib": 0.02,
        "reuse_mib": 0.03,
        "compile": backend or False,
    }
    engine = octavo.initialize(model, optimizer_of(model, case), config)
    losses, norms = [], []
    for batch in range(steps * case.accumulation):
        loss = loss_of(engine, case, rank, batch)
        engine.backward(loss)
        norm = engine.step()
        if norm is not None:
            norms.append(norm.item())
        losses += [loss.item(), *evaluated(engine.module, case, rank)]
    owned = {part.values.numel(): engine.owned(part) for part in engine.parts.values()}
    with engine.gathered():
        return ByEngine(losses, [p.detach().clone() for p in model.parameters()], norms, owned)


def by_ddp(rank: int, case: Case, steps: int) -> Trained:
    bare = Model(case)
    by_hand = case.checkpointing == "reentrant" or case.passes > 1
    model = bare if by_hand else DistributedDataParallel(bare, find_unused_parameters=True, broadcast_buffers=False)
    optimizer, losses = optimizer_of(bare, case), []
    for batch in range(steps * case.accumulation):
        is_last = (batch + 1) % case.accumulation == 0
        with nullcontext() if by_hand or is_last else model.no_sync():
            loss = loss_of(model, case, rank, batch)
            (loss / case.accumulation).backward()
        if is_last:
            if by_hand:
                average_gradients(bare)
            if case.clip is not None:
                nn.utils.clip_grad_norm_(bare.parameters(), case.clip)
            optimizer.step()
            optimizer.zero_grad()
        losses += [loss.item(), *evaluated(bare, case, rank)]
    return Trained(losses, [p.detach() for p in bare.parameters()], [])


def everywhere(tensor: Tensor) -> list[Tensor]:
    """Returns every rank's tensor, indexed by rank."""
    of_all = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, tensor)
    return of_all


class RankOrder:
    """Forms the average over ranks in the owners' order of sums: what the other ranks sent, in the order of ranks, then
    the owner's own, all divided by the number of ranks."""

    def __init__(self, owned: dict[int, tuple[int, int]]) -> None:
        #: indexed by a parameter's number of elements, then by rank: the rank's first element and its count
        self.owned = {count: [one.tolist() for one in everywhere(torch.tensor(o))] for count, o in owned.items()}

    def mean(self, gradient: Tensor) -> Tensor:
        of_ranks = [one.float().flatten() for one in everywhere(gradient)]
        if len(of_ranks) == 1:
            return of_ranks[0].to(gradient.dtype).view_as(gradient)
        result = torch.empty_like(of_ranks[0])
        weight = torch.tensor(1 / len(of_ranks))
        for owner, (first, count) in enumerate(self.owned[gradient.numel()]):
            parts = [one.narrow(0, first, count) for one in of_ranks]
            own = parts.pop(owner)
            result.narrow(0, first, count).copy_(weight * (own + sum(parts[1:], parts[0])))
        return result.to(gradient.dtype).view_as(gradient)


def by_replica(
    rank: int,
    case: Case,
    steps: int,
    backend: str | None,
    order: RankOrder,
    ranks_first: bool,
    engines_norms: list[float],
) -> Trained:
    """Does the same training with torch alone, whole on every rank, with the sums in the engine's order: of ranks
    before micro-batches where `ranks_first`."""
    torch._dynamo.reset()
    model = Model(case)
    forward = torch.compile(model, backend=backend) if backend else model
    optimizer, losses, norms = optimizer_of(model, case), [], []
    sums: dict[Tensor, Tensor] = {}
    for batch in range(steps * case.accumulation):
        loss = loss_of(forward, case, rank, batch)
        (loss / case.accumulation).backward()
        is_last = (batch + 1) % case.accumulation == 0
        for parameter in model.parameters():
            if parameter.grad is not None and (ranks_first or is_last):
                mean = order.mean(parameter.grad)
                sums[parameter] = sums[parameter] + mean if parameter in sums else mean
                parameter.grad = None
        if is_last:
            for parameter, total in sums.items():
                parameter.grad = total
            if case.clip is not None:
                norms.append(clip(model, case.clip, engines_norms[len(norms)]))
            optimizer.step()
            optimizer.zero_grad()
            sums.clear()
        losses += [loss.item(), *evaluated(model, case, rank)]
    return Trained(losses, [p.detach() for p in model.parameters()], norms)


def clip(model: nn.Module, limit: float, norm: float) -> float:
    """Clips by the engine's ``norm``, which is formed from parts of parameters, in another order. Returns the norm as
    it is computed here."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    own = nn.utils.get_total_norm(gradients).item()
    factor = (limit / (torch.tensor(norm, dtype=torch.float64) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return own


def differences(rank: int, names: list[str], backend: str | None, steps: int) -> list[str]:
    """Returns what differs from torch, over all these cases and all stages."""
    found = []
    for name in names:
        case = CASES[name]
        # compiled code rounds differently from eager DDP, which AdamW enlarges in float32
        ddp = by_ddp(rank, case, steps) if backend is None or case.keeps_roundings_small else None
        replicas: dict[str, Trained] = {}  # by all that makes one stage's replica another than the next one's
        for stage in (1, 2, 3):
            engine = by_engine(rank, case, stage, steps, backend)
            order, ranks_first = RankOrder(engine.owned), stage > 1 and case.accumulation > 1
            key = str((order.owned, ranks_first, engine.norms))  # the same on every rank
            if key not in replicas:
                replicas[key] = by_replica(rank, case, steps, backend, order, ranks_first, engine.norms)
            replica = replicas[key]
            has_bits = case.has_bits(stage, backend)
            same = engine.equals(replica) if has_bits else engine.is_near(replica, case)
            same &= engine.has_norms(replica, case, has_bits)
            if not same:
                found.append(f"{name}, stage {stage}: losses differ from a replica's by {engine.worst(replica)}")
            if ddp is None:
                continue
            is_exact = backend is None and case.is_exact(stage, dist.get_world_size())
            if not (engine.equals(ddp) if is_exact else engine.is_near(ddp, case)):
                found.append(f"{name}, stage {stage}: losses differ from DDP's by {engine.worst(ddp)}")
    return found


RANKS = [1, 2, 3, 4]
TIMEOUT_S = 3600 if STEPS else 120
COMPILED = list(itertools.product(RANKS, ["aot_eager", "inductor"])) if STEPS else [(2, "aot_eager")]


def require_none(pool: RankPool, names: list[str], backend: str | None) -> None:
    for found in pool.run(differences, names, backend, STEPS or 5, timeout_s=3600 if STEPS else 60):
        assert not found, "\n".join(found)


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.timeout(TIMEOUT_S)
def test_losses_and_parameters_are_those_of_torch(ranks_of: Callable[[int], RankPool], world: int) -> None:
    require_none(ranks_of(world), list(CASES) if STEPS or world == 2 else list(SHORT), None)


@pytest.mark.parametrize(("world", "backend"), COMPILED)
@pytest.mark.timeout(TIMEOUT_S)
def test_losses_and_parameters_of_compiled_graphs_are_those_of_torch(
    ranks_of: Callable[[int], RankPool], world: int, backend: str
) -> None:
    names = [name for name, case in CASES.items() if case.compiles]
    require_none(ranks_of(world), names if STEPS else ["accumulated and clipped", "SGD"], backend)
