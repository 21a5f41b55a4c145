# SPDX-License-Identifier: Apache-2.0
"""The torch device `sycl`: every test leaves as many bytes allocated as it found, to the byte."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import octavo.sycl

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = octavo.sycl.why_missing()
    for item in items:
        if reason and _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"no device sycl: {reason}"))


@pytest.fixture(autouse=True)
def exact_figures() -> Iterator[None]:
    gc.collect()
    before = torch.sycl.memory_allocated()
    yield
    torch.sycl.synchronize()
    gc.collect()
    assert torch.sycl.memory_allocated() == before


@pytest.fixture(autouse=True, scope="session")
def nothing_left() -> Iterator[None]:
    yield
    if not octavo.sycl.why_missing():
        gc.collect()
        assert torch.sycl.memory_allocated() == 0
