# SPDX-License-Identifier: Apache-2.0
"""The part of each parameter that a rank owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from octavo.zero.peers import Peers


@dataclass
class OwnPart:
    """The part of a parameter that a rank owns, as a shard of the flat parameter. ``values`` is the optimizer's
    parameter, ``gradient`` the buffer that the averaged gradient is written to. ``name``: of the parameter."""

    name: str
    values: nn.Parameter
    gradient: DTensor

    @classmethod
    def of(cls, name: str, values: Tensor, gradient: Tensor, count: int, mesh: DeviceMesh) -> OwnPart:
        """Makes a part of this rank's flat tensors. ``count``: the number of elements of the whole parameter."""
        from torch.distributed.tensor import DTensor, Shard  # takes most of a second, which `import octavo` must not

        def of_all(part: Tensor) -> DTensor:
            shape = torch.Size([count])
            return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))

        return cls(name, nn.Parameter(of_all(values)), of_all(gradient))

    def whole(self, peers: Peers, where: str) -> Tensor:
        """Returns the whole of the flat parameter, on all ranks, which call it together. It does not call
        ``DTensor.full_tensor``, which would gather by Gloo's ALLGATHER_COALESCED: its long name can corrupt the heap
        (HACKING.md, Layers)."""
        count = self.values.numel()
        each = -(-count // peers.size)  # of all ranks but the last ones, as Shard(0) cuts it
        counts = [min(each, max(0, count - rank * each)) for rank in range(peers.size)]
        return peers.concatenation(self.values.data.to_local(), counts, self.name, where)
