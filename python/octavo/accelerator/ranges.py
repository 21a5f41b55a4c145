# SPDX-License-Identifier: Apache-2.0
"""Nested ranges in torch's profiler, opened and closed by calls, a stack for each thread."""

import threading

from torch.profiler import record_function


class _Stack(threading.local):
    def __init__(self) -> None:
        self.ranges: list[record_function] = []


_open = _Stack()


def push(name: str) -> None:
    entered = record_function(name)
    entered.__enter__()
    _open.ranges.append(entered)


def pop() -> None:
    if not _open.ranges:
        raise RuntimeError("[accelerator.range_pop] expected a range that range_push opened in this thread, got none")
    _open.ranges.pop().__exit__(None, None, None)
