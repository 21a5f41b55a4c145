# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist

import octavo

TOLERANCE = {"dense": 1e-6, "bf16": 0.02, "int4": 0.4, "sign": 3.0}


def values_of(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(5001, generator=torch.Generator().manual_seed(rank)).to(dtype)


def sum_over_ranks(rank: int, plan: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = values_of(rank, dtype)
    octavo.all_reduce(tensor, plan)
    assert tensor.dtype == dtype
    return tensor


@pytest.mark.parametrize("plan", list(TOLERANCE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_and_is_bit_identical(three_ranks, plan, dtype):
    results = three_ranks.run(sum_over_ranks, plan, dtype)
    assert all(torch.equal(r, results[0]) for r in results)
    expected = sum(values_of(rank) for rank in range(3))
    slack = TOLERANCE[plan] + (0.05 if dtype == torch.bfloat16 else 0)
    assert (results[0].float() - expected).abs().max() <= slack * expected.abs().max()


def vote(rank: int) -> torch.Tensor:
    tensor = torch.tensor([[5.0, 1, -1], [2, -9, -3]])[rank]
    octavo.all_reduce(tensor, "sign-vote")
    return tensor


def test_votes_and_a_tie_is_zero(two_ranks):
    assert [r.tolist() for r in two_ranks.run(vote)] == [[1, 0, -1]] * 2


def shapes_and_views(rank: int) -> list[torch.Tensor]:
    base = torch.full((4, 6), float(rank + 1))
    cases = [base.t(), base[::2, 1::2], torch.tensor(float(rank + 1)), torch.empty(0)]
    for tensor in cases:
        octavo.all_reduce(tensor, "int4", op=dist.ReduceOp.AVG)
    return [*cases, base]


def test_any_shape_and_view_in_place(two_ranks):
    for result in two_ranks.run(shapes_and_views):
        transposed, _, scalar, empty, base = result
        assert torch.allclose(transposed, torch.tensor(1.5), rtol=0.1)
        assert torch.allclose(scalar, torch.tensor(1.5), rtol=0.1) and empty.numel() == 0
        assert torch.equal(base, transposed.t())


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
    for plan, dtype, error in (
        ("sign+ef", torch.float32, ValueError),
        ("3bit", torch.float32, ValueError),
        ("int4", torch.int32, TypeError),
    ):
        tensor = torch.ones(4, dtype=dtype)
        with pytest.raises(error):
            octavo.all_reduce(tensor, plan)
        assert torch.equal(tensor, torch.ones(4, dtype=dtype))


def test_what_makes_no_sense_is_refused_and_changes_nothing(two_ranks):
    two_ranks.run(refuse)


def stay_away(rank: int) -> str:
    if rank == 1:
        dist.barrier()  # comes when rank 0 has given up
        return ""
    try:
        octavo.all_reduce(torch.ones(10), "int4", timeout_s=1.0)
    except (TimeoutError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        pass
    return "no error"


def test_a_peer_that_does_not_come_is_a_timeout(two_ranks):
    try:
        answers = two_ranks.run(stay_away, timeout_s=8)
    except AssertionError as error:  # rank 1's barrier fails once rank 0 is gone
        assert "no error" not in str(error)
        return
    finally:
        two_ranks.stop()
    assert answers[0].startswith("TimeoutError: [comm.wire] rank 0")
