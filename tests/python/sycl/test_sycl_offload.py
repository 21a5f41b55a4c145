# SPDX-License-Identifier: Apache-2.0
"""Passes that send to the host what only the optimizer's step needs: the same bits, less memory, nothing lost."""

import gc
from typing import Any

import pytest
import torch
from test_sycl_ddp import group_of
from torch import Tensor, nn

import octavo
import octavo.sycl
from octavo.optim.shards import local

WIDTH, LAYERS, ROWS = 256, 4, 512
STATE_BYTES = 2 * LAYERS * (WIDTH * WIDTH + WIDTH) * 4  # Adam's states on a single rank
REDUCE, GATHER = ["reduce"], ["gather", "reduce"]


class Run:
    """Trains on sycl by graphs. The figures are from the third step on, whose schedule is ``passes``."""

    def __init__(self, stage: int, passes: list[str] | None, backend: str = "aot_eager", **options: Any):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to("sycl")
        compile = {"backend": backend, "memory_mib": options.pop("memory_mib", None)}
        config = {"zero_stage": stage, "bucket_mib": 0.1, "gather_mib": 0.3, "compile": compile} | options
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        gc.collect()  # removes the engines of earlier runs
        self.before = torch.sycl.memory_allocated()
        self.engine = octavo.initialize(model, optimizer, config, group=group_of("sycl"))
        first = REDUCE if stage < 3 else GATHER
        if passes is not None:
            self.engine.set_compile_schedule([(0, first), (2, passes)])
        self.batch = 0

    def forward(self, rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(10 * self.batch + rank)
        self.batch += 1
        return torch.tanh(self.engine(torch.randn(ROWS, WIDTH, generator=generator).to("sycl"))).square().mean()

    def step(self, rank: int) -> tuple[float, int, int]:
        """Returns the loss, the bytes that the device holds between forward and backward, and the most bytes in both
        passes."""
        torch.sycl.synchronize()
        torch.sycl.reset_peak_memory_stats()
        loss = self.forward(rank)
        held = torch.sycl.memory_allocated() - self.before
        self.engine.backward(loss)
        most = torch.sycl.max_memory_allocated() - self.before
        self.engine.step()
        return loss.item(), held, most

    def steps(self, rank: int, count: int = 5) -> tuple[list[float], int, int]:
        """Returns the losses, and the figures of the last step."""
        done = [self.step(rank) for _ in range(count)]
        return [loss for loss, _, _ in done], *done[-1][1:]

    def own(self) -> list[Tensor]:
        """Returns this rank's parameters and states."""
        self.engine.bring_back()
        parts = [local(part.values).detach() for part in self.engine.parts.values()]
        states = [value for state in self.engine.optimizer_state().values() for value in state.values()]
        return [tensor.cpu().clone() for tensor in parts + states if isinstance(tensor, Tensor)]


def trained(rank: int, stage: int, passes: list[str], options: dict[str, Any]) -> tuple[list[float], int, int, Any]:
    run = Run(stage, passes, **options)
    done = *run.steps(rank), run.own()
    torch._dynamo.reset()
    return done


def require_same(ours: Any, theirs: Any) -> None:
    assert ours[0] == theirs[0]
    assert all(torch.equal(one, other) for one, other in zip(ours[-1], theirs[-1], strict=True))


@pytest.mark.parametrize(("stage", "first"), [(1, REDUCE), (2, REDUCE), (3, GATHER)])
def test_the_optimizers_state_waits_on_the_host(two_ranks, stage, first) -> None:
    plain = two_ranks.run(trained, stage, first, {})
    offloaded = two_ranks.run(trained, stage, [*first, "offload_optimizer"], {})
    for theirs, ours in zip(plain, offloaded, strict=True):
        require_same(ours, theirs)
        assert theirs[1] - ours[1] == STATE_BYTES // 2


PARAMETER_BYTES = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
OFFLOAD = "offload_optimizer"


def within(rank: int, limit_bytes: int | None) -> tuple[list[float], int, int, int, Any]:
    """Returns the losses, the peak of the measured step, that of a later step, the bytes offloaded then, and the
    results."""
    run = Run(2, [*REDUCE, OFFLOAD], memory_mib=None if limit_bytes is None else limit_bytes / 2**20)
    losses = [run.step(rank)[0] for _ in range(4)]
    torch.sycl.reset_peak_memory_stats()
    loss = run.forward(rank)
    away = run.engine._engine.offloaded_bytes()
    run.engine.backward(loss)
    most = torch.sycl.max_memory_allocated()
    run.engine.step()
    measured = run.engine._compiler._memory.peak_bytes
    torch._dynamo.reset()
    return [*losses, loss.item()], measured, most, away, run.own()


def test_as_much_leaves_as_the_limit_asks_for(two_ranks) -> None:
    """With this limit, the states of a single large parameter and of one small parameter must be offloaded."""
    unlimited = two_ranks.run(within, 2**40)
    of_a_matrix, measured = 2 * WIDTH * WIDTH * 4 // 2, unlimited[0][1]
    limit = measured - of_a_matrix - 2**9
    limited, nothing = two_ranks.run(within, limit), two_ranks.run(within, None)
    for stays, some, none in zip(unlimited, limited, nothing, strict=True):
        require_same(some, stays)
        require_same(none, stays)
        assert stays[3] == 0
        assert none[3] == STATE_BYTES // 2
        assert some[3] == of_a_matrix + 2 * WIDTH * 4 // 2
        assert some[2] <= limit


def accumulated(rank: int, passes: list[str]) -> tuple[list[int], Any]:
    run = Run(2, passes, accumulation_steps=2)
    losses, away = [], []
    for _ in range(6):
        loss = run.forward(rank)
        run.engine.backward(loss)
        away.append(run.engine._engine.offloaded_bytes())
        run.engine.step()
        losses.append(loss.item())
    return losses, away, run.own()


def test_states_stay_away_until_the_last_micro_batch(two_ranks) -> None:
    plain = two_ranks.run(accumulated, REDUCE)
    for theirs, ours in zip(plain, two_ranks.run(accumulated, [*REDUCE, OFFLOAD]), strict=True):
        require_same(ours, theirs)
        assert ours[1][4] == STATE_BYTES // 2
        assert ours[1][5] < STATE_BYTES // 2


class Broken(Exception):
    pass


def interrupted(rank: int, stage: int, passes: list[str], folder: str, is_interrupted: bool) -> Any:
    """A backward pass fails in the fourth step; training goes on from what is saved at that point."""
    run = Run(stage, passes)
    losses = [run.step(rank)[0] for _ in range(3)]
    if is_interrupted:
        run.forward(rank)  # what this pass sends to the host must be there when the state is examined
        run.batch -= 1
        assert run.engine._engine.offloaded_bytes() > 0
        with pytest.raises(RuntimeError, match="wait on the host until the optimizer's step"):
            [state["exp_avg"].sum().item() for state in run.engine.optimizer.state.values()]
    run.engine.save_checkpoint(folder)
    saved = run.engine.optimizer.state_dict()["state"]
    assert all(local(state["exp_avg"]).isfinite().all() for state in saved.values())
    losses += run.steps(rank, 2)[0]
    run.engine.load_checkpoint(folder)
    run.batch -= 2
    return losses + run.steps(rank, 2)[0], run.own()


@pytest.mark.parametrize("pass_name", [OFFLOAD, "offload_parameters"])
def test_a_state_is_whole_when_it_is_saved_loaded_and_looked_at(two_ranks, tmp_path, pass_name) -> None:
    plain = two_ranks.run(interrupted, 3, GATHER, str(tmp_path / "plain"), False)
    ours = two_ranks.run(interrupted, 3, [*GATHER, pass_name], str(tmp_path / "ours"), pass_name == OFFLOAD)
    for one, other in zip(ours, plain, strict=True):
        require_same(one, other)
        assert one[0][3:5] == one[0][5:7]


def failing(rank: int, passes: list[str]) -> Any:
    run = Run(2, passes)
    [run.step(rank) for _ in range(3)]
    run.forward(rank)
    hook = run.engine.optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(Broken()))
    loss = run.forward(rank)
    run.engine.backward(loss)
    with pytest.raises(Broken):
        run.engine.step()
    hook.remove()
    return [], run.own()


def test_a_state_is_whole_after_an_error_in_the_step(two_ranks) -> None:
    plain, ours = two_ranks.run(failing, REDUCE), two_ranks.run(failing, [*REDUCE, OFFLOAD])
    for one, other in zip(ours, plain, strict=True):
        require_same(one, other)


# ---- a rank's parts of parameters


def test_parts_of_parameters_wait_on_the_host(two_ranks) -> None:
    plain = two_ranks.run(trained, 3, GATHER, {})
    for passes in (["offload_parameters"], ["prefetch", "offload_parameters"], [OFFLOAD, "offload_parameters"]):
        offloaded = two_ranks.run(trained, 3, [*GATHER, *passes], {})
        less = PARAMETER_BYTES // 2 + (STATE_BYTES // 2 if OFFLOAD in passes else 0)
        for theirs, ours in zip(plain, offloaded, strict=True):
            require_same(ours, theirs)
            assert theirs[1] - ours[1] == less


def test_parts_beside_whole_parameters_do_so_too(two_ranks) -> None:
    options = {"gather": "int8"}
    plain = two_ranks.run(trained, 2, REDUCE, options)
    offloaded = two_ranks.run(trained, 2, [*REDUCE, "offload_parameters"], options)
    for theirs, ours in zip(plain, offloaded, strict=True):
        require_same(ours, theirs)
        assert theirs[1] - ours[1] == PARAMETER_BYTES // 2


# ---- refusals


def refused(rank: int, options: dict[str, Any], device: str, passes: list[str], optimizer: str = "Adam") -> str:
    model = nn.Linear(64, 64).to(device)
    kind = getattr(octavo.optim if "Paged" in optimizer else torch.optim, optimizer)
    config = {"compile": "aot_eager"} | options
    engine = octavo.initialize(model, kind(model.parameters(), lr=0.01), config, group=group_of(device))
    try:
        engine.set_compile_schedule([(0, passes[:1]), (2, passes)])
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"zero_stage": 2}, "cpu", ["reduce", OFFLOAD]), "to the host, and the model is there already"),
        (({"zero_stage": 3}, "cpu", ["gather", "offload_parameters"]), "and the model is there already"),
        (({"zero_stage": 2}, "cpu", ["reduce", "offload_activations"]), "and the model is there already"),
        (({"zero_stage": 2}, "sycl", ["reduce", OFFLOAD], "PagedAdamW"), "PagedAdamW pages what it keeps by itself"),
        (({"zero_stage": 2}, "sycl", ["reduce", "offload_parameters"]), "in stage 2 there is such memory only with"),
        (
            ({"zero_stage": 3}, "sycl", ["gather", "offload_parameters", "prefetch"]),
            "offload_parameters must come after prefetch",
        ),
        (
            ({"zero_stage": 3}, "sycl", ["gather", "selective_gather", "offload_parameters"]),
            "offload_parameters and selective_gather exclude each other",
        ),
    ],
)
def test_what_would_gain_nothing_is_refused(two_ranks, arguments, words) -> None:
    for message in two_ranks.run(refused, *arguments):
        assert words in message
