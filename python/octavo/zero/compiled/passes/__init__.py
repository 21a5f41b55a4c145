# SPDX-License-Identifier: Apache-2.0
"""The passes: functions that edit a graph, what each of them needs of the others, and when they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from octavo.zero.compile_config import BACKENDS
from octavo.zero.compiled.graph import ZeroGraph
from octavo.zero.compiled.passes.gather import gather
from octavo.zero.compiled.passes.offload_activations import offload_activations
from octavo.zero.compiled.passes.offload_optimizer import offload_optimizer
from octavo.zero.compiled.passes.offload_parameters import offload_parameters
from octavo.zero.compiled.passes.prefetch import prefetch
from octavo.zero.compiled.passes.reduce import reduce
from octavo.zero.compiled.passes.selective_gather import selective_gather

Edit: TypeAlias = Callable[[ZeroGraph], None]
Schedule: TypeAlias = Sequence[tuple[int, Sequence[str]]]


@dataclass(frozen=True)
class Setting:
    """What graphs are made for.

    - ``stage``: the stage of ZeRO.
    - ``backend``: the backend that compiles them.
    - ``device``: the type of the model's device.
    - ``paged_by``: the name of the optimizer's class, where it pages all that it keeps; otherwise empty.
    - ``has_parts_apart``: whether a rank's part of a parameter has memory of its own, apart from the whole.
    """

    stage: int
    backend: str
    device: str = "cpu"
    paged_by: str = ""
    has_parts_apart: bool = False


@dataclass(frozen=True)
class Contract:
    """What a pass needs, and what it promises. Schedules that break a contract are refused.

    - ``provides``: what is true of a graph after the pass.
    - ``requires``: what must be true of it before the pass.
    - ``conflicts``: the names of the passes that must not run on the same graph.
    - ``after``: the names of the passes that must run before it where they run.
    - ``stages``: the stages of ZeRO that it is for.
    - ``needs_profile``: whether it needs a measured step before it; then a schedule may have it from step 2 on.
    - ``backends``: the backends whose rules of aliasing its operators keep.
    - ``why_not``: returns what else forbids it in a setting; an empty text where nothing does.
    """

    provides: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    conflicts: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    stages: frozenset[int] = frozenset({1, 2, 3})
    needs_profile: bool = False
    backends: frozenset[str] = frozenset({"inductor", "aot_eager"})
    why_not: Callable[[Setting], str] = lambda setting: ""

    def __post_init__(self) -> None:
        for name in ("provides", "requires", "conflicts", "after"):
            value = getattr(self, name)
            if not isinstance(value, Set) or not all(isinstance(one, str) for one in value):
                raise ValueError(f"[zero.passes] expected a contract's {name} as a set of texts, got {value!r}")
        if not isinstance(self.stages, Set) or not self.stages <= {1, 2, 3}:
            raise ValueError(
                f"[zero.passes] expected a contract's stages as a set among 1, 2 and 3, got {self.stages!r}"
            )
        if not isinstance(self.backends, Set) or not self.backends <= set(BACKENDS):
            raise ValueError(
                f"[zero.passes] expected a contract's backends as a set among {' and '.join(BACKENDS)}, got "
                f"{self.backends!r}"
            )
        if not isinstance(self.needs_profile, bool):
            raise ValueError(
                f"[zero.passes] expected a contract's needs_profile as True or False, got {self.needs_profile!r}"
            )
        if not callable(self.why_not):
            raise ValueError(f"[zero.passes] expected a contract's why_not as a function, got {self.why_not!r}")


@dataclass(frozen=True)
class Pass:
    edit: Edit
    contract: Contract


def _on_the_host(setting: Setting) -> str:
    return "moves what is on a device to the host, and the model is there already" if setting.device == "cpu" else ""


def _no_optimizer_to_offload(setting: Setting) -> str:
    if setting.paged_by:
        return f"has nothing to do: {setting.paged_by} pages what it keeps by itself"
    return _on_the_host(setting)


def _no_parameters_to_offload(setting: Setting) -> str:
    if setting.stage < 3 and not setting.has_parts_apart:
        return (
            f"moves what a rank has apart from the parameters that graphs compute with: in stage {setting.stage} there "
            f"is such memory only with a codec of gather"
        )
    return _on_the_host(setting)


_GATHERED = frozenset({"gathered"})

BUILT_IN: Mapping[str, Pass] = {
    "gather": Pass(gather, Contract(provides=_GATHERED, stages=frozenset({3}))),
    "reduce": Pass(reduce, Contract(provides=frozenset({"reduced early"}))),
    "prefetch": Pass(prefetch, Contract(requires=_GATHERED, stages=frozenset({3}), needs_profile=True)),
    "selective_gather": Pass(selective_gather, Contract(requires=_GATHERED, stages=frozenset({3}), needs_profile=True)),
    "offload_activations": Pass(offload_activations, Contract(why_not=_on_the_host)),
    "offload_optimizer": Pass(
        offload_optimizer,
        Contract(provides=frozenset({"optimizer offloaded"}), needs_profile=True, why_not=_no_optimizer_to_offload),
    ),
    "offload_parameters": Pass(
        offload_parameters,
        Contract(
            provides=frozenset({"parameters offloaded"}),
            conflicts=frozenset({"selective_gather"}),  # which takes memory for what this pass gives up
            after=frozenset({"gather", "prefetch"}),  # these decide where parameters are needed
            needs_profile=True,
            why_not=_no_parameters_to_offload,
        ),
    ),
}

MEASURED_STEP = 3  # by then most models have compiled all graphs and allocated the memory that they keep


def default_schedule(stage: int) -> Schedule:
    if stage < 3:
        return [(0, ["reduce"])]
    return [(0, ["gather", "reduce"]), (MEASURED_STEP, ["gather", "reduce", "selective_gather", "prefetch"])]


def require_sound(schedule: Schedule, passes: Mapping[str, Pass], setting: Setting) -> None:
    """Raises ValueError for a schedule that has the wrong form or breaks a contract, before anything runs."""
    _require_form(schedule)
    steps = [step for step, _ in schedule]
    if not steps or steps[0] != 0 or sorted(set(steps)) != steps:
        raise ValueError(f"[zero.passes] expected a schedule whose steps begin with 0 and increase, got {steps}")
    for step, names in schedule:
        _require_sound_step(step, names, passes, setting)


def _require_form(schedule: Any) -> None:
    def is_list(value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str)

    def is_pair(value: Any) -> bool:
        return is_list(value) and len(value) == 2 and type(value[0]) is int and is_list(value[1])

    is_schedule = is_list(schedule) and all(map(is_pair, schedule))
    if not is_schedule or not all(isinstance(name, str) for _, names in schedule for name in names):
        raise ValueError(
            f"[zero.passes] expected a schedule as pairs of a step and the names of its passes, such as "
            f'[(0, ["reduce"])], got {schedule!r}'
        )


def _require_sound_step(step: int, names: Iterable[str], passes: Mapping[str, Pass], setting: Setting) -> None:
    provided: set[str] = set()
    done: list[str] = []
    for name in names:
        where = f"[zero.passes] step {step}:"
        if name not in passes:
            raise ValueError(f"{where} there is no pass {name!r}; known are {', '.join(sorted(passes))}")
        if name in done:
            raise ValueError(f"{where} {name} is there twice")
        contract = passes[name].contract
        _require_fit(where, name, contract, setting)
        _require_known(where, name, passes)
        if missing := contract.requires - provided:
            providers = [n for n, p in passes.items() if p.contract.provides & missing and n != name]
            raise ValueError(f"{where} {name} needs one of {providers} before it, which makes graphs {sorted(missing)}")
        for other in done:
            if other in contract.conflicts or name in passes[other].contract.conflicts:
                raise ValueError(f"{where} {name} and {other} exclude each other")
            if name in passes[other].contract.after:
                raise ValueError(f"{where} {other} must come after {name}")
        if contract.needs_profile and step < 2:
            raise ValueError(f"{where} {name} needs a step that was measured: schedule it for step 2 or a later one")
        provided |= contract.provides
        done.append(name)
    if setting.stage == 3 and "gathered" not in provided:
        raise ValueError(f"[zero.passes] step {step}: stage 3 needs the pass gather")


def _require_known(where: str, name: str, passes: Mapping[str, Pass]) -> None:
    """Raises ValueError where the contract of a pass names passes that there are not, whose rules would never be
    checked, or requires what no pass can make true."""
    contract = passes[name].contract
    for field in ("conflicts", "after"):
        if unknown := getattr(contract, field) - passes.keys():
            raise ValueError(
                f"{where} the contract of {name} has in its {field} {_listed(unknown)}, which no pass is called: "
                f"register such a pass first, or leave the name out; known are {', '.join(sorted(passes))}"
            )
    provided = {what for other, of_name in passes.items() if other != name for what in of_name.contract.provides}
    if missing := contract.requires - provided:
        raise ValueError(
            f"{where} {name} requires {_listed(missing)}, which no other pass provides: name in requires what the "
            f"contract of a registered pass has in provides; these have {_listed(provided)}"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _require_fit(where: str, name: str, contract: Contract, setting: Setting) -> None:
    stage, backend = setting.stage, setting.backend
    if stage not in contract.stages:
        raise ValueError(f"{where} {name} is for stage {sorted(contract.stages)}, and this is stage {stage}")
    if backend not in contract.backends:
        raise ValueError(f"{where} {name} is for the backend {sorted(contract.backends)}, and this is {backend}")
    if reason := contract.why_not(setting):
        raise ValueError(f"{where} {name} {reason}; leave it out")
