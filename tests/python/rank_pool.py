# SPDX-License-Identifier: Apache-2.0
"""Processes as ranks, kept between tests, because starting Python and torch takes longer than most tests."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fork_server
from patience import PATIENCE


def _serve(rank: int, world_size: int, pipe: Any, stderr: Path) -> None:
    # The error of a test contains what each rank wrote last, including the stack of a rank that died or is late.
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)

    import torch
    import torch.distributed as dist

    import octavo  # noqa: F401

    torch.set_num_threads(1)
    while True:
        work = pipe.recv()
        if work is None:
            return
        function, args, store, timeout_s = work
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout_s),
            )
            dist.barrier()  # a rank that is done at once must not leave while another still connects to it
            pipe.send(("ok", function(rank, *args)))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            if len(os.listdir("/proc/self/task")) > _MANY_THREADS:
                _forget_groups()


_MANY_THREADS = 24


def _forget_groups() -> None:
    """Lets go of groups that were destroyed, because the threads of each wake hundreds of times a second, and slow down
    all other tests. torch keeps meshes in the caches of DTensors, and meshes keep groups."""
    from torch.distributed.device_mesh import DeviceMesh

    for one in gc.get_objects():
        if type(one) is DeviceMesh:
            one._pg_registry.clear()
    gc.collect()


class RankPool:
    """``run(function, *args)`` calls ``function(rank, *args)`` in every rank of a new Gloo group, and returns the
    results in rank order. ``function`` must be importable (top level of a test module). `timeout_s`, in seconds of two
    quiet cores (patience.py), is also the group's timeout."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self._ranks: list[tuple[Any, Any]] = []
        self._runs = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
        fork_server.require_group(self.world_size)
        if not self._ranks:
            self._start()
        self._runs += 1
        timeout_s *= PATIENCE
        store = Path(self._folder.name) / f"store-{self._runs}"
        for _, pipe in self._ranks:
            pipe.send((function, args, store, timeout_s))
        answers = [self._answer(rank, timeout_s) for rank in range(self.world_size)]
        errors = [f"rank {rank}: {text}" for rank, (kind, text) in enumerate(answers) if kind == "error"]
        if errors:
            raise AssertionError("\n".join(errors))
        return [value for _, value in answers]

    def stop(self) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        # The folder must exist as long as the ranks: a store that a rank still holds ends its process when the folder
        # is gone.
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.world_size):
            ours, theirs = multiprocessing.Pipe()
            self._stderr(rank).touch()
            process = fork_server.start(_serve, rank, self.world_size, theirs, self._stderr(rank), daemon=True)
            theirs.close()
            self._ranks.append((process, ours))

    def _answer(self, rank: int, timeout_s: float) -> tuple[str, Any]:
        _, pipe = self._ranks[rank]
        try:
            if pipe.poll(timeout_s + 30):
                return pipe.recv()
            what = f"did not answer within {timeout_s + 30} s"
        except (EOFError, ConnectionError):
            what = "died"
        try:
            said = "\n".join(self._last_words(other) for other in range(self.world_size))
        finally:
            self.stop()
        raise AssertionError(f"rank {rank} {what}\n{said}")

    def _stderr(self, rank: int) -> Path:
        return Path(self._folder.name) / f"stderr-{rank}"

    def _last_words(self, rank: int) -> str:
        process, _ = self._ranks[rank]
        process.join(1)
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)  # writes the stacks of its threads
            time.sleep(1)
        text = self._stderr(rank).read_text(errors="replace")[-4000:]
        return f"rank {rank}, exit code {process.exitcode}, wrote last:\n{text}"
