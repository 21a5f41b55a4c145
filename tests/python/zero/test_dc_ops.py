# SPDX-License-Identifier: Apache-2.0
"""torch.ops.dc: the operators with which compiled graphs work for ZeRO, on ranks as processes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo import _C
from octavo.rendezvous import Rendezvous

dc = torch.ops.dc
SHAPES = [(33, 10), (7,), (), (64, 64)]
IDS = list(range(len(SHAPES)))


def whole_of(id: int, step: int = 0) -> Tensor:
    count = torch.Size(SHAPES[id]).numel()
    flat = (torch.arange(count, dtype=torch.float64) * 31 + 7 * id + step).remainder(97) / 48.5 - 1
    return flat.float().view(SHAPES[id])


class Rank:
    """An engine of stage 3 with one graph of all parameters."""

    def __init__(self, rank: int, persistent: tuple[int, ...] = ()):
        import torch.distributed as dist

        backend = Rendezvous(dist.group.WORLD, "test", 60).connect()
        self.engine = _C.Engine(backend, 1000, _C.Plan("dense"))
        self.shards, self.gradients = [], []
        for id in IDS:
            whole = whole_of(id)
            first, count = self.engine.owned(whole.numel())
            self.shards.append(whole.view(-1)[first : first + count].clone())
            self.gradients.append(torch.zeros(count))
            self.engine.register_z3_param(
                id, list(whole.shape), self.shards[id], self.gradients[id], id in persistent, f"p{id}", False
            )
        self.graph = self.engine.new_graph_id()
        self.engine.register_graph_z3(self.graph, IDS)

    def anchors(self, ids: list[int]) -> list[Tensor]:
        """Returns parameters as a graph traces them: they have the full shape, and memory of no bytes."""
        anchors = [torch.empty(SHAPES[id]) for id in ids]
        for anchor in anchors:
            anchor.untyped_storage().resize_(0)
        return anchors

    def gathered(self, ids: list[int], dtypes: list[torch.dtype] | None = None) -> list[Tensor]:
        whole = dc.allgather_params_fused(self.anchors(ids), self.graph, ids, dtypes)
        dc.wait_params(whole, self.graph, ids)
        return whole

    def own(self, id: int, whole: Tensor) -> Tensor:
        first, count = self.engine.owned(whole.numel())
        return whole.reshape(-1)[first : first + count]


def gather_and_reduce(rank: int) -> None:
    mine, token = Rank(rank), torch.zeros(1)
    for step in range(3):
        for id in IDS:
            mine.shards[id].copy_(mine.own(id, whole_of(id, step)))
        for _ in ("forward", "backward"):
            for id, whole in zip(IDS, mine.gathered(IDS), strict=True):
                assert torch.equal(whole, whole_of(id, step))
                whole.fill_(-1)  # the graph uses the memory for something else
        mine.engine.start_backward(True)
        gradients = [whole_of(id, step) * (rank + 1) for id in IDS]
        dc.reduce_grads(gradients, token, mine.graph, IDS)
        for gradient in gradients:
            gradient.fill_(-1)
        dc.finish_backward(token, mine.graph)
        for id in IDS:
            assert torch.allclose(mine.gradients[id], mine.own(id, whole_of(id, step) * 1.5))


def read_too_early(rank: int) -> None:
    mine = Rank(rank)
    whole = dc.allgather_param(mine.anchors([3])[0], mine.graph, 3)
    with pytest.raises(RuntimeError, match=r"p3 is on its way to this rank: wait for its gather"):
        whole.sum()
    assert torch.equal(dc.wait_allgather(whole, mine.graph, 3), whole_of(3))
    dc.release_param(whole, mine.graph, 3, 1)


def test_values_that_were_not_waited_for_are_refused(two_ranks):
    two_ranks.run(read_too_early)


def dropped(rank: int) -> None:
    mine, token = Rank(rank), torch.zeros(1)
    mine.engine.start_backward(True)
    dc.reduce_grads([whole_of(0)], token, mine.graph, [0])
    with pytest.raises(ValueError, match=r"expected 2 gradients of graph \d+, got 1: the compiler has left out"):
        dc.finish_backward(token, mine.graph, 2)


def test_a_graph_that_lost_an_operator_is_found(two_ranks):
    two_ranks.run(dropped)


def test_a_graph_gathers_twice_and_reduces(two_ranks):
    two_ranks.run(gather_and_reduce)


def mixed_dtypes(rank: int) -> None:
    mine = Rank(rank)
    before = mine.engine.sent_bytes()
    narrow, wide = mine.gathered([3, 0], [torch.bfloat16, torch.float32])
    assert narrow.dtype == torch.bfloat16 and torch.equal(narrow, whole_of(3).bfloat16())
    assert wide.dtype == torch.float32 and torch.equal(wide, whole_of(0))
    assert mine.engine.sent_bytes() - before < (64 * 64 * 2 + 330 * 4) / 2 + 200


def test_dtypes_travel_together(two_ranks):
    two_ranks.run(mixed_dtypes)


def overlapping(rank: int, persistent: tuple[int, ...]) -> None:
    """Two gathers of a parameter are under way; the first graph overwrites its memory before the second one reads
    it."""
    mine = Rank(rank, persistent)
    first = dc.allgather_params_fused(mine.anchors([0, 3]), mine.graph, [0, 3])
    second = dc.allgather_params_fused(mine.anchors([3, 1]), mine.graph, [3, 1], [torch.bfloat16, torch.float32])
    dc.wait_params(first, mine.graph, [0, 3])
    assert torch.equal(first[1], whole_of(3))
    first[1].fill_(-1)
    dc.wait_params(second, mine.graph, [3, 1])
    assert torch.equal(second[0], whole_of(3).bfloat16()) and torch.equal(second[1], whole_of(1))
    second[0].fill_(-1)
    sent = mine.engine.sent_bytes()
    assert torch.equal(mine.gathered([3])[0], whole_of(3))
    assert (mine.engine.sent_bytes() == sent) == (3 in persistent)


@pytest.mark.parametrize("persistent", [(), (3,)])
def test_no_two_graphs_share_memory(two_ranks, persistent):
    two_ranks.run(overlapping, persistent)


def fetched_ahead(rank: int) -> None:
    mine = Rank(rank)
    dc.prefetch_params_fused(mine.graph, mine.anchors([0, 3]), [0, 3], [torch.float32, torch.bfloat16])
    sent = mine.engine.sent_bytes()
    for id, whole in zip([0, 3], mine.gathered([0, 3], [torch.float32, torch.bfloat16]), strict=True):
        assert torch.equal(whole, whole_of(id).to(whole.dtype))
        whole.fill_(-1)
    assert mine.engine.sent_bytes() == sent
    dc.prefetch_params_fused(mine.graph, mine.anchors([3]), [3], [torch.bfloat16])
    sent = mine.engine.sent_bytes()
    assert torch.equal(mine.gathered([3])[0], whole_of(3))  # bfloat16 has not enough digits of it
    assert mine.engine.sent_bytes() > sent


def test_what_was_fetched_ahead_is_handed_over(two_ranks):
    two_ranks.run(fetched_ahead)


def deepspeeds_ops(rank: int) -> None:
    mine = Rank(rank)
    anchor = mine.anchors([3])[0]
    whole = dc.allgather_param(anchor, mine.graph, 3, torch.bfloat16)
    assert torch.equal(dc.wait_allgather(whole, mine.graph, 3), whole_of(3).bfloat16())
    for _ in range(2):
        dc.release_param(whole, mine.graph, 3, 2)
    mine.engine.start_backward(True)
    reduced = [dc.reduce_grad(whole_of(id) * (rank + 1), mine.graph, id) for id in IDS]
    assert all(dummy.numel() == 0 for dummy in reduced)
    dc.end_backward([*reduced, None], mine.graph, True)
    for id in IDS:
        assert torch.allclose(mine.gradients[id], mine.own(id, whole_of(id) * 1.5))
    dc.offload_parameter(anchor, mine.graph, 3)
    dc.reload_parameter(anchor, mine.graph, 3)
    for shape in ((4, 5), (6,)):  # a value of another shape in the next step
        value = torch.randn(shape)
        on_host = dc.offload_tensor(value, mine.graph, 17)
        assert torch.equal(dc.wait_offload(value, mine.graph, 17), value) and _C.is_pinned(on_host)
        back = dc.reload_tensor(on_host, mine.graph, 17)
        assert torch.equal(dc.wait_reload(back, mine.graph, 17), value) and back is not on_host
    freed = torch.ones(1 << 22)
    dc.free_tensors([freed])
    assert freed.numel() == 0
    value = torch.randn(3)
    assert torch.equal(dc.test_call(value), value)


def test_deepspeeds_names(two_ranks):
    two_ranks.run(deepspeeds_ops)


def two_engines(rank: int) -> None:
    mine, other = Rank(rank), Rank(rank)
    assert mine.graph != other.graph
    other.shards[0].fill_(2)
    assert torch.equal(mine.gathered([0])[0], whole_of(0)) and other.gathered([0])[0].eq(2).all()
    with pytest.raises(ValueError, match="is another engine's"):
        mine.engine.register_graph_z3(other.graph, IDS)
    graph = other.graph
    del other
    with pytest.raises(ValueError, match=rf"the engine of graph {graph}, on rank {rank}, was deleted"):
        dc.reduce_grads([torch.ones(1)], torch.zeros(1), graph, [3])


def test_engines_do_not_see_each_other(two_ranks):
    two_ranks.run(two_engines)


def refusals(rank: int) -> None:
    mine, token = Rank(rank), torch.zeros(1)
    known = rf"\(graph {mine.graph}, (p\d|value 4), rank {rank}\)"
    with pytest.raises(
        ValueError,
        match=rf"parameter 9 does not belong to this graph.+\(graph {mine.graph}, parameter 9, rank {rank}\)",
    ):
        dc.allgather_params_fused([torch.ones(1)], mine.graph, [9])
    with pytest.raises(ValueError, match=r"no engine of this process has graph 5"):
        dc.wait_params([torch.ones(1)], 5, [0])
    with pytest.raises(ValueError, match=f"parameter 0 was not gathered.+{known}"):
        dc.wait_params([torch.ones(33, 10)], mine.graph, [0])
    with pytest.raises(ValueError, match="expected a dtype for each of 2 parameters, or none, got 1"):
        dc.allgather_params_fused(mine.anchors([0, 1]), mine.graph, [0, 1], [torch.float32])
    mine.engine.start_backward(True)
    with pytest.raises(ValueError, match=f"the gradient of parameter 1 as floats of shape \\[7\\].+{known}"):
        dc.reduce_grads([torch.ones(6)], token, mine.graph, [1])
    with pytest.raises(ValueError, match=f"value 4 was not sent to the host.+{known}"):
        dc.reload_tensor(token, mine.graph, 4)
    whole = dc.allgather_params_fused(mine.anchors([0]), mine.graph, [0])
    with pytest.raises(ValueError, match=r"expected gathered parameter 0 as \[33, 10\], got \[330\]"):
        dc.wait_params([whole[0].view(-1)], mine.graph, [0])
    dc.wait_params(whole, mine.graph, [0])
    assert torch.equal(whole[0], whole_of(0))


def test_what_does_not_fit_names_graph_parameter_and_rank(two_ranks):
    two_ranks.run(refusals)


def checked(rank: int) -> None:
    mine, token = Rank(rank), torch.zeros(1)
    # the other checks compare values, which a launch alone does not have yet
    checks = ("test_schema", "test_faketensor")
    anchors = [torch.empty(shape) for shape in SHAPES]  # the checks copy their arguments
    torch.library.opcheck(dc.allgather_params_fused.default, (anchors, mine.graph, IDS), test_utils=checks)
    # one gather for each call of the checks
    gathered = [dc.allgather_params_fused(anchors, mine.graph, IDS) for _ in range(4)]
    torch.library.opcheck(dc.wait_params.default, (gathered[-1], mine.graph, IDS), test_utils=checks)
    mine.engine.give_up_pass()  # there were more gathers than waits
    mine.engine.start_backward(False)
    torch.library.opcheck(dc.reduce_grads.default, ([torch.ones(7)], token, mine.graph, [1]))
    torch.library.opcheck(dc.finish_backward.default, (token, mine.graph))
    torch.library.opcheck(dc.test_call.default, (token,))


def test_opcheck(one_rank):
    one_rank.run(checked)


def compiled(rank: int, backend: str) -> None:
    mine = Rank(rank)

    def forward_and_backward(anchors: list[Tensor], x: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        weight, bias = torch.ops.dc.allgather_params_fused(anchors, mine.graph, [3, 1])
        hidden = x * 2 + 1  # computed between launch and wait
        torch.ops.dc.wait_params([weight, bias], mine.graph, [3, 1])
        out = (hidden @ weight).relu().sum(0)
        torch.ops.dc.reduce_grads([weight * out, bias.cos()], token, mine.graph, [3, 1])
        torch.ops.dc.finish_backward(token, mine.graph)
        return out, (bias + 1).exp()

    run = torch.compile(forward_and_backward, backend=backend, fullgraph=True)
    for step in range(3):
        for id in IDS:
            mine.shards[id].copy_(mine.own(id, whole_of(id, step)))
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(step))
        mine.engine.start_backward(True)
        out, other = run(mine.anchors([3, 1]), x, torch.zeros(1))
        weight, bias = whole_of(3, step), whole_of(1, step)
        expected = ((x * 2 + 1) @ weight).relu().sum(0)
        assert torch.allclose(out, expected, rtol=1e-5, atol=1e-4)
        assert torch.allclose(other, (bias + 1).exp())
        assert torch.allclose(mine.gradients[3], mine.own(3, weight * expected), rtol=1e-4, atol=1e-3)
        assert torch.allclose(mine.gradients[1], mine.own(1, bias.cos()), atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_no_pass_drops_or_reorders_them(two_ranks: Any, backend: str) -> None:
    two_ranks.run(compiled, backend, timeout_s=200)


def deepspeeds_compiled(rank: int, backend: str) -> None:
    mine = Rank(rank)

    def backward(anchor: Tensor, gradient: Tensor) -> Tensor:
        dc.prefetch_params_fused(mine.graph, [anchor], [3])
        reduced = dc.reduce_grad(gradient * 2, mine.graph, 3)
        dc.end_backward([reduced], mine.graph, True)
        return gradient + 1

    def unknown(anchor: Tensor, op: Any) -> Tensor:
        op(anchor, mine.graph, 77)
        return torch.zeros(1)

    for op in (dc.offload_parameter, dc.reload_parameter):
        with pytest.raises(ValueError, match="parameter 77 does not belong to this graph"):
            torch.compile(unknown, backend=backend, fullgraph=True)(torch.empty(3), op)

    sent = mine.engine.sent_bytes()
    mine.engine.start_backward(True)
    torch.compile(backward, backend=backend, fullgraph=True)(torch.empty(SHAPES[3]), whole_of(3))
    assert mine.engine.reduced_params() == [3]
    assert torch.equal(mine.gradients[3], mine.own(3, whole_of(3) * 2))
    assert mine.engine.sent_bytes() - sent > 2 * 4 * 64 * 64 / 2  # a gradient and a parameter, of which each has a half


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_no_pass_drops_deepspeeds_operators(two_ranks: Any, backend: str) -> None:
    two_ranks.run(deepspeeds_compiled, backend, timeout_s=200)
