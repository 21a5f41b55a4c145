# SPDX-License-Identifier: Apache-2.0
"""What an engine counts, and which calls it refuses because of it."""

import pytest

from octavo.zero.progress import Progress


def after(micro_batches: int, of: int = 2) -> Progress:
    progress = Progress(of)
    for _ in range(micro_batches):
        progress.require_next_micro_batch()
        progress.count_micro_batch()
    return progress


def test_a_step_has_so_many_micro_batches():
    assert [after(count).is_last_micro_batch for count in (0, 1)] == [False, True]
    assert [after(count).has_gradients for count in (0, 1, 2)] == [False, False, True]
    with pytest.raises(RuntimeError, match="last micro-batch of this step was already processed"):
        after(3)


def test_a_step_or_a_drop_begins_the_next_step():
    for micro_batches in (0, 1, 2):
        progress = after(micro_batches)
        assert progress.end_gradients() == (micro_batches > 0)
        assert not progress.has_gradients and not progress.is_last_micro_batch
        progress.require_between_steps("save_checkpoint")


def test_checkpoints_are_made_between_steps():
    with pytest.raises(ValueError, match=r"\[zero.load\] 1 of 2 micro-batches of a step have been added up"):
        after(1).require_between_steps("load")
    with pytest.raises(ValueError, match=r"\[zero.load\] backward\(\) has computed the gradients of a step"):
        after(2).require_between_steps("load")


def test_nothing_follows_an_error():
    progress = after(0)
    progress.fail(OSError("no room"))
    for require in (progress.require_usable, progress.require_between_steps):
        with pytest.raises(RuntimeError, match=r"\[zero.step\] an earlier error stopped .* was OSError: no room"):
            require("step")
    with pytest.raises(RuntimeError, match=r"\[zero.backward\] an earlier error stopped this engine"):
        progress.require_next_micro_batch()
