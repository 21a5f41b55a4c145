# SPDX-License-Identifier: Apache-2.0
"""The command `octavo train`: makes a config of the options, then starts the launcher or, in a rank, the job."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import sys
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from octavo.startup import quick_imports
from octavo.train.config import TrainConfig
from octavo.train.errors import EXIT_JOB, EXIT_USAGE, sentence, show_traceback
from octavo.train.plan_text import parse_compare


def train(**options: Any) -> None:
    """Train a LLaMA with compressed gradients. Starts its own ranks, or runs as one of the ranks of torchrun."""
    try:
        config = TrainConfig(**{**options, "compare": parse_compare(options["compare"])})
        code = _run(config)
    except ValueError as error:
        _stop(error, EXIT_USAGE)
    except (RuntimeError, OSError) as error:
        _stop(error, EXIT_JOB)
    raise typer.Exit(code)


def _signature() -> inspect.Signature:
    """Returns the parameters of `train` as typer reads them: a parameter for each option."""
    types = get_type_hints(TrainConfig)
    fields = dataclasses.fields(TrainConfig)
    return inspect.Signature([_parameter(field, types[field.name], field.default) for field in fields])


def _parameter(field: dataclasses.Field, type_: Any, default: Any) -> inspect.Parameter:
    if field.name == "compare":  # one text on the command line
        type_, default = str | None, None
    names = [f"--{field.name.replace('_', '-')}"] if type_ is bool else []  # otherwise there would be a --no-…, too
    annotation = Annotated[type_, typer.Option(*names, help=field.metadata["help"])]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


train.__signature__ = _signature()


def _run(config: TrainConfig) -> int:
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


def _stop(error: Exception, code: int) -> NoReturn:
    show_traceback(error)
    print(f"error: {sentence(error)}", file=sys.stderr)
    sys.stderr.flush()
    raise typer.Exit(code)
