# SPDX-License-Identifier: Apache-2.0
"""`octavo bench kernels`: each figure says of how many threads it is."""

from __future__ import annotations

import pytest
import torch

from octavo.bench import kernels

pytestmark = pytest.mark.timeout(120)


def test_every_figure_says_its_threads_and_unpackbits_is_shown_both_ways(monkeypatch):
    monkeypatch.setattr(kernels, "BUCKET", 2**14)
    before = torch.get_num_threads()
    rows = kernels.bench(elements=4096, rounds=1)
    assert torch.get_num_threads() == before
    threads = {(row.kernel, row.limit): row.threads for row in rows}
    assert threads["packbits, one thread", "numpy.packbits, one thread"] == 1
    assert threads["packbits", "numpy.packbits, one thread"] == before
    assert threads["unpackbits, out=", "fill"] == threads["unpackbits", "fill"] == before
    assert all(row.threads for row in rows)
