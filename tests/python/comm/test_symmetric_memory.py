# SPDX-License-Identifier: Apache-2.0
"""Memory that processes share: ZeRO has the same bits with and without it, and no end of a process leaves anything
behind."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fork_server import run_ranks
from rank_pool import RankPool
from torch import Tensor
from zero_runs import TiedAndFrozen, adamw, step_once, trained

import octavo
from octavo import _C
from octavo.rendezvous import Rendezvous


def connected() -> tuple[dist.Backend, dist.Backend]:
    """Returns Gloo, and the same ranks connected through shared memory."""
    gloo = Rendezvous(dist.group.WORLD, "test", 30.0).connect()
    shared, why_not = _C.reach_by_shared_memory(gloo, True, 30.0)
    assert why_not == ""
    return gloo, shared


def shared_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:octavo")


COMPRESSED = {"plan": "int4+ef", "gather": "int8"}


@pytest.mark.parametrize(
    ("world", "stage", "plans"),
    [
        *((2, 3, plans) for plans in ({}, COMPRESSED, {"plan": "bf16:lossless"})),
        (2, 1, COMPRESSED),
        (2, 2, {}),
        (3, 3, COMPRESSED),
        (4, 2, COMPRESSED),
    ],
    ids=str,
)
def test_zero_trains_to_the_same_bits(two_ranks, three_ranks, four_ranks, world, stage, plans):
    ranks = {2: two_ranks, 3: three_ranks, 4: four_ranks}[world]
    config = {"zero_stage": stage, "bucket_mib": 0.02, "gather_mib": 0.02} | plans
    without = ranks.run(trained, torch.optim.AdamW, config | {"symmetric_memory": False}, 6)
    through = ranks.run(trained, torch.optim.AdamW, config | {"symmetric_memory": True}, 6)
    for (losses, sent, parameters), (expected, expected_sent, expected_parameters) in zip(
        through, without, strict=True
    ):
        assert losses == expected and sent == expected_sent
        assert all(a.equal(b) for a, b in zip(parameters, expected_parameters, strict=True))


def chosen(rank: int, wanted: bool | None) -> tuple[bool, list[str]]:
    """Returns whether the memory is shared, and the warnings."""
    model = TiedAndFrozen()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = octavo.initialize(model, adamw(model), {"zero_stage": 2, "symmetric_memory": wanted})
    step_once(engine, rank, 0)
    is_shared = not engine._engine.why_no_symmetric_memory()
    return is_shared, [str(one.message) for one in caught if "symmetric_memory" in str(one.message)]


def test_it_is_chosen_by_itself_and_by_the_option(two_ranks):
    for wanted in (None, True, False):
        assert two_ranks.run(chosen, wanted) == [(wanted is not False, [])] * 2


def chosen_where_one_cannot(rank: int, wanted: bool | None) -> tuple[bool, list[str]]:
    """Does the same as `chosen`, where rank 1 may map no more memory while the ranks try it."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    make, has_tried = _C.Engine, []

    def limited(*arguments: Any, **named: Any) -> _C.Engine:
        if rank == 1:
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**29, limits[1]))
            has_tried.append(True)
        return make(*arguments, **named)

    _C.Engine = limited
    try:
        result = chosen(rank, wanted)
    finally:
        _C.Engine = make
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(has_tried) == rank
    return result


def test_where_one_rank_cannot_none_does(two_ranks):
    assert two_ranks.run(chosen_where_one_cannot, None) == [(False, [])] * 2
    (_, of_rank_0), (_, of_rank_1) = two_ranks.run(chosen_where_one_cannot, True)
    words = "[zero.initialize] ranks use the network in place of symmetric_memory: "
    assert len(of_rank_0) == len(of_rank_1) == 1 and of_rank_0[0].startswith(words)
    assert "mmap said" in of_rank_1[0]


def collectives(rank: int, count: int) -> list[Tensor]:
    _, shared = connected()
    world = shared.size()
    whole = torch.arange(count * world, dtype=torch.float32) * (rank + 1)
    part, gathered, exchanged = torch.empty(count), torch.empty(count * world), torch.empty(count * world)
    works = [
        shared._reduce_scatter_base(part, whole),
        shared._allgather_base(gathered, whole[:count]),
        shared.alltoall_base(exchanged, whole, [], []),
    ]
    for work in reversed(works):
        work.wait()
    return [part, gathered, exchanged]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_collectives_of_processes(two_ranks, three_ranks, four_ranks, world):
    ranks = {2: two_ranks, 3: three_ranks, 4: four_ranks}[world]
    for count in (0, 1, 77, 100_001):
        values = torch.arange(count * world, dtype=torch.float32).view(world, count)
        factors = range(1, world + 1)
        for rank, (part, gathered, exchanged) in enumerate(ranks.run(collectives, count)):
            expected = sum((values[rank] * factor for factor in factors), torch.zeros(count))
            assert part.equal(expected)
            assert gathered.equal(torch.cat([values[0] * factor for factor in factors]))
            assert exchanged.equal(torch.cat([values[rank] * factor for factor in factors]))


def mappings_around_a_connection(rank: int) -> list[int]:
    """Returns the number of shared mappings before a connection, with it and after it."""
    gc.collect()
    counts = [shared_mappings()]
    gloo, shared = connected()
    counts.append(shared_mappings())
    dist.barrier()  # Gloo's connections must not end while another rank still makes them
    del gloo, shared
    gc.collect()
    return [*counts, shared_mappings()]


def test_nothing_is_left_of_a_connection(two_ranks):
    for before, meanwhile, after in two_ranks.run(mappings_around_a_connection):
        assert meanwhile == before + 2 and after == before


def killed(rank: int, folder: str) -> None:
    """Kills rank 1; its peer writes what it says to a file."""
    model = TiedAndFrozen()
    config = {"zero_stage": 3, "bucket_mib": 0.02, "symmetric_memory": True, "timeout_s": 60.0}
    engine = octavo.initialize(model, adamw(model), config)
    for batch in range(3):
        step_once(engine, rank, batch)
        if rank == 1 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    Path(folder, "went on").touch()


def dies_alone(rank: int, folder: str) -> None:
    try:
        killed(rank, folder)
    except RuntimeError as error:
        Path(folder, "said").write_text(str(error))


@pytest.mark.ranks
def test_a_killed_peer_is_named_and_leaves_nothing_behind(tmp_path):
    before = set(os.listdir("/dev/shm"))
    pool = RankPool(2)
    try:
        with pytest.raises(AssertionError, match="rank 1 died"):
            pool.run(dies_alone, str(tmp_path))
    finally:
        pool.stop()
    said = (tmp_path / "said").read_text()
    assert "[comm.shared_memory] rank 0: rank 1 (process " in said and "has ended" in said
    assert not (tmp_path / "went on").exists()
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "octavo" in name]


#: `octavo bench` in a process that has imported torch.
BENCH = """
import sys
from octavo.bench.cli import app
app(sys.argv[1:])
"""


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_the_bench_has_both_collectives_of_every_size(tmp_path):
    path = tmp_path / "rows.json"
    done = run_ranks(2, BENCH, "host", "--rounds=1", f"--json={path}", timeout_s=150, OMP_NUM_THREADS="1")
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    rows = json.loads(path.read_text())
    sizes = (64, 256, 1024, 4096, 16384, 65536)
    assert [(row["whole_kib"], row["collective"]) for row in rows] == [
        (size, name) for size in sizes for name in ("gather", "reduce")
    ]
    assert all(row["gloo_ms"] > 0 and row["in_place_ms"] > 0 for row in rows)
