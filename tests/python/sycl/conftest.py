# SPDX-License-Identifier: Apache-2.0
"""The torch device `sycl`: every test leaves exactly as many bytes allocated as it found."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool

import octavo.sycl

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = octavo.sycl.why_missing()
    for item in items:
        if reason and _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no device sycl: {reason}"))


# Ranks only for these tests: where backward ran before `sycl` was registered, it cannot run on `sycl` any more, and
# where it is registered, torch takes it for the device of other tests.
@pytest.fixture(scope="session")
def one_rank() -> Iterator[RankPool]:
    pool = RankPool(1)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.stop()


@pytest.fixture(autouse=True)
def exact_figures() -> Iterator[None]:
    gc.collect()
    # the collection after the test then examines only what the test made, not all of torch and transformers
    gc.freeze()
    before = torch.sycl.memory_allocated()
    yield
    torch.sycl.synchronize()
    gc.collect()
    assert torch.sycl.memory_allocated() == before


@pytest.fixture(autouse=True, scope="session")
def nothing_left() -> Iterator[None]:
    yield
    if not octavo.sycl.why_missing():
        gc.unfreeze()
        gc.collect()
        assert torch.sycl.memory_allocated() == 0
