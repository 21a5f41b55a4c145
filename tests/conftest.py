# SPDX-License-Identifier: Apache-2.0
"""In a parallel run (pytest-xdist, `--dist loadgroup`) all tests whose processes are ranks run in one worker.

They use every core and have deadlines: two of them at a time would make those deadlines a matter of luck. Ranks of a
test that is not in the group refuse to start (fork_server.require_group).
What test modules import, torch and transformers with it, stays to the end: the garbage collector does not look at it.
"""

import gc
from collections.abc import Iterator

import pytest
from patience import PATIENCE

RANK_FIXTURES = {"two_ranks", "three_ranks", "four_ranks", "ranks_of"}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        given = item.get_closest_marker("timeout")
        limit_s = float(given.args[0] if given else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * limit_s), append=False)
        if item.get_closest_marker("ranks") or RANK_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
