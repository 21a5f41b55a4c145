# SPDX-License-Identifier: Apache-2.0
"""The order of what ranks do, by keys of the group's store: a rank goes on when another has come so far, not when some
seconds are over."""

from datetime import timedelta

import torch.distributed as dist
from patience import PATIENCE


def tell(what: str) -> None:
    """Says to all ranks of this run that `what` has happened."""
    dist.distributed_c10d._get_default_store().set(f"turns/{what}", "")


def wait_until(what: str, timeout_s: float = 30) -> None:
    """Waits until some rank has told `what`. After `timeout_s` (patience.py) this is an error; other threads run."""
    dist.distributed_c10d._get_default_store().wait([f"turns/{what}"], timedelta(seconds=PATIENCE * timeout_s))
