# SPDX-License-Identifier: Apache-2.0
"""Codecs compared with torch's own arithmetic, and what each of them is good for."""

import ast
import copy
import pickle
from pathlib import Path

import pytest
import torch

import octavo
from octavo import _C

CODECS = ["bf16", "fp16", "fp8", "fp8-e5m2", "e3m0", *(f"int{bits}" for bits in range(2, 9))]
CODECS += ["sign2", "ternary", "sign"]


def decoded(plan: str, values: torch.Tensor) -> torch.Tensor:
    """Returns what the receiver of `values` (float32, contiguous) decodes."""
    plan = octavo.Plan(plan)
    payload = torch.empty(plan.payload_bytes(values.numel()), dtype=torch.uint8)
    _C.encode(plan, values, payload)
    out = torch.empty_like(values)
    _C.decode(plan, payload, out)
    return out


@pytest.mark.parametrize(
    ("plan", "dtype", "greatest"),
    [("fp8", torch.float8_e4m3fn, 448.0), ("fp8-e5m2", torch.float8_e5m2, 57344.0)],
)
def test_fp8_rounds_as_torch_does(plan, dtype, greatest):
    values = torch.randn(100_000) * torch.logspace(-8, 2, 100_000)
    values[::256] = greatest  # makes the scale of every block 1
    values.clamp_(-greatest, greatest)
    assert torch.equal(decoded(plan, values), values.to(dtype).float())


def test_fp16_rounds_as_torch_does_and_saturates():
    values = torch.randn(100_000) * torch.logspace(-8, 5, 100_000)
    assert torch.equal(decoded("fp16", values), values.clamp(-65504, 65504).half().float())
    assert decoded("fp16", torch.tensor([1e9, -1e9])).tolist() == [65504.0, -65504.0]
    assert decoded("fp16", torch.tensor([float("nan"), float("inf"), 1.0])).isfinite().tolist() == [False, False, True]


@pytest.mark.parametrize("plan", CODECS)
def test_the_error_is_what_its_bits_allow(plan):
    """The error is relative to the norm, for normally distributed values. The expected figures were measured once."""
    measured = {
        "bf16": 0.00166, "fp16": 0.00021, "fp8": 0.0261, "fp8-e5m2": 0.0518, "e3m0": 0.188, "int8": 0.00695,
        "int7": 0.0131, "int6": 0.0242, "int5": 0.0501, "int4": 0.107, "int3": 0.250, "int2": 0.717,
        "sign2": 0.359, "ternary": 0.447, "sign": 0.601,
    }  # fmt: skip
    torch.manual_seed(0)
    values = torch.randn(1 << 16)
    error = ((decoded(plan, values) - values).norm() / values.norm()).item()
    assert error == pytest.approx(measured[plan], rel=0.05)


@pytest.mark.parametrize("count", [1, 100, 4096, 100_001])
def test_topk_is_torchs(count):
    torch.manual_seed(count)
    values = torch.randn(count)
    kept = -(-count // 100)
    expected = torch.zeros(count)
    largest = values.abs().topk(kept).indices
    expected[largest] = values[largest]
    assert torch.equal(decoded("topk:0.01", values), expected)
    assert torch.equal(decoded("topk:1", values), values)
    assert octavo.Plan("topk:0.01").payload_bytes(count) <= 8 * kept + 8


def test_topk_of_tiles_takes_the_largest_of_each():
    values = torch.randn(10 * 4096)
    tiles = values.view(10, 4096)
    expected = torch.zeros_like(tiles)
    largest = tiles.abs().topk(64).indices
    expected.scatter_(1, largest, tiles.gather(1, largest))
    assert torch.equal(decoded("topk:64/4096", values), expected.view(-1))
    signs = decoded("topk:64/4096:sign", values).view(10, 4096)
    assert torch.equal(signs.sign(), expected.sign())
    mean = expected.abs().sum(1) / 64
    assert torch.allclose(signs.abs().amax(1), mean)
    assert 4 * values.numel() / octavo.Plan("topk:64/4096:sign").payload_bytes(values.numel()) > 215


def test_what_topk_does_not_send_is_left_over():
    values = torch.randn(10_000)
    plan = octavo.Plan("topk:0.01:int8+ef")
    payload = torch.empty(plan.payload_bytes(values.numel()), dtype=torch.uint8)
    nothing, left = torch.zeros(10_000, dtype=torch.bfloat16), torch.empty(10_000, dtype=torch.bfloat16)
    _C.encode(plan, values, payload, nothing, left)
    sent = torch.empty_like(values)
    _C.decode(plan, payload, sent)
    assert torch.allclose(sent + left.float(), values, rtol=2**-7, atol=0)


def packed(plan: str, values: torch.Tensor) -> torch.Tensor:
    """Returns what is sent of `values`."""
    plan = octavo.Plan(plan)
    payload = torch.empty(plan.payload_bytes(values.numel()), dtype=torch.uint8)
    _C.encode(plan, values, payload)
    return _C.pack(plan, payload, values.numel())


@pytest.mark.parametrize(("name", "dtype", "share"), [("bf16", torch.bfloat16, 0.71), ("fp16", torch.float16, 0.90)])
def test_lossless_packs_less_and_loses_nothing(name, dtype, share):
    torch.manual_seed(0)
    values = torch.randn(300_001) * 1e-3
    values[1::2000] = torch.tensor(1e-30)
    plan, sent = octavo.Plan(f"{name}:lossless"), packed(f"{name}:lossless", values)
    assert 0.9 * share < sent.numel() / (2 * values.numel()) < share
    out = torch.empty_like(values)
    _C.decode(plan, _C.unpack(plan, sent, values.numel()), out)
    assert torch.equal(out, values.to(dtype).float())
    for wrong in (sent[:-1], torch.cat([sent, sent[:1]]), sent[:3], torch.full_like(sent, 255)):
        with pytest.raises(ValueError, match=rf"no packed payload of 300001 values of {name}:lossless"):
            _C.unpack(plan, wrong.clone(), values.numel())


@pytest.mark.parametrize("count", [1, 100, 4096, 100_001])
def test_threshold_sends_what_is_above_it(count):
    torch.manual_seed(count)
    values = torch.randn(count)
    rms = values.double().square().mean().sqrt()
    expected = torch.where(values.abs() > 2.5 * rms, values, 0)
    if not expected.any():
        expected[values.abs().argmax()] = values.abs().max().copysign(values[values.abs().argmax()])
    assert torch.equal(decoded("threshold:2.5", values), expected)
    kept = int(expected.count_nonzero())
    assert packed("threshold:2.5", values).numel() <= 4 * kept + 2 * kept + 16


def test_what_threshold_does_not_send_is_left_over():
    values = torch.randn(10_000)
    plan = octavo.Plan("threshold:2:int8+ef")
    payload = torch.empty(plan.payload_bytes(values.numel()), dtype=torch.uint8)
    nothing, left = torch.zeros(10_000, dtype=torch.bfloat16), torch.empty(10_000, dtype=torch.bfloat16)
    _C.encode(plan, values, payload, nothing, left)
    sent = torch.empty_like(values)
    _C.decode(plan, payload, sent)
    assert 200 < sent.count_nonzero() < 1000
    assert torch.allclose(sent + left.float(), values, rtol=2**-7, atol=0)


def test_randomk_takes_one_of_every_stride_and_is_unbiased_on_request():
    values = torch.randn(10_050)
    sent = decoded("randomk:0.01", values)
    kept = sent.nonzero().flatten()
    assert torch.equal(kept // 100, torch.arange(101))
    assert torch.equal(sent[kept], values[kept])
    scaled = decoded("randomk:0.01:unbiased", values)
    assert torch.equal(scaled[:10_000], 100 * sent[:10_000]) and scaled[kept[-1]] == 50 * values[kept[-1]]


@pytest.mark.parametrize(
    "plan", ["topk:0.01+ef", "topk:64/4096:sign+ef", "randomk:0.01:int8+ef", "int4+ef", "threshold:3+ef"]
)
def test_threads_do_not_change_the_bytes(plan):
    plan, values = octavo.Plan(plan), torch.randn(1_000_000)
    made = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            payload = torch.zeros(plan.payload_bytes(values.numel()), dtype=torch.uint8)
            nothing, left = torch.zeros(1_000_000, dtype=torch.bfloat16), torch.empty(1_000_000, dtype=torch.bfloat16)
            _C.encode(plan, values, payload, nothing, left)
            made.append((payload, left))
        finally:
            torch.set_num_threads(before)
    for payload, left in made:
        assert torch.equal(payload, made[0][0]) and torch.equal(left, made[0][1])


def test_a_plan_is_a_value():
    """A plan can be compared with anything, copied, and sent to another process."""
    plan = octavo.Plan("topk:0.01+ef;*head*=dense")
    assert plan != "int4" and plan is not None and plan not in ["int4", None] and plan == octavo.Plan(str(plan))
    assert octavo.Plan(plan) == copy.deepcopy(plan) == pickle.loads(pickle.dumps(plan)) == plan
    assert {plan: 1}[copy.copy(plan)] == 1


def test_a_plan_says_what_it_is_made_of():
    plan = octavo.Plan("int4+down:int8+ef;lm_head.*=topk:0.01+ef+warmup:200;*embed*=dense")
    assert (plan.codec, plan.down, plan.error_feedback, plan.warmup_steps) == ("int4", "int8", True, 0)
    assert plan.rules == [("lm_head.*", "topk:0.01+ef+warmup:200"), ("*embed*", "dense")]
    head = plan.of("lm_head.weight")
    assert (head.codec, head.down, head.leaves_unsent, head.warmup_steps, head.rules) == (
        "topk:0.01",
        None,
        True,
        200,
        [],
    )
    assert plan.of("layers.0.weight") == octavo.Plan("int4+down:int8+ef")


def test_type_checkers_know_what_a_plan_has():
    stub = ast.parse((Path(octavo.__file__).parent / "_C.pyi").read_text())
    (of_plan,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "Plan")
    declared = {node.name for node in of_plan.body if isinstance(node, ast.FunctionDef)}
    public = {name for name in vars(octavo.Plan) if not name.startswith("_") or name == "__init__"}
    assert declared == public
    assert all(getattr(octavo.Plan, name).__doc__ for name in public)
