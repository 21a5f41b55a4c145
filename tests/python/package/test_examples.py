# SPDX-License-Identifier: Apache-2.0
"""The examples of examples/{trainer,accelerate,lightning,codec,fsdp} on two ranks, without a download."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fork_server import run_ranks

import octavo

EXAMPLES = Path(__file__).parents[3] / "examples"

#: Runs a script with its arguments in a folder.
RUN = """
import os, runpy, sys
_, folder, *sys.argv = sys.argv
os.chdir(folder)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: The variables by which Lightning recognizes torchrun. torchrun itself would import torch, and each rank once more.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}

pytestmark = pytest.mark.timeout(240)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("framework", "options"),
    [("trainer", []), ("trainer", ["--one-bit"]), ("accelerate", []), ("lightning", []), ("codec", []), ("fsdp", [])],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_the_loss_falls_while_a_quarter_of_the_bytes_travels(framework, options, tmp_path):
    script = EXAMPLES / framework / "train.py"
    environment = dict(TORCHRUN, OMP_NUM_THREADS="1", TORCH_EXTENSIONS_DIR=str(tmp_path))
    done = run_ranks(2, RUN, tmp_path, script, *options, timeout_s=230, **environment)
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    said = "".join(said for _, said, _ in done)
    first, last = map(float, re.search(r"^loss: (\S+) -> (\S+)$", said, re.MULTILINE).groups())
    assert last < 0.8 * first
    sent, dense = map(int, re.search(r"^bytes sent: (\d+), in float32: (\d+)$", said, re.MULTILINE).groups())
    assert 0 < sent < dense / 4, said  # 4 bits per value, and the exempt vectors of a very small model


def trainer_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trainer_example", EXAMPLES / "trainer" / "train.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


@pytest.mark.parametrize("is_unscaled", [False, True])
def test_gradients_are_unscaled_once_whatever_trainer_has_done(is_unscaled):
    """From some version on, Trainer does it for the norm that it logs."""
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(parameter.sum()).backward()
    if is_unscaled:
        scaler.unscale_(optimizer)
    accelerator = SimpleNamespace(unscale_gradients=lambda: scaler.unscale_(optimizer))
    callback = trainer_example().CompressGradients(SimpleNamespace(accelerator=accelerator), "int4+ef", max_norm=2.5)
    callback.handle = SimpleNamespace(clip_grad_norm_=lambda norm: torch.nn.utils.clip_grad_norm_([parameter], norm))
    callback.on_pre_optimizer_step(None, None, None)
    assert torch.equal(parameter.grad, torch.ones(4))


def test_a_second_train_goes_on_with_the_hook_of_the_first(monkeypatch):
    """DistributedDataParallel accepts only one hook."""
    example = trainer_example()
    compressed = []
    scalers = []

    def compress(model, *_, scaler, **__):
        compressed.append(model)
        scalers.append(scaler)

    monkeypatch.setattr(octavo, "compress", compress)
    accelerator = SimpleNamespace(scaler=object())
    trainer = SimpleNamespace(model_wrapped=object(), optimizer=None, accelerator=accelerator)
    callback = example.CompressGradients(trainer, "int4+ef")
    for _ in range(2):
        callback.on_train_begin(None, None, None)
    assert compressed == [trainer.model_wrapped]
    trainer.model_wrapped = object()
    callback.on_train_begin(None, None, None)
    assert compressed[1:] == [trainer.model_wrapped]
    assert scalers == 2 * [accelerator.scaler]
