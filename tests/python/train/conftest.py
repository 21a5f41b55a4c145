# SPDX-License-Identifier: Apache-2.0
import pytest

from octavo.train import errors


@pytest.fixture(autouse=True)
def no_run_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process makes one job, and remembers that --fresh has removed a run; tests make many jobs in one process."""
    monkeypatch.setattr(errors, "_has_started_over", False)
