# SPDX-License-Identifier: Apache-2.0
"""ZeRO by Octavo's engine: it trains like DistributedDataParallel, whichever rank keeps what."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode
from zero_runs import SMALL, TiedAndFrozen, adamw, by_ddp, loss_of, net, paged, step_once, train, trained

import octavo


def by_engine(rank: int, steps: int, config: dict[str, Any]) -> list[float]:
    model = TiedAndFrozen()
    if rank > 0:  # the first rank's values are used
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    engine = octavo.initialize(model, adamw(model), config)
    return [step_once(engine, rank, batch) for batch in range(steps * engine.config.accumulation_steps)]


@pytest.mark.parametrize(("stage", "accumulation"), [(2, 4), (3, 1)])  # test_zero_parity.py has all, in few steps
def test_the_losses_are_those_of_ddp(two_ranks, stage, accumulation):
    steps = 40 // accumulation
    expected = two_ranks.run(by_ddp, accumulation, 0.5, steps)
    config = {"zero_stage": stage, "accumulation_steps": accumulation, "clip_norm": 0.5} | SMALL
    got = two_ranks.run(by_engine, steps, config)
    for of_rank, of_ddp in zip(got, expected, strict=True):
        assert of_rank == pytest.approx(of_ddp, rel=1e-5)
    assert expected[0][-1] < 0.7 * expected[0][0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_ranks_add_up_to_the_bits_of_ddp(two_ranks, stage):
    expected = two_ranks.run(by_ddp, 1, None, 20)
    assert two_ranks.run(by_engine, 20, {"zero_stage": stage} | SMALL) == expected


@pytest.mark.parametrize("stage", [2, 3])
def test_compressed_both_ways_with_paged_states_in_8_bits(two_ranks, stage):
    dense = two_ranks.run(trained, paged, {"zero_stage": stage}, 30)
    config = {"zero_stage": stage, "plan": "int4+ef", "gather": "int8"}
    got = two_ranks.run(trained, paged, config, 30)
    assert got[0][2][0].equal(got[1][2][0]) and all(a.equal(b) for a, b in zip(got[0][2], got[1][2], strict=True))
    for (losses, sent, _), (of_dense, dense_sent, _) in zip(got, dense, strict=True):
        assert losses[-1] == pytest.approx(of_dense[-1], rel=0.1)
        assert sent < dense_sent / 3


@pytest.mark.parametrize("stage", [1, 3])
def test_any_number_of_ranks_trains_one_model(stage, four_ranks):
    results = four_ranks.run(trained, torch.optim.AdamW, {"zero_stage": stage} | SMALL, 8)
    for _, _, parameters in results[1:]:
        assert all(a.equal(b) for a, b in zip(parameters, results[0][2], strict=True))


def evaluated_between(rank: int, stage: int) -> list[float]:
    """Trains as `by_engine` does, with additional forward passes that have no backward pass, one of which fails."""
    model = TiedAndFrozen()
    engine, losses = octavo.initialize(model, adamw(model), {"zero_stage": stage, "gather_mib": 0.02}), []
    for batch in range(12):
        with torch.no_grad():
            for other in range(batch % 3):
                loss_of(engine, rank, other)
            if batch == 5:
                with pytest.raises(IndexError):
                    engine(torch.full((2, 3), 99), odd=False)
        losses.append(step_once(engine, rank, batch))
    return losses


@pytest.mark.parametrize("stage", [2, 3])
def test_passes_without_gradients_change_nothing(two_ranks, stage):
    assert two_ranks.run(evaluated_between, stage) == two_ranks.run(by_engine, 12, {"zero_stage": stage})


def memory_of_a_rank(rank: int, stage: int) -> tuple[int, int, int]:
    """Returns the numbers of elements of parameters between steps, of the optimizer's states and of all parameters."""
    model = TiedAndFrozen()
    every = sum(p.numel() for p in model.parameters() if p.requires_grad)
    engine = octavo.initialize(model, adamw(model), {"zero_stage": stage})
    for batch in range(2):
        engine.backward(loss_of(engine, rank, batch))
        engine.step()
    whole = sum(p.untyped_storage().nbytes() // 4 for p in model.parameters() if p.requires_grad)
    own = sum(part.values.to_local().numel() for part in engine.parts.values()) if stage == 3 else 0
    states = sum(
        s.to_local().numel() for state in engine.optimizer.state.values() for s in state.values() if s.ndim > 0
    )
    return whole + own, states, every


def bytes_of_a_rank(rank: int) -> tuple[int, int]:
    """Returns the bytes of a rank's parameters, gradients and states between steps of stage 3, and those of a whole
    copy."""
    model = TiedAndFrozen()
    model.frozen.weight = model.frozen.bias = None  # these would not be sharded
    model.frozen.forward = lambda x: x
    dense = 4 * sum(p.untyped_storage().nbytes() for p in model.parameters())
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    for batch in range(2):
        step_once(engine, rank, batch)
    tensors = list(model.parameters())
    for part in engine.parts.values():
        tensors += [part.values.to_local(), part.gradient.to_local()]
    states = [s for state in engine.optimizer.state.values() for s in state.values() if s.ndim > 0]
    tensors += [state.to_local() for state in states]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values()), dense


def test_stage_three_has_a_share_of_the_bytes(two_ranks, four_ranks):
    for ranks in (two_ranks, four_ranks):
        for own, dense in ranks.run(bytes_of_a_rank):
            assert own <= 1.05 * dense / ranks.world_size


def test_each_rank_has_its_share(two_ranks):
    for parameters, states, every in two_ranks.run(memory_of_a_rank, 1):
        assert parameters == every and states <= 1.01 * every
    for parameters, states, every in two_ranks.run(memory_of_a_rank, 3):
        assert parameters <= 0.51 * every and states <= 1.01 * every


def in_float64(rank: int) -> list[float]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).double()
    with pytest.warns(
        UserWarning, match="float64 is the dtype of 0.weight, as of 4 parameters in all: ranks round.+to float32"
    ):
        engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    losses = []
    for _ in range(20):
        loss = engine(torch.ones(1, 8, dtype=torch.float64)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_it_is_said_that_float64_is_rounded(two_ranks):
    losses, same = two_ranks.run(in_float64)
    assert losses == same
    assert losses[-1] < losses[0]


def collectives_of_tensors(rank: int, stage: int, folder: str) -> list[str]:
    model = TiedAndFrozen()
    with CommDebugMode() as comms:
        engine = octavo.initialize(model, adamw(model), {"zero_stage": stage, "clip_norm": 1.0})
        engine.backward(loss_of(engine, rank, 0))
        engine.has_finite_gradients()
        engine.step()
        for _ in engine.whole_parameters():
            pass
        engine.save_checkpoint(folder)
        engine.load_checkpoint(folder)
        engine.export_safetensors(f"{folder}/model.safetensors")
    return [str(operator) for operator in comms.get_comm_counts()]


@pytest.mark.parametrize("stage", [1, 3])
def test_the_engine_uses_no_collective_of_dtensors(two_ranks, stage, tmp_path):
    """Gloo's two threads assign the long names of such collectives without a lock, and both free one name."""
    for used in two_ranks.run(collectives_of_tensors, stage, str(tmp_path)):
        assert used and not [operator for operator in used if "c10d_functional" in operator or "coalesced" in operator]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ValueError("no gradient here")


def after_a_failed_pass(rank: int, stage: int, folder: str) -> list[str]:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.Sequential(first, last)
    engine = octavo.initialize(model, adamw(model), {"zero_stage": stage})
    said = []
    for attempt in (
        lambda: engine.backward(last(Failing.apply(first(torch.ones(1, 4)))).sum()),
        lambda: engine.backward(model(torch.ones(1, 4)).sum()),
        engine.step,
        lambda: engine.save_checkpoint(folder),
    ):
        try:
            attempt()
            said.append("")
        except (ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_a_pass_that_failed_are_not_mixed_with_later_ones(two_ranks, stage, tmp_path):
    for own, *later in two_ranks.run(after_a_failed_pass, stage, str(tmp_path)):
        assert own == "ValueError: no gradient here"
        for said, what in zip(later, ("backward", "step", "save_checkpoint"), strict=True):
            assert said.startswith(f"RuntimeError: [zero.{what}] an earlier error stopped this engine")
            assert said.endswith(own)


def attention_losses(rank: int, stage: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.5), {"zero_stage": stage})
    losses = []
    for _ in range(3):
        loss = engine(torch.linspace(-1, 1, 48).view(2, 3, 8)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_torchs_attention_reads_the_weight_of_a_layer_that_it_does_not_call(two_ranks):
    expected = two_ranks.run(attention_losses, 1)
    assert two_ranks.run(attention_losses, 3) == expected
    assert expected[0][2] < expected[0][0]


def finite_of(rank: int, stage: int, batches: list[int]) -> tuple[list[bool], list[float]]:
    """Rank 1 has a NaN in the step of batch 1, and that step is dropped."""
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": stage, "plan": "int4+ef"})
    finite, losses = [], []
    for batch in batches:
        loss = loss_of(engine, rank, batch)
        engine.backward(loss * float("nan") if (rank, batch) == (1, 1) else loss)
        finite.append(engine.has_finite_gradients())
        if finite[-1]:
            engine.step()
        else:
            engine.drop_gradients()
        losses.append(loss.item())
    return finite, losses


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_that_are_not_finite_are_known_to_all_ranks(two_ranks, stage):
    without = two_ranks.run(finite_of, stage, [0, 2, 3])
    for rank, (finite, losses) in enumerate(two_ranks.run(finite_of, stage, [0, 1, 2, 3])):
        assert finite == [True, False, True, True]
        assert losses[0] == pytest.approx(loss_of(TiedAndFrozen(), rank, 0).item(), rel=1e-5)
        losses.pop(1)
        assert without[rank] == ([True] * 3, losses)


def outside_of_its_module(rank: int) -> list[str]:
    """Returns the errors for a parameter that is not whole, where it is read by itself and through a view."""
    model = TiedAndFrozen()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    with engine.gathered():
        view = model.head.weight.t()
    step_once(engine, rank, 0)
    said = []
    for read in (lambda: model.sometimes.weight.sum(), lambda: torch.ones(1, 64) @ view):
        try:
            read()
        except RuntimeError as error:
            said.append(str(error))
    step_once(engine, rank, 1)
    return said


def test_a_parameter_that_is_not_whole_is_not_read(two_ranks):
    for rank, said in enumerate(two_ranks.run(outside_of_its_module)):
        for text, name in zip(said, ["sometimes.weight", "embedding.weight"], strict=True):
            assert f"[zero.gathering] {name} is not whole on rank {rank}" in text


def forgotten(rank: int, config: dict[str, Any]) -> list[bool]:
    if config["compile"] == "inductor":  # which takes long for each operator of a model
        engine = octavo.initialize(model := net(), adamw(model), config)
        train(engine, rank, 1)
    else:
        engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), config)
        step_once(engine, rank, 0)
    alive = [weakref.ref(engine), weakref.ref(model), weakref.ref(engine.optimizer)]
    del engine, model
    gc.collect()
    return [reference() is not None for reference in alive]


@pytest.mark.parametrize("compile", [False, "aot_eager", "inductor"])
@pytest.mark.parametrize("stage", [1, 3])
def test_an_engine_that_nobody_has_is_gone(two_ranks, stage, compile):
    assert two_ranks.run(forgotten, {"zero_stage": stage, "compile": compile}, timeout_s=100) == [[False] * 3] * 2
