# SPDX-License-Identifier: Apache-2.0
"""What users read and write in an engine's parameters by themselves: in forward, in ``engine.gathered()``, and by
passes that only one rank makes."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from zero_runs import adamw, engine_of, error_of, inputs_of, net, of_plain, train

import octavo


def written_after_initialize(rank: int) -> tuple[str, list[float]]:
    """Loads other values into a model whose parts are in other memory, and goes on with a checkpoint."""
    engine = engine_of(net(), 2, gather="bf16")
    train(engine, rank, 2)
    values = [parameter.detach().clone() for parameter in engine.module.parameters()]
    engine.module.load_state_dict({name: torch.ones_like(value) for name, value in net().state_dict().items()})
    engine.backward(engine(inputs_of(rank)).square().mean())
    said = error_of(engine.step)
    with torch.no_grad():
        differs = [(p - value).abs().max().item() for p, value in zip(engine.module.parameters(), values, strict=True)]
    return said, differs


def test_values_that_the_next_step_would_replace_are_refused_there(two_ranks):
    for said, differs in two_ranks.run(written_after_initialize):
        assert said.startswith("RuntimeError: [zero.step] 0.weight and 3 others changed since the last step")
        assert all(differs)  # they are still there


class KeepsItsNorm(nn.Linear):
    """Writes to its own weight in each forward pass, as EDM2 and nGPT do."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.copy_(nn.functional.normalize(self.weight, dim=1))
        return super().forward(x)


def written_in_forward(rank: int, config: dict) -> str:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(KeepsItsNorm(), nn.Tanh(), KeepsItsNorm())
    engine = octavo.initialize(model, adamw(model), config)
    engine.backward(engine(inputs_of(rank)).square().mean())
    return error_of(engine.step)


@pytest.mark.parametrize(
    "config",
    [{"zero_stage": 3, "reuse_mib": 0}, {"zero_stage": 3, "compile": "aot_eager"}, {"zero_stage": 1, "gather": "bf16"}],
    ids=["stage 3", "compiled", "gather"],
)
def test_a_module_that_writes_to_its_parameters_in_forward_is_refused_where_that_is_lost(two_ranks, config):
    for said in two_ranks.run(written_in_forward, config):
        assert said.startswith("RuntimeError: [zero.step] 0.weight and 1 others changed since the last step")
        assert "a module's forward must not write to its parameters" in said


class Halves(nn.Linear):
    """Halves its weight before it multiplies."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


def trained_with_writes(rank: int, config: dict) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Halves(), nn.Tanh(), Halves())
    engine = octavo.initialize(model, adamw(model), config)
    return [*train(engine, rank, 4), *parameters_to_vector(model.parameters()).tolist()]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_module_may_write_to_its_parameters_in_forward_where_they_stay(two_ranks, stage):
    eager = two_ranks.run(trained_with_writes, {"zero_stage": stage})
    assert two_ranks.run(trained_with_writes, {"zero_stage": stage, "compile": "aot_eager"}) == eager


class ReadsAnother(nn.Module):
    """Uses a weight of one of its modules by hand, and then a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.engine = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with self.engine.gathered() if self.engine else nullcontext():
            x = x + self.first.weight.detach().sum()
        return x * self.scale


def read_in_forward(rank: int, stage: int) -> list[float]:
    torch.manual_seed(0)
    model = ReadsAnother()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": stage, "reuse_mib": 0})
    model.__dict__["engine"] = engine
    return train(engine, rank, 4)


def test_a_forward_may_read_in_gathered_what_other_modules_have(two_ranks):
    assert two_ranks.run(read_in_forward, 3) == two_ranks.run(read_in_forward, 1)


def alone_in_a_context(rank: int, passes: bool) -> list[float]:
    """Rank 0 makes a pass of its own between forward and backward."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
    engine, losses = engine_of(model, 3, gather_mib=2e-4, reuse_mib=0), []
    for _ in range(4):
        loss = engine(inputs_of(rank)).square().mean()
        with engine.gathered(), torch.no_grad():
            if rank == 0 and passes:
                engine.module[2](inputs_of(rank))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_a_pass_of_one_rank_alone_changes_no_transfer(two_ranks):
    assert two_ranks.run(alone_in_a_context, True) == two_ranks.run(alone_in_a_context, False)


def read_as_numpy(rank: int) -> tuple[list[float], list[str], bool]:
    """torch cannot resize memory that it has given to numpy."""
    engine = engine_of(net(), 3)
    losses = train(engine, rank, 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with engine.gathered():
                arrays = {name: tensor.numpy() for name, tensor in engine.module.state_dict().items()}
                same = all(
                    torch.equal(torch.from_numpy(arrays[name]), p) for name, p in engine.module.named_parameters()
                )
    return losses + train(engine, rank, 2), [str(one.message) for one in said], same


def test_parameters_may_be_read_by_numpy(two_ranks):
    for (losses, said, same), plain in zip(two_ranks.run(read_as_numpy), two_ranks.run(of_plain), strict=True):
        assert losses == plain and same
        assert len(said) == len(set(said)) == sum(1 for _ in net().parameters())
        assert all("keeps the memory of all of its elements from now on" in one for one in said)


def write_in_gathered(rank: int, config: dict) -> str:
    model = net()
    engine = octavo.initialize(model, adamw(model), config)
    train(engine, rank, 2)
    other = {name: torch.ones_like(tensor) for name, tensor in net().state_dict().items()}

    def load() -> None:
        with engine.gathered():
            model.load_state_dict(other)

    said = error_of(load)
    with engine.gathered():  # reading is no change, nor is a step
        train(engine, rank, 1)
    return said


@pytest.mark.parametrize("config", [{"zero_stage": 3}, {"zero_stage": 2, "gather": "bf16"}])
def test_what_is_written_to_gathered_parameters_is_not_lost_without_a_word(two_ranks, config):
    for said in two_ranks.run(write_in_gathered, config):
        assert said.startswith("RuntimeError: [zero.gathered] ") and "load weights before octavo.initialize" in said


def evaluate_alone(rank: int, rows: int) -> tuple[list[float], list[int]]:
    """Trains with enough spare memory for only some of the parameters."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    config = {"zero_stage": 3, "timeout_s": 20, "gather_mib": 0.2}
    compiled = {"backend": "aot_eager", "memory_mib": 1.1}
    losses = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.zero.compiled.device.Device.peak_bytes", lambda _: 0)
        engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config | {"compile": compiled})
        for _ in range(6):
            with engine.gathered(), torch.no_grad():
                if rows and rank == 0:
                    engine(torch.ones(rows, 256))
            loss = engine(torch.full((4, 256), 1.0 + rank)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses, sorted(engine._compiler._memory.persistent)


@pytest.mark.parametrize("rows", [4, 64])
def test_a_rank_that_evaluates_by_itself_agrees_with_the_others(two_ranks, rows):
    """With other shapes the rank has graphs of its own for training, too; then no parameter stays whole."""
    alone, nobody = two_ranks.run(evaluate_alone, rows), two_ranks.run(evaluate_alone, 0)
    for (losses, persistent), (expected, _) in zip(alone, nobody, strict=True):
        assert losses == expected
        assert persistent == alone[0][1]
    assert nobody[0][1] and (rows == 64 or alone[0][1])


def trained_between_evaluations(rank: int, mode: type, compile: str | bool) -> list[float]:
    torch._dynamo.reset()
    model = net()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3, "compile": compile})
    losses = []
    for _ in range(3):
        with mode():
            losses.append(engine(torch.ones(2, 4)).square().mean().item())
        with mode(), engine.gathered():
            losses.append(engine(torch.ones(2, 4)).square().mean().item())
        with mode():
            losses.append(engine(torch.ones(2, 4)).square().mean().item())
        engine.backward(engine(torch.ones(2, 4)).square().mean())
        engine.step()
    return losses


@pytest.mark.parametrize("compile", [False, "aot_eager"])
def test_evaluations_in_inference_mode_leave_nothing_that_training_cannot_write_to(two_ranks, compile):
    expected = two_ranks.run(trained_between_evaluations, torch.no_grad, compile)
    assert two_ranks.run(trained_between_evaluations, torch.inference_mode, compile) == expected


class TiedByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.linear(self.embedding(tokens), self.embedding.weight)


def read_by_hand(rank: int) -> str:
    model = TiedByHand()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3, "reuse_mib": 0})
    return error_of(lambda: engine(torch.arange(4)))


def test_a_view_of_what_is_not_whole_is_refused_in_a_sentence(two_ranks):
    for said in two_ranks.run(read_by_hand):
        assert "[zero.forward] a parameter was read outside of its module's forward and backward passes" in said
