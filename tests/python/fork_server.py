# SPDX-License-Identifier: Apache-2.0
"""Processes that begin with torch imported and nothing else done. They are forked from one that has imported it,
because importing torch takes more than a second of a core. So does importing torch._dynamo, which torch imports at the
first step of any optimizer, and the model that jobs train, so these are imported too. Of the environment variables that
torch reads while it is imported, the processes obey only OMP_NUM_THREADS.
"""

import gc
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from patience import PATIENCE

# No test asks a hub. The variable is read where transformers is imported: in the fork server.
os.environ["HF_HUB_OFFLINE"] = "1"


def start(function: Callable[..., Any], *args: Any, daemon: bool = False, **environment: str) -> ForkServerProcess:
    """Starts a process for `function(*args)`, with this process's environment and `environment`.

    `function` must be importable (top level of a module). This process waits for it before it ends, or kills it if it
    is a `daemon`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "transformers.models.llama.modeling_llama"])
    process = context.Process(target=_call, args=(function, args, {**os.environ, **environment}), daemon=daemon)
    process.start()
    return process


def run_code(code: str, *arguments: str | Path, timeout_s: float = 60, **environment: str) -> tuple[int, str, str]:
    """Runs a program as `python -c code arguments` does; returns its exit code, its stdout and its stderr.

    It is killed after `timeout_s` seconds (of two quiet cores: patience.py); its exit code is then minus SIGKILL.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        process = start(_run, code, [str(argument) for argument in arguments], files, **environment)
        process.join(PATIENCE * timeout_s)
        process.kill()
        process.join()
        return process.exitcode, *(file.read_text() if file.exists() else "" for file in files)


def require_group(ranks: int) -> None:
    """Refuses ranks that would run beside those of another worker of pytest-xdist (tests/conftest.py)."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if ranks > 1 and "PYTEST_XDIST_WORKER" in os.environ and "@ranks" not in test:
        raise RuntimeError(
            f"{test} starts {ranks} ranks: it needs a fixture of two ranks or more, `ranks_of` or `pytest.mark.ranks`, "
            "and a parallel run needs `--dist loadgroup`"
        )


def run_ranks(
    count: int, code: str, *arguments: str | Path, timeout_s: float, **environment: str
) -> list[tuple[int, str, str]]:
    """Does `run_code` for each rank of a job on this machine, all at the same time. Returns the results in rank
    order."""
    require_group(count)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    group |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}

    def run(rank: int) -> tuple[int, str, str]:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return run_code(code, *arguments, timeout_s=timeout_s, **environment, **group, **place)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def _call(function: Callable[..., Any], args: tuple[Any, ...], environment: Mapping[str, str]) -> None:
    gc.freeze()  # garbage collections then look at what the process makes, not at all of torch
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    function(*args)


def _run(code: str, arguments: list[str], files: list[Path]) -> None:
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
