# SPDX-License-Identifier: Apache-2.0
"""Process groups of Octavo's own."""

from datetime import timedelta

import torch.distributed as dist


def private_group(group: dist.ProcessGroup | None, timeout_s: float) -> dist.ProcessGroup:
    """A new group of the same ranks, for one thread's collectives alone; call it on all of these ranks.

    Collectives of one group are matched by their order. Ours are issued by a thread of our own while DDP issues some
    (the map of used parameters), and the user's code others: on a shared group the orders would differ by rank.
    """
    return dist.new_group(
        ranks=dist.get_process_group_ranks(group if group is not None else dist.group.WORLD),
        timeout=timedelta(seconds=timeout_s),
        backend="gloo",
        use_local_synchronization=True,
        group_desc="octavo",
    )
