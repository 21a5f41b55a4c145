# SPDX-License-Identifier: Apache-2.0
"""The cores of this machine, and how many ranks they can take."""

import os

RANKS_PER_CORE = 4
"""More local ranks per core than this only wait for one another."""


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_of_rank(nproc: int) -> int:
    """Returns the number of threads for each of ``nproc`` ranks that share this machine's cores."""
    return max(1, usable_cores() // nproc)


def check_local_ranks(nproc: int, cores: int) -> None:
    """Raises ValueError for more ranks on one machine than make sense."""
    if nproc > RANKS_PER_CORE * cores:
        raise ValueError(
            f"[cores] --nproc must be at most {RANKS_PER_CORE * cores} here ({RANKS_PER_CORE} ranks per core, {cores} "
            f"cores), not {nproc}"
        )
