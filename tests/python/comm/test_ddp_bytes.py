# SPDX-License-Identifier: Apache-2.0
"""How many bytes compressed DDP sends: by plan, by step and by parameter."""

import pytest
import torch
from ddp_runs import digest, make, step_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo


def plan_change(rank: int) -> tuple[list[str], list[int]]:
    """Returns a digest of the model and the bytes that were sent, after each step."""
    model, handle, optimizer = make("int4+ef")
    digests, sent = [], []
    for step, plan in enumerate(["int4+ef", "sign+ef", "dense", "sign-vote", "bf16"]):
        handle.set_plan(plan)
        before = handle.stats()["wire_bytes"]
        step_once(model, optimizer, rank, step)
        assert str(handle.plan) == plan
        digests.append(digest(model))
        sent.append(handle.stats()["wire_bytes"] - before)
    return digests, sent


def test_the_plan_can_change_between_steps(two_ranks):
    (first, sent), (second, _) = two_ranks.run(plan_change)
    assert first == second
    int4, sign, dense, vote, bf16 = sent
    assert sign < vote < int4 < bf16 < dense


def bytes_of(rank: int) -> tuple[int, int]:
    model = DistributedDataParallel(nn.Linear(512, 512, bias=False))
    handle = octavo.compress(model, "sign:1024+ef")
    model(torch.randn(2, 512)).sum().backward()
    stats = handle.stats()
    return stats["wire_bytes"], stats["dense_bytes"]


def test_the_bytes_on_the_wire_are_the_bits_and_the_scales(two_ranks):
    elements = 512 * 512
    up_and_down = 2 * (elements / 2 / 8 + elements / 2 / 1024 * 4)
    headers = 2 * 16 + 4  # digest and checksum each way; upwards also the gradient's power
    for wire, dense in two_ranks.run(bytes_of):
        assert wire == up_and_down + headers and dense == 4 * elements


def bytes_by_step(rank: int) -> list[int]:
    model = DistributedDataParallel(nn.Linear(512, 512, bias=False))
    handle = octavo.compress(model, "topk:64/4096:sign+ef+warmup:4")
    sent = []
    for _ in range(6):
        model.zero_grad()
        model(torch.randn(2, 512)).sum().backward()
        sent.append(handle.stats()["wire_bytes"] - sum(sent))
    return sent


def test_a_warm_up_sends_less_and_less(two_ranks):
    sent = two_ranks.run(bytes_by_step)[0]
    # 1024, 256, then 64 values of each of an owner's 32 tiles: their places, signs and a scale; 36 bytes of headers
    words_of_places = {1024: 128, 256: 48, 64: 16}
    expected = [2 * 32 * (4 * words + kept // 8 + 4) + 36 for kept, words in words_of_places.items()]
    assert sent == [expected[stage] for stage in (0, 0, 1, 1, 2, 2)]


def bytes_by_rule(rank: int) -> tuple[dict[str, int], str]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)))
    handle = octavo.compress(model, "sign+ef;1.*=int8+ef;2.weight=dense")
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(8, 128)).square().sum().backward()
    sent = {one["name"]: one["wire_bytes"] for one in handle.parameter_stats()}
    assert set(handle.state_dict()) & {"worker/0.weight", "worker/1.weight", "worker/2.weight"} == {
        "worker/0.weight",
        "worker/1.weight",
    }
    handle.set_plan("int4+ef;0.*=dense")
    assert "worker/1.weight" in handle.state_dict() and "worker/0.weight" not in handle.state_dict()
    with pytest.raises(ValueError, match=r"the rule for 3\.\* in sign\+ef;3\.\*=int8 fits no parameter"):
        handle.set_plan("sign+ef;3.*=int8")
    with pytest.raises(ValueError, match="fits no parameter that has a gradient and is not exempt"):
        handle.set_plan("sign+ef;*.bias=int8")
    assert str(handle.plan) == "int4+ef;0.*=dense"
    model(torch.randn(8, 128)).square().sum().backward()
    return sent, digest(model, grads=True)


def test_rules_choose_the_plan_of_a_parameter(two_ranks):
    (sent, first), (_, second) = two_ranks.run(bytes_by_rule)
    values = 128 * 128
    assert sent["0.weight"] == values / 8 + values / 256 * 4
    assert sent["1.weight"] == values + values / 256 * 4
    assert sent["2.weight"] == 4 * values and sent["1.bias"] == 4 * 128
    assert first == second


def stats_by_parameter(rank: int) -> tuple[list[dict], int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(512, 512))
    handle = octavo.compress(model, "sign+ef")
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(8, 512)).square().sum().backward()
    return handle.parameter_stats(), handle.stats()["wire_bytes"] // 3


def test_statistics_by_parameter(two_ranks):
    for parameters, wire_bytes in two_ranks.run(stats_by_parameter):
        weight, bias = parameters
        assert (weight["name"], weight["count"], bias["name"], bias["count"]) == ("weight", 512 * 512, "bias", 512)
        assert weight["dense_bytes"] == 4 * 512 * 512 and bias["wire_bytes"] == bias["dense_bytes"] == 4 * 512
        headers = 2 * 16 + 2 * 4
        assert weight["wire_bytes"] + bias["wire_bytes"] + headers == wire_bytes
        assert 0.1 < weight["residual_rms"] / weight["gradient_rms"] < 10 and bias["residual_rms"] == 0


def stats_where_sizes_vary(rank: int, plan: str) -> list[tuple[int, int]]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(512, 512))
    handle = octavo.compress(model, plan)
    bytes_of_steps, before = [], 0
    for step in range(3):
        model.zero_grad()
        model(torch.randn(8, 512) * torch.logspace(0, -step, 512)).square().sum().backward()
        weight, bias = handle.parameter_stats()
        bytes_of_steps.append((weight["wire_bytes"] + bias["wire_bytes"], handle.stats()["wire_bytes"] - before))
        before = handle.stats()["wire_bytes"]
    return bytes_of_steps


@pytest.mark.parametrize("plan", ["bf16:lossless", "threshold:5+ef"])
def test_statistics_where_sizes_depend_on_the_values(two_ranks, plan):
    """Each way a size of 24 bytes and a header are sent before the message; payloads begin at multiples of 4."""
    for bytes_of_steps in two_ranks.run(stats_where_sizes_vary, plan):
        for of_parameters, sent in bytes_of_steps:
            assert 0 <= sent - of_parameters - (2 * (24 + 16) + 2 * 4) < 8
        assert len({sent for _, sent in bytes_of_steps}) > 1
