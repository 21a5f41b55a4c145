# SPDX-License-Identifier: Apache-2.0
"""`octavo train` on the command line: from options to a config, then the launcher or, as a rank, the job."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

import octavo
from octavo.train.config import TrainConfig, parse_compare
from octavo.train.errors import EXIT_JOB, EXIT_USAGE, sentence, show_traceback

_DEFAULT = TrainConfig()


def train(
    data: Annotated[
        str | None,
        typer.Option(help="Alpaca-format .json or .jsonl, or a plain .txt; the bundled tasks if left out."),
    ] = None,
    nproc: Annotated[
        int, typer.Option(help="Ranks to start here; torchrun's own number counts instead.")
    ] = _DEFAULT.nproc,
    plan: Annotated[
        str,
        typer.Option(help="How gradients travel: dense, bf16, int4, int4+ef, sign, sign+ef or sign-vote."),
    ] = _DEFAULT.plan,
    optimizer: Annotated[
        str,
        typer.Option(help="adamw or onebit-adamw; auto is onebit-adamw for sign and sign+ef, adamw otherwise."),
    ] = _DEFAULT.optimizer,
    zero: Annotated[int, typer.Option(help="ZeRO stage; this version has only 0.")] = _DEFAULT.zero,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model; not in this version.")] = False,
    model: Annotated[str, typer.Option(help="tiny, small, 220m or the CONFIG.json of a LLaMA.")] = _DEFAULT.model,
    device: Annotated[
        str, typer.Option(help="cpu, sycl, or auto: octavo.get_accelerator(), or the CPU where that has no kernels.")
    ] = _DEFAULT.device,
    precision: Annotated[
        str, typer.Option(help="fp32 or bf16; auto is bf16 where it is known to be faster.")
    ] = _DEFAULT.precision,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = _DEFAULT.steps,
    batch_size: Annotated[int, typer.Option(help="Rows a rank and micro-step.")] = _DEFAULT.batch_size,
    seq_len: Annotated[int, typer.Option(help="Tokens a row.")] = _DEFAULT.seq_len,
    grad_accum: Annotated[int, typer.Option(help="Micro-steps a step; only the last one sends.")] = _DEFAULT.grad_accum,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = _DEFAULT.lr,
    weight_decay: Annotated[float, typer.Option(help="Decoupled weight decay.")] = _DEFAULT.weight_decay,
    seed: Annotated[int, typer.Option(help="Decides weights, split and order.")] = _DEFAULT.seed,
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = _DEFAULT.eval_every,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = _DEFAULT.checkpoint_every,
    out: Annotated[
        str, typer.Option(help="Where the run lives; the same command goes on from its last good checkpoint.")
    ] = _DEFAULT.out,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier run in --out and start over.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(help="Plans separated by commas: trains each and draws one picture of all."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Where local ranks meet; a free port if left out.")] = None,
    timeout_s: Annotated[
        float, typer.Option(help="Seconds after which a rank stops waiting for another.")
    ] = _DEFAULT.timeout_s,
) -> None:
    """Train a LLaMA with compressed gradients: starts its own ranks, or is one of torchrun's."""
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
    for plan in config.compare or (config.plan,):
        octavo.Plan(plan)  # says in its own words what is wrong with it
    # The heavy imports come after the options are known to be good.
    from octavo.train.world import launched_outside

    if launched_outside():
        from octavo.train.rank import run_rank

        return run_rank(config)
    from octavo.train.launcher import launch

    return launch(config)


def _stop(error: Exception, code: int) -> NoReturn:
    show_traceback(error)
    print(f"error: {sentence(error)}", file=sys.stderr)
    sys.stderr.flush()
    raise typer.Exit(code)
