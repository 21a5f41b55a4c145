# SPDX-License-Identifier: Apache-2.0
"""What is compared: the contenders, and the data sets with their models and lengths."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from octavo.bench.quality.data import ALPACA, BUNDLED, CORPUS, MANY_TASKS, DataSet

MOVES = ("beta1", "lr", "lr", "beta2", "beta1")
"""The knob that each trial after the first one moves (see `search`)."""
OUTER_MOVES = ("beta1", "lr", "lr", "outer_lr", "beta2")
"""The moves of contenders with local steps."""


@dataclass(frozen=True)
class Contender:
    """A plan with an optimizer. A knob that other contenders do not have takes the place of another move and adds no
    trial.

    In `plan`, `STEPS/4` means a quarter of a run's steps, `STEPS/10` a tenth. `outer`: the steps of a round; 0:
    gradients are exchanged in every step. `start`: first values of knobs that do not start where other contenders' do.
    """

    plan: str
    optimizer: str
    moves: tuple[str, ...] = MOVES
    outer: int = 0
    start: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The contender as `octavo train --compare` takes it."""
        return f"outer:{self.outer}/{self.plan}" if self.outer else self.plan

    def plan_for(self, steps: int) -> str:
        return re.sub(r"STEPS/(\d+)", lambda share: str(max(1, steps // int(share[1]))), self.plan)


#: The contenders by name, in the order of their importance. `beta1` means what it means to `octavo train`: in
#: OneBitAdamW the momentum of both phases, in Muon its own momentum, with dgc the plan's.
CONTENDERS = {
    "dense": Contender("dense", "adamw"),
    "sign+ef": Contender("sign+ef", "onebit-adamw"),
    "zero-one-adam": Contender("sign+ef", "zero-one-adam"),
    "onebit-lamb": Contender("sign+ef", "onebit-lamb", start={"lr": 1e-2}),  # relative to a tensor's own size
    "int4+ef": Contender("int4+ef", "adamw"),
    "muon": Contender("dense", "muon"),
    "muon int4+ef": Contender("int4+ef", "muon"),
    "topk": Contender("topk:0.01+ef+warmup:STEPS/4", "adamw"),
    "dgc": Contender("dgc:0.01+warmup:STEPS/4", "adamw"),
    "topk in tiles": Contender("topk:64/4096:sign2+ef+warmup:STEPS/4", "adamw"),
    "powersgd": Contender("powersgd:4+ef+warmup:STEPS/10", "adamw"),
    "powersgd of layers": Contender("powersgd:4+ef+warmup:STEPS/10;*embed*=int4+ef;*lm_head*=int4+ef", "adamw"),
    "int8+ef": Contender("int8+ef", "adamw"),
    "fp8": Contender("fp8", "adamw"),
    "bf16": Contender("bf16", "adamw"),
    "outer int4": Contender("int4:256+ef", "adamw", OUTER_MOVES, outer=20),
    "outer sign": Contender("sign:4096+ef", "adamw", OUTER_MOVES, outer=17),
    "outer sign 40": Contender("sign:4096+ef", "adamw", OUTER_MOVES, outer=40),
    "outer sign 5": Contender("sign:4096+ef", "adamw", OUTER_MOVES, outer=5),  # as many bytes as int4 in rounds of 20
    "outer tiles": Contender("topk:64/4096:sign+ef", "adamw", OUTER_MOVES, outer=10),
    "outer int4 muon": Contender("int4:256+ef", "muon", OUTER_MOVES, outer=20),
    "outer sign muon": Contender("sign:4096+ef", "muon", OUTER_MOVES, outer=17),
    "outer sign 5 muon": Contender("sign:4096+ef", "muon", OUTER_MOVES, outer=5),
}
EVERY_STEP = tuple(name for name, contender in CONTENDERS.items() if not contender.outer)
ROUNDS = tuple(name for name, contender in CONTENDERS.items() if contender.outer)
BASELINE = "dense"


@dataclass(frozen=True)
class Setting:
    """One data set with its model and its length. `batch_size` is in rows per rank, `seq_len` in tokens per row.

    `also_ranks`: other numbers of ranks, each with the seeds `also_seeds` and as many rows per step as `ranks` have.
    `step_s`: seconds per step on two quiet cores, only for the forecast. `precision`: the option of `octavo train`;
    None: it chooses. `trial_share`: a trial is a training of this share of the steps, with its learning rate schedule
    shortened alike.
    """

    name: str
    title: str
    data: DataSet
    reported_on: str
    tuned_on: str
    model: str | Mapping[str, object]  # a name, or a LLaMA's CONFIG.json
    steps: int
    batch_size: int
    seq_len: int
    step_s: float
    contenders: tuple[str, ...] = EVERY_STEP
    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_seed: int = 1000
    ranks: int = 2
    also_ranks: tuple[int, ...] = ()
    also_seeds: tuple[int, ...] = (0,)
    start_s: float = 15.0  # seconds of a run before its first step and after its last
    precision: str | None = None
    trial_share: float = 0.25

    @property
    def trial_steps(self) -> int:
        return max(1, round(self.trial_share * self.steps))

    def seeds_among(self, asked: Sequence[int] | None) -> tuple[int, ...]:
        """Returns the seeds of this setting that are asked for; None asks for all."""
        return tuple(seed for seed in self.seeds if asked is None or seed in asked)

    @property
    def tokens_per_step(self) -> int:
        return self.ranks * self.batch_size * self.seq_len


_TWO_MILLION = dict(
    model_type="llama",
    hidden_size=160,
    intermediate_size=432,
    num_hidden_layers=4,
    num_attention_heads=5,
    num_key_value_heads=5,
    max_position_embeddings=512,
    initializer_range=0.05,
    tie_word_embeddings=False,
)

_CORPUS_REPORTED = (
    "Python sources of the transformers package, a tenth of the files held out by the seed; a token is seen {}, but "
    "the files of the package copy from one another"
)
_CORPUS_TUNED = "other files of the same package, seed 1000"

_ROUNDS = Setting(
    name="rounds",
    title="bundled tasks, long enough for rounds",
    data=BUNDLED,
    reported_on="the bundled tasks, a tenth held out by the seed",
    tuned_on="the same kinds of tasks drawn anew (`--data tasks:1000`, in which about a sixth of the questions are "
    "the same), seed 1000",
    model="tiny",
    steps=2000,
    batch_size=8,
    seq_len=128,
    step_s=0.1,
    contenders=("dense", "muon", *ROUNDS),
    trial_share=0.5,  # a quarter would have only 25 of a run's 100 rounds
    also_ranks=(4,),
    also_seeds=(0, 1, 2),
)

SETTINGS = {
    "bundled": Setting(
        name="bundled",
        title="bundled tasks",
        data=BUNDLED,
        reported_on="the bundled tasks, a tenth held out by the seed",
        tuned_on="the same kinds of tasks drawn anew (`--data tasks:1000`, in which about a sixth of the questions are "
        "the same), seed 1000",
        model="tiny",
        steps=800,
        batch_size=8,
        seq_len=128,
        step_s=0.1,
        also_ranks=(4,),
    ),
    "alpaca": Setting(
        name="alpaca",
        title="real instructions",
        data=ALPACA,
        reported_on="two thirds of LLaMA-Factory's alpaca_en_demo.json, a tenth of them held out by the seed",
        tuned_on="the other third of its records, seed 1000",
        model="tiny",
        steps=400,
        trial_share=0.5,  # tuning data are half of the reported data: both are passed over equally often
        batch_size=8,
        seq_len=128,
        step_s=0.11,
    ),
    "rounds": _ROUNDS,
    "many-tasks": replace(
        _ROUNDS,
        name="many-tasks",
        title="bundled tasks, each record seen about once",
        data=MANY_TASKS,
        reported_on="200,000 records of the bundled tasks (`--data tasks:1:200000`), a tenth of their questions held "
        "out by the seed; a record is seen about once",
        tuned_on="the same kinds of tasks drawn anew (`--data tasks:1000:200000`), seed 1000",
        start_s=40.0,
    ),
    "four": replace(
        _ROUNDS,
        name="four",
        title="bundled tasks, long enough for rounds, on four ranks",
        ranks=4,
        also_ranks=(),
        batch_size=4,
        step_s=0.14,
        contenders=("dense", "outer int4", "outer sign", "outer sign 5", "outer int4 muon", "outer sign muon"),
    ),
    "corpus": Setting(
        name="corpus",
        title="Python sources",
        data=CORPUS,
        reported_on=_CORPUS_REPORTED.format("one and a half times"),
        tuned_on=_CORPUS_TUNED,
        model=_TWO_MILLION,
        steps=1500,
        batch_size=8,
        seq_len=256,
        step_s=0.5,
        precision="bf16",
        contenders=("dense", "sign+ef"),
        seeds=(0, 1),
        start_s=60.0,
    ),
    "corpus-rounds": replace(
        _ROUNDS,
        name="corpus-rounds",
        title="Python sources, long enough for rounds",
        data=CORPUS,
        reported_on=_CORPUS_REPORTED.format("about once"),
        tuned_on=_CORPUS_TUNED,
        step_s=0.13,
        contenders=("dense", "muon", *ROUNDS),
        seeds=(0, 1),
        start_s=60.0,
    ),
}
