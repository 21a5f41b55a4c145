# SPDX-License-Identifier: Apache-2.0
"""`octavo bench kernels`: each figure states its number of threads."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from octavo.bench import cli, kernels, output

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


def test_a_table_in_a_file_breaks_no_number_and_no_name(capsys):
    texts = {"kernel": "encode + decode sign:262144+ef", "limit": "numpy.packbits, one thread"}
    row = {**texts, **{f"figure {i}": 12345.67 for i in range(4)}}
    output.show("kernels", [row], {name: name for name in row}, None)
    shown = capsys.readouterr().out
    assert all(text in shown for text in texts.values()) and shown.count("12,34") == 4


def test_a_measured_step_keeps_nearly_all_of_the_parameters(monkeypatch):
    lost, step = [], torch.ops.octavo.frozen_adamw_

    def watched(parameter: torch.Tensor, update: torch.Tensor, mean: torch.Tensor, rate: float, decay: float) -> None:
        left = parameter.clone()
        step(left, torch.zeros_like(update), mean, rate, decay)
        lost.append(float(1 - left.norm() / parameter.norm()))

    monkeypatch.setattr(kernels, "BUCKET", 2**14)
    monkeypatch.setattr(torch.ops.octavo, "frozen_adamw_", watched)
    kernels.bench_device(torch.device("cpu"), [2**14], rounds=1, groups=["steps"])
    assert lost and all(0 < share < 1e-4 for share in lost)


def test_groups_are_measured_alone(monkeypatch):
    monkeypatch.setattr(kernels, "BUCKET", 2**14)
    assert {row.kernel for row in kernels.bench(rounds=1, groups=["steps"])} == {"adamw"}
    on_device = kernels.bench_device(torch.device("cpu"), [2**14], rounds=1, groups=["bits"])
    assert {row.kernel for row in on_device} == {"packbits", "unpackbits"}
    result = CliRunner().invoke(cli.app, ["kernels", "packing"])
    assert result.exit_code == 2 and "expected groups among bits, codecs," in result.output
