# SPDX-License-Identifier: Apache-2.0
"""The command `octavo train`: makes a config of the options, then starts the launcher or, in a rank, the job."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated, NoReturn

import typer

import octavo
from octavo.startup import quick_imports
from octavo.train.config import TrainConfig
from octavo.train.errors import EXIT_JOB, EXIT_USAGE, sentence, show_traceback
from octavo.train.optimizer_names import FUSED
from octavo.train.plan_text import parse_compare

_DEFAULT = TrainConfig()


def train(
    data: Annotated[
        str | None,
        typer.Option(
            help="A .json or .jsonl of Alpaca records, of texts or of chats, or a .txt; the bundled tasks if left out, "
            "tasks:DRAW for another draw of them, and tasks:DRAW:COUNT for so many records."
        ),
    ] = None,
    nproc: Annotated[
        int, typer.Option(help="Ranks to start on this machine; under torchrun its own number counts.")
    ] = _DEFAULT.nproc,
    plan: Annotated[
        str | None,
        typer.Option(
            help="How gradients are sent: dense, bf16, fp8, int8 to int2, sign2, ternary, sign, int4+ef ... "
            "Default: int4+ef with --zero, and without --outer where --optimizer names one that is neither a 1-bit "
            "optimizer nor signum or lion; sign-vote for signum and lion; otherwise sign+ef."
        ),
    ] = _DEFAULT.plan,
    optimizer: Annotated[
        str,
        typer.Option(
            help="adamw, onebit-adamw, onebit-lamb, zero-one-adam, muon, signum or lion; with states of fewer bits, or "
            f"paged, as is then what the exchange remembers: {', '.join(FUSED)}. auto is onebit-adamw for sign and "
            "sign+ef, signum for sign-vote, otherwise, and with --zero or --outer, adamw."
        ),
    ] = _DEFAULT.optimizer,
    zero: Annotated[
        int,
        typer.Option(
            help="ZeRO: ranks share out the optimizer's state (1), gradients too (2), parameters too (3); 0: each has "
            "all."
        ),
    ] = _DEFAULT.zero,
    gather: Annotated[
        str | None,
        typer.Option(
            help="With --zero: the codec by which parameters are sent, such as int8; as they are if left out."
        ),
    ] = _DEFAULT.gather,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the model by torch.compile; on sycl its graphs run aten's operators."),
    ] = False,
    outer: Annotated[
        int,
        typer.Option(
            help="Local steps: ranks step by themselves, and exchange by --plan how far they have moved every so many "
            "steps; 0 exchanges gradients in every step."
        ),
    ] = _DEFAULT.outer,
    outer_delay: Annotated[
        int, typer.Option(help="Steps that ranks make while a round of --outer is being exchanged.")
    ] = _DEFAULT.outer_delay,
    outer_fragments: Annotated[
        int, typer.Option(help="Parts of the model with rounds of their own, one after another.")
    ] = _DEFAULT.outer_fragments,
    outer_lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of the step that ends a round. The default depends on the steps of a round, the plan "
            "and the number of ranks."
        ),
    ] = _DEFAULT.outer_lr,
    outer_momentum: Annotated[
        float | None,
        typer.Option(help="Momentum of the step that ends a round. The default depends on the same."),
    ] = _DEFAULT.outer_momentum,
    outer_spread: Annotated[
        bool,
        typer.Option(
            "--outer-spread",
            help="Apply the outer momentum in equal parts after each step, not all at once at the end of a round.",
        ),
    ] = _DEFAULT.outer_spread,
    model: Annotated[str, typer.Option(help="tiny, small, 220m or the CONFIG.json of a LLaMA.")] = _DEFAULT.model,
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda, xpu, sycl or auto: octavo.get_accelerator(), or cpu where that has no kernels."),
    ] = _DEFAULT.device,
    precision: Annotated[
        str, typer.Option(help="fp32 or bf16; auto is bf16 where it is known to be faster.")
    ] = _DEFAULT.precision,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = _DEFAULT.steps,
    batch_size: Annotated[int, typer.Option(help="Rows per rank and micro-batch.")] = _DEFAULT.batch_size,
    seq_len: Annotated[int, typer.Option(help="Tokens per row.")] = _DEFAULT.seq_len,
    grad_accum: Annotated[
        int,
        typer.Option(help="Micro-batches per step; gradients are sent after the last one, with --zero 2|3 after each."),
    ] = _DEFAULT.grad_accum,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate. The default is 3e-3, for onebit-lamb 1e-2, for signum and all Lions 6e-4."
        ),
    ] = _DEFAULT.lr,
    adamw_lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate of what muon leaves to AdamW: embeddings, output layer, norms; --lr by default."
        ),
    ] = _DEFAULT.adamw_lr,
    beta1: Annotated[
        float | None,
        typer.Option(
            help="Momentum: of Adam and AdamW; of 1-bit AdamW and 1-bit LAMB in both phases; of 0/1 Adam; of Muon, "
            "not of the AdamW beside it; of the update of Signum and Lion; of a plan with dgc. The default is 0.5, for "
            "muon 0.95, for signum, all Lions and dgc 0.9."
        ),
    ] = _DEFAULT.beta1,
    beta2: Annotated[
        float | None,
        typer.Option(
            help="Decay of AdamW's running variance, 0.999 by default; of the momentum that Lion keeps, 0.99."
        ),
    ] = _DEFAULT.beta2,
    weight_decay: Annotated[
        float,
        typer.Option(
            help="Decoupled weight decay of matrices, which the Adams without a W add to the gradient; norms and "
            "biases have none."
        ),
    ] = _DEFAULT.weight_decay,
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Clip the averaged gradient to this global L2 norm; no clipping if left out."),
    ] = _DEFAULT.clip_norm,
    seed: Annotated[
        int, typer.Option(help="Decides the weights, the held-out data, the order and what plans draw.")
    ] = _DEFAULT.seed,
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = _DEFAULT.eval_every,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = _DEFAULT.checkpoint_every,
    out: Annotated[
        str,
        typer.Option(help="Directory of the run; the same command resumes from the newest good checkpoint in it."),
    ] = _DEFAULT.out,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier run in --out and start over.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Plans separated by commas, or outer:H/PLAN: trains with each of them and plots them together."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port at which local ranks meet; a free one if left out. Ignored under torchrun."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(help="Seconds after which a rank stops waiting for another.")
    ] = _DEFAULT.timeout_s,
) -> None:
    """Train a LLaMA with compressed gradients. Starts its own ranks, or runs as one of the ranks of torchrun."""
    options = dict(locals())
    try:
        config = TrainConfig(**{**options, "compare": parse_compare(compare)})
        code = _run(config)
    except ValueError as error:
        _stop(error, EXIT_USAGE)
    except (RuntimeError, OSError) as error:
        _stop(error, EXIT_JOB)
    raise typer.Exit(code)


def _run(config: TrainConfig) -> int:
    for run in config.runs:
        if run.outer:
            octavo._C.Outer.require_plan(run.parsed_plan)
    if config.gather is not None:
        _require_gather(config.gather)
    if os.environ.get("RANK", "0") == "0":
        _require_matplotlib()
    # The heavy imports come after the options are known to be good.
    from octavo.train.launch.world import launched_outside

    if launched_outside():
        with quick_imports():
            from octavo.train.launch.rank_main import run_rank

        run_rank(config)
    with quick_imports():
        from octavo.train.launch.launcher import launch

    return launch(config)


def _require_matplotlib() -> None:
    """Raises ModuleNotFoundError, for which `octavo.__main__` has a sentence, where rank 0 could not draw the loss: a
    run would find out only at its end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def _require_gather(text: str) -> None:
    try:
        octavo._C.require_gather(octavo.Plan(text))
    except ValueError as error:
        raise ValueError(
            f"[train.config] --gather {text}: parameters are gathered only by a codec such as int8, bf16 or fp8, "
            f"which sends all values in a fixed number of bytes, rounded to the nearest code"
        ) from error


def _stop(error: Exception, code: int) -> NoReturn:
    show_traceback(error)
    print(f"error: {sentence(error)}", file=sys.stderr)
    sys.stderr.flush()
    raise typer.Exit(code)
