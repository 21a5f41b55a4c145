# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator

import pytest
from rank_pool import RankPool


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


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[RankPool]:
    pool = RankPool(3)
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    pool = RankPool(4)
    yield pool
    pool.stop()


@pytest.fixture
def ranks_of(request: pytest.FixtureRequest) -> Callable[[int], RankPool]:
    """Returns what gives the pool of a number of ranks, for a test whose parameter is that number."""
    names = {1: "one_rank", 2: "two_ranks", 3: "three_ranks", 4: "four_ranks"}
    return lambda world_size: request.getfixturevalue(names[world_size])
