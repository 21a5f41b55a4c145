# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import octavo

#: By plan: how much of the exact sum a result holds (see `likeness`), and its relative error, for normal values of
#: three ranks. The sum is encoded once more on its way down.
LIKENESS = {
    "dense": (1.0, 1e-6),
    "bf16": (1.0, 0.003),
    "bf16:lossless": (1.0, 0.003),
    "fp16": (1.0, 0.0004),
    "fp8": (1.0, 0.04),
    "int8": (1.0, 0.012),
    "int8:stochastic": (1.0, 0.018),
    "int4": (1.0, 0.17),
    "int3": (1.0, 0.37),
    "sign2": (0.874, 0.48),
    "ternary": (0.808, 0.58),
    "sign": (0.496, 0.74),
}


def values_of(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(5001, generator=torch.Generator().manual_seed(rank)).to(dtype)


def likeness(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Returns the projection (r·e) / (e·e), which is 0 for zeros and 2 for twice the sum, and ‖r - e‖ / ‖e‖."""
    result, exact = result.double(), exact.double()
    return float(result @ exact / (exact @ exact)), float((result - exact).norm() / exact.norm())


def sum_over_ranks(rank: int, plan: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = values_of(rank, dtype)
    octavo.all_reduce(tensor, plan)
    assert tensor.dtype == dtype
    return tensor


@pytest.mark.parametrize("plan", LIKENESS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_and_is_bit_identical(three_ranks, plan, dtype):
    results = three_ranks.run(sum_over_ranks, plan, dtype)
    assert all(torch.equal(r, results[0]) for r in results)
    expected = sum(values_of(rank) for rank in range(3))
    projection, error = likeness(results[0], expected)
    usual, largest = LIKENESS[plan]
    assert projection == pytest.approx(usual, abs=0.01)
    assert error <= largest + (0.004 if dtype == torch.bfloat16 else 0)


def nan_in_other_strides(rank: int) -> list[int]:
    tensor = torch.ones(64, 2, dtype=torch.bfloat16)[:, 0] if rank else torch.ones(64, dtype=torch.bfloat16)
    tensor[3] = float("nan")
    octavo.all_reduce(tensor, "int4")
    return tensor.contiguous().view(torch.int16).tolist()


def test_a_nan_has_the_same_bits_on_ranks_whose_strides_differ(two_ranks):
    first, second = two_ranks.run(nan_in_other_strides)
    assert first == second


@pytest.mark.parametrize("plan", ["dense", "int8"])
def test_floats_of_8_bits_are_summed_in_float32(three_ranks, plan):
    """No back end of torch adds them up."""
    results = three_ranks.run(sum_over_ranks, plan, torch.float8_e4m3fn)
    expected = sum(values_of(rank, torch.float8_e4m3fn).float() for rank in range(3))
    assert all(torch.equal(r.float(), results[0].float()) for r in results)
    projection, error = likeness(results[0], expected)
    assert projection == pytest.approx(1.0, abs=0.01) and error <= 0.035


def sum_of_products(rank: int, plan: str) -> torch.Tensor:
    left = torch.randn(64, 3, generator=torch.Generator().manual_seed(rank))
    tensor = left @ torch.randn(3, 200, generator=torch.Generator().manual_seed(9))
    octavo.all_reduce(tensor, plan)
    return tensor


def test_a_sum_of_low_rank_is_found_in_one_call(three_ranks):
    exact = three_ranks.run(sum_of_products, "dense")[0]
    results = three_ranks.run(sum_of_products, "powersgd:3")
    assert all(torch.equal(r, results[0]) for r in results)
    assert (results[0] - exact).norm() < 1e-5 * exact.norm()


def sum_of_few(rank: int, plan: str) -> torch.Tensor:
    places = torch.randperm(20000, generator=torch.Generator().manual_seed(rank))[:10]
    tensor = torch.zeros(20000).index_fill(0, places, rank + 1.0)
    octavo.all_reduce(tensor, plan)
    return tensor


def test_the_few_elements_of_a_sum_are_found_by_a_sketch(three_ranks):
    exact = three_ranks.run(sum_of_few, "dense")[0]
    results = three_ranks.run(sum_of_few, "sketch:0.2:exact")
    assert all(torch.equal(r, exact) for r in results)


def vote(rank: int) -> torch.Tensor:
    tensor = torch.tensor([[5.0, 1, -1], [2, -9, -3]])[rank]
    octavo.all_reduce(tensor, "sign-vote")
    return tensor


def sum_in_inference_mode(rank: int) -> torch.Tensor:
    with torch.inference_mode():
        values = values_of(rank)
        octavo.all_reduce(values, "int8")
    return values.clone()


def test_evaluations_add_up_their_figures(two_ranks):
    results = two_ranks.run(sum_in_inference_mode)
    assert torch.equal(*results) and bool(results[0].any())


def average_of_large_halves(rank: int, plan: str) -> torch.Tensor:
    tensor = torch.full((512,), 60_000.0, dtype=torch.float16)
    octavo.all_reduce(tensor, plan, op=dist.ReduceOp.AVG)
    return tensor


@pytest.mark.parametrize("plan", ["dense", "int8"])
def test_an_average_of_float16_is_there_where_the_sum_would_overflow(two_ranks, plan):
    for result in two_ranks.run(average_of_large_halves, plan):
        assert torch.equal(result, torch.full((512,), 60_000.0, dtype=torch.float16))


def sum_of_zeros(rank: int, plan: str) -> torch.Tensor:
    tensor = torch.tensor([0.0, -0.0] if rank else [-0.0, -0.0]).repeat(300)
    octavo.all_reduce(tensor, plan)
    return torch.signbit(tensor)


@pytest.mark.parametrize("plan", ["int8", "sign", "topk:0.1", "bf16"])
def test_zeros_have_one_sign_on_all_ranks(two_ranks, plan):
    assert torch.equal(*two_ranks.run(sum_of_zeros, plan))


def test_votes_and_a_tie_is_zero(two_ranks):
    assert [r.tolist() for r in two_ranks.run(vote)] == [[1, 0, -1]] * 2


VIEWS = [torch.t, lambda base: base[::2, 1::2], lambda base: base[:, 3]]


def counted(rank: int) -> torch.Tensor:
    """Returns values no two of which are the same on any rank. Those of the two ranks differ by 24."""
    return torch.arange(24.0).reshape(4, 6) + 24 * rank


def shapes_and_views(rank: int, plan: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    bases, scalar = [counted(rank) for _ in VIEWS], torch.tensor(float(rank + 1))
    views = [view(base) for view, base in zip(VIEWS, bases, strict=True)]
    for tensor in [*views, scalar, torch.empty(0)]:
        octavo.all_reduce(tensor, plan, op=dist.ReduceOp.AVG)
    for plan in ("powersgd:2", "sketch:0.1"):  # small and empty tensors make no images under these
        octavo.all_reduce(torch.empty(0), plan)
        octavo.all_reduce(torch.empty(4, 0), plan)
    return bases, scalar


@pytest.mark.parametrize(("plan", "error"), [("dense", 0.0), ("int8", 0.4), ("int4", 4.0)])
def test_any_shape_and_view_in_place(two_ranks, plan, error):
    average = counted(0) + 12
    for rank, (bases, scalar) in enumerate(two_ranks.run(shapes_and_views, plan)):
        assert scalar.item() == pytest.approx(1.5, abs=error / 4)
        for view, base in zip(VIEWS, bases, strict=True):
            torch.testing.assert_close(view(base), view(average), rtol=0, atol=error)
            view(base).copy_(view(counted(rank)))
            assert torch.equal(base, counted(rank)), "elements outside the view were written"


def asynchronously(rank: int) -> list[torch.Tensor]:
    tensors = [values_of(rank) + i for i in range(4)]
    works = [octavo.all_reduce(t, "bf16", async_op=True) for t in tensors]
    assert all(work.wait() for work in works)
    return tensors


def test_async_op(two_ranks):
    first, second = two_ranks.run(asynchronously)
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(a, b)
        assert torch.allclose(a, values_of(0) + values_of(1) + 2 * i, atol=0.1)


def refuse(rank: int) -> None:
    for plan, dtype, error, words in (
        (
            "sign+ef",
            torch.float32,
            ValueError,
            r"^\[comm\.all_reduce\] the plan sign\+ef remembers what was sent",
        ),
        ("3bit", torch.float32, ValueError, r"^\[comm\.plan\] '3bit' is no plan: there is no codec of this name"),
        ("int4", torch.int32, TypeError, r"^\[comm\.all_reduce\] expected a real floating tensor, got Int$"),
    ):
        tensor = torch.ones(4, dtype=dtype)
        with pytest.raises(error, match=words):
            octavo.all_reduce(tensor, plan)
        assert torch.equal(tensor, torch.ones(4, dtype=dtype))
    with pytest.raises(ValueError, match=r"\[comm\.all_reduce\] expected a tensor with memory for each element"):
        octavo.all_reduce(torch.ones(1).expand(8), "int8")


def test_what_makes_no_sense_is_refused_and_changes_nothing(two_ranks):
    two_ranks.run(refuse)


def come_late(rank: int) -> list[float]:
    tensor = torch.full((100,), rank + 1.0)
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"\[collectives.all_reduce\] rank 1 did not come within 1 s"):
            octavo.all_reduce(tensor, "int4", timeout_s=1.0)
    dist.barrier()  # rank 1 begins when rank 0 has given up
    if rank == 1:
        with pytest.raises(TimeoutError, match=r"\[collectives.all_reduce\] rank 0 did not come within 1 s"):
            octavo.all_reduce(torch.ones(100), "int4", timeout_s=1.0)
    dist.barrier()
    octavo.all_reduce(tensor, "dense", timeout_s=30.0)
    return tensor.tolist()


def test_a_group_is_connected_anew_after_a_timeout(two_ranks):
    assert two_ranks.run(come_late) == [[3.0] * 100] * 2


#: What a rank says whose peer has given up: it may notice the end of the connection or its own deadline first.
LOST = "(an exchange with a peer failed|a peer did not answer)"


def stop_answering(rank: int) -> list[float]:
    tensor = torch.full((100,), rank + 1.0)
    octavo.all_reduce(tensor, "dense")
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"\[comm.wire\] rank 0"):
            octavo.all_reduce(torch.ones(100), "int4", timeout_s=1.0)
    dist.barrier()
    if rank == 1:
        with pytest.raises((TimeoutError, RuntimeError), match=rf"\[comm\.wire\] rank 1: {LOST}"):
            octavo.all_reduce(torch.ones(100), "int4", timeout_s=5.0)
    dist.barrier()
    octavo.all_reduce(tensor, "dense", timeout_s=30.0)
    return tensor.tolist()


def test_connections_that_failed_are_made_anew(two_ranks):
    assert two_ranks.run(stop_answering) == [[6.0] * 100] * 2


def disagree(rank: int, plans: tuple[str, str], calls: tuple[dict, dict]) -> tuple[str, list[float]]:
    """Returns the error about a call that differs by rank, and a sum that is formed afterwards."""
    call = calls[rank]
    tensor = torch.ones(call.get("size", 5000), dtype=call.get("dtype", torch.float32))
    said = ""
    try:
        octavo.all_reduce(tensor, plans[rank], op=call.get("op", dist.ReduceOp.SUM), seed=call.get("seed", 0))
    except RuntimeError as error:
        said = str(error)
    assert torch.equal(tensor, torch.ones_like(tensor))
    tensor = torch.full((10,), rank + 1.0)
    octavo.all_reduce(tensor, "dense", timeout_s=20.0)
    return said, tensor.tolist()


@pytest.mark.parametrize(
    ("plans", "calls"),
    [
        (("int4", "int4"), ({}, dict(op=dist.ReduceOp.AVG))),
        (("dense", "dense"), ({}, dict(op=dist.ReduceOp.AVG))),
        (("int4", "int4"), (dict(size=4096), dict(size=100_000))),
        (("dense", "dense"), (dict(size=4096), dict(size=100_000))),
        (("dense", "dense"), ({}, dict(dtype=torch.float64))),
        (("int4", "int4"), ({}, dict(seed=1))),
        (("int4", "int8"), ({}, {})),
        (("dense", "int8"), ({}, {})),
        (("powersgd:1", "powersgd:1"), (dict(size=(100, 50)), dict(size=(50, 100)))),
    ],
)
def test_ranks_that_disagree_are_told_so(two_ranks, plans, calls):
    for said, later in two_ranks.run(disagree, plans, calls):
        assert "[comm.all_reduce]" in said
        assert "rank 1" in said and "rank 0" in said
        assert later == [3.0] * 10


def call_in_a_circle(rank: int) -> list[float]:
    """Each rank waits, on one of its two groups, for a peer that calls the other group first."""
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    first, second = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    tensors = [torch.full((10,), rank + 1.0) for _ in range(2)]
    works = [
        octavo.all_reduce(tensor, "dense", groups[which], async_op=True, timeout_s=20.0)
        for tensor, which in zip(tensors, (first, second), strict=True)
    ]
    for work in works:
        work.wait()
    return [tensor[0].item() for tensor in tensors]


def test_groups_that_overlap_do_not_wait_for_each_other(three_ranks):
    assert three_ranks.run(call_in_a_circle) == [[3.0, 4.0], [5.0, 3.0], [4.0, 5.0]]


def miss_a_meeting(rank: int) -> list[float]:
    """Rank 0 misses a meeting with rank 1, which has then made one attempt more."""
    tensor = torch.full((10,), rank + 1.0)
    if rank == 1:
        with pytest.raises(TimeoutError, match="rank 0 did not come"):
            octavo.all_reduce(tensor, "dense", timeout_s=1.0)
    dist.barrier()
    octavo.all_reduce(tensor, "dense", timeout_s=20.0)
    return tensor.tolist()


def test_a_rank_that_did_not_come_meets_the_others_at_the_next_call(two_ranks):
    assert two_ranks.run(miss_a_meeting) == [[3.0] * 10] * 2


def give_a_wrong_argument(rank: int, dtype: torch.dtype, plan: str, words: str) -> list[float]:
    octavo.all_reduce(torch.ones(8), "int8")
    arguments = (torch.ones(8, dtype=dtype), plan) if rank == 1 else (torch.ones(8), "int8")
    errors = (TypeError, ValueError) if rank == 1 else (RuntimeError, TimeoutError)
    with pytest.raises(errors, match=words if rank == 1 else rf"\[comm\.wire\] rank 0: {LOST}"):
        octavo.all_reduce(*arguments, timeout_s=3.0)
    dist.barrier()
    tensor = torch.full((8,), rank + 1.0)
    octavo.all_reduce(tensor, "dense", timeout_s=20.0)
    return tensor.tolist()


@pytest.mark.parametrize(
    ("dtype", "plan", "words"),
    [
        (torch.int64, "int8", "expected a real floating tensor, got Long"),
        (torch.float32, "int8+ef", r"the plan int8\+ef remembers what was sent before"),
        (torch.float32, "int99", "'int99' is no plan: there is no codec of this name"),
    ],
)
def test_a_rank_that_gave_a_wrong_argument_meets_the_others_at_the_next_call(two_ranks, dtype, plan, words):
    assert two_ranks.run(give_a_wrong_argument, dtype, plan, words) == [[3.0] * 8] * 2


def test_without_a_process_group_there_is_a_sentence():
    with pytest.raises(ValueError, match="call init_process_group"):
        octavo.all_reduce(torch.ones(4))


def unbiased_means(rank: int, plan: str) -> torch.Tensor:
    total = torch.zeros(2000)
    for _ in range(400):
        values = torch.full((2000,), float(rank + 1))
        octavo.all_reduce(values, plan, op=dist.ReduceOp.AVG)
        total += values
    return total / 400


@pytest.mark.parametrize(
    "plan", ["randomk:1/4:unbiased", "randomk:1/4:unbiased+down:int8", "int8+down:randomk:1/4:unbiased"]
)
def test_an_unbiased_codec_averages_to_the_average(two_ranks, plan):
    for means in two_ranks.run(unbiased_means, plan):  # the two ranks hold 1 and 2
        assert means[:1024].mean().item() == pytest.approx(1.5, rel=0.02)
        assert means[1024:].mean().item() == pytest.approx(1.5, rel=0.02)


def calls_without_sense(rank: int) -> list[str]:
    octavo.all_reduce(torch.ones(10), "int8")  # connects the ranks
    group = dist.new_group([0])
    said = []
    sharded = distribute_tensor(torch.ones(10), init_device_mesh("cpu", (2,)))
    for tensor, options in (
        (torch.ones(10), dict(timeout_s=-1.0)),
        (torch.ones(10), dict(timeout_s=None)),
        (torch.ones(10), dict(group=[0, 1])),
        (torch.ones(10, device="meta"), {}),
        (sharded, {}),
        *([(torch.ones(10), dict(group=group))] if rank else []),
    ):
        with pytest.raises((ValueError, TypeError), match=r"\[collectives.all_reduce\]") as raised:
            octavo.all_reduce(tensor, "int8", **options)
        said.append(str(raised.value))
    octavo.all_reduce(torch.ones(10), "int8")  # the ranks are still connected
    return said


def test_what_is_no_timeout_no_group_of_this_rank_or_no_tensor_of_values_is_refused(two_ranks):
    _, said = two_ranks.run(calls_without_sense)
    assert "timeout_s must be a number of seconds, of at least 0.001 and at most a year, got -1.0" in said[0]
    assert "timeout_s must be a number of seconds, of at least 0.001 and at most a year, got None" in said[1]
    assert "expected group as a process group, such as new_group() returns, got [0, 1]" in said[2]
    assert "one without memory, of the meta device" in said[3]
    assert "a DTensor: pass its to_local()" in said[4]
    assert "this process is not in the group" in said[5]
