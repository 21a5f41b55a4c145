# SPDX-License-Identifier: Apache-2.0
"""0/1 Adam: most steps send nothing, and the others one bit per value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from octavo._C import Plan
from octavo.arguments import is_whole_number
from octavo.finite import all_finite
from octavo.optim.base import eager_step, loss_of, of_itself, outside_of_inference
from octavo.optim.checks import require_group_options, require_parameter_states
from octavo.optim.joined import JoinedOptimizer
from octavo.optim.managed import ManagedStates
from octavo.optim.zero_one_count import LOCAL, SCHEDULE, SYNC, VARIANCE, StepCount, kind_at, set_in_all
from octavo.optim.zero_one_steps import (
    ParameterStep,
    decay_weights,
    end_round,
    learn_variance,
    move_by_adamw,
    move_locally,
    step_size,
)

_EXCHANGES = {VARIANCE: "gradients", SYNC: "planned", LOCAL: "nothing"}

_SUMS = frozenset({"step", "variance_step", "total", "decay"})
_SINGLE = frozenset({"exp_avg", "update"})  # kept by the handle, where there is one


def _names_like(saved: Set[str]) -> tuple[Set[str], Set[str]]:
    """Returns the names that a state with these names must have, and those that it may have besides."""
    if "preconditioner" not in saved:  # the state of a parameter on plain AdamW
        return frozenset({"step", "exp_avg", "exp_avg_sq"}), frozenset()
    return _SUMS | {"preconditioner"}, _SINGLE | {"exp_avg_sq", "anchor"}


class ZeroOneAdam(ManagedStates, JoinedOptimizer):
    """Adam whose ranks make steps of their own between those that are sent, after 0/1 Adam (Lu et al. 2022).

    >>> options = dict(var_freeze_step=round(0.15 * steps), local_step_scaler=round(0.2 * steps))
    >>> optimizer = octavo.optim.ZeroOneAdam(model.parameters(), lr=1e-3, **options)
    >>> handle = octavo.compress(ddp, "sign+ef", optimizer=optimizer)

    Each step is of one of three kinds, which depends only on the step's number:

    - *variance*: gradients are averaged in their own dtype, and momentum and variance learn from them. At first every
      step is of this kind, after ``var_update_scaler`` of these every second one, after as many again every fourth one,
      and so on, until ``var_freeze_step`` steps are made. Then the variance stays as it is.
    - *sync*: all other steps before ``var_freeze_step``, and after it one step in every interval. Ranks average the
      updates that each has made since the last sync, including this step's, by the plan of ``octavo.compress`` with its
      error feedback. From the average all ranks make the same parameters and the same momentum.
    - *local*: all other steps. Nothing is sent. Each rank moves by its own gradient and its own momentum, and
      parameters differ between ranks until the next sync. Intervals begin with 1 step, double after every
      ``local_step_scaler`` steps, and end at ``local_step_clipper`` steps.

    After a sync step parameters have the same bits on all ranks. ``synchronize()`` averages what ranks have not
    exchanged yet, outside of backward. Call it on all ranks after the last step, and wherever ranks must have the same
    parameters. Call it also before the program writes to parameters itself, as ``model.load_state_dict`` does: a sync
    step makes them anew from what they were at the sync before, and what was written since then is lost.

    The learning rate and the first beta of a step are those in force when its forward pass began. After a local step
    ``parameter.grad`` is the rank's own gradient, clipped if the loop clips it. After a sync step it is the averaged
    update, which must not be changed (RuntimeError). Weight decay is decoupled; a sync step applies it for all steps
    since the last sync.

    A step with a NaN or an infinity is not made. Where ranks exchange something, all of them see it and none makes the
    step; a sync is then made up for in the next step. In a local step the rank that has the NaN makes no step, and the
    others go on without knowing of it: the average then has that much less of this rank. A GradScaler may therefore
    skip a step on one rank alone, and its scales may differ between ranks afterwards. A parameter that had no gradient
    in any variance step is moved by plain AdamW, only at sync steps.

    Four things differ from the paper:

    - Variances and momenta are corrected for their start at zero, as in Adam.
    - A variance step sends only gradients, from which all ranks make the same momentum, and no momentum beside them.
    - Updates are sent as they move parameters, divided by the root of the variance before they are sent and not after,
      so that one scale suits all of a tensor.
    - That root is at least ``variance_floor`` of its mean over 256 elements. Rows of rare tokens, which have no
      gradient while the variance learns, would otherwise move by 1 / ``eps``. With 0 there is no such bound.

    State of a parameter: ``exp_avg_sq`` while the variance learns; ``preconditioner``, 1 over its root; ``anchor``, the
    parameter at the last sync, from the first local step on; and scalars. All of it is equal on all ranks. Momenta and
    updates since the last sync are state of each rank, in float32: ``handle.state_dict()`` of each rank has them. A run
    that is saved between two syncs resumes with the same bits, though the parameters of only one rank were saved; on
    another number of ranks it goes on with the means. In a single process no handle is needed, and syncs average over
    one rank.

    ``is_paged`` keeps the state's tensors in managed memory, on the CPU with ``page_dir`` in files in that directory.
    The handle keeps momenta and updates, for which ``octavo.compress`` has the same options. A step is in float32:
    parameters in float64 are rounded to it.
    """

    _own_options = frozenset(SCHEDULE)  # options of parameter groups by which a saved state is recognized
    _alike = ("betas", *SCHEDULE)
    _in_own_dtype = frozenset({"anchor"})

    _count: StepCount

    # of the step under way, as they were when its forward pass began
    _rates: tuple[tuple[float, float], ...] = ()  # learning rate and weight decay, by group
    _beta = 0.0  # the first beta

    _is_registered = False  # whether the handle keeps updates
    _must_restore = False  # whether parameters are to be made from a loaded state

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        var_freeze_step: int,
        local_step_scaler: int,
        var_update_scaler: int = 16,
        local_step_clipper: int = 16,
        variance_floor: float = 0.3,
        is_paged: bool = False,
        page_dir: str | PathLike | None = None,
    ):
        self._set_paging(is_paged, page_dir)
        self._count = StepCount()
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "var_freeze_step": var_freeze_step,
                "var_update_scaler": var_update_scaler,
                "local_step_scaler": local_step_scaler,
                "local_step_clipper": local_step_clipper,
                "variance_floor": variance_floor,
                # the position in the schedule; it is the same in all groups
                "steps": 0,
                "overdue": False,  # whether the last sync failed
                "learnt": False,  # whether a parameter has a state, said when it is saved
            },
        )

    @of_itself
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._note_last_step()  # a step that the groups before may have made
        super().add_param_group(param_group)
        first = self.param_groups[0]
        self.param_groups[-1].update(steps=first["steps"], overdue=first["overdue"])
        if self._handle is not None:
            self._begin_step()

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        for name in SCHEDULE:
            is_count = is_whole_number(group[name]) and group[name] >= 1
            self._require(is_count, f"{name} as a whole number of at least 1", repr(group[name]))

    @property
    def frozen(self) -> bool:
        """Whether the variance stays as it is from now on."""
        return self._position["steps"] >= self._position["var_freeze_step"]

    @property
    @of_itself
    def next_kind(self) -> str:
        """The kind of the next step: ``variance``, ``sync`` or ``local``."""
        self._note_last_step()
        return kind_at(self._position).name

    @eager_step
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = loss_of(closure)
        self._require_all_valid()
        self._memory.require_own_process()
        self._require_joined()
        self._restore_parameters()
        self._require_delivered(
            "step",
            "after a step in which ranks averaged their updates .grad holds the average, and it is not what came from "
            "the wire any more. Clip gradients only after other steps (optimizer.next_kind, before the forward pass, "
            "says what a step is); a GradScaler must be given to octavo.compress(..., scaler=scaler) and must unscale "
            "before",
        )
        self._require_steppable()
        if self._handle is None:
            if self._count.to_make is None:  # otherwise this call does what is left of a step that found no memory
                self._step_alone()
        else:
            self._note_last_step()
            if self._count.to_make == VARIANCE:
                self._learn_variance()
            elif self._count.to_make == LOCAL:
                self._move_locally()
        if self._count.to_make == SYNC:
            if self._handle is None:
                self._end_round()
            self._move_without_preconditioner()
        self._count.to_make = None  # only now: a step that found no memory can be made again
        return loss

    @of_itself
    @outside_of_inference
    def synchronize(self) -> None:
        """Makes parameters and momenta the same on all ranks, as a sync step does, but without a gradient and outside
        of backward. It sends nothing where they are the same already. Call it on all ranks, between steps."""
        self._restore_parameters()
        self._note_last_step()
        if self._handle is None or not any(state.get("total") for state in self._states().values()):
            return
        self._count.is_averaged = self._handle.exchange_updates()
        self._count.catch_up(self._handle)
        set_in_all(self.param_groups, overdue=not self._count.is_averaged)
        self._end_averaged_round()
        self._begin_step()

    # ---- the schedule, which follows the steps of the handle, because a scaler may leave out step() on one rank

    @property
    def _position(self) -> dict[str, Any]:
        return self.param_groups[0]

    def _begin_step(self) -> None:
        """Begins a step, before its forward pass: tells the handle what the next backward pass sends."""
        self._note_last_step()
        self._count.kind = kind_at(self._position)
        self._take_rates()
        if self._handle is None:
            return
        self._handle.set_exchange(_EXCHANGES[self._count.kind])
        if self._count.kind == SYNC:
            self._handle.set_step_sizes({one.parameter: self._next_size(one) for one in self._known()})

    def _take_rates(self) -> None:
        """Takes the rates from the groups, which a schedule may have changed since the last step."""
        self._rates = tuple((float(group["lr"]), group["weight_decay"]) for group in self.param_groups)
        beta, self._beta = self._beta, self._position["betas"][0]
        if self._is_registered and beta != self._beta:
            self._register()

    @outside_of_inference
    def _note_last_step(self) -> None:
        """Takes note of the handle's last step, if it has made one. Where that finds no memory, the next call does
        what is left of it."""
        if self._handle is None:
            return
        if self._count.is_behind(self._handle):
            finite, is_dropped = self._handle.end_step(), self._count.is_dropped(self._handle)
            with self._counted(finite and not is_dropped):
                # where the step is local, the other ranks make it though it is not finite here
                is_counted = not is_dropped and (finite or self._count.kind == LOCAL)
                if is_counted and self._count.kind != VARIANCE:
                    self._count_in_states()
            self._count.catch_up(self._handle)
        self._end_averaged_round()

    def _counted(self, finite: bool) -> AbstractContextManager[None]:
        """Counts a step; after an error in the context it is not counted (``StepCount.counted``). Variance steps count
        what they have made by themselves."""
        states = [] if self._count.kind == VARIANCE else [one.state for one in self._known()]
        return self._count.counted(self.param_groups, states, finite)

    @torch.no_grad()
    def _count_in_states(self) -> None:
        """Counts a sync or local step in the states of parameters, on all ranks alike, whether they have gradients or
        not."""
        kind = self._count.kind
        for one in self._known():
            parameter, state = one.parameter, one.state
            if "anchor" not in state and (kind == LOCAL or self._handle is None):
                state["anchor"] = self._zeros_like(parameter, parameter.dtype).copy_(parameter.detach())
            state["total"] += self._next_size(one)
            if parameter.requires_grad:  # one that was frozen is moved by what its momentum has left, and no more
                state["decay"] *= 1 - one.lr * one.weight_decay
            state["step"] += 1
        self._count.is_averaged = kind == SYNC and self._handle is not None

    def _parameter_steps(self) -> Iterator[ParameterStep]:
        """Yields all parameters. The state of one that has none is empty, and not kept."""
        for group, (lr, weight_decay) in zip(self.param_groups, self._rates, strict=True):
            for parameter in group["params"]:
                yield ParameterStep(parameter, self.state.get(parameter, {}), group, lr, weight_decay)

    def _known(self) -> Iterator[ParameterStep]:
        """Yields the parameters whose variance is known, without those that were frozen before octavo.compress: their
        states stay as they are."""
        sends_all = self._handle is None
        return (one for one in self._parameter_steps() if one.is_known and (sends_all or one.parameter in self._sent))

    def _with_gradients(self) -> list[ParameterStep]:
        return [one for one in self._parameter_steps() if one.parameter.grad is not None]

    def _next_size(self, one: ParameterStep) -> float:
        return step_size(one.lr, self._beta, one.state["step"] + 1)

    # ---- the steps

    def _step_alone(self) -> None:
        """Makes a step of the single rank. Its syncs are local steps, after which step() ends the round."""
        self._begin_step()
        for one in self._known():
            self._begin_round_alone(one.parameter)
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        finite = bool(all_finite(gradients))
        with self._counted(finite):
            if self._count.to_make == VARIANCE:
                self._learn_variance()
            elif self._count.to_make is not None:
                self._count_in_states()
                self._move_locally()

    def _learn_variance(self) -> None:
        learning = [one.parameter for one in self._with_gradients() if one.is_known or one.parameter.grad.any()]
        for parameter in learning:
            if "preconditioner" not in self.state[parameter]:
                self._first_state(parameter)
        own = self._own()
        if any(parameter not in own for parameter in learning):
            self._register()
            own = self._own()
        with_gradients = self._with_gradients()
        learn_variance([one for one in with_gradients if one.is_known], own)
        decay_weights([one for one in with_gradients if not one.is_known])

    def _move_locally(self) -> None:
        move_locally([one for one in self._with_gradients() if one.is_known], self._own(), self._beta)

    @torch.no_grad()
    def _end_averaged_round(self) -> None:
        if self._count.is_averaged:
            self._end_round()
            self._count.is_averaged = False

    def _end_round(self) -> None:
        known = list(self._known())
        end_round(known, self._own())
        if self.frozen:  # no variance step follows
            for one in known:
                one.state.pop("exp_avg_sq", None)

    def _move_without_preconditioner(self) -> None:
        """Makes a step of plain AdamW for the parameters whose gradients were averaged as they are, because the
        variance was frozen before it had learnt from any of them."""
        if not self.frozen:
            return
        for one in self._with_gradients():  # before any has moved, because there may be no memory
            if not one.state:
                tensors = {name: self._zeros_like(one.parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[one.parameter].update(step=0, **tensors)
        move_by_adamw([one for one in self._with_gradients() if not one.is_known])

    def _first_state(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        names = ["exp_avg_sq", "preconditioner"] + ["exp_avg", "update"] * (self._handle is None)
        tensors = {name: self._zeros_like(parameter) for name in names}
        state.update(step=0, variance_step=0, total=0.0, decay=1.0, **tensors)

    def _own(self) -> dict[Tensor, tuple[Tensor, Tensor]]:
        """Returns the momenta, and the updates since the last sync, in the shape and memory order of the
        preconditioner."""
        if self._handle is None:
            return {one.parameter: (one.state["exp_avg"], one.state["update"]) for one in self._known()}
        flat = self._handle.own_updates() if self._is_registered else {}
        views = {}
        for parameter, pair in flat.items():
            like = self.state[parameter]["preconditioner"]
            views[parameter] = tuple(tensor.as_strided(like.size(), like.stride()) for tensor in pair)
        return views

    # ---- the handle of octavo.compress

    @property
    def phase(self) -> object:
        schedule = [self._position[name] for name in SCHEDULE]
        return super().phase, self._position["betas"][0], schedule, self._position["steps"]

    @property
    def keeps_own_momenta(self) -> bool:
        return True

    def require_plan(self, plan: Plan) -> None:
        self._require_magnitudes(plan)

    def _enter_phase(self) -> None:
        self._count.restart(self._handle)
        if self._handle is None:
            return
        self._take_rates()
        self._register()
        self._hand_over_round()
        self._must_restore = True  # once model, optimizer and handle are loaded, in any order
        self._begin_step()

    def _before_forward(self, *_: object) -> None:
        self._restore_parameters()
        if torch.is_grad_enabled():  # otherwise no backward pass follows
            self._begin_step()

    def _after_drop(self) -> None:
        self._count.note_drop(self._handle)

    def _after_load_of_handle(self) -> None:
        self._enter_phase()

    def _register(self) -> None:
        if self._handle is None:
            return
        known = {one.parameter: one.state["preconditioner"] for one in self._known()}
        if known or self._is_registered:
            self._handle.keep_own_updates(known, self._beta)
        self._is_registered = bool(known)

    @torch.no_grad()
    def _hand_over_round(self) -> None:
        """Gives the handle the momenta and updates of a single process, which keeps them in its state. The states of
        ranks have none."""
        own = self._own()
        for one in self._known():
            if "update" in one.state:
                momentum, update = own[one.parameter]
                momentum.copy_(one.state.pop("exp_avg"))
                update.copy_(one.state.pop("update"))

    @torch.no_grad()
    def _restore_parameters(self) -> None:
        """Restores this rank's parameters after a load. Between two syncs the saved parameters are those of one rank; a
        rank's own follow from the anchor and its updates."""
        if not self._must_restore:
            return
        self._must_restore = False
        own = self._own()
        for one in self._parameter_steps():
            if one.is_known and "anchor" in one.state:
                update = own[one.parameter][1] if one.parameter in own else 0.0  # one that is frozen has none
                one.parameter.copy_(one.state["anchor"].float() - update)

    # ---- state

    def __getstate__(self) -> dict[str, Any]:
        self._memory.require_own_process()  # first: what is left of the last step changes states
        self._note_last_step()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # this is a copy, which has no attributes yet
            self._count = StepCount()
        super().__setstate__(state)

    @of_itself
    def state_dict(self) -> dict[str, Any]:
        self._memory.require_own_process()  # first: what is left of the last step changes states
        self._note_last_step()
        set_in_all(self.param_groups, learnt=any(self._states().values()))
        return super().state_dict()

    @of_itself
    @outside_of_inference
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError for the state of another optimizer or of other shapes; nothing has changed then."""

        def check(saved: dict[str, Any]) -> None:
            require_group_options(self, saved, self._own_options)
            require_parameter_states(self, saved, _names_like)
            _require_any_state(saved)

        self._load_checked(state_dict, check)
        if self._handle is None:
            for parameter in self._states():
                self._return_to_sync(parameter)
        self._enter_phase()

    @torch.no_grad()
    def _return_to_sync(self, parameter: Tensor) -> None:
        """Makes a parameter what it was at the last sync, if its state, loaded or copied, is that of an optimizer with
        a handle: the handle kept the update since then. The state stays as it is, because octavo.compress may join the
        optimizer to a handle that loads the update."""
        state = self.state[parameter]
        if "anchor" in state and "update" not in state:
            parameter.copy_(state["anchor"])

    def _begin_round_alone(self, parameter: Tensor) -> None:
        """Begins a round in a single process that has the state of an optimizer with a handle. Does nothing where a
        round is under way."""
        state = self.state[parameter]
        if "update" in state:
            return
        self._return_to_sync(parameter)
        state.update(exp_avg=self._zeros_like(parameter), update=self._zeros_like(parameter), total=0.0, decay=1.0)


def _require_any_state(state_dict: dict[str, Any]) -> None:
    groups = state_dict["param_groups"]
    steps = max((group.get("steps", 0) for group in groups if group.get("learnt", True)), default=0)
    if steps > 0 and not any(state_dict["state"].values()):
        raise ValueError(
            f"[optim.ZeroOneAdam] this state is of a run of {steps} steps, and has nothing of any parameter: steps "
            f"without it would move none. torch.distributed.checkpoint leaves out what an optimizer has not made yet: "
            f"save optimizer.state_dict() as it is, by torch.save, and load that"
        )
