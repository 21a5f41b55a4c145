# SPDX-License-Identifier: Apache-2.0
"""In a parallel run (pytest-xdist, `--dist loadgroup`) all tests whose processes are ranks run in two workers.

They use every core and have deadlines: more than two of them at a time would make those deadlines a matter of luck.
What test modules import, torch and transformers with it, stays to the end: the garbage collector does not look at it.
"""

import gc
from collections.abc import Iterator

import pytest
from patience import PATIENCE

RANK_FIXTURES = {"two_ranks", "three_ranks", "four_ranks"}
FOLDERS_OF_SECOND_WORKER = {"faults", "sycl", "train", "zero"}  # half of the time that tests of ranks take


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        given = item.get_closest_marker("timeout")
        limit_s = float(given.args[0] if given else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * limit_s), append=False)
        if item.get_closest_marker("ranks") or RANK_FIXTURES & set(getattr(item, "fixturenames", ())):
            is_second = item.path.parent.name in FOLDERS_OF_SECOND_WORKER
            item.add_marker(pytest.mark.xdist_group("other ranks" if is_second else "ranks"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
