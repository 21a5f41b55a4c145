# SPDX-License-Identifier: Apache-2.0
"""The part of each parameter that a rank owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass
class OwnPart:
    """The part of a parameter that a rank owns, as a shard of the flat parameter. ``values`` is the optimizer's
    parameter, ``gradient`` the buffer that the averaged gradient is written to."""

    values: nn.Parameter
    gradient: DTensor

    @classmethod
    def of(cls, values: Tensor, gradient: Tensor, count: int, mesh: DeviceMesh) -> OwnPart:
        """Makes a part of this rank's flat tensors. ``count``: the number of elements of the whole parameter."""
        from torch.distributed.tensor import DTensor, Shard  # takes most of a second, which `import octavo` must not

        def of_all(part: Tensor) -> DTensor:
            shape = torch.Size([count])
            return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))

        return cls(nn.Parameter(of_all(values)), of_all(gradient))

    def gathered(self) -> Tensor:
        """Returns the whole of the flat parameter, on all ranks, which call it together.

        It does not use ``full_tensor``: Gloo keeps a name of that operation that is too long for ``std::string`` to
        hold in place, and its two threads assign such names without a lock (seen in torch 2.13), which corrupts the
        heap.
        """
        values: DTensor = self.values.data
        group, own = values.device_mesh.get_group(), values.to_local()
        largest = -(-values.numel() // group.size())
        whole = own.new_empty(largest * group.size())
        dist.all_gather(list(whole.chunk(group.size())), F.pad(own, (0, largest - own.numel())), group=group)
        return whole[: values.numel()]
