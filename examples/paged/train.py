# SPDX-License-Identifier: Apache-2.0
"""HF Trainer with states in 8 bits and in managed memory: python examples/paged/train.py [--data alpaca.json]

It trains a small LLaMA on instructions in the form of Alpaca: a JSON list of records with `instruction`, `output` and
perhaps `input`. With several --optimizer it trains with each of them in turn, from the same weights, and shows their
losses side by side: paging changes where states are stored, and not a bit of the loss. --resume continues from the last
checkpoint that Trainer has saved in --out; states of paged optimizers are then paged again. With --device sycl the
device's allocator does not count managed memory.
"""

import argparse
import importlib
import json
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import (
    ByT5Tokenizer,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

import octavo
from octavo.train.data import tasks

OPTIMIZERS = {
    "adamw": octavo.optim.AdamW,
    "adamw8bit": octavo.optim.AdamW8bit,
    "adamw4bit": octavo.optim.AdamW4bit,
    "paged-adamw": octavo.optim.PagedAdamW,
    "paged-adamw8bit": octavo.optim.PagedAdamW8bit,
    "lion": octavo.optim.Lion,
    "lion8bit": octavo.optim.Lion8bit,
    "paged-lion": octavo.optim.PagedLion,
    "paged-lion8bit": octavo.optim.PagedLion8bit,
}
LONGEST = 512
"""The most tokens of a record (a token is a byte); the rest is cut off."""


class SyclArguments(TrainingArguments):
    """Arguments of a Trainer on the device sycl, which Accelerate does not find by itself."""

    @property
    def device(self) -> torch.device:
        PartialState().device = torch.device("sycl", super().device.index or 0)  # in place of what Accelerate found
        return PartialState().device


def sample(record: dict[str, str], tokenizer: ByT5Tokenizer) -> dict[str, list[int]]:
    """Returns a record as Alpaca's prompt and its answer; the loss is on the answer."""
    given = f"\n\n### Input:\n{record['input']}" if record.get("input") else ""
    prompt = f"### Instruction:\n{record['instruction']}{given}\n\n### Response:\n"
    asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    said = tokenizer(record["output"])["input_ids"]  # with the token that ends it
    return {"input_ids": (asked + said)[:LONGEST], "labels": ([-100] * len(asked) + said)[:LONGEST]}


def small_llama(vocab_size: int) -> LlamaForCausalLM:
    """Returns the model, with the same weights in every call."""
    set_seed(0)
    sizes = dict(hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, max_position_embeddings=LONGEST, **sizes))


def state_bytes(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Returns the bytes of all states in managed memory, and of those in ordinary memory."""
    tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
    managed = sum(tensor.nbytes for tensor in tensors if octavo._C.is_managed(tensor))
    return managed, sum(tensor.nbytes for tensor in tensors) - managed


def train(name: str, options: argparse.Namespace) -> list[float]:
    """Trains with an optimizer and returns the losses that Trainer has logged."""
    tokenizer = ByT5Tokenizer(extra_ids=0)  # a token is a byte: nothing to download
    records = json.loads(options.data.read_text(encoding="utf-8")) if options.data else tasks.records(400)
    samples = [sample(record, tokenizer) for record in records]
    model = small_llama(len(tokenizer)).to(options.device)  # moved before an optimizer has its parameters
    if options.by_class:  # Trainer makes the optimizer, without weight decay for norms; weight_decay is Trainer's own
        chosen = dict(optimizer_cls_and_kwargs=(OPTIMIZERS[name], {"lr": options.lr}))
    else:
        chosen = dict(optimizers=(OPTIMIZERS[name](model.parameters(), lr=options.lr, weight_decay=0.0), None))
    arguments = SyclArguments if options.device == "sycl" else TrainingArguments
    trainer = Trainer(
        model,
        arguments(
            output_dir=str(options.out / name),
            max_steps=options.steps,
            per_device_train_batch_size=8,
            weight_decay=0.0,
            logging_steps=options.log_every,
            save_steps=options.save_every,
            report_to="none",
            use_cpu=options.device == "cpu",
            disable_tqdm=True,
        ),
        train_dataset=[kept for kept in samples if kept["labels"][-1] != -100],  # those with a part of their answer
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        **chosen,
    )
    trainer.train(resume_from_checkpoint=options.resume)
    managed, ordinary = state_bytes(trainer.optimizer)
    print(f"{name}: {managed} bytes of state in managed memory, {ordinary} in ordinary memory")
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", nargs="+", choices=OPTIMIZERS, default=["adamw8bit", "paged-adamw8bit"])
    parser.add_argument("--data", type=Path, help="a JSON list of Alpaca records; bundled tasks if left out")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("paged-example"))
    parser.add_argument("--device", choices=["cpu", "sycl"], default="cpu")
    parser.add_argument("--by-class", action="store_true", help="hand Trainer the optimizer's class, not an optimizer")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    if options.device == "sycl":
        importlib.import_module("octavo.sycl")  # makes the device
    losses = {name: train(name, options) for name in options.optimizer}
    print("step", *losses)
    for i, row in enumerate(zip(*losses.values(), strict=True), 1):
        print(i * options.log_every, *(f"{loss:.6f}" for loss in row))


if __name__ == "__main__":
    main(parse())
