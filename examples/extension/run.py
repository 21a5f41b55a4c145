# SPDX-License-Identifier: Apache-2.0
"""Builds the operator of gated_add.cpp and gated_add.sycl, and compares it with torch: python
examples/extension/run.py"""

from pathlib import Path

import torch

import octavo.build
import octavo.sycl

HERE = Path(__file__).parent


def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns what the operator computes, by torch's own operators."""
    return torch.where(torch.signbit(x) == torch.signbit(y), x, x + y)


def main() -> None:
    octavo.build.load("octavo_example_gated_add", [HERE / "gated_add.cpp", HERE / "gated_add.sycl"])
    for device in ("cpu", "sycl"):
        x, y = torch.randn(2, 100_003).to(device)
        equal = torch.equal(torch.ops.example.gated_add(x, y), expected(x, y))
        print(f"{device}: {'equal to torch, bit by bit' if equal else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
