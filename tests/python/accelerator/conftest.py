# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import accelerator_classes
import pytest

from octavo import _C
from octavo.accelerator import set_accelerator


@pytest.fixture(params=accelerator_classes.HERE, ids=lambda make: make.__name__)
def accelerator(request):
    """Returns each accelerator that is here, in turn: what holds for one holds for all."""
    return request.param()


@pytest.fixture
def detection(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Makes the process one in which nothing was chosen yet and no variable names an accelerator."""
    for name in ("OCTAVO_ACCELERATOR", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)
    set_accelerator(None)
    yield monkeypatch
    set_accelerator(None)


@pytest.fixture
def nothing_stays_pinned() -> Iterator[None]:
    before = _C.pinned_bytes()
    yield
    assert _C.pinned_bytes() == before
