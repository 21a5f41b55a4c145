# SPDX-License-Identifier: Apache-2.0
"""torch.ops.dc on the device `sycl`: everything is late, and nothing is seen too early or lost."""

import pytest
import torch
import torch.distributed as dist
from sycl_work import keep_busy

import octavo.sycl
from octavo import _C
from octavo.rendezvous import Rendezvous

dc = torch.ops.dc
COUNT = 1 << 16
IDS = [0, 1]


class Rank:
    """An engine of stage 3 with one graph of two parameters; every change of them is late."""

    def __init__(self) -> None:
        group = dist.new_group(backend=octavo.sycl.COLLECTIVES)
        self.engine = _C.Engine(Rendezvous(group, "test", 60).connect(), COUNT, _C.Plan("dense"))
        self.own = self.engine.owned(COUNT)[1]
        self.shards = [torch.zeros(self.own, device="sycl") for _ in IDS]
        self.gradients = [torch.zeros(self.own, device="sycl") for _ in IDS]
        for id in IDS:
            self.engine.register_z3_param(
                id, [COUNT], self.shards[id], self.gradients[id], id == 1, f"parameter {id}", False
            )
        self.graph = self.engine.new_graph_id()
        self.engine.register_graph_z3(self.graph, IDS)
        self.anchors = [torch.empty(COUNT, device="sycl") for _ in IDS]

    def set(self, value: float) -> None:
        keep_busy(torch.sycl.current_stream(), copies=2)
        for id in IDS:
            self.shards[id].fill_(value + id)


def steps(rank: int) -> None:
    mine, token, seen = Rank(), torch.zeros(1, device="sycl"), []
    for step in range(1, 4):
        mine.set(step)
        first = dc.allgather_params_fused(mine.anchors, mine.graph, IDS)
        second = dc.allgather_params_fused(mine.anchors, mine.graph, IDS)
        for gathered in (first, second):
            dc.wait_params(gathered, mine.graph, IDS)
            seen += [(step + id, whole.clone()) for id, whole in enumerate(gathered)]
            for whole in gathered:
                whole.fill_(-1)  # the graph uses the memory for something else
        mine.engine.start_backward(True)
        keep_busy(torch.sycl.current_stream(), copies=2)
        gradients = [torch.full((COUNT,), float((rank + 1) * (step + id)), device="sycl") for id in IDS]
        dc.reduce_grads(gradients, token, mine.graph, IDS)
        for gradient in gradients:
            gradient.fill_(-1)
        dc.finish_backward(token, mine.graph)
        seen += [(1.5 * (step + id), gradient.clone()) for id, gradient in enumerate(mine.gradients)]
    for value, tensor in seen:
        assert tensor.cpu().eq(value).all(), value


def test_steps_of_a_graph(two_ranks) -> None:
    two_ranks.run(steps)


def values_on_the_host(rank: int) -> None:
    mine, seen = Rank(), []
    for step in range(1, 4):
        keep_busy(torch.sycl.current_stream(), copies=2)
        value = torch.full((COUNT,), float(step), device="sycl")
        on_host = dc.offload_tensor(value, mine.graph, 5)
        assert on_host.device.type == "cpu"
        value.add_(0)  # uses the value before the other stream is done with it
        dc.wait_offload(value, mine.graph, 5)
        value.fill_(-1)
        del value
        scratch = torch.full((COUNT,), -2.0, device="sycl")  # would take memory that is still being read
        back = dc.wait_reload(dc.reload_tensor(on_host, mine.graph, 5), mine.graph, 5)
        assert back.device.type == "sycl"
        seen.append((step, back.clone()))
        mine.engine.end_backward(mine.graph)
        del scratch
    for step, back in seen:
        assert back.cpu().eq(step).all()


def test_values_go_to_the_host_and_come_back(two_ranks) -> None:
    two_ranks.run(values_on_the_host)


def states_on_the_host(rank: int) -> None:
    mine, token, seen = Rank(), torch.zeros(1, device="sycl"), []
    states = [[torch.zeros(COUNT, device="sycl"), torch.zeros(COUNT // 2, device="sycl")] for _ in IDS]
    views = [state[0].view(2, -1) for state in states]
    for step in range(1, 4):
        for id in IDS:
            mine.engine.set_states(id, states[id])
        mine.engine.start_backward(True)
        held = torch.sycl.memory_allocated()
        keep_busy(torch.sycl.current_stream(), copies=2)
        for id in IDS:
            for state in states[id]:
                state.add_(1 + id)
        dc.offload_states(token, mine.graph, [*IDS, 99])
        of_states = sum(state.numel() * 4 for of_id in states for state in of_id)
        assert held - torch.sycl.memory_allocated() == of_states == mine.engine.offloaded_bytes()
        with pytest.raises(RuntimeError, match="wait on the host"):
            views[0].sum().item()
        scratch = torch.full((COUNT,), -1.0, device="sycl")  # would take memory that is still being read
        if step == 2:
            dc.wait_offloads(token, mine.graph)
        for id in IDS:
            mine.engine.set_states(id, states[id])  # as when a graph is compiled in the middle of a pass
        dc.reload_states(token, mine.graph, [1])
        mine.engine.restore()
        seen += [(step * (1 + id), values.clone()) for id in IDS for values in (views[id], states[id][1])]
        del scratch
    for value, tensor in seen:
        assert tensor.cpu().eq(value).all(), value


def test_states_go_to_the_host_and_come_back(two_ranks) -> None:
    two_ranks.run(states_on_the_host)


def moved_and_still_valid(rank: int) -> None:
    mine, token = Rank(), torch.zeros(1, device="sycl")
    mine.engine.set_persistent(1)
    mine.set(3)
    for _ in range(3):
        gathered = dc.allgather_params_fused(mine.anchors[1:], mine.graph, IDS[1:])
        dc.wait_params(gathered, mine.graph, IDS[1:])
        assert gathered[0].cpu().eq(4).all()
        sent = mine.engine.sent_bytes()
        dc.offload_parameter(token, mine.graph, 1)
        again = dc.allgather_params_fused(mine.anchors[1:], mine.graph, IDS[1:])
        dc.wait_params(again, mine.graph, IDS[1:])
        assert mine.engine.sent_bytes() == sent
        dc.reload_parameter(token, mine.graph, 1)


def test_a_persistent_parameter_stays_valid_where_its_part_is_moved(two_ranks) -> None:
    two_ranks.run(moved_and_still_valid)


def engine_that_ends(rank: int) -> None:
    mine, token = Rank(), torch.zeros(1, device="sycl")
    state = torch.full((COUNT,), 5.0, device="sycl")
    mine.set(7)
    mine.engine.set_states(0, [state])
    dc.offload_states(token, mine.graph, [0])
    dc.offload_params(token, mine.graph, IDS)
    assert mine.engine.offloaded_bytes() == 4 * (COUNT + 2 * mine.own)
    shards = mine.shards
    del mine
    assert state.cpu().eq(5).all()
    assert shards[1].cpu().eq(8).all()


def test_an_engine_that_ends_brings_back_what_is_on_the_host(two_ranks) -> None:
    two_ranks.run(engine_that_ends)


def flags(rank: int) -> None:
    mine, other = Rank(), torch.sycl.Stream()
    for flag in ("sync_before_allgather", "sync_after_allgather"):
        setattr(mine.engine.flags, flag, True)
        keep_busy(other)
        gathered = dc.allgather_params_fused(mine.anchors, mine.graph, IDS)
        assert other.query()
        dc.wait_params(gathered, mine.graph, IDS)
        setattr(mine.engine.flags, flag, False)
        mine.engine.invalidate_gathered_params()
    for flag in ("sync_before_reduce", "sync_after_reduce"):
        setattr(mine.engine.flags, flag, True)
        mine.engine.start_backward(False)
        keep_busy(other)
        for id in IDS:  # the first gradient fills the bucket, which is sent when the second one comes
            mine.engine.take_grad(torch.ones(COUNT, device="sycl"), mine.graph, id)
        assert other.query()
        mine.engine.end_backward(mine.graph)
        setattr(mine.engine.flags, flag, False)


def test_flags_wait_for_all_work_of_the_device(two_ranks) -> None:
    two_ranks.run(flags)
