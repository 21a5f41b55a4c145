# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest
from train_runs import solo_world

from octavo.train import errors
from octavo.train.launch.world import World


@pytest.fixture(autouse=True)
def no_run_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process makes one job, and remembers that --fresh has removed a run; tests make many jobs in one process."""
    monkeypatch.setattr(errors, "_has_started_over", False)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The world of a job whose only rank is this process."""
    with solo_world() as one:
        yield one
