# SPDX-License-Identifier: Apache-2.0
"""The base of optimizers whose step is one C++ call over all tensors, with states in 32, 8 or 4 bits, paged or not."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from octavo.arguments import is_whole_number, page_folder
from octavo.optim.base import (
    CheckedOptimizer,
    Saved,
    eager_step,
    loss_of,
    of_itself,
    outside_of_inference,
    states_of_none,
)
from octavo.optim.checks import TORCHS_OWN, require_dense, require_group_options
from octavo.optim.clipping import GradientClip, require_max_norm
from octavo.optim.nonfinite import NONFINITE, NonfiniteFlags, NothingChanged, finite_on_all_ranks
from octavo.optim.overrides import groups_by_name, names_of_groups
from octavo.optim.rounding_numbers import RoundingNumbers, first_elements
from octavo.optim.shards import is_sharded, local, match_placements
from octavo.optim.state_formats import has_codes, is_fitting
from octavo.optim.states import StateMaker
from octavo.optim.steps_in_backward import are_registered, require_unawaited, step_in_backward

STEP_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BF16_ROUNDING = ("nearest", "stochastic", "extra_bits")
FORMAT = ("optim_bits", "min_8bit_size", "is_paged", "min_paged_size")  # the options that say how states are kept
OWN_OPTIONS = (*FORMAT, "nonfinite", "bf16_rounding", "seed")  # options that optimizers of other libraries do not have


class Moved(NamedTuple):
    """Parameters of a group that make a step in one call, because they are on one device, and their states."""

    parameters: list[Tensor]
    states: list[dict[str, Tensor]]
    first_states: dict[Tensor, dict[str, Tensor]]  # of those that have made no step; the optimizer's once they have

    def values(self, moment: str) -> list[Tensor]:
        """Returns the floats or codes of a moment, one tensor per parameter."""
        codes = f"{moment}_codes"
        return [state[moment] if moment in state else state[codes] for state in self.states]

    def scales(self, moment: str) -> list[Tensor]:
        return self.of_some(f"{moment}_scale", torch.float32)

    def of_some(self, name: str, dtype: torch.dtype) -> list[Tensor]:
        """Returns the states of this name, one per parameter: an empty tensor where a parameter has none. Where no
        parameter has one, returns an empty list."""
        found = [state.get(name) for state in self.states]
        if all(state is None for state in found):
            return []
        none = torch.empty(0, dtype=dtype, device=self.parameters[0].device)
        return [none if state is None else state for state in found]

    def next_steps(self) -> list[int]:
        return [int(state["step"].item()) + 1 for state in self.states]

    def count_step(self) -> None:
        torch._foreach_add_([state["step"] for state in self.states], 1)  # as torch's own optimizers count


class StepCall(NamedTuple):
    """The step of the parameters of a group on one device."""

    make: Callable[[], object]
    check: Callable[[], object] = lambda: None  # raises what `make` would raise, and changes nothing


class FusedOptimizer(CheckedOptimizer):
    """Base of ``Adam``, ``AdamW`` and ``Lion``. Every option may differ between parameter groups, and is saved with
    them. ``overrides`` makes groups by the names of parameters:

    >>> AdamW8bit(
    ...     model.named_parameters(), overrides={"embed*": dict(optim_bits=32), "*norm*": dict(weight_decay=0.0)}
    ... )

    A parameter gets the options of all patterns (``fnmatch``) that match its whole name; where several give the same
    option, the last one counts. Names are saved, and a load refuses the state of parameters with other names or in
    other groups. A group that is added later has only its own options.

    - ``optim_bits``: 32, 8 or 4, the bits of an element of a state.
    - ``min_8bit_size``: parameters of fewer elements have states in float32 whatever ``optim_bits`` says. For a DTensor
      the elements of all ranks count.
    - ``is_paged``: whether states are in managed memory, which is moved to where it is used and back. With a device
      this is shared memory of SYCL or CUDA; on the CPU it is memory that the system may page out.
    - ``min_paged_size``: the states of parameters of fewer elements are not paged.
    - ``page_dir``: on the CPU, the directory of a file that holds the managed memory, so that states may be larger than
      RAM. Raises ValueError where no group is paged.
    - ``nonfinite``: what happens where a gradient has a NaN or an infinity. ``"skip_element"`` leaves that element and
      its state as they are. ``"skip_step"`` leaves everything as it is, in all groups. After both, ``saw_nonfinite()``
      is True. ``"raise"`` leaves everything as it is and raises FloatingPointError. The last two wait for the device in
      every step.
    - ``bf16_rounding``: how parameters in bfloat16 are rounded. ``"nearest"`` loses steps of less than half a unit of
      the last place. ``"stochastic"`` rounds without bias, by random bits drawn from ``seed``, the step and the
      element's number. These bits are the same on every machine, and however a DTensor is cut along its first
      dimension. ``"extra_bits"`` keeps 8 more bits of each parameter as a state.
    - ``seed``: the seed of ``"stochastic"``.

    With each ``nonfinite``, Adam and AdamW leave an element alone where the square that goes into its variance is
    beyond float32 (for values of 1.85e19 and above); ``saw_nonfinite()`` is then True. torch's variance of it would be
    infinite, and no gradient would move the element again.

    State of a parameter: ``step``, a float32 scalar on the CPU as in torch; each moment, in float32 under its name, or
    as ``NAME_codes`` (uint8, in row-major order whatever the parameter's order is) and ``NAME_scale``; and
    ``extra_bits``. All are plain tensors on the parameter's device, except ``step``, and none shares its memory with
    another. Of a DTensor, such as the parameters of ``fully_shard``, a rank has the state of its own shard; in
    ``state_dict()`` states are DTensors.
    """

    _moments: ClassVar[tuple[str, ...]]  # names of the moments in a parameter's state
    _own_options: ClassVar[frozenset[str]]  # options of parameter groups by which a saved state is recognized
    _bits: ClassVar[int] = 32  # the defaults of optim_bits and is_paged
    _pages: ClassVar[bool] = False

    _clip: GradientClip | None = None  # that of clip_grad_norm_, until the next step
    _backward_hooks: Sequence[RemovableHandle] = ()  # the hooks of step_in_backward
    _engine: weakref.ref[Any] | None = None  # that of octavo.initialize, which hands over gradients only in its step

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        optim_bits: int | None = None,
        min_8bit_size: int = 4096,
        is_paged: bool | None = None,
        min_paged_size: int = 0,
        page_dir: str | PathLike | None = None,
        nonfinite: str = "skip_element",
        bf16_rounding: str = "nearest",
        seed: int = 0,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **unknown: Any,
    ):
        if unknown:
            raise TypeError(f"[optim.{type(self).__name__}] there is no option {', '.join(sorted(unknown))}")
        self._maker = self._make_maker(None)
        self._nonfinite, self._rounding_numbers = NonfiniteFlags(), RoundingNumbers()
        options = dict(
            optim_bits=self._bits if optim_bits is None else optim_bits,
            min_8bit_size=min_8bit_size,
            is_paged=self._pages if is_paged is None else is_paged,
            min_paged_size=min_paged_size,
            nonfinite=nonfinite,
            bf16_rounding=bf16_rounding,
            seed=seed,
        )
        if options["optim_bits"] != self._bits != 32:
            self._require(False, f"no optim_bits, or {self._bits}, which its name says", options["optim_bits"])
        if overrides:
            params = groups_by_name(type(self).__name__, params, overrides, defaults.keys() | options.keys())
        super().__init__(params, defaults | options)
        is_paged = any(group["is_paged"] for group in self.param_groups)
        self._maker.memory.page_dir = page_folder(page_dir, is_paged, f"optim.{type(self).__name__}")

    # ---- what a subclass says

    def _call(self, group: dict[str, Any], moved: Moved, tensors: dict[str, Any]) -> None:
        """Calls the operator that makes the step. ``tensors`` are the arguments that the operators of all rules have in
        common."""
        raise NotImplementedError

    def _require_ready(self) -> None:
        """Raises RuntimeError where a step would take ``grad`` for what it is not."""

    # ---- options

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        bits, seed = group["optim_bits"], group["seed"]
        self._require(is_whole_number(bits) and bits in (4, 8, 32), "optim_bits of 32, 8 or 4", repr(bits))
        self._require(is_whole_number(seed), "seed as a whole number", repr(seed))
        self._require(isinstance(group["is_paged"], bool), "is_paged as True or False", repr(group["is_paged"]))
        for name in ("min_8bit_size", "min_paged_size"):
            is_size = is_whole_number(group[name]) and group[name] >= 0
            self._require(is_size, f"{name} as a whole number of 0 or more", repr(group[name]))
        for name, known in (("nonfinite", NONFINITE), ("bf16_rounding", BF16_ROUNDING)):
            self._require(group[name] in known, f"{name} as one of {known}", repr(group[name]))

    # ---- steps

    @eager_step
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = loss_of(closure)
        self._require_all_valid()
        self._require_ready()
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        factor = None
        if self._clip is not None:
            factor = self._clip.factor_of([parameter.grad for parameters in moved for parameter in parameters])
        for parameter in (p for parameters in moved for p in parameters):
            require_dense(self, parameter.grad)
            match_placements(parameter)
        if self._may_step(moved):
            groups = zip(self.param_groups, moved, strict=True)
            calls = [call for group, parameters in groups for call in self._step_calls(group, parameters, factor)]
            for call in calls[1:]:  # the first one checks its parameters itself, before it moves any
                call.check()
            for call in calls:
                call.make()
        self._clip = None
        return loss

    @of_itself
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._clip = None  # it was of the gradients that are gone

    @of_itself
    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the gradients of the next step to the global L2 norm ``max_norm``. Returns the norm that they have, a
        tensor on their device, which is not waited for.

        It does what ``torch.nn.utils.clip_grad_norm_`` does without a pass of its own over the gradients: the step
        multiplies them as it reads them, and ``grad`` stays as it is. On the CPU, unlike torch's, it clips finite
        gradients whose norm overflows in float32. Of several calls before a step the last one
        counts. ``zero_grad()`` of this optimizer cancels it, and so does that of the model, since a step clips no other
        gradients than those that were measured. Raises RuntimeError with ``step_in_backward``, which frees gradients
        before they can be measured; ``step()`` raises it where gradients were changed in place, or some of them
        replaced, after they were measured. Under ``octavo.initialize`` it raises RuntimeError, too: there
        ``clip_grad_norm_`` of the engine clips.
        """
        require_max_norm(max_norm, f"optim.{type(self).__name__}")
        if are_registered(self._backward_hooks):
            raise RuntimeError(
                f"[optim.{type(self).__name__}] the norm of all gradients is known after backward, and "
                f"step_in_backward has made the steps by then: remove() its handles, or do without clipping"
            )
        measured = [parameter for parameter in self._all_parameters() if parameter.grad is not None]
        engine = None if self._engine is None else self._engine()
        if not measured and engine is not None and engine.holds_gradients:
            raise RuntimeError(
                f"[optim.{type(self).__name__}] under octavo.initialize gradients come to the optimizer only in "
                f"engine.step(): call engine.clip_grad_norm_ in the place of this method, or give clip_norm in the "
                f"config"
            )
        for parameter in measured:
            match_placements(parameter)  # the step would do it, and then not find the gradient that was measured
        self._clip = GradientClip(type(self).__name__, [parameter.grad for parameter in measured], max_norm)
        return self._clip.norm

    def remember_engine(self, engine: object) -> None:
        """Says that ``octavo.initialize`` has given the optimizer to this engine, until the engine is gone."""
        self._engine = weakref.ref(engine)

    def saw_nonfinite(self) -> bool:
        """Whether a step since the last call has left elements alone because of their gradients, or all of them with
        ``"skip_step"``. Waits for the devices. With shards, as of ``fully_shard``, a rank knows of ``"skip_element"``
        only in its own shards: the answers of the ranks may differ."""
        return self._nonfinite.clear()

    @of_itself
    def step_in_backward(self) -> list[RemovableHandle]:
        """From now on a parameter makes its step as soon as backward has its gradient, which is then freed: all
        gradients together need no more memory than the largest one. ``step()`` finds nothing left to do. Returns
        handles; ``remove()`` of all of them ends it.

        It cannot be used with gradient accumulation, with clipping by the norm of all gradients, with a GradScaler (the
        gradients are still multiplied by its factor), or where reentrant checkpointing gives a tied weight its gradient
        in parts. A parameter makes the step of the group that it is in by then. It does not include parameters that
        require a gradient only later. Hooks around ``step`` are not called. Keep a reference to the optimizer:
        parameters do not keep it, and backward raises RuntimeError where it is gone.

        Raises ValueError for a ``nonfinite`` that waits for all gradients. Raises RuntimeError, here or in backward,
        where something reads gradients after backward has computed them, such as DistributedDataParallel to average
        them: each rank would step by its own gradient. ``fully_shard`` averages them before.
        """
        if are_registered(self._backward_hooks):
            raise RuntimeError(
                f"[optim.{type(self).__name__}] it steps in backward already: remove() the handles of the first call"
            )
        for group in self.param_groups:
            self._require_skips_elements(group)
        for parameter in self._all_parameters():
            require_unawaited(self, parameter)
        self._backward_hooks = tuple(step_in_backward(self))
        return list(self._backward_hooks)

    @eager_step
    def _step_one(self, group: dict[str, Any], parameter: Tensor) -> None:
        """Makes the step of one parameter, which is in ``group`` and has a ``grad``."""
        self._require_valid(group)
        self._require_ready()
        require_dense(self, parameter.grad)
        match_placements(parameter)
        self._require_skips_elements(group)
        for call in self._step_calls(group, [parameter], None):
            call.make()

    def _require_skips_elements(self, group: dict[str, Any]) -> None:
        skips = group["nonfinite"] == "skip_element"
        self._require(skips, "nonfinite as 'skip_element' in backward", repr(group["nonfinite"]))

    def _step_calls(self, group: dict[str, Any], parameters: list[Tensor], factor: Tensor | None) -> list[StepCall]:
        """Returns what makes the step of parameters that have a ``grad``, a call for each device, with the states of
        parameters that have none yet."""
        self._maker.memory.require_own_process()
        self._require_format(group, parameters)
        calls: list[StepCall] = []
        by_device: dict[torch.device, Moved] = {}
        for parameter in parameters:
            if parameter.dtype not in STEP_DTYPES:
                self._require(False, "parameters in float32, bfloat16 or float16", parameter.dtype)
            here = by_device.setdefault(parameter.device, Moved([], [], {}))
            state = self.state.get(parameter)  # not self.state[parameter], which makes an entry
            if not state:
                state = here.first_states[parameter] = self._maker.first(group, parameter)
            self._maker.fit_extra_bits(group, parameter, state)
            here.parameters.append(parameter)
            here.states.append(state)
        for device, here in by_device.items():
            is_random = group["bf16_rounding"] == "stochastic"
            common = dict(
                parameters=[local(p) for p in here.parameters],
                gradients=[local(p.grad) for p in here.parameters],
                tails=here.of_some("extra_bits", torch.int8),
                code_bits=group["optim_bits"] if group["optim_bits"] != 32 else 8,
                gradient_factor=None if factor is None else factor.to(device),
                nonfinite=self._nonfinite.on(device),
                rounding_seed=int(group["seed"]) % 2**63 if is_random else None,
                numbers=self._numbers(here) if is_random else [],
                first_elements=first_elements(here.parameters) if is_random else [],
            )
            calls.append(StepCall(partial(self._make_step, group, here, common), partial(self._check, here, common)))
        return calls

    def _check(self, moved: Moved, tensors: dict[str, Any]) -> None:
        """Raises what ``_call`` would raise for these parameters."""
        names = ("parameters", "gradients", "tails", "code_bits", "gradient_factor", "nonfinite", "rounding_seed")
        has_squares = len(self._moments) == 2  # Lion has only one moment
        torch.ops.octavo.require_step(
            means=moved.values(self._moments[0]),
            mean_scales=moved.scales(self._moments[0]),
            squares=moved.values(self._moments[1]) if has_squares else [],
            square_scales=moved.scales(self._moments[1]) if has_squares else [],
            **{name: tensors[name] for name in names},
        )

    def _make_step(self, group: dict[str, Any], moved: Moved, tensors: dict[str, Any]) -> None:
        self._call(group, moved, tensors)
        self.state.update(moved.first_states)
        # of a shard, the operator has counted the change, but not of its DTensor
        increment_version([p for p in moved.parameters if is_sharded(p)])
        moved.count_step()

    def _require_format(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Raises ValueError unless codes are of the group's ``optim_bits``. It looks at one parameter that has codes,
        because ``optim_bits`` changes for all parameters of a group."""
        moment = self._moments[0]
        coded = next((p for p in parameters if has_codes(self.state.get(p, {}), moment)), None)
        if coded is None:
            return
        known = [bits for bits in (8, 4) if is_fitting(self.state[coded], moment, bits, local(coded).shape)]
        what = "the optim_bits of the states that are there; load state_dict() into a new optimizer for others"
        # codes of another shape than the parameter's, whatever their bits, are refused with both shapes
        self._require(group["optim_bits"] in (known or (8, 4)), what, group["optim_bits"])

    def _numbers(self, moved: Moved) -> list[int]:
        return self._rounding_numbers.numbers(self.param_groups, moved.parameters, moved.next_steps())

    def _all_parameters(self) -> Iterable[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _may_step(self, moved: list[list[Tensor]]) -> bool:
        """Whether no group's ``nonfinite`` forbids the step. ``moved``: for each group, the parameters that are to
        move."""
        for policy in ("raise", "skip_step"):
            groups = zip(self.param_groups, moved, strict=True)
            guarded = [p for group, parameters in groups if group["nonfinite"] == policy for p in parameters]
            if not guarded or finite_on_all_ranks(guarded):
                continue
            if policy == "raise":
                self._clip = None  # it was of gradients that must be replaced
                raise NothingChanged(
                    f"[optim.{type(self).__name__}] a gradient is not finite; all parameters and states are as they "
                    f"were before the step"
                )
            self._tell_nonfinite(moved)
            return False
        return True

    def _tell_nonfinite(self, moved: list[list[Tensor]]) -> None:
        self._nonfinite.set_on({parameter.device for parameters in moved for parameter in parameters})

    # ---- copies and checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's form of a state dict, with the states' own tensors. The states of DTensors are DTensors in
        it, on the parameter's mesh and with its placements: ``torch.distributed.checkpoint`` can save them, and load
        them on another number of ranks."""
        self._maker.memory.require_own_process()
        hook = self.register_state_dict_post_hook(_make_portable, prepend=True)  # before the hooks of the program
        try:
            return super().state_dict()
        finally:
            hook.remove()

    @of_itself
    @outside_of_inference
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what ``state_dict()`` of this optimizer, or of another one of this family, has returned, or that
        of ``torch.optim.Adam`` and ``AdamW``; and the result of ``from_bitsandbytes``.

        How states are kept stays as this optimizer says (``optim_bits``, ``min_8bit_size``, ``is_paged``,
        ``min_paged_size``). States in another format are encoded or decoded, those in the same format are copied to the
        bit, each straight into its place. All other options become the saved ones; where an option is not saved, this
        optimizer keeps its own. The saved tensors may be on any device, and are not kept. Raises ValueError for the
        state of another optimizer or of other shapes; whatever it raises, nothing has changed.
        """
        self._load_checked(state_dict, lambda saved: require_group_options(self, saved, self._own_options))

    def __getstate__(self) -> dict[str, Any]:
        self._maker.memory.require_own_process()
        return super().__getstate__() | {"_page_dir": self._maker.memory.page_dir}

    @outside_of_inference
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, or what ``load_state_dict`` was given. States that belong in managed memory are copied
        there."""
        saved_groups = state["param_groups"]
        if "defaults" in state:  # this is a copy, which has no attributes yet
            self._maker = self._make_maker(state["_page_dir"])
            self._nonfinite, self._rounding_numbers = NonfiniteFlags(), RoundingNumbers()
            groups = [state["defaults"] | group for group in saved_groups]
        else:
            self._require_same_names(saved_groups)
            groups = [self._loaded(*pair) for pair in zip(saved_groups, self.param_groups, strict=True)]
        states = states_of_none(state["state"])
        for group, saved_group in zip(groups, saved_groups, strict=True):
            self._require_valid(group)
            saved_bits = 4 if saved_group.get("optim_bits") == 4 else 8
            for parameter in group["params"]:
                if parameter in state["state"]:
                    saved = Saved.of(state["state"][parameter])
                    states[parameter] = self._maker.restored(group, parameter, saved, saved_bits)
        super().__setstate__(state | {"param_groups": groups, "state": defaultdict(dict, states)})
        self._maker.memory.belongs_here()

    def _require_same_names(self, saved_groups: Sequence[dict[str, Any]]) -> None:
        """Raises ValueError where the parameters of a group were saved by other names than they have here."""
        for theirs, ours in zip(names_of_groups(saved_groups), names_of_groups(self.param_groups), strict=True):
            if ours and theirs and ours != theirs:
                other, name = next((a, b) for a, b in zip(theirs, ours, strict=True) if a != b)
                raise ValueError(
                    f"[optim.{type(self).__name__}] the saved state is of other parameters, or of parameters in "
                    f"another order: it has '{other}' where this optimizer has '{name}'; nothing has changed"
                )

    def _loaded(self, saved: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that a group has after a load."""
        for name in ("amsgrad", "maximize"):
            self._require(not saved.get(name), f"a state without {name}, which is not supported", saved.get(name))
        kept = {name: value for name, value in saved.items() if name not in TORCHS_OWN}
        return {name: own[name] for name in self.defaults if name in own} | kept | {name: own[name] for name in FORMAT}

    def _make_maker(self, page_dir: str | None) -> StateMaker:
        return StateMaker(type(self).__name__, self._moments, page_dir)


def _make_portable(optimizer: FusedOptimizer, state_dict: dict[str, Any]) -> None:
    states = state_dict["state"]
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for parameter, key in zip(group["params"], saved["params"], strict=True):
            if key in states:
                states[key] = optimizer._maker.portable(group, parameter, states[key])
