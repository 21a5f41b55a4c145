# SPDX-License-Identifier: Apache-2.0
"""`octavo bench optim` and `octavo bench memory`: what they count, what they leave out, and a model that fits a device
only with paged states."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import octavo
from octavo.bench import cli, memory, optim, optim_peers, timing

pytestmark = pytest.mark.timeout(180)

SMALL = 900_000


@pytest.fixture
def alone(monkeypatch):
    """Hides all other libraries, including parts that another test of this process has imported."""
    for name in {name for name in sys.modules if name.partition(".")[0] in optim_peers.PEERS} | set(optim_peers.PEERS):
        monkeypatch.setitem(sys.modules, name, None)


def bench(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def test_shapes_are_as_many_elements_as_asked_for_and_one_is_half_of_them():
    for elements in (1024, 9999, SMALL, 26_000_000):
        sizes = [torch.Size(shape).numel() for shape in optim.shapes_of(elements)]
        assert sum(sizes) == elements and min(sizes) > 0
        if elements >= SMALL:
            assert all(size % 256 == 0 for size in sizes if size >= 4096 and size != sizes[-1])
            assert max(sizes) == sizes[0] == pytest.approx(elements / 2, rel=0.5) and len(sizes) > 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_optimizer_has_its_bytes(alone, tmp_path, dtype):
    path = tmp_path / "rows.json"
    done = bench("optim", f"--elements={SMALL}", "--rounds=2", f"--dtype={dtype}", "--threads=1", f"--json={path}")
    assert done.exit_code == 0, done.output
    rows = {row["optimizer"]: optim.Row(**row) for row in json.loads(path.read_text())}
    assert set(rows) >= {optim.COPY, optim.BASELINE, *(f"octavo {name}" for name in optim.OWN)}
    width = 4 if dtype == "float32" else 2
    moments = {"Adam": 2, "AdamW": 2, "PagedAdamW": 2, "Lion": 1}
    for name in optim.OWN:
        family, bits = name.removesuffix("8bit").removesuffix("4bit"), int(re.sub(r"\D", "", name) or 32)
        row = rows[f"octavo {name}"]
        scales = {32: 0, 8: 4 / 256, 4: 4 / 128}[bits]
        # norms and similar parameters are smaller than min_8bit_size, and every tensor has a step
        assert row.state_per_parameter == pytest.approx(moments[family] * (bits / 8 + scales), rel=0.35)
        assert row.moved_per_parameter == pytest.approx(3 * width + 2 * row.state_per_parameter)
        assert row.dtype == dtype and row.threads == 1
    assert rows["octavo AdamW8bit"].state_per_parameter < rows["octavo AdamW"].state_per_parameter / 2
    assert rows["octavo PagedAdamW8bit"].state_per_parameter == rows["octavo AdamW8bit"].state_per_parameter
    assert rows[optim.BASELINE].dtype == "float32" and rows[optim.BASELINE].of_torch == 1
    assert rows[optim.COPY].of_copy == 1 and rows[optim.COPY].of_torch is None
    assert all(row.nanoseconds >= row.least_nanoseconds > 0 for row in rows.values())
    for library in optim_peers.PEERS:
        assert f"{library} is left out: " in done.stdout and f"pip install {library} installs it" in done.stdout


def test_the_number_of_threads_is_what_it_was(alone):
    before = torch.get_num_threads()
    report = optim.bench(2048, rounds=1, threads=before + 1)
    assert {row.threads for row in report.rows} == {before + 1} and torch.get_num_threads() == before


def test_what_another_library_lacks_is_a_remark_and_the_others_are_measured(monkeypatch):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise AssertionError("no compiler\nand more")

    def absent():
        raise ImportError("No module named 'absent'")

    half_broken = {
        "broken SGD": lambda parameters, lr: Broken(parameters, lr=lr),
        "peer SGD": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    }
    peers = {
        "peer": optim_peers.Peer(tuple(half_broken), lambda: half_broken),
        "absent": optim_peers.Peer(("absent SGD",), absent),
    }
    monkeypatch.setattr(optim, "PEERS", peers)
    report = optim.bench(2048, rounds=1)
    assert report.remarks == [
        "broken SGD is left out: no compiler",
        "absent is left out: No module named 'absent'; pip install absent installs it",
    ]
    (row,) = (row for row in report.rows if row.optimizer == "peer SGD")
    assert row.state_per_parameter == 4 and row.moved_per_parameter == 12 + 8


def test_contenders_are_measured_alone(alone):
    assert optim.bench(2048, rounds=1, words=["octavo lion"]).remarks == []  # of nothing that was not asked for
    report = optim.bench(2048, rounds=1, words=["adamw8BIT"])
    assert [remark.partition(" ")[0] for remark in report.remarks] == ["bitsandbytes", "torchao"]
    names = {row.optimizer for row in report.rows}
    assert names == {optim.COPY, optim.BASELINE, "octavo AdamW8bit", "octavo PagedAdamW8bit"}


class Pair(Tensor):
    """A tensor made of two others, like torchao's states."""

    @staticmethod
    def __new__(cls, codes, scale):
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)

    def __tensor_flatten__(self):
        return ["codes", "scale"], []


def test_states_of_other_libraries_are_counted_by_what_they_hold():
    parameters = [torch.nn.Parameter(torch.zeros(512)) for _ in range(2)]
    shared = torch.zeros(256)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for parameter in parameters:
        made_of_two = Pair(torch.zeros(512, dtype=torch.uint8), torch.zeros(2))
        optimizer.state[parameter] = {"state1": made_of_two, "qmap": shared, "step": 1}
    assert optim.state_bytes(optimizer) == 2 * (512 + 8) + 1024


def test_a_contender_may_be_asked_for_by_the_name_that_train_has_for_it():
    names = ["octavo AdamW8bit", "octavo PagedAdamW8bit", "octavo Lion8bit"]
    assert [name for name in names if timing.is_wanted(["paged-adamw8bit", "lion8bit"], name)] == names[1:]
    timing.check_words("bench.optim", ["paged-adamw8bit"], names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("optim", "--dtype=float64"), "--dtype must be float32 or bfloat16, not 'float64'"),
        (("optim", "--threads=100000"), "--threads must be at most "),
        (("optim", "--elements=2048", "lion", "nosuch"), "none of these names has 'nosuch' in it: copy; torch AdamW"),
        (("memory", "nosuch"), "none of these names has 'nosuch' in it: torch AdamW; AdamW; AdamW8bit; "),
        (("memory", "--model=huge"), "--model must be tiny, small or 220m, not 'huge'"),
        (("memory", "--device=tpu"), "--device must be sycl or cpu, not 'tpu'"),
        (("memory", "--device=cpu", "--limit=100"), "--limit is for a device with memory of its own"),
    ],
)
def test_options_that_make_no_sense_are_refused(alone, arguments, words):
    done = bench(*arguments)
    assert done.exit_code == 2 and words in done.output


def test_more_elements_than_memory_are_an_error_in_a_sentence(alone):
    done = bench("optim", "lion", "--elements=100000000000000", "--rounds=1")
    assert done.exit_code == 1 and done.output.startswith("error: ") and "memory" in done.output


def test_figures_that_find_no_room_are_in_the_table(alone):
    done = bench("optim", "lion", "--elements=2048", "--rounds=1", "--json=/dev/full")
    assert done.exit_code == 1 and "octavo Lion8bit" in done.stdout
    assert done.stderr.startswith(
        "error: [bench.options] --json /dev/full cannot be written: No space left on device; "
    )


def test_memory_on_the_cpu_has_no_figure_of_a_device():
    (row,) = memory.measure("tiny", "cpu", steps=1, cases=["PagedAdamW"])
    assert (row.fits, row.device, row.device_mib, row.saved_percent) == ("yes", "cpu", None, None)
    assert row.managed_mib == pytest.approx(8 * row.parameters / 2**20, rel=0.01)
    assert row.process_mib > row.managed_mib


def test_a_case_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"^\[bench\.memory\] NoSuch on cpu has failed: .*NoSuch"):
        memory.measure("tiny", "cpu", steps=1, cases=["NoSuch"])


def test_a_case_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(memory, "DEADLINE_S", 0.1)
    with pytest.raises(RuntimeError, match=r"^\[bench\.memory\] PagedAdamW on cpu was not finished after 0 hours"):
        memory.measure("tiny", "cpu", steps=1, cases=["PagedAdamW"])


def test_savings_are_of_adamws_peak():
    rows = [memory.Row(name, "sycl", 1, "yes", mib, 0.0, 1.0, 1.0) for name, mib in (("AdamW", 8.0), ("Paged", 2.0))]
    rows.append(memory.Row("large", "sycl", 1, "no", None, None, None, None))
    assert [row.saved_percent for row in memory.with_savings(rows)] == [0.0, 75.0, None]


SYCL = octavo._C.backend_status("sycl")
needs_sycl = pytest.mark.skipif(not SYCL["available"], reason=f"no device sycl: {SYCL['reason']}")


@needs_sycl
def test_paged_states_are_none_of_the_devices_and_fit_where_adamw_does_not():
    free = {row.optimizer: row for row in memory.measure("tiny", "sycl", steps=2, cases=["AdamW", "PagedAdamW8bit"])}
    whole, paged = free["AdamW"], free["PagedAdamW8bit"]
    states = 8 * whole.parameters / 2**20
    assert whole.managed_mib == 0 and paged.managed_mib == pytest.approx(states / 4, rel=0.02)
    assert paged.device_mib < whole.device_mib - 0.9 * states
    limit = (paged.device_mib + whole.device_mib) / 2
    capped = memory.measure("tiny", "sycl", limit_mib=limit, steps=2, cases=["AdamW", "PagedAdamW8bit"])
    assert [(row.optimizer, row.fits) for row in capped] == [("AdamW", "no"), ("PagedAdamW8bit", "yes")]
    assert capped[0].device_mib is None and capped[1].loss == paged.loss
    released = f"PagedAdamW8bit{memory.RELEASED}"
    (least,) = memory.measure("tiny", "sycl", steps=2, cases=[released])
    assert least.device_mib <= paged.device_mib and least.loss == paged.loss
    (recomputed,) = memory.measure("tiny", "sycl", steps=2, cases=[released], recompute=True)
    assert recomputed.device_mib < least.device_mib and recomputed.loss == least.loss
