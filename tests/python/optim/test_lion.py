# SPDX-License-Identifier: Apache-2.0
"""Lion, Distributed Lion and Signum: the steps they make, on one rank and on several, and the state they save."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ddp_runs import OddShapes, Switch, digest, digest_of
from lion_runs import BETAS, OPTIMIZERS, Given, gradients_of, learning_curve, move, update_of, wrap
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world

import octavo
from octavo.optim import DistributedLion, Lion, Signum

# ---- one process


@pytest.mark.parametrize("make", [Lion, DistributedLion])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lion_is_its_ten_lines_to_the_last_bit(make, dtype):
    module = Given().to(dtype)
    optimizer = make(module.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    expected = [parameter.detach().clone() for parameter in module.parameters()]
    momenta = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in expected]
    for step in range(5):
        for i, (parameter, gradient) in enumerate(zip(module.parameters(), gradients_of(0, step), strict=True)):
            parameter.grad = gradient.to(dtype)
            wide = expected[i].float()
            move(wide, update_of(momenta[i], parameter.grad.float(), (0.9, 0.99)), 0.01, 0.1)
            expected[i] = wide.to(dtype)
        optimizer.step()
    for parameter, theirs, momentum in zip(module.parameters(), expected, momenta, strict=True):
        assert torch.equal(parameter, theirs)
        assert torch.equal(optimizer.state[parameter]["exp_avg"], momentum)


def test_signum_in_one_process_is_lion_with_both_betas_alike():
    ends = []
    for make in (lambda p: Signum(p, lr=0.01, momentum=0.8), lambda p: Lion(p, lr=0.01, betas=(0.8, 0.8))):
        module = Given()
        optimizer = make(module.parameters())
        for step in range(4):
            for parameter, gradient in zip(module.parameters(), gradients_of(0, step), strict=True):
                parameter.grad = gradient
            optimizer.step()
        ends.append(digest(module))
    assert ends[0] == ends[1]


def test_memory_formats_and_strides_do_not_matter():
    torch.manual_seed(0)
    weight, results = torch.randn(8, 4, 3, 3), []
    for layout in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(weight.clone().to(memory_format=layout))
        optimizer = Lion([parameter], lr=1e-2)
        for step in range(4):
            parameter.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        results.append(parameter.detach().contiguous())
    assert torch.equal(*results)


def test_the_state_goes_round_in_float32_and_a_schedule_of_torch_works():
    module = Given().to(torch.bfloat16)
    optimizer = Lion(module.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    gradients = [[gradient.bfloat16() for gradient in gradients_of(0, step)] for step in range(4)]

    def step_of(one, its_optimizer, step):
        for parameter, gradient in zip(one.parameters(), gradients[step], strict=True):
            parameter.grad = gradient
        its_optimizer.step()

    for step in range(3):
        step_of(module, optimizer, step)
        schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.01
    resumed = copy.deepcopy(module)
    resumed_optimizer = Lion(resumed.parameters(), lr=1.0)
    for _ in range(2):  # torch adds to an optimizer's defaults when it loads
        resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(state["exp_avg"].dtype == torch.float32 for state in resumed_optimizer.state.values())
    for one in ((module, optimizer), (resumed, resumed_optimizer)):
        step_of(*one, 3)
    assert digest(module) == digest(resumed)


def test_the_operators_are_traceable_and_refuse_what_does_not_fit():
    def lists(*sizes: int) -> list[Tensor]:
        return [torch.randn(size) for size in sizes]

    options = (0.1, 0.9, 0.99, 0.01)
    tensors = (lists(5, 0, 9), lists(5, 0, 9), lists(5, 0, 9), [], [])
    torch.library.opcheck(torch.ops.octavo.lion_.default, (*tensors, *options))
    torch.library.opcheck(torch.ops.octavo.sign_step_.default, (lists(5, 9), lists(5, 9), 0.1, 0.01))
    parameters = lists(5, 9)
    before = [parameter.clone() for parameter in parameters]
    for gradients, momenta in ((lists(5), lists(5, 9)), (lists(5, 8), lists(5, 9)), (lists(5, 9), lists(5))):
        with pytest.raises(ValueError, match=r"^\[optim\.lion\] expected"):
            torch.ops.octavo.lion_(parameters, gradients, momenta, [], [], *options)
    with pytest.raises(ValueError, match=r"^\[optim\.lion\] expected mean 0 as float32"):
        torch.ops.octavo.lion_(parameters, lists(5, 9), [m.double() for m in lists(5, 9)], [], [], *options)
    with pytest.raises(ValueError, match=r"^\[optim\.sign_step\] expected as many updates"):
        torch.ops.octavo.sign_step_(parameters, lists(5), 0.1, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True)), "the first changed all the same"


# ---- several ranks


def vote(rank: int, world_size: int, name: str) -> None:
    """Compares every step with the votes of all ranks, whose gradients each rank knows."""
    model, handle, optimizer = wrap(name, lr=0.01, weight_decay=0.1)
    expected = [parameter.detach().clone() for parameter in model.module.parameters()]
    momenta = [[torch.zeros_like(parameter) for parameter in expected] for _ in range(world_size)]
    for step in range(5):
        sums = [torch.zeros_like(parameter) for parameter in expected]
        for peer in range(world_size):
            for i, gradient in enumerate(gradients_of(peer, step)):
                update = update_of(momenta[peer][i], gradient, BETAS[name])
                sums[i] += update.sign() if i == 0 else update
        for parameter, total in zip(expected, sums, strict=True):
            move(parameter, total, 0.01, 0.1)
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        assert set(model.module.weight.grad.unique().tolist()) <= {-1.0, 0.0, 1.0}
        optimizer.step()
        for parameter, theirs in zip(model.module.parameters(), expected, strict=True):
            assert torch.equal(parameter, theirs), f"step {step}"
        state = handle.state_dict()
        assert torch.equal(state["momentum/weight"], momenta[rank][0].flatten())
        assert torch.equal(state["momentum/bias"], momenta[rank][1])
    assert not optimizer.state_dict()["state"]
    assert len({digest_of(each) for each in momenta}) == world_size, "momenta are the ranks' own"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_is_the_majority_of_the_ranks_own_signs(two_ranks, three_ranks, name):
    with solo_world():
        vote(0, 1, name)
    two_ranks.run(vote, 2, name)
    three_ranks.run(vote, 3, name)


def dense_lion(rank: int, world_size: int, name: str) -> None:
    """Gradients and betas are multiples of 1/4, so that nothing is ever rounded."""
    betas = {"momentum": 0.5} if name == "signum" else {"betas": (0.5, 0.75)}
    model, _, optimizer = wrap(name, plan="dense", **betas)
    twin = copy.deepcopy(model.module)
    plain = Lion(twin.parameters(), lr=1e-2, betas=(0.5, 0.5) if name == "signum" else (0.5, 0.75))
    for step in range(4):
        own = [(4 * gradient).round() / 4 for gradient in gradients_of(rank, step)]
        optimizer.zero_grad()
        model(*own).backward()
        optimizer.step()
        for i, parameter in enumerate(twin.parameters()):
            of_all = [(4 * gradients_of(peer, step)[i]).round() / 4 for peer in range(world_size)]
            parameter.grad = sum(of_all) / world_size
        plain.step()
        assert digest(model.module) == digest(twin), f"step {step}"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_under_a_dense_plan_it_is_lion_on_averaged_gradients(two_ranks, name):
    two_ranks.run(dense_lion, 2, name)


def learn(rank: int, name: str, plan: str, stop: int | None = None, options: dict | None = None) -> list:
    """Returns losses and digests of 30 steps of an odd model; at `stop` everything is saved, built anew and loaded."""
    unused = bool((options or {}).get("unused"))
    ddp_options = {"bucket_cap_mb": 0.02, "find_unused_parameters": unused}

    def make():
        return wrap(name, plan, OddShapes(**(options or {})), ddp_options, lr=3e-3)

    return learning_curve(rank, make, stop)[0]


def require_learnt(curves: list) -> None:
    assert all([step[1] for step in curve] == [step[1] for step in curves[0]] for curve in curves), "replicas differ"
    for curve in curves:
        assert curve[-1][0] < 0.5 * curve[0][0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_learns_with_replicas_of_the_same_bits(two_ranks, three_ranks, name):
    with solo_world():
        require_learnt([learn(0, name, "sign-vote")])
    require_learnt(two_ranks.run(learn, name, "sign-vote"))
    require_learnt(three_ranks.run(learn, name, "sign-vote"))


@pytest.mark.parametrize("plan", ["int4+ef", "sign+ef", "sign-vote;narrow.*=int8"])
def test_other_plans_average_the_updates(two_ranks, plan):
    require_learnt(two_ranks.run(learn, "lion", plan))


def test_parameters_that_no_rank_uses_do_not_move(two_ranks):
    require_learnt(two_ranks.run(learn, "lion", "sign-vote", None, {"unused": True}))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resuming_gives_the_same_bits(two_ranks, name):
    unbroken = two_ranks.run(learn, name, "sign-vote")
    for stop in (1, 7):
        assert two_ranks.run(learn, name, "sign-vote", stop) == unbroken, stop


def test_resuming_a_plan_with_feedback_gives_the_same_bits(two_ranks):
    assert two_ranks.run(learn, "lion", "int4+ef", 5) == two_ranks.run(learn, "lion", "int4+ef")


def through_torchs_state_dict(rank: int, name: str) -> list[bool]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def step_once(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> str:
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        optimizer.step()
        return digest(model)

    model, handle, optimizer = wrap(name, lr=0.03)
    for step in range(3):
        step_once(model, optimizer, step)
    optimizer.zero_grad()
    before = digest(model)
    saved = copy.deepcopy(get_optimizer_state_dict(model.module, optimizer))
    assert digest(model) == before and optimizer.param_groups[0]["lr"] == 0.03
    resumed, resumed_handle, resumed_optimizer = wrap(name)
    resumed.module.load_state_dict(model.module.state_dict())
    set_optimizer_state_dict(resumed.module, resumed_optimizer, saved)
    resumed_handle.load_state_dict(handle.state_dict())
    return [step_once(model, optimizer, step) == step_once(resumed, resumed_optimizer, step) for step in range(3, 6)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_distributed_state_dict_makes_no_step(two_ranks, name):
    assert two_ranks.run(through_torchs_state_dict, name) == [[True] * 3] * 2


def change_betas(rank: int, name: str) -> None:
    """Changes betas between steps, as a schedule with cycle_momentum does."""
    model, handle, optimizer = wrap(name, plan="dense")
    momentum = torch.zeros(64, 40)
    for step in range(6):
        beta = 0.5 + 0.05 * step
        for group in optimizer.param_groups:
            group.update({"momentum": beta} if name == "signum" else {"betas": (beta, 0.9 * beta)})
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        own = update_of(momentum, gradients_of(rank, step)[0], (beta, beta if name == "signum" else 0.9 * beta))
        sums = own.clone()
        dist.all_reduce(sums)
        torch.testing.assert_close(model.module.weight.grad, sums / 2)
        torch.testing.assert_close(handle.state_dict()["momentum/weight"], momentum.flatten())
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_betas_may_change_between_steps(two_ranks, name):
    two_ranks.run(change_betas, name)


def use_now_and_then(rank: int) -> str:
    torch.manual_seed(0)
    model, handle, optimizer = wrap("signum", module=Switch(), ddp_options={"find_unused_parameters": True})
    for step in range(6):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        before = model.module.b.weight.detach().clone()
        model(x, use_b=step % 2 == 0).square().mean().backward()
        optimizer.step()
        assert torch.equal(before, model.module.b.weight) == (step % 2 == 1)
    assert handle.state_dict()["momentum/b.weight"].norm() > 0
    return digest(model)


def test_a_layer_that_is_unused_now_and_then_keeps_replicas_alike(two_ranks):
    first, second = two_ranks.run(use_now_and_then)
    assert first == second


def save_momenta(rank: int) -> dict:
    model, handle, optimizer = wrap("lion")
    model(*gradients_of(rank, 0)).backward()
    optimizer.step()
    return handle.state_dict()


def load_momenta(rank: int, states: list[dict]) -> None:
    model, handle, optimizer = wrap("lion")
    handle.load_state_dict(states)
    mean = sum(state["momentum/weight"] for state in states) / len(states)
    torch.testing.assert_close(handle.state_dict()["momentum/weight"], mean)
    model(*gradients_of(rank, 1)).backward()
    optimizer.step()


def test_another_number_of_ranks_goes_on_with_the_mean_momentum(two_ranks, three_ranks):
    three_ranks.run(load_momenta, two_ranks.run(save_momenta))


def scale_losses(rank: int, name: str, scale: bool) -> str:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scale)
    model, _, optimizer = wrap(name, scaler=scaler)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(model(*gradients_of(rank, step))).backward()
        scaler.step(optimizer)
        scaler.update()
    return digest(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loss_scale_that_grows_changes_nothing(two_ranks, name):
    assert two_ranks.run(scale_losses, name, True) == two_ranks.run(scale_losses, name, False)


def accumulate(rank: int) -> None:
    model, _, optimizer = wrap("lion")
    twin, _, twin_optimizer = wrap("lion")
    for step in range(3):
        for its_optimizer in (optimizer, twin_optimizer):
            its_optimizer.zero_grad(set_to_none=step % 2 == 0)
        with model.no_sync():
            model(*gradients_of(rank, 2 * step)).backward()
        model(*gradients_of(rank, 2 * step + 1)).backward()
        sums = [a + b for a, b in zip(gradients_of(rank, 2 * step), gradients_of(rank, 2 * step + 1), strict=True)]
        twin(*sums).backward()
        for its_optimizer in (optimizer, twin_optimizer):
            its_optimizer.step()
        assert digest(model) == digest(twin)


def test_accumulated_gradients_are_voted_on_once(two_ranks):
    two_ranks.run(accumulate)


def go_on_from_one_process(rank: int, saved: dict) -> list[bool]:
    model = DistributedDataParallel(Given())
    optimizer = DistributedLion(model.parameters(), lr=1e-3)
    octavo.compress(model, "sign-vote", optimizer=optimizer)
    with pytest.warns(UserWarning, match="the momenta of a single process are left out"):
        optimizer.load_state_dict(saved)
    return [bool(state) for state in optimizer.state_dict()["state"].values()]


def test_ranks_say_that_they_leave_out_a_single_processs_momenta(two_ranks):
    module = Given()
    optimizer = DistributedLion(module.parameters(), lr=1e-3)
    module(*gradients_of(0, 0)).backward()
    optimizer.step()
    assert not any(any(states) for states in two_ranks.run(go_on_from_one_process, optimizer.state_dict()))
