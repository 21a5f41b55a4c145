# SPDX-License-Identifier: Apache-2.0
"""FSDP2: what is refused, models without values, ranks that disagree or stay away."""

import pytest
import torch
import torch.distributed as dist
from fsdp_runs import TiedAndUnused, backward, batch_of, digest, make, refuse_momenta, shard, step_once
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import octavo


def refuse(rank: int) -> None:
    with pytest.raises(TypeError, match=r"expected a DistributedDataParallel model, or one to which .*fully_shard"):
        octavo.compress(nn.Linear(2, 2), "int4")
    model, handle, _ = make("int4+ef")
    with pytest.raises(ValueError, match="compressed already: keep its handle and call its set_plan"):
        octavo.compress(model, "int4")
    with pytest.raises(ValueError, match=r"linear map of .*use a codec of values, such as int4"):
        handle.set_plan("powersgd:2+ef")
    with pytest.raises(
        ValueError, match=r"\+ef21 remembers what owners send to all, .*: use \+ef, or compress between"
    ):
        handle.set_plan("int4+ef21")
    with pytest.raises(ValueError, match=r"to themselves: use the codec inside lsh with \+ef, or compress between"):
        handle.set_plan("lsh:int4")
    assert str(handle.plan) == "int4+ef"
    refuse_momenta(handle)
    model = shard(TiedAndUnused())
    with pytest.raises(ValueError, match="OneBitAdamW sends momenta"):
        octavo.compress(model, "sign+ef", optimizer=octavo.optim.OneBitAdamW(model.parameters(), warmup_steps=5))
    with pytest.raises(ValueError, match=r"exempt pattern 'norn\*' matches none of"):
        octavo.compress(model, "sign+ef", exempt=["norn*"])
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    with pytest.raises(ValueError, match=r"mesh=mesh\['shard'\], and pass replicas=mesh.get_group\('replicate'\)"):
        octavo.compress(shard(TiedAndUnused(), mesh=mesh), "int4")
    with pytest.raises(ValueError, match="pass replicas only with a model of fully_shard"):
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        octavo.compress(ddp, "int4", replicas=dist.group.WORLD)
    saved = handle.state_dict()
    with pytest.raises(ValueError, match="residuals of the model, and this handle keeps those of shards"):
        handle.load_state_dict({**saved, "layout": "the model"})


def test_what_makes_no_sense_is_refused(two_ranks):
    two_ranks.run(refuse)


def build_on_meta(rank: int) -> list[str]:
    """Returns the digests of a model whose parameters get memory and values only as shards."""
    with torch.device("meta"):
        model = shard(TiedAndUnused())
    words = r"embedding\.weight is on the device meta, where it has no values: give the model memory by model\.to_empty"
    with pytest.raises(NotImplementedError, match=rf"^\[fsdp\.compress\] {words}"):
        octavo.compress(model, "int4+ef")
    model.to_empty(device="cpu")
    torch.manual_seed(rank)
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local(), std=0.1)
    octavo.compress(model, "int4+ef")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    digests = []
    for step in range(3):
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    return digests


def test_a_model_that_was_built_on_meta_is_compressed_once_it_has_values(two_ranks):
    first, second = two_ranks.run(build_on_meta)
    assert first == second and len(set(first)) == 3


def disagree(rank: int) -> None:
    model = shard(TiedAndUnused())
    with pytest.raises(ValueError, match="all ranks must have the same plan; rank 1 differs from rank 0"):
        octavo.compress(model, ["int4", "sign"][rank])
    model, handle, _ = make("int4+ef")
    handle.set_plan(["int4+ef", "int4:stochastic+ef"][rank])
    with pytest.raises(RuntimeError, match="was sent a bucket of another step, plan or model"):
        backward(model, rank, 0)
    model.reset_iter_state()
    with pytest.raises(RuntimeError, match="was sent a bucket of another step, plan or model"):
        backward(model, rank, 0)


def test_ranks_that_disagree_are_told_so(two_ranks):
    two_ranks.run(disagree)


def leave(rank: int) -> str:
    model = shard(TiedAndUnused(), reshard_after_forward=False)  # no all-gather in backward: it would wait first
    octavo.compress(model, "int4+ef", timeout_s=2)
    dist.barrier()
    out = model(batch_of(rank, 0)).sum()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["raised"])
        return "stayed away"
    with pytest.raises((TimeoutError, RuntimeError), match=r"a peer did not answer within 2000 ms"):
        out.backward()
    store.set("raised", "")
    return "raised"


def test_a_rank_that_stays_away_is_waited_for_until_the_deadline(two_ranks):
    assert two_ranks.run(leave)[0] == "raised"
