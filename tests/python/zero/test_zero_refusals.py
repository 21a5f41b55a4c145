# SPDX-License-Identifier: Apache-2.0
"""What ZeRO's engine refuses: configs, models, optimizers and calls that make no sense, and ranks that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from zero_runs import Engine, TiedAndFrozen, adamw, error_of, loss_of, step_once

import octavo


class Attempt:
    """The arguments of `octavo.initialize` on one rank, which a case changes."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = TiedAndFrozen()
        self.optimizer = adamw(self.model)
        self.config: dict[str, Any] = {"zero_stage": 2}


def without_a_stage(attempt: Attempt) -> None:
    del attempt.config["zero_stage"]


def with_a_state_on_one_rank(attempt: Attempt) -> None:
    if attempt.rank == 1:
        loss_of(attempt.model, attempt.rank, 1).backward()
        attempt.optimizer.step()


def with_an_optimizer_of_some_parameters(attempt: Attempt) -> None:
    attempt.optimizer = torch.optim.AdamW(attempt.model.blocks.parameters())


def in_column_major_order(attempt: Attempt) -> None:
    weight = attempt.model.blocks[0].wide.weight
    weight.data = weight.data.t().contiguous().t()


def with_frozen_parameters_that_differ(attempt: Attempt) -> None:
    frozen = nn.Parameter(torch.ones(3 + attempt.rank), requires_grad=False)
    attempt.model.register_parameter("scale", frozen)


def with_a_buffer_on_one_rank(attempt: Attempt) -> None:
    if attempt.rank == 1:
        attempt.model.register_buffer("scale", torch.ones(3))


def with_plans_that_differ(attempt: Attempt) -> None:
    attempt.config["plan"] = ("dense", "int8")[attempt.rank]


def with_signum(attempt: Attempt) -> None:
    attempt.optimizer = octavo.optim.Signum(attempt.model.parameters())


def with_adafactor(attempt: Attempt) -> None:
    attempt.optimizer = torch.optim.Adafactor(attempt.model.parameters())


def with_zero_redundancy_optimizer(attempt: Attempt) -> None:
    attempt.optimizer = ZeroRedundancyOptimizer(attempt.model.parameters(), torch.optim.AdamW, lr=0.01)


def with_outer(attempt: Attempt) -> None:
    attempt.optimizer = octavo.Outer(attempt.model, attempt.optimizer)


def with_rates_that_differ(attempt: Attempt) -> None:
    attempt.optimizer = torch.optim.AdamW(attempt.model.parameters(), lr=0.01 * (attempt.rank + 1))


def with_optimizers_that_differ(attempt: Attempt) -> None:
    optimizer = (torch.optim.AdamW, torch.optim.SGD)[attempt.rank]
    attempt.optimizer = optimizer(attempt.model.parameters(), lr=0.01)


def step(engine: Engine, rank: int) -> None:
    step_once(engine, rank, 0)


def backward_of_the_loss(engine: Engine, rank: int) -> None:
    loss_of(engine, rank, 0).backward()


def backward_twice(engine: Engine, rank: int) -> None:
    for _ in range(2):
        engine.backward(loss_of(engine, rank, 0))


@dataclass(frozen=True)
class Case:
    """An attempt that is refused: what it changes in the config or elsewhere, the error, and the use of the engine."""

    change: dict[str, Any] | Callable[[Attempt], None]
    words: str
    use: Callable[[Engine, int], None] = step

    def apply(self, attempt: Attempt) -> None:
        if callable(self.change):
            self.change(attempt)
        else:
            attempt.config |= self.change


INITIALIZE = "ValueError: [zero.initialize]"
SAME = f"{INITIALIZE} all ranks must have the same"
ONLY_BY_A_CODEC = f"{INITIALIZE} parameters are gathered only by a codec"
SENDS_ALL = "ValueError: [comm.gather_shards] values are gathered by a codec that sends all of them"

CASES: dict[str, Case] = {
    "stage": Case({"zero_stage": 4}, f"{INITIALIZE} expected zero_stage as 1, 2 or 3, got 4"),
    "bool": Case({"zero_stage": True}, f"{INITIALIZE} expected zero_stage as 1, 2 or 3, got True"),
    "text": Case({"bucket_mib": "x"}, f"{INITIALIZE} expected bucket_mib as a finite number, got 'x'"),
    "key": Case({"offload": True}, f"{INITIALIZE} the config has unknown keys: offload; known are accumulation_steps"),
    "missing": Case(without_a_stage, f"{INITIALIZE} the config needs a zero_stage"),
    "seed": Case({"seed": -1}, f"{INITIALIZE} seed must be an integer from 0"),
    "half": Case(
        {"accumulation_steps": 2.5}, f"{INITIALIZE} expected accumulation_steps as an integer of at least 1, got 2.5"
    ),
    "gather": Case({"gather": "topk:0.01"}, SENDS_ALL),
    "gather=bf16:lossless": Case({"gather": "bf16:lossless"}, SENDS_ALL),
    "gather=int8+ef": Case({"gather": "int8+ef"}, f"{ONLY_BY_A_CODEC}, such as int8"),
    "gather=powersgd:4": Case({"gather": "powersgd:4"}, ONLY_BY_A_CODEC),
    "gather=auto": Case({"gather": "auto"}, ONLY_BY_A_CODEC),
    "gather=int8;head.*=bf16": Case({"gather": "int8;head.*=bf16"}, ONLY_BY_A_CODEC),
    "state": Case(with_a_state_on_one_rank, f"{SAME} optimizer's state"),
    "ranks": Case(with_plans_that_differ, f"{SAME} plan"),
    "frozen": Case(with_frozen_parameters_that_differ, f"{SAME} frozen parameters; rank 1 differs"),
    "buffers": Case(with_a_buffer_on_one_rank, f"{SAME} buffers; rank 1 differs"),
    "rates": Case(with_rates_that_differ, f"{SAME} optimizer; rank 1 differs from rank 0"),
    "classes": Case(with_optimizers_that_differ, f"{SAME} optimizer; rank 1 differs from rank 0"),
    "order": Case(in_column_major_order, f"{INITIALIZE} expected blocks.0.wide.weight real and in row-major order"),
    "optimizer": Case(
        with_an_optimizer_of_some_parameters, f"{INITIALIZE} the optimizer does not have embedding.weight"
    ),
    "joined": Case(with_signum, f"{INITIALIZE} Signum decides what ranks send"),
    "shapes": Case(with_adafactor, f"{INITIALIZE} Adafactor computes its steps from whole matrices"),
    "redundancy": Case(with_zero_redundancy_optimizer, f"{INITIALIZE} ZeroRedundancyOptimizer wraps an optimizer"),
    "outer": Case(with_outer, f"{INITIALIZE} Outer wraps an optimizer"),
    "twice": Case(
        {},
        "RuntimeError: [zero.backward] the last micro-batch of this step was already processed",
        use=backward_twice,
    ),
    "backward": Case({}, "call engine.backward(loss) instead of loss.backward()", use=backward_of_the_loss),
}


def refusal(rank: int, name: str) -> str:
    case, attempt = CASES[name], Attempt(rank)
    case.apply(attempt)

    def initialize_and_use() -> None:
        case.use(octavo.initialize(attempt.model, attempt.optimizer, attempt.config), rank)

    return error_of(initialize_and_use)


@pytest.mark.parametrize("name", CASES)
def test_what_makes_no_sense_is_refused_on_every_rank(two_ranks, name):
    for said in two_ranks.run(refusal, name):
        assert CASES[name].words in said


def refusal_of_wrapped(rank: int, wrap: Callable[[nn.Module], nn.Module]) -> str:
    model = wrap(TiedAndFrozen())
    try:
        octavo.initialize(model, adamw(model), {"zero_stage": 2})
    except (TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (nn.parallel.DistributedDataParallel, "TypeError: [zero.initialize] this model averages gradients in every"),
        (fully_shard, "is a DTensor: pass a model of which every rank has all parameters, as before fully_shard"),
    ],
    ids=["ddp", "fsdp2"],
)
def test_a_model_that_something_else_exchanges_is_refused(two_ranks, wrap, words):
    for said in two_ranks.run(refusal_of_wrapped, wrap):
        assert words in said


def refusals_of_wrong_arguments(rank: int, folder: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(TypeError, match=r"\[zero\.initialize\] expected optimizer as a torch Optimizer, got NoneType"):
        octavo.initialize(model, None, {"zero_stage": 1})
    with pytest.raises(TypeError, match=r"\[zero\.initialize\] expected model as a torch Module, got str"):
        octavo.initialize("model", adamw(model), {"zero_stage": 1})
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 1})
    with pytest.raises(FileNotFoundError, match=r"\[zero\.load_checkpoint\] there is no checkpoint in"):
        engine.load_checkpoint(folder)
    with pytest.raises(TypeError, match=r"\[zero\.save_checkpoint\] expected a path, got None"):
        engine.save_checkpoint(None)


def test_wrong_arguments_are_named(one_rank, tmp_path):
    one_rank.run(refusals_of_wrong_arguments, str(tmp_path))


def sparse_gradient(rank: int, stage: int) -> str:
    model = nn.Embedding(10, 4, sparse=True)
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": stage})
    try:
        engine.backward(engine(torch.tensor([1, 2])).sum())
    except NotImplementedError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sparse_gradient_is_refused_by_name(two_ranks, stage):
    for said in two_ranks.run(sparse_gradient, stage):
        assert "the gradient of weight is sparse" in said
