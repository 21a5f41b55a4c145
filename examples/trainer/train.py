# SPDX-License-Identifier: Apache-2.0
"""HF Trainer with compressed gradients: torchrun --nproc-per-node 2 examples/trainer/train.py [--one-bit]

The script is an ordinary one except for CompressGradients, which works with any model and any optimizer of Trainer.
With Signum, DistributedLion and ZeroOneAdam, which do not clip, give it max_norm=None. With --one-bit the optimizer is
OneBitAdamW, which sends its momentum in one bit after a warm-up.
"""

import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)

import octavo


class CompressGradients(TrainerCallback):
    """Compresses the gradients of the model that Trainer has wrapped in DistributedDataParallel, and clips them to
    max_norm, unless it is None, in the place of Trainer, which cannot tell error feedback of a clip.

    What the handle keeps for each rank is saved in Trainer's checkpoints, and loaded where train() resumes from one. A
    callback is not told which one that is: where it is not in output_dir, name it in
    TrainingArguments(resume_from_checkpoint=...), too.
    """

    def __init__(self, trainer: Trainer, plan: str, max_norm: float | None = 1.0):
        self.trainer, self.plan, self.max_norm, self.compressed = trainer, plan, max_norm, None

    def on_train_begin(self, args, state, control, **kwargs):
        if self.trainer.model_wrapped is not self.compressed:  # a second train() may continue with the same model
            self.compressed = self.trainer.model_wrapped
            scaler = self.trainer.accelerator.scaler  # there is one with fp16=True
            self.handle = octavo.compress(self.compressed, self.plan, optimizer=self.trainer.optimizer, scaler=scaler)
        if state.global_step > 0:  # train() resumes from a checkpoint
            named = args.resume_from_checkpoint
            is_it = isinstance(named, str) and step_of(Path(named)) == state.global_step
            self.load_handle(Path(named) if is_it else folder_of(args, state), args.process_index, args.world_size)

    def load_handle(self, folder: Path, rank: int, ranks: int) -> None:
        """Loads what this rank has saved in a checkpoint; where another number of ranks has saved it, what all of them
        have."""
        files = {number: folder / f"octavo_{number}.pt" for number in (0, rank)}
        there = [number for number, file in files.items() if file.exists()]
        if not there:
            text = f"{files[rank]} is not there: error feedback and the ranks' own momenta begin anew"
            warnings.warn(text, stacklevel=2)
            return

        def load(number: int) -> dict:
            return torch.load(folder / f"octavo_{number}.pt", map_location="cpu")

        # rank 0's first, where it is on this host: files of other ranks may be left of a world with more ranks
        saved = load(there[0])["world_size"]
        self.handle.load_state_dict(load(rank) if saved == ranks else [load(number) for number in range(saved)])

    def on_save(self, args, state, control, **kwargs):
        if args.save_only_model:
            return
        folder = folder_of(args, state)
        folder.mkdir(parents=True, exist_ok=True)  # Trainer makes it, perhaps only on rank 0's host
        torch.save(self.handle.state_dict(), folder / f"octavo_{args.process_index}.pt")

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if self.max_norm is None:
            return
        with suppress(RuntimeError):  # some versions of Trainer have done it, for the norm that they log
            self.trainer.accelerator.unscale_gradients()
        self.handle.clip_grad_norm_(self.max_norm)

    def on_train_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            stats = self.handle.stats()
            print(f"bytes sent: {stats['wire_bytes']}, in float32: {stats['dense_bytes']}")


def step_of(checkpoint: Path) -> int | None:
    """Returns the step of Trainer's checkpoint; None where there is none."""
    file = checkpoint / "trainer_state.json"
    return json.loads(file.read_text())["global_step"] if file.exists() else None


def folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Returns the folder of Trainer's checkpoint of this step."""
    return Path(args.output_dir, f"checkpoint-{state.global_step}")


def counting(first: int) -> dict[str, list[int]]:
    """Returns a record to learn: sixteen tokens, each one more than the one before."""
    tokens = [(first + i) % 64 for i in range(16)]
    return {"input_ids": tokens, "labels": tokens}


def make_optimizer(model: LlamaForCausalLM, one_bit: bool, steps: int) -> torch.optim.Optimizer:
    """Returns AdamW or, with one bit, OneBitAdamW, which learns its variance in the first 15 % of the steps."""
    if one_bit:
        return octavo.optim.OneBitAdamW(model.parameters(), lr=3e-3, warmup_steps=round(0.15 * steps))
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def main(one_bit: bool) -> None:
    set_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=16, **sizes))
    arguments = TrainingArguments(
        output_dir="trainer-example",
        max_steps=60,
        per_device_train_batch_size=8,
        max_grad_norm=0.0,  # CompressGradients clips
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=[counting(first) for first in range(640)],
        optimizers=(make_optimizer(model, one_bit, arguments.max_steps), None),
    )
    trainer.add_callback(CompressGradients(trainer, "sign+ef" if one_bit else "int4+ef"))
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(f"loss: {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")


if __name__ == "__main__":
    main(one_bit="--one-bit" in sys.argv[1:])
