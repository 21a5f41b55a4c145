# SPDX-License-Identifier: Apache-2.0
"""Becomes another program that the kernel kills together with its parent process.

    python -I -S die_with_parent.py PARENT_PID PROGRAM [ARGUMENT ...]

The ranks that torch.distributed.elastic starts go on running when their launcher is killed by SIGKILL. A `preexec_fn`
would run Python between fork and exec, where a lock that another thread of the launcher held stays locked for ever. So
each rank begins as this file. It imports nothing of Octavo and takes 20 ms of processor time, and what it asks of the
kernel survives exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, program: str, *arguments: str) -> None:
    """Becomes `program` and does not return. Exits with 1 where the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # ranks share one terminal: none of them may read from it
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
