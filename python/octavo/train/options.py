# SPDX-License-Identifier: Apache-2.0
"""The options of `octavo train`: each one's type, default and help, and what it means to a run that is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.train.model_sizes import MODELS
from octavo.train.optimizer_kinds import FUSED, OPTIMIZERS

OUTER_OPTIONS = ("outer_delay", "outer_fragments", "outer_lr", "outer_momentum", "outer_spread")
"""The options of --outer besides the steps of a round."""
DEVICES = ("auto", "cpu", "cuda", "xpu", "sycl")
PRECISIONS = ("auto", "fp32", "bf16")
Identity = Literal["always", "never", "with zero", "if given", "may grow"]


def either(names: Sequence[str]) -> str:
    """Returns "a, b or c", of two names or more."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def option(
    default: Any, help: str, *, identity: Identity = "always", absent: Any = None, of_a_host: bool = False
) -> Any:
    """Returns the field of an option, with these facts as its metadata.

    `identity` says whether a run may be resumed with another value of the option:

        always      no: the value is part of what the run is
        never       yes
        with zero   only to or from a run without ZeRO
        if given    no; for options that a later version added. A run's record has the option only where it is given, so
                    that runs of older versions can be resumed; `absent` is the value that its absence means, or a text
                    for it; users are shown it
        may grow    with a larger one

    `of_a_host`: whether the hosts of a job may have different values.
    """
    facts = {"help": help, "identity": identity, "absent": absent, "of_a_host": of_a_host}
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True)
class Options:
    """The options as they are given.

    `batch_size` is in rows per rank and micro-batch, `seq_len` in tokens per row. Where `plan`, `lr`, `beta1` or
    `beta2` is None, the optimizer's own default is used. Where `clip_norm` is None, gradients are not clipped. `outer`
    is the number of steps from one round of `octavo.Outer` to the next, and the other `outer_…` are its delay,
    fragments, learning rate, momentum (None: its own rule decides) and whether that is spread over steps; with `outer`
    0 ranks exchange gradients in every step. `zero` is the stage of ZeRO and `gather` the codec by which it sends
    parameters (None: as they are); with `zero` 0 each rank has all of the model and of the optimizer's state.
    `compile`: whether `torch.compile` compiles the training's passes.
    """

    data: str | None = option(
        None,
        "A .json or .jsonl of Alpaca records, of texts or of chats, or a .txt; the bundled tasks if left out, "
        "tasks:DRAW for another draw of them, and tasks:DRAW:COUNT for so many records.",
        of_a_host=True,
    )
    nproc: int = option(
        2, "Ranks to start on this machine; under torchrun its own number counts.", identity="never", of_a_host=True
    )
    plan: str | None = option(
        None,
        "How gradients are sent: dense, bf16, fp8, int8 to int2, sign2, ternary, sign, int4+ef ... "
        "Default: int4+ef with --zero, and without --outer where --optimizer names one that is neither a 1-bit "
        "optimizer nor signum or lion; sign-vote for signum and lion; otherwise sign+ef.",
    )
    optimizer: str = option(
        "auto",
        f"{either([name for name in OPTIMIZERS if name not in FUSED])}; fused, some with states of fewer bits, or "
        f"paged: {', '.join(FUSED)}. With a paged one what the exchange remembers is paged, too, except with --outer. "
        "With --zero adamw or a fused one, lion32bit in the place of lion. auto is onebit-adamw for sign and sign+ef, "
        "signum for sign-vote, otherwise, and with --zero or --outer, adamw.",
    )
    zero: int = option(
        0,
        "ZeRO: ranks share out the optimizer's state (1), gradients too (2), parameters too (3); 0: each has all.",
        identity="never",
    )
    gather: str | None = option(
        None,
        "With --zero: the codec by which parameters are sent, such as int8; as they are if left out.",
        identity="with zero",
    )
    compile: bool = option(
        False, "Compile the model by torch.compile; on sycl its graphs run aten's operators.", identity="never"
    )
    outer: int = option(
        0,
        "Local steps: ranks step by themselves, and exchange by --plan how far they have moved every so many "
        "steps; 0 exchanges gradients in every step.",
    )
    outer_delay: int = option(0, "Steps that ranks make while a round of --outer is being exchanged.")
    outer_fragments: int = option(1, "Parts of the model with rounds of their own, one after another.")
    outer_lr: float | None = option(
        None,
        "Learning rate of the step that ends a round. The default depends on the steps of a round, the plan "
        "and the number of ranks.",
    )
    outer_momentum: float | None = option(
        None, "Momentum of the step that ends a round. The default depends on the same."
    )
    outer_spread: bool = option(
        False,
        "Apply the outer momentum in equal parts after each step, not all at once at the end of a round.",
        identity="if given",
        absent=False,
    )
    model: str = option("tiny", f"{', '.join(MODELS)} or the CONFIG.json of a LLaMA.")
    device: str = option(
        "auto",
        f"{', '.join(DEVICES[1:])} or auto: octavo.get_accelerator(), or cpu where that has no kernels.",
        identity="never",
        of_a_host=True,
    )
    precision: str = option("auto", f"{either(PRECISIONS[1:])}; auto is bf16 where it is known to be faster.")
    steps: int = option(800, "Optimizer steps.", identity="may grow")
    batch_size: int = option(8, "Rows per rank and micro-batch.")
    seq_len: int = option(128, "Tokens per row.")
    grad_accum: int = option(
        1, "Micro-batches per step; gradients are sent after the last one, with --zero 2|3 after each."
    )
    lr: float | None = option(
        None, "Peak learning rate. The default is 3e-3, for onebit-lamb 1e-2, for signum and all Lions 6e-4."
    )
    adamw_lr: float | None = option(
        None,
        "Peak learning rate of what muon leaves to AdamW: embeddings, output layer, norms; --lr by default.",
        identity="if given",
        absent="that of lr",
    )
    beta1: float | None = option(
        None,
        "Momentum: of Adam and AdamW; of 1-bit AdamW and 1-bit LAMB in both phases; of 0/1 Adam; of Muon, "
        "not of the AdamW beside it; of the update of Signum and Lion; of a plan with dgc or fetchsgd. The default is "
        "0.5, for muon 0.95, for signum, all Lions, dgc and fetchsgd 0.9.",
    )
    beta2: float | None = option(
        None, "Decay of AdamW's running variance, 0.999 by default; of the momentum that Lion keeps, 0.99."
    )
    weight_decay: float = option(
        0.01,
        "Decoupled weight decay of matrices, which the Adams without a W add to the gradient; norms and "
        "biases have none.",
    )
    clip_norm: float | None = option(
        None, "Clip the averaged gradient to this global L2 norm; no clipping if left out."
    )
    seed: int = option(0, "Decides the weights, the held-out data, the order and what plans draw.")
    eval_every: int = option(100, "Steps between evaluations.", identity="never")
    checkpoint_every: int = option(100, "Steps between checkpoints.", identity="never")
    out: str = option(
        "out",
        "Directory of the run; the same command resumes from the newest good checkpoint in it.",
        identity="never",
        of_a_host=True,
    )
    fresh: bool = option(False, "Remove an earlier run in --out and start over.", identity="never")
    compare: tuple[str, ...] = option(
        (),
        "Plans separated by commas, or outer:H/PLAN: trains with each of them and plots them together.",
        identity="never",
    )
    port: int | None = option(
        None,
        "Port at which local ranks meet; a free one if left out. Ignored under torchrun.",
        identity="never",
        of_a_host=True,
    )
    timeout_s: float = option(
        300.0, "Seconds after which a rank stops waiting for another.", identity="never", of_a_host=True
    )
