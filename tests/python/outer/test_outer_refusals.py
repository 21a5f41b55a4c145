# SPDX-License-Identifier: Apache-2.0
"""What Outer refuses: arguments that make no sense, ranks that differ, models and optimizers that it cannot train."""

from __future__ import annotations

import copy
import time

import numpy
import pytest
import torch
import torch.distributed as dist
from outer_runs import Net, give_gradients, values_of
from patience import PATIENCE
from torch import nn
from train_runs import solo_world

import octavo

pytestmark = pytest.mark.timeout(120)


def refusal(rank: int, options: dict) -> str:
    model = Net()
    try:
        octavo.Outer(model, torch.optim.SGD(model.parameters()), **{"timeout_s": 20, **options})
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(plan="auto"), "measures the exchanges of every step: name the plan of rounds"),
        (dict(plan="sign-vote"), "keeps no magnitudes"),
        (dict(plan="dgc:0.01"), "has a momentum of its own"),
        (dict(every=0), "every must be a whole number of 1 or more, got 0"),
        (dict(fragments=-1), "fragments must be a whole number of 1 or more, got -1"),
        (dict(every=2.5), "every must be a whole number"),
        (dict(every=2**64), "every must be a whole number of 1 or more, got 18446744073709551616"),
        (dict(lr=True), "lr must be a finite number, got True"),
        (dict(every=4, delay=4), "delay must be below every"),
        (dict(every=4, fragments=5), "fragments must be between 1 and every"),
        (dict(every=4000, fragments=900), "cannot be divided into 900 fragments"),
        (dict(mix=1.0), "mix must be in [0, 1)"),
        (dict(lr=0.0), "lr must be above 0"),
        (dict(lr=float("inf")), "lr must be a finite number, got inf"),
        (dict(mix="a"), "mix must be a finite number, got 'a'"),
        (dict(every="20"), "every must be a whole number of 1 or more, got '20'"),
        (dict(plan="int4+ef;none*=int8"), "none*"),
        (dict(decay="a"), "decay must be a finite number, got 'a'"),
        (dict(every=None), "every must be a whole number of 1 or more, got None"),
        (dict(mix=None), "mix must be a finite number, got None"),
        (dict(decay=None), "decay must be a finite number, got None"),
        (dict(spread="no"), "spread must be True or False, got 'no'"),
        (dict(steps="x"), "steps must be a whole number of 0 or more, got 'x'"),
        (dict(momentum=1.0), "momentum must be in [0, 1)"),
        (dict(average="votes"), "average must be 'ranks' or 'hits'"),
        (dict(timeout_s=-1.0), "timeout_s must be a number of seconds, of at least 0.001 and at most a year"),
        (dict(timeout_s=0.0004), "timeout_s must be a number of seconds, of at least 0.001 and at most a year"),
        (dict(timeout_s=1e18), "of at least 0.001 and at most a year, got 1e+18"),
        (dict(timeout_s=None), "of at least 0.001 and at most a year, got None"),
        (dict(group=dist.GroupMember.NON_GROUP_MEMBER), "this process is not in the group"),
        (dict(group=[0, 1]), "expected group as a process group, such as new_group() returns, got [0, 1]"),
        (dict(exempt=3), "expected exempt as patterns of parameters' names or as a function of name and parameter"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(options, words):
    with solo_world():
        said = refusal(0, options)
    assert said.startswith("[")
    assert words in said


def test_a_model_that_an_engine_trains_is_refused():
    model = nn.Linear(4, 4)
    with solo_world():
        engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": 1})
        with pytest.raises(
            ValueError, match=r"\[outer.Outer\] .* is trained by an engine of octavo.initialize already"
        ):
            octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        del engine
        octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("plan", ["powersgd:2+ef", "int4+econtrol", "int4;last*=int8+loco", "topk:0.1+ef"])
def test_feedback_is_refused_where_ranks_keep_their_own(plan):
    """What a rank keeps is part of its next difference, and would be owed in addition: int2 and topk then diverge."""
    with solo_world():
        assert "both would be sent. Use mix=0" in refusal(0, dict(plan=plan, delay=1, mix=0.5))
        assert refusal(0, dict(plan=plan, delay=1)) == ""


def refusal_by_rank(rank: int, differ: str) -> str:
    if differ == "options":
        return refusal(rank, dict(every=4 + rank))
    model = Net()
    if differ == "frozen parameters":
        model.frozen = nn.Parameter(torch.ones(3 + rank), requires_grad=False)
    elif rank == 1:
        model.register_buffer("more", torch.ones(2))
    before = [value.clone() for value in model.state_dict().values()]
    with pytest.raises(ValueError) as caught:
        octavo.Outer(model, torch.optim.SGD(model.parameters()), timeout_s=30)
    assert all(map(torch.equal, model.state_dict().values(), before))
    return str(caught.value)


@pytest.mark.parametrize("differ", ["options", "frozen parameters", "buffers"])
def test_ranks_that_differ_are_told(two_ranks, differ):
    said = two_ranks.run(refusal_by_rank, differ)
    assert all(f"all ranks must have the same {differ}; rank 1 differs" in one for one in said), said


def unlike_models_that_were_refused(rank: int) -> list[bool]:
    kept = []
    for options in (
        dict(plan="sign-vote"),
        dict(mix=1.5),
        dict(every=4000, fragments=900),
        dict(plan="int4;none*=int8"),
    ):
        model = Net(1.0 + rank)
        refused = ""
        try:
            octavo.Outer(model, torch.optim.SGD(model.parameters()), timeout_s=30, **options)
        except ValueError as error:
            refused = str(error)
        kept.append(bool(refused) and all(map(torch.equal, values_of(model), values_of(Net(1.0 + rank)))))
    return kept


def test_a_model_is_not_changed_where_arguments_are_refused(two_ranks):
    assert two_ranks.run(unlike_models_that_were_refused) == [[True] * 4] * 2


def refused_on_one_rank(rank: int) -> tuple[str, float]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if rank == 1:
        model[1].weight.data = model[0].weight.data
    began = time.monotonic()
    with pytest.raises((ValueError, TimeoutError)) as caught:
        octavo.Outer(model, torch.optim.SGD(model.parameters()), timeout_s=3)
    return str(caught.value), time.monotonic() - began


def test_a_refusal_on_one_rank_ends_the_others_in_time(two_ranks):
    """The group's own limit is longer."""
    (ours, took_s), (theirs, _) = two_ranks.run(refused_on_one_rank)
    assert "memory" in theirs
    assert "rank 1 did not come within 3 s" in ours
    assert took_s < 10 * PATIENCE


def test_a_model_that_averages_gradients_already_is_refused():
    with solo_world():
        wrapped = nn.parallel.DistributedDataParallel(Net())
        with pytest.raises(TypeError, match=r"ddp\.module"):
            octavo.Outer(wrapped, torch.optim.SGD(wrapped.parameters()))


def test_a_module_inside_that_sends_by_itself_is_refused():
    with solo_world():
        outside = nn.Sequential(nn.Linear(4, 4), nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
        with pytest.raises(TypeError, match=r"\[outer\.Outer\] 1 is a DistributedDataParallel"):
            octavo.Outer(outside, torch.optim.SGD(outside.parameters()))


def test_an_outer_inside_of_another_is_refused():
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()))
        with pytest.raises(ValueError, match=r"\[outer\.Outer\] the inner optimizer is an Outer, .*`outer\.inner`"):
            octavo.Outer(model, outer)


def test_a_device_that_the_group_cannot_send_from_is_named():
    with solo_world():
        model = nn.Linear(4, 4, device="meta")
        with pytest.raises(ValueError, match=r"\[outer\.Outer\] the process group has no back end for tensors on meta"):
            octavo.Outer(model, torch.optim.SGD(model.parameters()))


def test_a_model_that_is_wrapped_later_is_refused_until_outer_is_gone():
    with solo_world():
        model = nn.Sequential(nn.Linear(4, 4))
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters()))
        wrapped, of_copy = (nn.parallel.DistributedDataParallel(one) for one in (model, copy.deepcopy(model)))
        words = r"\[outer\.forward\] this model was wrapped in DistributedDataParallel after"
        with pytest.raises(TypeError, match=words):
            wrapped(torch.ones(2, 4))
        for allowed in (model, of_copy, torch.compile(model, backend="eager", fullgraph=True)):
            allowed(torch.ones(2, 4))
        del outer
        wrapped(torch.ones(2, 4))


@pytest.mark.parametrize("keeps_parameters", [False, True])
def test_shards_of_fsdp1_are_refused(keeps_parameters):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with solo_world():
        sharded = FullyShardedDataParallel(
            nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=keeps_parameters
        )
        with pytest.raises(NotImplementedError, match="the model is a FullyShardedDataParallel"):
            octavo.Outer(sharded, torch.optim.SGD(sharded.parameters()))


def test_parameters_that_nobody_would_exchange_are_refused():
    with solo_world():
        model, loss_module = Net(), nn.Linear(3, 2)
        with pytest.raises(ValueError, match=r"has 2 parameters that are not of this model, the first of shape \("):
            octavo.Outer(model, torch.optim.SGD([*model.parameters(), *loss_module.parameters()]))


@pytest.mark.parametrize("how", ["unfrozen", "added"])
def test_parameters_that_came_later_are_not_moved(how):
    with solo_world():
        model = Net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        outer = octavo.Outer(model, inner, plan="dense", every=2)
        if how == "unfrozen":
            model.frozen.requires_grad_(True)
        else:
            inner.add_param_group({"params": [late := nn.Parameter(torch.ones(3))]})
            late.grad = torch.ones(3)
        give_gradients(model, 0, 0)
        before = values_of(model)
        for function in (outer.step, outer.count_step):
            with pytest.raises(ValueError, match=r"\(3,\) parameter with a gradient, which Outer does not exchange"):
                function()
        assert all(torch.equal(a, b) for a, b in zip(values_of(model), before, strict=True))


def test_a_gradient_that_a_closure_gives_to_a_later_parameter_moves_nothing():
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=2)
        model.frozen.requires_grad_(True)
        before = values_of(model)

        def closure() -> torch.Tensor:
            give_gradients(model, 0, 0)
            return torch.zeros(())

        with pytest.raises(ValueError, match="which Outer does not exchange"):
            outer.step(closure)
        assert all(torch.equal(a, b) for a, b in zip(values_of(model), before, strict=True))


def test_an_optimizer_that_sends_the_model_in_every_step_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with solo_world():
        model = Net()
        inner = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.1)
        with pytest.raises(ValueError, match="ZeroRedundancyOptimizer sends the model to all ranks by itself"):
            octavo.Outer(model, inner)


def test_hooks_of_a_state_are_the_inner_optimizers():
    with solo_world():
        outer = octavo.Outer(model := Net(), torch.optim.SGD(model.parameters()))
        for when in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            with pytest.raises(ValueError, match="give hooks of states to the inner optimizer"):
                getattr(outer, f"register_{when}_hook")(print)


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD(Net().parameters())])
def test_an_optimizer_of_another_model_is_refused(optimizer):
    with solo_world(), pytest.raises(ValueError, match="expected an inner optimizer of this model's parameters"):
        octavo.Outer(Net(), optimizer)


def test_an_optimizer_that_decides_what_is_sent_is_refused():
    with (
        solo_world(),
        pytest.raises(ValueError, match=r"\[outer\.Outer\] OneBitAdamW decides what ranks send in every step"),
    ):
        octavo.Outer(model := Net(), octavo.optim.OneBitAdamW(model.parameters(), warmup_steps=2))


class WithoutState:
    """An optimizer whose memory cannot be reached."""

    def __init__(self, parameters):
        self.param_groups = torch.optim.AdamW(parameters).param_groups


def test_an_optimizer_whose_memory_cannot_be_reached_is_refused():
    """Otherwise a NaN in it would return in every round."""
    with solo_world(), pytest.raises(ValueError, match="a WithoutState has no `state` by parameter"):
        octavo.Outer(model := Net(), WithoutState(model.parameters()))


def test_parameters_that_share_memory_are_refused():
    with solo_world():
        model = nn.ParameterDict({"whole": torch.zeros(4, 4)})
        model["part"] = nn.Parameter(model["whole"].data[1:])
        with pytest.raises(ValueError, match=r"^\[outer\.Outer\] whole and part share memory.*one parameter"):
            octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), "dense", every=4)


def test_a_model_that_was_laid_out_anew_is_refused():
    """The anchor has the order of the memory, so its elements would change places."""
    with solo_world():
        model = nn.Sequential(nn.Conv2d(4, 8, 3))
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=1)
        before = values_of(model)
        model.to(memory_format=torch.channels_last)
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        with pytest.raises(ValueError, match=r"0\.weight now has the sizes .* and strides"):
            outer.step()
        with pytest.raises(ValueError, match="build Outer after the model has its form"), outer.at_anchor():
            pass
        assert all(map(torch.equal, values_of(model), before))


def test_it_has_no_copies():
    with solo_world():
        outer = octavo.Outer(model := Net(), torch.optim.SGD(model.parameters()))
        with pytest.raises(TypeError, match=r"save state_dict\(\)"):
            copy.deepcopy(outer)


def test_a_run_of_few_rounds_is_told_so():
    with solo_world():
        model = Net()
        for steps, words in ((400, r"400 steps make 20 rounds of 20.*every 8 steps"), (30, "or exchange gradients$")):
            with pytest.warns(UserWarning, match=words):
                octavo.Outer(model, torch.optim.SGD(model.parameters()), every=20, steps=steps)


def test_numbers_of_numpy_are_numbers():
    with solo_world():
        whole = dict(every=numpy.int64(4), steps=numpy.int32(400), seed=numpy.uint8(3))
        assert refusal(0, dict(**whole, lr=numpy.float32(0.5))) == ""


def test_a_model_without_elements_is_refused():
    model = nn.Linear(0, 4, bias=False)
    with (
        solo_world(),
        pytest.raises(ValueError, match=r"^\[outer\.Fragment\] no parameter that is trained has an element"),
    ):
        octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), "int4+ef")
