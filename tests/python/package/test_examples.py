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


#: Trains by the example's CompressGradients without a break, and once more from the checkpoint of step 8. Without the
#: ranks' own state each optimizer would go another way: in step 8 a warm-up is under way, DistributedLion has momenta
#: of the ranks, and ZeroOneAdam is between two syncs.
RESUMES = """
import runpy, sys, torch, octavo
_, script, folder = sys.argv
example = runpy.run_path(script)
OPTIMIZERS = {
    "topk:0.05+ef+warmup:12": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    "sign-vote": lambda parameters: octavo.optim.DistributedLion(parameters, lr=1e-3),
    "sign+ef": lambda parameters: octavo.optim.ZeroOneAdam(
        parameters, lr=3e-3, var_freeze_step=2, local_step_scaler=2, local_step_clipper=4
    ),
}

def max_norm_of(plan):
    return 1.0 if plan.startswith("topk") else None

def require_the_same(run):
    others = []
    for number, plan in enumerate(OPTIMIZERS):
        place = f"{folder}/{number}"
        ends = [run(plan, place, resumes) for resumes in (False, True)]
        if not all(map(torch.equal, *ends)):
            others.append(plan)
    assert not others, f"{others} go another way"
"""
RESUMES_OF = {
    "trainer": """
def run(plan, place, resumes):
    example["set_seed"](0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
    config = example["LlamaConfig"](vocab_size=64, max_position_embeddings=16, **sizes)
    model = example["LlamaForCausalLM"](config)
    arguments = example["TrainingArguments"](
        output_dir=place, max_steps=12, save_steps=8, per_device_train_batch_size=8, max_grad_norm=0.0,
        report_to="none", use_cpu=True, disable_tqdm=True,
    )
    data = [example["counting"](first) for first in range(640)]
    optimizers = OPTIMIZERS[plan](model.parameters()), None
    trainer = example["Trainer"](model, arguments, train_dataset=data, optimizers=optimizers)
    callback = example["CompressGradients"](trainer, plan, max_norm_of(plan))
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=f"{place}/checkpoint-8" if resumes else None)
    return [parameter.detach() for parameter in model.parameters()]

require_the_same(run)
""",
    "lightning": """
L, DataLoader, TensorDataset = example["L"], example["DataLoader"], example["TensorDataset"]

def run(plan, place, resumes):
    L.seed_everything(0)
    inputs = torch.randn(256, 64)  # an epoch is 8 steps: Lightning cannot resume within one
    data = DataLoader(TensorDataset(inputs, inputs[:, :8].argmax(1)), batch_size=16)
    model, compression = example["Classifier"](), example["CompressGradients"](plan, max_norm_of(plan))
    model.configure_optimizers = lambda: OPTIMIZERS[plan](model.parameters())
    saves = L.pytorch.callbacks.ModelCheckpoint(place, "{step}", every_n_train_steps=8, save_top_k=-1)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=12, callbacks=[compression, saves], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path=f"{place}/step=8.ckpt" if resumes else None)
    return [parameter.detach() for parameter in model.parameters()]

require_the_same(run)
""",
}


@pytest.mark.ranks
@pytest.mark.parametrize("framework", RESUMES_OF)
def test_a_run_that_is_resumed_ends_as_one_without_a_break(framework, tmp_path):
    script = EXAMPLES / framework / "train.py"
    environment = dict(TORCHRUN, OMP_NUM_THREADS="1")
    done = run_ranks(2, RESUMES + RESUMES_OF[framework], script, tmp_path, timeout_s=200, **environment)
    assert [exit_code for exit_code, *_ in done] == [0, 0], done


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


BEGIN = SimpleNamespace(global_step=0)  # the state of a Trainer that does not resume


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
        callback.on_train_begin(None, BEGIN, None)
    assert compressed == [trainer.model_wrapped]
    trainer.model_wrapped = object()
    callback.on_train_begin(None, BEGIN, None)
    assert compressed[1:] == [trainer.model_wrapped]
    assert scalers == 2 * [accelerator.scaler]


def resumed_callback(arguments: SimpleNamespace) -> tuple[object, list]:
    """Returns a callback that resumes at step 4, and the list of what it gives to its handle."""
    loaded: list = []
    callback = trainer_example().CompressGradients(SimpleNamespace(model_wrapped=None), "int4+ef")
    callback.handle = SimpleNamespace(load_state_dict=loaded.append)
    callback.on_train_begin(arguments, SimpleNamespace(global_step=4), None)
    return callback, loaded


def arguments_of(folder: Path, rank: int, ranks: int, named: Path | None = None) -> SimpleNamespace:
    place = dict(process_index=rank, world_size=ranks, save_only_model=False)
    return SimpleNamespace(output_dir=str(folder), resume_from_checkpoint=named and str(named), **place)


def test_other_ranks_are_given_the_states_of_all_that_saved(tmp_path):
    callback = trainer_example().CompressGradients(None, "int4+ef")
    states = [{"rank": rank, "world_size": 2} for rank in range(2)]
    for rank, state in enumerate(states):
        callback.handle = SimpleNamespace(state_dict=lambda state=state: state)
        callback.on_save(arguments_of(tmp_path, rank, 2), SimpleNamespace(global_step=4), None)
    for rank in range(2):
        assert resumed_callback(arguments_of(tmp_path, rank, 2))[1] == [states[rank]]
    for rank in range(3):
        assert resumed_callback(arguments_of(tmp_path, rank, 3))[1] == [states]
    elsewhere = arguments_of(tmp_path / "other", 1, 2, named=tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4}')
    assert resumed_callback(elsewhere)[1] == [states[1]]
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "trainer_state.json").write_text('{"global_step": 2}')
    assert resumed_callback(arguments_of(tmp_path, 1, 2, named=tmp_path / "earlier"))[1] == [states[1]]
    left_of_three = {"rank": 2, "world_size": 3}
    torch.save(left_of_three, tmp_path / "checkpoint-4" / "octavo_2.pt")
    assert resumed_callback(arguments_of(tmp_path, 2, 3))[1] == [states]
    with pytest.warns(UserWarning, match=r"checkpoint-4.octavo_1\.pt is not there: .* begin anew"):
        assert resumed_callback(arguments_of(tmp_path / "other", 1, 2))[1] == []
