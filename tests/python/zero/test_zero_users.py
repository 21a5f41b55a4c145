# SPDX-License-Identifier: Apache-2.0
"""What users do with an engine besides its passes: where their models come from, and what they change, copy and
save."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, spectral_norm, vector_to_parameters, weight_norm
from zero_runs import adamw, engine_of, error_of, inputs_of, net, of_plain, train

import octavo

# ---- where the memory of parameters comes from


def from_elsewhere(rank: int, how: str, folder: str) -> list[float]:
    model, file = net(), f"{folder}/{rank}"
    if how == "numpy":
        for parameter in model.parameters():
            parameter.data = torch.from_numpy(parameter.detach().numpy().copy())
    elif how == "safetensors":
        save_file(model.state_dict(), file)
        model.load_state_dict(load_file(file), assign=True)
    elif how == "mapped":
        torch.save(model.state_dict(), file)
        model.load_state_dict(torch.load(file, mmap=True), assign=True)
    elif how == "shared":
        model.share_memory()
    else:
        vector_to_parameters(parameters_to_vector(model.parameters()).detach().clone(), model.parameters())
    return train(engine_of(model, 3), rank)


@pytest.mark.parametrize("how", ["numpy", "safetensors", "mapped", "shared", "views of one tensor"])
def test_stage_3_takes_parameters_of_any_memory(two_ranks, how, tmp_path):
    """Memory of files, of other processes and of other parameters cannot be emptied."""
    assert two_ranks.run(from_elsewhere, how, str(tmp_path)) == two_ranks.run(of_plain)


# ---- the mode of a model


def in_both_modes(rank: int) -> list[bool]:
    engine = engine_of(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)), 3)
    inputs = inputs_of(0)
    with torch.no_grad():
        repeats = [
            torch.equal(engine.eval()(inputs), engine(inputs)),
            torch.equal(engine.train()(inputs), engine(inputs)),
        ]
    return [*repeats, engine.module.training, engine.train(False).module.training]


def test_an_engine_sets_the_mode_of_its_model(two_ranks):
    assert two_ranks.run(in_both_modes) == [[True, False, True, False]] * 2


# ---- what is changed after octavo.initialize


def after_a_change(rank: int, how: str) -> list[str]:
    model = net()
    if how == "needs a gradient":
        model[0].requires_grad_(False)
    engine = engine_of(model, 1)
    train(engine, rank, 1)
    if how == "dtype":
        model.to(torch.bfloat16).float()
    elif how == "assigned":
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    elif how == "replaced":
        model[2] = nn.Linear(4, 4)
    elif how == "needs a gradient":
        model[0].requires_grad_(True)
    else:
        engine.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    before = [part.values.detach().to_local().clone() for part in engine.parts.values()]
    said = error_of(partial(train, engine, rank, 1))
    after = [part.values.detach().to_local() for part in engine.parts.values()]
    return [said, "" if all(map(torch.equal, before, after)) else "has moved"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dtype", "[zero.step] 0.weight has other memory than at octavo.initialize"),
        ("assigned", "[zero.step] 0.weight was added, or now requires a gradient, after octavo.initialize"),
        ("replaced", "[zero.step] 2.weight was added, or now requires a gradient, after octavo.initialize"),
        ("needs a gradient", "[zero.step] 0.weight was added, or now requires a gradient, after octavo.initialize"),
        ("group", "[zero.step] parameters were added to the optimizer after octavo.initialize"),
    ],
)
def test_what_would_not_be_trained_is_refused_by_name(two_ranks, how, words):
    for said, moved in two_ranks.run(after_a_change, how):
        assert said.startswith(f"RuntimeError: {words}")
        assert not moved


# ---- names, buffers and values of models


def through_a_compiled_wrapper(rank: int, folder: str) -> tuple[list[str], bool]:
    engine = engine_of(torch.compile(net(), backend="eager"), 1, exempt=["0.*"])
    train(engine, rank, 2)
    engine.save_checkpoint(f"{folder}/checkpoint")
    engine.export_safetensors(f"{folder}/model.safetensors")
    other = engine_of(net(), 3)
    other.load_checkpoint(f"{folder}/checkpoint")
    return sorted(load_file(f"{folder}/model.safetensors")), train(engine, rank, 2) == train(other, rank, 2)


def test_names_are_those_of_the_model_inside_of_a_compiled_one(two_ranks, tmp_path):
    for names, goes_on_as_well in two_ranks.run(through_a_compiled_wrapper, str(tmp_path)):
        assert names == sorted(net().state_dict())
        assert goes_on_as_well


class WithStridedBuffers(nn.Module):
    """A model with buffers whose elements are not one after another in memory."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        waves = torch.polar(torch.ones(2, 3), torch.full((2, 3), float(rank)))
        self.register_buffer("cosines", waves.real)
        self.register_buffer("one", waves.imag[:1, 0])
        self.register_buffer("across", torch.full((3, 2), float(rank)).t())


def buffers_of(rank: int, by_rounds: bool) -> list[list[float]]:
    model = WithStridedBuffers(rank)
    optimizer = adamw(model)
    if by_rounds:
        octavo.Outer(model, optimizer)
    else:
        octavo.initialize(model, optimizer, {"zero_stage": 1})
    return [buffer.flatten().tolist() for buffer in model.buffers()]


@pytest.mark.parametrize("by_rounds", [False, True], ids=["engine", "Outer"])
def test_buffers_of_any_strides_become_those_of_rank_0(two_ranks, by_rounds):
    for of_rank in two_ranks.run(buffers_of, by_rounds):
        assert of_rank == [[1.0] * 6, [0.0], [0.0] * 6]


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


# ---- modules that stage 3 has to know


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.full((4,), 0.5 + i)) for i in range(2))
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.ones(4))})

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[0] * self.scales[1] + self.named["bias"]


class Position(nn.Module):
    """Gives its caller a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(0, 1, 20).reshape(5, 4))

    def forward(self, count: int) -> Tensor:
        return self.table[:count]


class WithPosition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position, self.layer = Position(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.position(len(x))


def of_module(rank: int, what: str, stage: int) -> list[float]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer weight_norm
        model = {
            "lists": Lists,
            "view": WithPosition,
            "weight_norm": lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4)),
            "spectral_norm": lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)),
        }[what]()
    engine = engine_of(model, stage)
    losses = train(engine, rank)
    with torch.no_grad():
        losses.append(engine(inputs_of(rank)).mean().item())
    return losses


@pytest.mark.parametrize("what", ["lists", "view", "weight_norm", "spectral_norm"])
def test_stage_3_trains_what_stage_1_trains(two_ranks, what):
    assert two_ranks.run(of_module, what, 3) == two_ranks.run(of_module, what, 1)


class Table(nn.Module):
    """Gives its caller its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(0, 1, 12).reshape(3, 4))

    def forward(self) -> Tensor:
        return self.table


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.position, self.layer = Table(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.position()


def of_table(rank: int, stage: int) -> tuple[list[float], list[int], bool]:
    """Returns losses, the numbers of hooks of the parameter after steps, and whether the engine is gone at last."""
    engine = engine_of(WithTable(), stage)
    table, hooks, losses = engine.module.position.table, [], []
    for _ in range(3):
        losses += train(engine, rank, 1)
        hooks.append(len(table._backward_hooks or ()))
    gone = weakref.ref(engine._gathering)
    del engine
    gc.collect()
    return losses, hooks, gone() is None


def test_a_module_may_give_its_parameter_to_its_caller(two_ranks):
    by_first_stage = two_ranks.run(of_table, 1)
    for (losses, hooks, is_gone), (expected, *_) in zip(two_ranks.run(of_table, 3), by_first_stage, strict=True):
        assert losses == expected
        assert len(set(hooks)) == 1 and is_gone


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


def refuse_compiled(rank: int, how: str) -> str:
    model = net()
    if how == "wrapped":
        model[0] = torch.compile(model[0], backend="eager")
    else:
        model[0].compile(backend="eager")
    return error_of(lambda: engine_of(model, 3))


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_stage_3_refuses_modules_that_are_compiled_already(two_ranks, how):
    for said in two_ranks.run(refuse_compiled, how):
        assert said.startswith("ValueError: [zero.initialize] 0 is compiled already")


def copied(rank: int, stage: int) -> tuple[bool, list[float]]:
    """Makes a copy, as an average of parameters does: it is a model by itself."""
    engine = engine_of(net(), stage)
    losses = train(engine, rank, 2)
    with engine.gathered():
        twin, expected = copy.deepcopy(engine.module), engine(inputs_of(rank))
    same = rank > 0 or torch.equal(twin(inputs_of(rank)), expected)  # only one rank does this
    return same, losses + train(engine, rank, 2)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_copy_of_the_model_is_a_model_by_itself(two_ranks, stage):
    for (same, losses), plain in zip(two_ranks.run(copied, stage), two_ranks.run(of_plain), strict=True):
        assert same and losses == plain


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


def load_after_initialize(rank: int) -> str:
    model, plain = net(), net()
    of_plain = adamw(plain)
    plain(inputs_of(rank)).sum().backward()
    of_plain.step()
    optimizer = adamw(model)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1})
    optimizer.load_state_dict(of_plain.state_dict())
    engine.backward(engine(inputs_of(rank)).sum())
    return error_of(engine.step)


def test_the_state_of_a_whole_model_that_is_loaded_too_late_is_refused_by_its_cause(two_ranks):
    for said in two_ranks.run(load_after_initialize):
        assert said.startswith("RuntimeError: [zero.step] AdamW has states of whole parameters")
        assert "before octavo.initialize" in said


# ---- compiled


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
