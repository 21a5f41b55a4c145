# SPDX-License-Identifier: Apache-2.0
"""States of the fused optimizers in another format, of this library or of another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bitsandbytes_states import ADAMW8BIT, ADAMW8BIT_MOVES, LION8BIT, LION8BIT_MOVES, SHAPES, give_gradients
from fused_rules import MEAN, SQUARE, encoded, in_blocks
from fused_rules import decoded as by_tables
from fused_runs import go_on, is_all_paged, parameters_of, randn, run, same
from safetensors.torch import save
from torch import Tensor, nn

import octavo
from octavo.optim import Adam, AdamW, AdamW4bit, AdamW8bit, Lion, Lion8bit, PagedAdamW8bit

COUNTS = [0, 1, 2, 127, 129, 256, 257, 4096, 70001]
BLOCK = {8: 256, 4: 128}
NAMES = {True: "exp_avg", False: "exp_avg_sq"}  # keys: whether there are negative values


def values_of(count: int, is_signed: bool, seed: int = 0) -> Tensor:
    """Returns values of all magnitudes with a block of zeros, and with extremes of both signs where signed."""
    values = randn(seed, count) * 10 ** randn(seed + 1, count).clamp(-6, 2)
    values[256:512] = 0
    return values if is_signed else values.abs()


def coded(values: Tensor, bits: int, is_signed: bool) -> tuple[Tensor, Tensor]:
    codes = torch.empty(values.numel() if bits == 8 else -(-values.numel() // 2), dtype=torch.uint8)
    scales = torch.empty(-(-values.numel() // BLOCK[bits]))
    torch.ops.octavo.encode_state_(values, codes, scales, bits, is_signed)
    return codes, scales


def decoded(codes: Tensor, scales: Tensor, count: int, bits: int, is_signed: bool) -> Tensor:
    return torch.ops.octavo.decode_state(codes, scales, count, bits, is_signed)


# ---- the operators


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("count", COUNTS)
def test_codes_are_those_of_the_tables(count, bits, is_signed):
    values, name = values_of(count, is_signed), NAMES[is_signed]
    codes, scales = coded(values, bits, is_signed)
    state = {f"{name}_codes": codes, f"{name}_scale": scales}
    got = decoded(codes, scales, count, bits, is_signed).double()
    torch.testing.assert_close(got, by_tables(state, name, bits, count), rtol=2e-6, atol=1e-12)
    if count:
        nearest, extremes = encoded(values.double(), name, bits)
        assert torch.equal(scales.double(), extremes)
        expected = (MEAN if is_signed else SQUARE)[bits][nearest]
        if bits == 8 and not is_signed:  # a value that is not 0 does not become 0
            expected = torch.where((values > 0) & (nearest == 0), SQUARE[8][1], expected)
        errors = (in_blocks(got - values.double(), bits) / extremes.where(extremes != 0, 1)[:, None]).abs()
        allowed = (in_blocks(expected, bits) - in_blocks(values.double(), bits) / extremes[:, None]).abs().nan_to_num()
        assert (errors <= allowed * (1 + 1e-4) + 5e-7).all()


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_what_was_decoded_has_the_same_codes_again(bits, is_signed):
    """So a state can be saved as floats without a loss."""
    for seed in range(20):
        codes, scales = coded(values_of(70001, is_signed, seed), bits, is_signed)
        again = coded(decoded(codes, scales, 70001, bits, is_signed), bits, is_signed)
        assert torch.equal(codes, again[0]) and torch.equal(scales, again[1])


@pytest.mark.parametrize("make", [AdamW8bit, AdamW4bit])
def test_codes_are_those_of_the_steps(make):
    parameter = nn.Parameter(randn(0, 9999))
    optimizer = make([parameter], lr=0.0, betas=(0.0, 0.0))
    parameter.grad = values_of(9999, True)
    optimizer.step()
    state, bits = optimizer.state[parameter], optimizer.param_groups[0]["optim_bits"]
    for name, values in (("exp_avg", parameter.grad), ("exp_avg_sq", parameter.grad**2)):
        codes, scales = coded(values, bits, name == "exp_avg")
        assert torch.equal(state[f"{name}_codes"], codes) and torch.equal(state[f"{name}_scale"], scales)


def test_operators_refuse_what_does_not_fit():
    values, codes, scales = randn(0, 300), torch.zeros(300, dtype=torch.uint8), torch.zeros(2)
    encode, decode = torch.ops.octavo.encode_state_, torch.ops.octavo.decode_state
    with pytest.raises(ValueError, match=r"^\[optim\.encode_state\] expected codes of 8 or 4 bits, got 5"):
        encode(values, codes, scales, 5, True)
    with pytest.raises(ValueError, match="expected codes as 150 elements"):
        encode(values, codes, scales, 4, True)
    with pytest.raises(ValueError, match=r"^\[optim\.decode_state\] expected scales as 2 elements of Float"):
        decode(codes, scales[:1], 300, 8, True)
    with pytest.raises(ValueError, match="row-major"):
        encode(values, codes.view(30, 10).t(), scales, 8, True)
    torch.library.opcheck(encode, (values, codes, scales, 8, True))
    torch.library.opcheck(decode, (codes, scales, 300, 8, True))


# ---- another format at a load


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("new", [32, 8, 4])
@pytest.mark.parametrize("old", [32, 8, 4])
def test_a_load_changes_the_format_to_that_of_who_loads(old, new, paged):
    """This includes a matrix whose memory is not row-major."""

    def parameters() -> list[nn.Parameter]:
        return [nn.Parameter(randn(4, (64, 80)).t().contiguous().t()), *parameters_of()]

    mine, optimizer = run(AdamW, range(3), parameters(), optim_bits=old, lr=0.5)
    others = [nn.Parameter(p.detach().clone()) for p in mine]
    other = AdamW(others, optim_bits=new, is_paged=paged)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["optim_bits"] == new and other.param_groups[0]["lr"] == 0.5
    assert is_all_paged(other) == paged
    for a, b in zip(mine, others, strict=True):
        assert other.state[b]["step"] == 3
        for name in ("exp_avg", "exp_avg_sq"):
            bits = [by if p.numel() >= 4096 else 32 for by, p in ((old, a), (new, b))]
            before = by_tables_row_major(optimizer.state[a], name, bits[0], a)
            after = by_tables_row_major(other.state[b], name, bits[1], b)
            if bits[1] in (32, bits[0]):
                torch.testing.assert_close(after, before, rtol=2e-6, atol=1e-12)
            else:
                _, scales = encoded(before, name, bits[1])
                got = other.state[b][f"{name}_scale"].double().abs()  # two extremes may differ in their signs alone
                torch.testing.assert_close(got, scales.abs(), rtol=2e-6, atol=0)
                steps = (in_blocks(after - before, bits[1]) / scales[:, None]).abs()
                assert steps.max() <= {8: 0.009, 4: 0.12}[bits[1]]
    if new == old:
        assert same(optimizer, other)
    go_on(other, range(3, 5))


def by_tables_row_major(state: dict[str, Tensor], name: str, bits: int, parameter: Tensor) -> Tensor:
    return state[name].flatten().double() if bits == 32 else by_tables(state, name, bits, parameter.numel())


# ---- torch's


@pytest.mark.parametrize(("make", "theirs"), [(AdamW, torch.optim.AdamW), (Adam, torch.optim.Adam)])
def test_a_run_of_torch_goes_on(make, theirs):
    options = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1, "eps": 1e-4}
    parameters, optimizer = run(theirs, range(4), **options)
    resumed = make([nn.Parameter(p.detach().clone()) for p in parameters])
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["capturable"] = True  # as on a GPU
    saved["state"][2]["step"] = 4  # as before torch 1.12
    saved["state"][3]["step"] = torch.tensor([4], dtype=torch.int64)
    resumed.load_state_dict(saved)
    group = resumed.param_groups[0]
    assert {name: group[name] for name in options} == options
    assert not {"amsgrad", "foreach", "capturable"} & group.keys()
    assert group["decoupled_weight_decay"] == (make is AdamW)
    for one in (optimizer, resumed):
        go_on(one, range(4, 8))
    for a, b in zip(parameters, group["params"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_run_of_torch_in_bfloat16_goes_on_in_paged_codes():
    parameters, optimizer = run(torch.optim.AdamW, range(4), parameters_of(torch.bfloat16), lr=0.01)
    copies = [nn.Parameter(p.detach().clone()) for p in parameters]
    resumed = PagedAdamW8bit(copies, bf16_rounding="extra_bits")
    resumed.load_state_dict(optimizer.state_dict())
    assert is_all_paged(resumed) and resumed.param_groups[0]["bf16_rounding"] == "extra_bits"
    state, theirs = resumed.state[copies[1]], optimizer.state[parameters[1]]
    codes, scales = coded(theirs["exp_avg"].float(), 8, True)
    assert torch.equal(state["exp_avg_codes"], codes) and torch.equal(state["exp_avg_scale"], scales)
    assert not state["extra_bits"].any()
    go_on(resumed, range(4, 5))


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_what_torch_does_otherwise_is_refused(option):
    _, optimizer = run(torch.optim.AdamW, range(2), **{option: True})
    _, resumed = run(AdamW, range(0), lr=0.5)
    with pytest.raises(ValueError, match=option):
        resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["lr"] == 0.5 and not resumed.state


def test_amsgrads_third_moment_is_refused_by_its_name():
    _, optimizer = run(torch.optim.AdamW, range(2), amsgrad=True)
    state = optimizer.state_dict()
    state["param_groups"][0]["amsgrad"] = False
    _, resumed = run(AdamW, range(0))
    with pytest.raises(ValueError, match="leave max_exp_avg_sq out"):
        resumed.load_state_dict(state)


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_torch_goes_on_with_ours(bits):
    parameters, optimizer = run(AdamW, range(4), optim_bits=bits, lr=0.01, weight_decay=0.1, eps=1e-3)
    copies = [nn.Parameter(p.detach().clone()) for p in parameters]
    theirs = torch.optim.AdamW(copies)
    exported = octavo.optim.to_torch(optimizer)
    assert exported["param_groups"][0].keys() == {
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "decoupled_weight_decay",
        "params",
    }
    before = copy.deepcopy(exported)
    go_on(optimizer, range(4, 5))
    assert is_equal(exported, before)  # the export shares no memory with the optimizer
    theirs.load_state_dict(exported)
    go_on(theirs, range(4, 5))
    for a, b in zip(parameters, copies, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


# ---- bitsandbytes'

THEIRS = [(AdamW8bit, ADAMW8BIT, ADAMW8BIT_MOVES), (Lion8bit, LION8BIT, LION8BIT_MOVES)]
NESTED = "__bnb_optimizer_quant_state__"


def saved_by_bitsandbytes(states: dict[int, dict[str, Tensor]], nested: bool = True) -> dict[str, Any]:
    saved: dict[int, dict[str, Any]] = {}
    maps = {"1": MEAN[8].float(), "2": SQUARE[8].float()}
    for key, state in states.items():
        numbers = [name[-1] for name in state if state[name].dtype == torch.uint8]
        tensors = state | {f"qmap{number}": maps[number] for number in numbers}
        saved[key] = {"step": 3, **({NESTED: tensors} if nested else tensors)}
    is_adam = "state2" in states[0]
    options = {"lr": 1e-2, "betas": (0.9, 0.999 if is_adam else 0.99), "eps": 1e-8 if is_adam else 0.0}
    options |= {"alpha": 0.0, "t_alpha": None, "t_beta3": None} if is_adam else {}
    group = {**options, "weight_decay": 0.01 if is_adam else 0, "params": [0, 1]}
    return {"state": saved, "param_groups": [group]}


def zeros_of(shapes: Any) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in shapes]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(("make", "states", "moves"), THEIRS)
def test_a_run_of_bitsandbytes_goes_on(make, states, moves, nested):
    parameters = zeros_of(SHAPES)
    optimizer = make(parameters, min_8bit_size=4, is_paged=True)
    optimizer.load_state_dict(octavo.optim.from_bitsandbytes(saved_by_bitsandbytes(states, nested)))
    assert is_all_paged(optimizer) and optimizer.param_groups[0]["lr"] == 1e-2
    assert not {"alpha", "t_alpha", "t_beta3"} & optimizer.param_groups[0].keys()
    assert torch.equal(optimizer.state[parameters[0]]["exp_avg_codes"], states[0]["state1"])
    give_gradients(parameters, 3)
    optimizer.step()
    torch.testing.assert_close(parameters[0].detach()[::10], moves[0], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(parameters[1].detach(), moves[1], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("nested", [True, False])
def test_a_state_of_bitsandbytes_that_was_not_translated_is_refused_with_the_remedy(nested):
    optimizer = AdamW8bit(zeros_of(SHAPES))
    unknown = NESTED if nested else "absmax1, absmax2, qmap1, qmap2, state1, state2"
    words = rf"AdamW8bit has no {unknown}; nothing has changed; translate .* by octavo\.optim\.from_bitsandbytes\(\)$"
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(saved_by_bitsandbytes(copy.deepcopy(ADAMW8BIT), nested))


def test_blocks_of_an_older_bitsandbytes_become_ours():
    codes = torch.arange(5000, dtype=torch.int32).remainder(256).to(torch.uint8)
    states = {0: {"state1": codes, "absmax1": torch.tensor([1.0, 2.0, 4.0])}}
    imported = octavo.optim.from_bitsandbytes(saved_by_bitsandbytes(states))["state"][0]
    assert imported["exp_avg_scale"].tolist() == [1.0] * 8 + [2.0] * 8 + [4.0] * 4
    assert imported["exp_avg_codes"] is codes


def to_sgd(saved: dict) -> None:
    """Makes the state of an SGD with momentum, which has one moment, too."""
    for state in saved["state"].values():
        for name in ("state2", "absmax2", "qmap2"):
            state[NESTED].pop(name, None)
    for group in saved["param_groups"]:
        group.update(betas=(0.9, 0.0), eps=0.0)


def test_a_parameter_without_a_state_has_none_here():
    saved = saved_by_bitsandbytes(copy.deepcopy(ADAMW8BIT))
    saved["state"][0] = {}
    assert octavo.optim.from_bitsandbytes(saved)["state"][0] == {}
    saved["state"] = {}  # of an optimizer that has made no step
    assert octavo.optim.from_bitsandbytes(saved)["state"] == {}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda saved: saved["state"][0][NESTED].update(absmax1=torch.zeros(7)), "absmax for each block"),
        (lambda saved: saved["state"][0][NESTED].pop("absmax2"), "tensor-wise"),
        (lambda saved: saved["state"][0][NESTED]["qmap1"].mul_(2), "dynamic map"),
        (lambda saved: saved["state"][1][NESTED].pop("state1"), "with a state1"),
        (lambda saved: saved["param_groups"][0].update(alpha=5.0), "AdEMAMix"),
        (to_sgd, "Lion, got that of SGD, LARS, RMSprop or Adagrad"),
    ],
)
def test_a_state_that_has_no_counterpart_is_refused(spoil, message):
    saved = saved_by_bitsandbytes(copy.deepcopy(ADAMW8BIT))
    spoil(saved)
    with pytest.raises(ValueError, match=rf"^\[optim\.from_bitsandbytes\] .*{message}"):
        octavo.optim.from_bitsandbytes(saved)


def test_the_decay_of_bitsandbytes_is_decoupled_and_no_other_one_goes_there():
    ours = octavo.optim.Adam8bit(zeros_of(SHAPES), min_8bit_size=4)
    with pytest.raises(ValueError, match="the state of an Adam, got that of an AdamW"):
        ours.load_state_dict(octavo.optim.from_bitsandbytes(saved_by_bitsandbytes(copy.deepcopy(ADAMW8BIT))))
    decayed = octavo.optim.Adam8bit(zeros_of(SHAPES), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"^\[optim\.to_bitsandbytes\] bitsandbytes decouples weight decay"):
        octavo.optim.to_bitsandbytes(decayed)


@pytest.mark.parametrize(("make", "states", "_"), THEIRS)
def test_what_came_from_bitsandbytes_goes_back_to_the_bit(make, states, _):
    optimizer = make(zeros_of(SHAPES), min_8bit_size=4)
    saved = saved_by_bitsandbytes(states, nested=False)
    optimizer.load_state_dict(octavo.optim.from_bitsandbytes(saved))
    exported = octavo.optim.to_bitsandbytes(optimizer)
    for key, state in saved["state"].items():
        maps = {name: exported["state"][key].pop(name) for name in state if name.startswith("qmap")}
        assert all(torch.allclose(maps[name], state[name], rtol=1e-6, atol=0) for name in maps)
        assert is_equal(exported["state"][key], {name: value for name, value in state.items() if name not in maps})
    kept = {
        name: value for name, value in saved["param_groups"][0].items() if "alpha" not in name and name != "t_beta3"
    }
    assert exported["param_groups"] == [kept]


def test_bitsandbytes_gets_rows_and_is_asked_for_rows():
    """Its kernels for GPUs make parameters contiguous, and take states by address."""
    layer = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizer = AdamW(layer.parameters(), lr=1e-2)
    layer(torch.randn(1, 4, 5, 5)).sum().backward()
    optimizer.step()
    exported = octavo.optim.to_bitsandbytes(optimizer)
    state, own = exported["state"][0], optimizer.state[layer.weight]
    assert state["state1"].is_contiguous() and torch.equal(state["state1"], own["exp_avg"])
    other = AdamW(layer.parameters())
    other.load_state_dict(octavo.optim.from_bitsandbytes(exported))
    assert torch.equal(other.state[layer.weight]["exp_avg_sq"], own["exp_avg_sq"])
    state["state2"] = state["state2"].to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match=r"^\[optim\.from_bitsandbytes\] the exp_avg_sq of .* has strides"):
        octavo.optim.from_bitsandbytes(exported)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_of_torch_changes_no_translation(bits, dtype):
    _, optimizer = run(AdamW, range(3), optim_bits=bits, min_8bit_size=0)
    expected = octavo.optim.to_bitsandbytes(optimizer)
    torch.set_default_dtype(dtype)
    try:
        exported = octavo.optim.to_bitsandbytes(optimizer)
        octavo.optim.from_bitsandbytes(exported)
        octavo.optim.to_torch(optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(is_equal(exported["state"][key], state) for key, state in expected["state"].items())


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_of_a_negative_extreme_are_mirrored_for_bitsandbytes(bits):
    """bitsandbytes' rule is map[code] * absmax: the values are the same except for -1, which its map does not have."""
    parameters, optimizer = run(AdamW, range(3), optim_bits=bits, min_8bit_size=0)
    exported = octavo.optim.to_bitsandbytes(optimizer)["state"]
    seen = set()
    for number, parameter in enumerate(parameters):
        state, other, count = optimizer.state[parameter], exported[number], parameter.numel()
        assert other["step"] == 3 and type(other["step"]) is int
        for place, name, table in (("1", "exp_avg", MEAN[8]), ("2", "exp_avg_sq", SQUARE[8])):
            values = in_blocks(by_tables(state, name, bits, count), 8)
            assert other[f"state{place}"].shape == parameter.shape and (other[f"absmax{place}"] >= 0).all()
            got = in_blocks(table[other[f"state{place}"].flatten().long()], 8) * other[f"absmax{place}"][:, None]
            errors = (got - values).abs() / other[f"absmax{place}"][:, None].where(values != 0, 1)
            is_extreme = values == -other[f"absmax{place}"][:, None].double()
            assert errors[is_extreme].numel() == 0 or errors[is_extreme].sub(0.00703).abs().max() < 1e-4
            assert errors[~is_extreme].max() < {8: 1e-6, 4: 0.00704}[bits]
            seen |= set(is_extreme.any(1).tolist())
    assert seen == {True, False}


@pytest.mark.parametrize("make", [AdamW8bit, Lion])
def test_exports_share_no_memory(make):
    """safetensors requires this, and a step must not change what was exported."""
    _, optimizer = run(make, range(2))
    exports = [octavo.optim.to_bitsandbytes(optimizer), octavo.optim.to_torch(optimizer)]
    before = copy.deepcopy(exports)
    for exported in exports:
        flat = {f"{key}/{name}": t for key, state in exported["state"].items() for name, t in state.items()}
        assert save({name: tensor for name, tensor in flat.items() if isinstance(tensor, Tensor)})
    go_on(optimizer, range(2, 3))
    assert all(is_equal(a, b) for a, b in zip(exports, before, strict=True))


def test_the_decay_of_a_loaded_state_is_that_of_the_optimizer():
    decayed = torch.optim.AdamW([parameter := torch.nn.Parameter(torch.ones(8))], weight_decay=0.5)
    parameter.grad = torch.ones(8)
    decayed.step()
    optimizer = Adam([torch.nn.Parameter(torch.ones(8))])
    with pytest.raises(ValueError, match="expected the state of an Adam, got that of an AdamW"):
        optimizer.load_state_dict(decayed.state_dict())
    assert not optimizer.state
    decayed.param_groups[0]["weight_decay"] = 0.0
    optimizer.load_state_dict(decayed.state_dict())
    assert optimizer.state
