# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers do around a step: options, gradients that are not finite, clipping, steps in backward,
rounding."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from fused_runs import give_gradients, go_on, parameters_of, randn, run, same, tensors_of
from torch import Tensor, nn

from octavo import _C, optim
from octavo.optim import (
    AdamW,
    AdamW4bit,
    AdamW8bit,
    DistributedLion,
    Lion,
    Lion8bit,
    PagedAdam8bit,
)

# ---- options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("optim_bits", 16),
        ("nonfinite", "ignore"),
        ("bf16_rounding", "up"),
        ("min_8bit_size", "a"),
        ("min_paged_size", -1),
        ("lr", -1.0),
        ("lr", "1e-3"),
        ("lr", float("nan")),
        ("weight_decay", -0.1),
        ("weight_decay", None),
        ("betas", (1.0, 0.9)),
        ("betas", 0.9),
        ("betas", ("a", 0.9)),
        ("eps", -1e-8),
    ],
)
def test_options_out_of_range_are_refused_and_leave_no_group(option, value):
    with pytest.raises(ValueError, match=option):
        AdamW(parameters_of(), **{option: value})
    _, optimizer = run(AdamW, range(1))
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": parameters_of(), option: value})
    assert len(optimizer.param_groups) == 1


def test_distributed_lion_refuses_a_group_of_other_betas_and_stays_as_it_was():
    optimizer = DistributedLion(parameters_of(), betas=(0.9, 0.99))
    with pytest.raises(ValueError, match="same betas"):
        optimizer.add_param_group({"params": parameters_of(), "betas": (0.5, 0.99)})
    assert len(optimizer.param_groups) == 1


BITSANDBYTES = dict(args=None, percentile_clipping=100, block_wise=True)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Lion"])
def test_scripts_for_bitsandbytes_find_their_names_and_arguments(kind):
    for name in (kind, f"Paged{kind}"):
        for suffix, bits in (("", 32), ("8bit", 8), ("32bit", 32)):
            optimizer = getattr(optim, name + suffix)(parameters_of(), min_8bit_size=4096, **BITSANDBYTES)
            (group,) = optimizer.param_groups
            assert (group["optim_bits"], group["is_paged"]) == (bits, name.startswith("Paged"))
            assert not group.keys() & BITSANDBYTES.keys()
    for option in (dict(percentile_clipping=5), dict(block_wise=False), dict(max_unorm=1.0), dict(skip_zeros=True)):
        (word,) = option
        with pytest.raises(ValueError, match=rf"\[optim\.{kind}\] {word}=.* of bitsandbytes is not supported"):
            getattr(optim, kind)(parameters_of(), **option)


def test_what_comes_first_in_torch_and_bitsandbytes_may_be_given_by_position():
    group = AdamW8bit(parameters_of(), 1e-2, (0.8, 0.9), 1e-6, 0.2).param_groups[0]
    assert [group[name] for name in ("lr", "betas", "eps", "weight_decay")] == [1e-2, (0.8, 0.9), 1e-6, 0.2]
    group = Lion8bit(parameters_of(), 1e-2, (0.8, 0.9), 0.2).param_groups[0]
    assert [group[name] for name in ("lr", "betas", "weight_decay")] == [1e-2, (0.8, 0.9), 0.2]


def test_groups_have_options_of_their_own_and_save_them():
    first, second = parameters_of()[0], parameters_of()[1]
    optimizer = AdamW([{"params": [first]}, {"params": [second], "optim_bits": 8, "is_paged": True, "lr": 0.5}])
    go_on(optimizer, range(2))
    assert optimizer.state[first]["exp_avg"].dtype == torch.float32
    assert _C.is_managed(optimizer.state[second]["exp_avg_codes"])
    copies = [nn.Parameter(p.detach().clone()) for p in (first, second)]
    other = AdamW([{"params": copies[:1]}, {"params": copies[1:], "optim_bits": 8}])
    other.load_state_dict(optimizer.state_dict())
    for one in (optimizer, other):
        go_on(one, range(2, 4))
    assert same(optimizer, other)


# ---- by name


def named() -> list[tuple[str, nn.Parameter]]:
    names = ["embed.weight", "layers.0.weight", "layers.0.norm.weight", "head.scale"]
    return list(zip(names, parameters_of(), strict=True))


OVERRIDES = {"embed*": {"optim_bits": 32}, "*.weight": {"lr": 0.5}, "*norm*": {"weight_decay": 0.0, "lr": 0.25}}


def test_overrides_are_the_groups_that_one_would_write():
    optimizer = AdamW8bit(named(), lr=0.1, weight_decay=0.3, overrides=OVERRIDES)
    kept = ("param_names", "optim_bits", "lr", "weight_decay", "betas")
    assert [[group[name] for name in kept] for group in optimizer.param_groups] == [
        [["embed.weight"], 32, 0.5, 0.3, (0.9, 0.999)],
        [["layers.0.weight"], 8, 0.5, 0.3, (0.9, 0.999)],
        [["layers.0.norm.weight"], 8, 0.25, 0.0, (0.9, 0.999)],
        [["head.scale"], 8, 0.1, 0.3, (0.9, 0.999)],
    ]
    by_hand = [{"params": [p]} for _, p in named()]
    for group, options in zip(by_hand, ({"optim_bits": 32, "lr": 0.5}, {"lr": 0.5}, OVERRIDES["*norm*"]), strict=False):
        group.update(options)
    other = AdamW8bit(by_hand, lr=0.1, weight_decay=0.3)
    for one in (optimizer, other):
        go_on(one, range(3))
    assert same(optimizer, other)
    first, second = (group["params"][0] for group in optimizer.param_groups[:2])
    assert "exp_avg" in optimizer.state[first] and "exp_avg_codes" in optimizer.state[second]


def test_overrides_split_groups_and_leave_their_options():
    pairs = named()
    groups = [{"params": pairs[:2], "lr": 0.7}, {"params": pairs[2:]}]
    optimizer = AdamW8bit(groups, lr=0.1, overrides={"*.weight": {"eps": 1e-4}})
    got = [(group["param_names"], group["lr"], group["eps"]) for group in optimizer.param_groups]
    assert got == [
        (["embed.weight", "layers.0.weight"], 0.7, 1e-4),
        (["layers.0.norm.weight"], 0.1, 1e-4),
        (["head.scale"], 0.1, 1e-8),
    ]


@pytest.mark.parametrize(
    ("params", "overrides", "message"),
    [
        (named, {"embed": {"lr": 1.0}}, "overrides of 'embed' match no parameter"),
        (named, {"*": {"bits": 8}}, r"overrides of '\*' have no option bits; there are betas, .*optim_bits"),
        (named, {"*": {"lr": -1.0}}, "lr of at least 0"),
        (parameters_of, {"*": {"lr": 1.0}}, r"give model\.named_parameters\(\)"),
    ],
)
def test_overrides_that_mean_nothing_are_refused(params, overrides, message):
    with pytest.raises(ValueError, match=rf"^\[optim\.AdamW8bit\] .*{message}"):
        AdamW8bit(params(), overrides=overrides)


def test_overrides_are_saved_and_a_load_checks_names():
    optimizer = AdamW8bit(named(), overrides=OVERRIDES)
    go_on(optimizer, range(2))
    state = copy.deepcopy(optimizer.state_dict())
    assert [group["param_names"] for group in state["param_groups"]] == [[name] for name, _ in named()]
    resumed = AdamW8bit(named(), overrides=OVERRIDES)
    resumed.load_state_dict(state)
    assert same(copy.deepcopy(resumed), resumed)
    go_on(resumed, range(2, 3))
    without_names = AdamW8bit([{"params": [p]} for _, p in named()])
    without_names.load_state_dict(state)
    assert without_names.param_groups[2]["lr"] == 0.25
    with pytest.raises(ValueError, match="different number of parameter groups"):
        AdamW8bit(named()).load_state_dict(state)
    state["param_groups"][1]["param_names"] = ["layers.1.weight"]
    before = copy.deepcopy(resumed)
    with pytest.raises(ValueError, match=r"has 'layers\.1\.weight' where this optimizer has 'layers\.0\.weight'"):
        resumed.load_state_dict(state)
    assert same(before, resumed)


# ---- other parts of torch


def test_a_schedule_a_closure_and_a_scaler_of_torch_work():
    parameters, optimizer = run(AdamW8bit, range(0), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(parameter.square().sum() for parameter in parameters)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    expected = copy.deepcopy(optimizer)
    give_gradients([p for g in expected.param_groups for p in g["params"]], 1)
    expected.step()
    scaler.scale(torch.ones(()))
    give_gradients(parameters, 1)
    for parameter in parameters:
        parameter.grad *= 4
    scaler.step(optimizer)
    scaler.update()
    assert same(optimizer, expected)
    before = [t.clone() for t in tensors_of(optimizer)]
    parameters[0].grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


# ---- gradients that are not finite, clipping, steps in backward


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("make", [AdamW, AdamW8bit, Lion8bit])
def test_skip_element_leaves_the_element_alone(make, bad):
    parameters, optimizer = run(make, range(1))
    assert not optimizer.saw_nonfinite()
    twin = copy.deepcopy(optimizer)
    twins = [p for g in twin.param_groups for p in g["params"]]
    for one in (parameters, twins):
        give_gradients(one, 1)
    parameters[1].grad[300] = bad
    before = parameters[1].detach().clone()
    optimizer.step()
    twin.step()
    assert parameters[1][300] == before[300]
    moved = parameters[1] != before
    assert moved.sum() == moved.numel() - 1
    assert torch.equal(parameters[0], twins[0])
    others = torch.arange(4097) != 300
    assert torch.equal(parameters[1][others], twins[1][others])
    assert optimizer.saw_nonfinite() and not optimizer.saw_nonfinite() and not twin.saw_nonfinite()


@pytest.mark.parametrize("policy", optim.fused.NONFINITE)
@pytest.mark.parametrize("make", [AdamW, AdamW8bit, AdamW4bit])
def test_a_gradient_without_a_finite_square_leaves_its_element_alone(make, policy):
    parameters, optimizer = run(make, range(1), nonfinite=policy)
    for step in (1, 2):
        give_gradients(parameters, step)
        parameters[1].grad[300] = 1e30 if step == 1 else 1e-3
        before = parameters[1].detach().clone()
        optimizer.step()
        assert optimizer.saw_nonfinite() == (step == 1)
        moved = (parameters[1] != before).float()
        assert moved[300] == (step == 2) and moved.mean() > 0.99
        assert (parameters[1] - before).abs().max() < 0.1


@pytest.mark.parametrize("policy", ["skip_step", "raise"])
@pytest.mark.parametrize("place", [0, 3])
def test_other_policies_leave_all_groups_as_they_are(policy, place):
    """This includes the groups before that of the bad gradient. A tensor without elements has no bad gradient."""
    parameters = [*parameters_of(), nn.Parameter(torch.zeros(0))]
    optimizer = AdamW8bit([{"params": parameters[:2]}, {"params": parameters[2:]}], nonfinite=policy)
    go_on(optimizer, range(2))
    before = [t.clone() for t in tensors_of(optimizer)]
    give_gradients(parameters, 2)
    parameters[place].grad.view(-1)[0] = float("nan")
    if policy == "raise":
        with pytest.raises(FloatingPointError, match="not finite"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.saw_nonfinite()
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))
    go_on(optimizer, range(3, 4))
    assert int(optimizer.state[parameters[0]]["step"]) == 3


def test_a_step_that_is_refused_counts_for_nothing():
    parameters, optimizer = run(AdamW, range(2))
    before = [t.clone() for t in tensors_of(optimizer)]
    give_gradients(parameters, 2)
    optimizer.state[parameters[3]]["exp_avg"] = torch.zeros(7)
    with pytest.raises(ValueError, match="mean 3"):
        optimizer.step()
    optimizer.state[parameters[3]]["exp_avg"] = before[-2]
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_torchs(max_norm):
    runs = []
    for own in (True, False):
        parameters, optimizer = run(AdamW, range(0), lr=0.1, eps=1.0)
        for step in range(3):
            give_gradients(parameters, step)
            if own:
                kept = [p.grad.clone() for p in parameters]
                norm = optimizer.clip_grad_norm_(max_norm)
                assert all(torch.equal(p.grad, g) for p, g in zip(parameters, kept, strict=True))
            else:
                norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            optimizer.step()
        runs.append((norm, parameters))
    assert torch.equal(runs[0][0], runs[1][0])
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("max_norm", [-1.0, float("nan")])
def test_a_norm_that_is_none_is_refused(max_norm):
    _, optimizer = run(AdamW, range(1))
    with pytest.raises(ValueError, match="expected a max_norm of at least 0"):
        optimizer.clip_grad_norm_(max_norm)


def test_zero_grad_forgets_a_clip_that_no_step_took():
    """A step that a GradScaler skips leaves such a clip."""
    parameters, optimizer = run(AdamW, range(1))
    twin = copy.deepcopy(optimizer)
    give_gradients(parameters, 1)
    parameters[0].grad[0, 0] = float("nan")
    optimizer.clip_grad_norm_(1.0)
    optimizer.zero_grad()
    for one in (optimizer, twin):
        go_on(one, range(1, 2))
    assert same(optimizer, twin)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_steps_in_backward_are_steps(rounding):
    """This also holds where some parameters came late, so that their step numbers are not those of the first."""
    ends = []
    for in_backward in (False, True):
        parameters = parameters_of(torch.bfloat16)
        optimizer = AdamW8bit(parameters, lr=0.1, bf16_rounding=rounding)
        handles = optimizer.step_in_backward() if in_backward else []
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        for step in range(4):
            used = parameters if step != 1 else parameters[1:]
            sum((p.float() * randn(10 * step + i, p.shape)).sum() for i, p in enumerate(used)).backward()
            assert all((p.grad is None) == in_backward for p in used)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if step == 2:  # a load makes new groups, and schedules write into those
                optimizer.load_state_dict(optimizer.state_dict())
        for handle in handles:
            handle.remove()
        sum(p.float().sum() for p in parameters).backward()
        assert all(p.grad is not None for p in parameters)
        ends.append(optimizer)
    assert same(*ends)


def test_parameters_do_not_keep_the_optimizer_that_steps_in_backward():
    parameter = nn.Parameter(randn(0, (4096,)))
    optimizer = AdamW8bit([parameter], lr=0.1)
    optimizer.step_in_backward()
    parameter.sum().backward()
    alive = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="is gone: keep it as long as the model trains"):
        parameter.sum().backward()


# ---- rounding


def rounded_runs(rounding: str, steps: int, seed: int = 0) -> Tensor:
    """Returns a bfloat16 parameter of 4 that loses 1e-3 in every step: less than half a unit of its last place."""
    parameter = nn.Parameter(torch.full((4096,), 4.0, dtype=torch.bfloat16))
    optimizer = Lion([parameter], lr=1e-3, bf16_rounding=rounding, seed=seed)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return parameter.detach().float()


def test_small_steps_are_lost_by_rounding_to_nearest_alone():
    assert rounded_runs("nearest", 200).eq(4).all()
    at_random = rounded_runs("stochastic", 200)
    assert torch.equal(at_random, rounded_runs("stochastic", 200))
    assert not torch.equal(at_random, rounded_runs("stochastic", 200, seed=1))
    assert at_random.mean().item() == pytest.approx(3.8, abs=2e-3)  # 5 standard deviations of the mean are 2e-3
    assert rounded_runs("extra_bits", 200).sub(3.8).abs().max() < 0.03
    assert rounded_runs("extra_bits", 200).unique().numel() == 1


def test_extra_bits_follow_float32_more_closely():
    errors = {}
    for rounding in ("nearest", "stochastic", "extra_bits"):
        ends = []
        for dtype in (torch.float32, torch.bfloat16):
            parameter = nn.Parameter(randn(0, 4096).bfloat16().to(dtype))
            optimizer = AdamW([parameter], lr=1e-4, bf16_rounding=rounding)
            for step in range(200):
                parameter.grad = (randn(step, 4096) + 0.5).bfloat16().to(dtype)
                optimizer.step()
            ends.append(parameter.detach().float())
        errors[rounding] = (ends[0] - ends[1]).norm().item()
    assert errors["extra_bits"] < 0.4 * min(errors["nearest"], errors["stochastic"])


def test_no_random_bits_are_drawn_twice():
    """The random bits depend on the parameter's own step: that of the first parameter of its group may stay the
    same."""
    first, second = (nn.Parameter(torch.full((4096,), 1.0, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = Lion([first, second], lr=2**-9, betas=(0.0, 0.0), bf16_rounding="stochastic")
    moves = []
    for step in range(3):
        first.grad = torch.ones_like(first) if step != 1 else None
        second.grad, before = torch.ones_like(second), second.detach().fill_(1.0).clone()
        optimizer.step()
        moves.append(second.detach() != before)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert 0.4 < (moves[i] == moves[j]).float().mean() < 0.6, (i, j)


def test_the_state_is_of_plain_tensors_and_bytes_are_as_promised():
    parameter = nn.Parameter(torch.zeros(1 << 16))
    bytes_of = {}
    for make in (AdamW, AdamW8bit, AdamW4bit, PagedAdam8bit, Lion8bit):
        parameter.grad = torch.ones_like(parameter)
        optimizer = make([parameter])
        optimizer.step()
        state = optimizer.state[parameter]
        assert all(type(t) is Tensor for t in state.values())
        bytes_of[make] = sum(t.nbytes for name, t in state.items() if name != "step") / parameter.numel()
    assert list(bytes_of.values()) == [8, 2.03125, 1.0625, 2.03125, 1.015625]


@pytest.mark.parametrize("make", [AdamW, Lion])
def test_a_dtype_without_kernels_is_refused_before_anything_moves(make):
    known, wide = (nn.Parameter(torch.ones(8, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    optimizer = make([{"params": [known]}, {"params": [wide]}], lr=0.5)
    for parameter in (known, wide):
        parameter.grad = torch.ones_like(parameter)
    words = rf"^\[optim\.{make.__name__}\] expected parameters in float32, bfloat16 or float16, got torch\.float64"
    with pytest.raises(ValueError, match=words):
        optimizer.step()
    assert torch.equal(known, torch.ones(8)), "the first group has moved"
    wide.grad = None
    optimizer.step()
    assert (known < 1).all()


def test_a_directory_without_paged_states_is_refused(tmp_path):
    parameter = nn.Parameter(torch.zeros(8))
    with pytest.raises(ValueError, match=r"^\[optim\.AdamW8bit\] page_dir is for paged states.*pass is_paged=True"):
        AdamW8bit([parameter], page_dir=str(tmp_path))
    AdamW8bit([{"params": [parameter], "is_paged": True}], page_dir=str(tmp_path))


def test_random_bits_in_backward_do_not_count_all_parameters_for_each():
    class Counted(AdamW):
        counts = 0

        def _all_parameters(self):
            self.counts += 1
            return super()._all_parameters()

    parameters = [nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)) for _ in range(50)]
    optimizer = Counted(parameters[:40], bf16_rounding="stochastic")
    optimizer.step_in_backward()
    optimizer.counts = 0
    for _ in range(2):
        sum(parameter.sum() for parameter in parameters[:40]).backward()
    assert optimizer.counts == 1
    optimizer.add_param_group({"params": parameters[40:]})
    for parameter in parameters[40:]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert optimizer.counts == 2
    assert optimizer._numbers(parameters)[38:42] == [3 * 2**32 + 38, 3 * 2**32 + 39, 2 * 2**32 + 40, 2 * 2**32 + 41]


# ---- what else a program may do with parameters, groups and gradients between steps


@pytest.mark.parametrize("make", [AdamW, AdamW8bit, AdamW4bit, Lion8bit, DistributedLion, optim.OneBitAdamW])
def test_autograd_refuses_a_backward_pass_that_needs_what_a_step_has_moved(make):
    """torch's optimizers have the same effect. With the moved parameter, autograd would compute another gradient."""
    options = dict(warmup_steps=5) if make is optim.OneBitAdamW else {}
    weight, other = nn.Parameter(torch.ones(64, 64)), nn.Parameter(torch.full((64, 64), 2.0))
    optimizer = make([weight, other], lr=0.1, **options)
    loss = (weight * other).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    assert weight._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf")])
def test_what_others_set_a_parameter_to_has_no_extra_bits(value):
    """A negative tail under a zero, or any tail under an infinity, would give a NaN."""
    parameter = nn.Parameter(randn(0, (64, 64)).bfloat16())
    optimizer = AdamW(parameters := [parameter], lr=1e-3, bf16_rounding="extra_bits", weight_decay=0.0)
    give_gradients(parameters, 0)
    optimizer.step()
    assert bool((optimizer.state[parameter]["extra_bits"] < 0).any())
    with torch.no_grad():
        parameter.fill_(value)
    give_gradients(parameters, 1)
    optimizer.step()
    if value == 0:
        assert bool(torch.isfinite(parameter).all())
        assert float(parameter.detach().abs().max()) < 3e-3
    else:
        assert bool((parameter == value).all())


def test_a_parameter_that_is_bfloat16_no_longer_has_no_extra_bits():
    parameter = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = AdamW8bit([parameter], bf16_rounding="extra_bits")
    go_on(optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    parameter.grad = None
    parameter.data = parameter.data.float()
    go_on(optimizer, range(1, 2))
    assert "extra_bits" not in optimizer.state[parameter]
    wide = AdamW8bit([nn.Parameter(torch.ones(64, 64))], bf16_rounding="extra_bits")
    wide.load_state_dict(saved)
    go_on(wide, range(1, 2))
    assert "extra_bits" in saved["state"][0]


@pytest.mark.parametrize("make", [AdamW, AdamW8bit, Lion])
def test_random_bits_are_drawn_by_the_number_of_an_element_whatever_its_place(make):
    ends = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(randn(0, (8, 8, 8, 9)).bfloat16().to(memory_format=memory_format))
        optimizer = make([parameter], lr=1e-3, bf16_rounding="stochastic")
        go_on(optimizer, range(3))
        ends.append(parameter.detach())
    assert torch.equal(*ends)


def test_a_gradient_that_another_hook_has_used_up_makes_no_step():
    parameter = nn.Parameter(torch.ones(8))
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    optimizer = AdamW([parameter])
    optimizer.step_in_backward()
    parameter.sum().backward()
    assert torch.equal(parameter, torch.ones(8)) and not optimizer.state


def test_options_that_were_changed_in_a_group_are_those_of_the_next_step():
    parameter = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = AdamW8bit([parameter], lr=1e-4, weight_decay=0.0)
    group = optimizer.param_groups[0]

    def step() -> None:
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    step()
    group["bf16_rounding"] = "extra_bits"
    for _ in range(50):
        step()
    assert float(parameter.detach().float().max()) < 0.997  # rounding to nearest would keep it at 1
    group["bf16_rounding"] = "nearest"
    step()
    assert "extra_bits" not in optimizer.state[parameter]
    for option, value in (("bf16_rounding", "up"), ("nonfinite", "ignore")):
        before, group[option] = group[option], value
        with pytest.raises(ValueError, match=option):
            step()
        group[option] = before
    group["optim_bits"] = 4
    with pytest.raises(ValueError, match=r"the optim_bits of the states that are there; .* got 4"):
        step()


def test_steps_in_backward_are_asked_for_once_and_not_with_what_needs_all_gradients():
    parameters = parameters_of()
    optimizer = AdamW(parameters)
    handles = optimizer.step_in_backward()
    with pytest.raises(RuntimeError, match="in backward already"):
        optimizer.step_in_backward()
    with pytest.raises(RuntimeError, match="the norm of all gradients is known after backward"):
        optimizer.clip_grad_norm_(1.0)
    for handle in handles:
        handle.remove()
    optimizer.clip_grad_norm_(1.0)
    optimizer.param_groups[0]["nonfinite"] = "skip_step"
    with pytest.raises(ValueError, match="nonfinite as 'skip_element' in backward"):
        optimizer.step_in_backward()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in parameters)


@pytest.mark.parametrize("make", [AdamW, Lion])
def test_torchs_arguments_are_taken_where_they_change_nothing(make):
    make(parameters_of(), foreach=True, fused=None, maximize=False, capturable=False, differentiable=False)
    for name in ("maximize", "capturable", "differentiable"):
        with pytest.raises(ValueError, match=f"{name}=True of torch is not supported"):
            make(parameters_of(), **{name: True})


def test_a_class_of_8_bits_keeps_8_bits():
    """bitsandbytes accepts optim_bits=32 there, but keeps 8."""
    with pytest.raises(ValueError, match="no optim_bits, or 8, which its name says, got 32"):
        AdamW8bit(parameters_of(), optim_bits=32)
    assert AdamW8bit(parameters_of(), optim_bits=8).param_groups[0]["optim_bits"] == 8
    assert AdamW(parameters_of(), optim_bits=8, overrides={}).param_groups[0]["optim_bits"] == 8


def test_codes_of_another_shape_are_refused():
    """Floats of another shape are refused, too: their moments would be those of other elements."""
    parameter, turned = nn.Parameter(randn(0, (64, 128))), nn.Parameter(randn(0, (128, 64)))
    optimizer, other = AdamW8bit([parameter]), AdamW8bit([turned])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises(ValueError, match="exp_avg"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state[turned]


def test_steps_are_counted_on_the_cpu_whatever_the_default_device():
    parameter = nn.Parameter(torch.ones(8))
    parameter.grad = torch.ones(8)
    optimizer = AdamW([parameter])
    with torch.device("meta"):
        optimizer.step()
    assert optimizer.state[parameter]["step"].device.type == "cpu"
    assert float(parameter.detach().max()) < 1
