# SPDX-License-Identifier: Apache-2.0
"""GPUs by torch.cuda, ROCm's too."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from octavo.accelerator.abstract import Accelerator


class CUDA_Accelerator(Accelerator):
    """Where no GPU can be asked, half precisions and Triton are said to be supported, as on all of today's."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def is_bf16_supported(self) -> bool:
        return not self.is_available() or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        """From Volta (7.0) on; what came before computes in float16 more slowly than in float32."""
        return self._has_capability(7)

    def is_triton_supported(self) -> bool:
        """From Ampere (8.0) on."""
        return self._has_capability(8)

    def _has_capability(self, major: int) -> bool:
        return not self.is_available() or torch.cuda.get_device_capability()[0] >= major

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """A range in torch's profile and in NVTX, for the tools that read it."""
        super().range_push(msg)
        if self.is_available():
            torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        super().range_pop()
        if self.is_available():
            torch.cuda.nvtx.range_pop()

    def create_graph(self) -> Any:
        self._require("create_graph")
        return torch.cuda.CUDAGraph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        self._require("capture_to_graph")
        return torch.cuda.graph(graph, pool, stream)

    def replay_graph(self, graph: Any) -> None:
        graph.replay()

    def is_current_stream_capturing(self) -> bool:
        return self.is_available() and torch.cuda.is_current_stream_capturing()
