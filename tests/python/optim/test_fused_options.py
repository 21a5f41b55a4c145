# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers are told around a step: options, groups, overrides by name."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from fused_runs import MAKERS, give_gradients, go_on, parameters_of, randn, run, same, tensors_of
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
        ("lr", float("inf")),
        ("lr", 10**400),
        ("lr", torch.tensor([1e-3, 1e-3])),
        ("lr", Fraction(1, 1000)),
        ("betas", (Fraction(9, 10), 0.99)),
        ("optim_bits", 8.0),
        ("is_paged", "no"),
        ("seed", 1.5),
        ("seed", None),
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


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_parameter_that_is_twice_in_a_group_is_refused():
    """Its two steps would be made at the same time."""
    (first, *others) = parameters_of()
    with pytest.raises(ValueError, match="each parameter once in a group, got 1 of them again"):
        AdamW8bit([first, *others, first])


def test_a_step_in_inference_mode_is_followed_by_others():
    results = []
    for mode in (torch.inference_mode, torch.no_grad):
        parameters = parameters_of()
        optimizer = AdamW8bit(parameters)
        for step in range(3):
            give_gradients(parameters, step)
            with mode():
                optimizer.step()
            give_gradients(parameters, step)
            optimizer.step()
        results.append([parameter.detach() for parameter in parameters])
    assert all(map(torch.equal, *results))


EACH_KIND = ["AdamW8bit", "AdamW", "Lion", "DistributedLion", "OneBitAdamW", "OneBitLamb", "ZeroOneAdam"]


@pytest.mark.parametrize("name", EACH_KIND)
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_state_that_is_restored_in_inference_mode_is_followed_by_steps(name, is_copy):
    results = []
    for mode in (torch.inference_mode, torch.no_grad):
        parameters, optimizer = run(MAKERS[name], range(1))
        with mode():
            if is_copy:
                optimizer = copy.deepcopy(optimizer, {id(parameter): parameter for parameter in parameters})
            else:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        go_on(optimizer, range(1, 4))
        results.append([parameter.detach() for parameter in parameters])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", EACH_KIND)
def test_a_step_is_not_captured_in_a_cuda_graph(name, monkeypatch):
    """A replay would repeat its numbers."""
    parameters, optimizer = run(MAKERS[name], range(2))
    give_gradients(parameters, 2)
    before = copy.deepcopy((parameters, list(optimizer.state.values())))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        optimizer.step()
    torch.testing.assert_close((parameters, list(optimizer.state.values())), before, rtol=0.0, atol=0.0)
    optimizer.step()


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


def test_names_are_those_inside_of_a_compiled_model():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    compiled = torch.compile(model, backend="eager")
    plain, wrapped = AdamW8bit(model.named_parameters()), AdamW8bit(compiled.named_parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    plain.step()
    wrapped.load_state_dict(plain.state_dict())
    plain.load_state_dict(wrapped.state_dict())
    (_, first) = AdamW8bit(compiled.named_parameters(), overrides={"0.*": {"lr": 0.5}}).param_groups
    assert {group["lr"] for group in (first, _)} == {0.5, 1e-3}


def test_names_are_those_inside_of_a_wrapped_model():
    pairs = named()
    wrapped = [(f"module.{name}", parameter) for name, parameter in pairs]
    plain, ddps, twice = map(AdamW8bit, (pairs, wrapped, [(f"module.{name}", p) for name, p in wrapped]))
    go_on(plain, range(2))
    for saved, loading in ((plain, ddps), (ddps, twice), (twice, plain)):
        loading.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert same(plain, ddps)
    in_part = AdamW8bit([*wrapped[:1], *pairs[1:]])
    for other in (plain, ddps):
        with pytest.raises(ValueError, match=r"has 'module\.embed\.weight' where this optimizer has 'embed\.weight'"):
            other.load_state_dict(in_part.state_dict())


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
        (named, [("*", {"lr": 1.0})], "expected overrides as a mapping from patterns to mappings of options"),
        (named, {"*": 5}, "expected overrides as a mapping from patterns to mappings of options"),
    ],
)
def test_overrides_that_mean_nothing_are_refused(params, overrides, message):
    with pytest.raises((TypeError, ValueError), match=rf"^\[optim\.AdamW8bit\] .*{message}"):
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


@pytest.mark.parametrize("name", MAKERS)
def test_a_schedule_that_ends_a_rounding_error_below_0_goes_on(name):
    """LinearLR multiplies, and does not set what it ends with."""
    _, optimizer = run(MAKERS[name], range(1), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, end_factor=0.0, total_iters=4)
    for step in range(1, 6):
        go_on(optimizer, range(step, step + 1))
        schedule.step()
    assert -1e-12 < optimizer.param_groups[0]["lr"] < 0
    go_on(optimizer, range(6, 7))
    _, resumed = run(MAKERS[name], range(1), lr=0.1)
    resumed.load_state_dict(optimizer.state_dict())
    go_on(resumed, range(7, 8))
    with pytest.raises(ValueError, match=r"expected a finite lr of at least 0, got -0\.1"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "lr": -0.1})


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
    assert not optimizer.state, "torch.distributed.checkpoint would take it for one that has made a step"
    wide.grad = None
    optimizer.step()
    assert (known < 1).all()


def test_a_directory_without_paged_states_is_refused(tmp_path):
    parameter = nn.Parameter(torch.zeros(8))
    with pytest.raises(ValueError, match=r"^\[optim\.AdamW8bit\] page_dir is for paged states.*pass is_paged=True"):
        AdamW8bit([parameter], page_dir=str(tmp_path))
    with pytest.raises(TypeError, match=r"^\[optim\.AdamW8bit\] expected page_dir as the path of a folder, got int"):
        AdamW8bit([parameter], is_paged=True, page_dir=3)
    in_files = AdamW8bit([parameter], is_paged=True, page_dir=tmp_path)
    parameter.grad = torch.ones_like(parameter)
    in_files.step()
    AdamW8bit([{"params": [parameter], "is_paged": True}], page_dir=str(tmp_path))


@pytest.mark.parametrize("name", ["PagedAdamW8bit", "OneBitAdamW"])
def test_a_relative_directory_is_the_one_that_it_was_when_the_optimizer_was_made(name, tmp_path, monkeypatch):
    (tmp_path / "pages").mkdir()
    monkeypatch.chdir(tmp_path)
    _, optimizer = run(MAKERS[name], range(0), is_paged=True, page_dir="pages")
    monkeypatch.chdir("/")
    go_on(optimizer, range(1))
    go_on(copy.deepcopy(optimizer), range(1, 2))


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


@pytest.mark.parametrize("make", [AdamW, Lion])
def test_torchs_arguments_are_taken_where_they_change_nothing(make):
    make(parameters_of(), foreach=True, fused=None, maximize=False, capturable=False, differentiable=False)
    for name in ("maximize", "capturable", "differentiable"):
        with pytest.raises(ValueError, match=f"{name}=True of torch is not supported"):
            make(parameters_of(), **{name: True})
    with pytest.raises(TypeError, match=rf"^\[optim\.{make.__name__}\] there is no option momentun"):
        make(parameters_of(), momentun=0.9)


def test_a_class_of_8_bits_keeps_8_bits():
    """bitsandbytes accepts optim_bits=32 there, but keeps 8."""
    with pytest.raises(ValueError, match="no optim_bits, or 8, which its name says, got 32"):
        AdamW8bit(parameters_of(), optim_bits=32)
    assert AdamW8bit(parameters_of(), optim_bits=8).param_groups[0]["optim_bits"] == 8
    assert AdamW(parameters_of(), optim_bits=8, overrides={}).param_groups[0]["optim_bits"] == 8


@pytest.mark.parametrize("make", [AdamW8bit, AdamW4bit])
def test_codes_of_another_shape_are_refused(make):
    """Floats of another shape are refused, too: their moments would be those of other elements."""
    parameter, turned = nn.Parameter(randn(0, (64, 128))), nn.Parameter(randn(0, (128, 64)))
    optimizer = make([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for other in (make([turned]), AdamW8bit([turned]), AdamW([turned])):
        with pytest.raises(ValueError, match="exp_avg"):
            other.load_state_dict(optimizer.state_dict())
        assert not other.state[turned]
    parameter.data, parameter.grad = turned.data, torch.ones_like(turned)
    with pytest.raises(ValueError, match="expected mean 0 as float32"):
        optimizer.step()


def test_steps_are_counted_on_the_cpu_whatever_the_default_device():
    parameter = nn.Parameter(torch.ones(8))
    parameter.grad = torch.ones(8)
    optimizer = AdamW([parameter])
    with torch.device("meta"):
        optimizer.step()
    assert optimizer.state[parameter]["step"].device.type == "cpu"
    assert float(parameter.detach().max()) < 1
