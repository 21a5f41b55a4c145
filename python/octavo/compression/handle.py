# SPDX-License-Identifier: Apache-2.0
"""The handle that ``octavo.compress`` returns, for DDP and for FSDP2."""

import logging
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.arguments import is_number
from octavo.compression.momenta import SendsMomenta
from octavo.compression.state import (
    SCHEMA,
    WHOLE_MODEL,
    State,
    compressor_state_of,
    memory_orders_in,
    states_of_one_run,
)
from octavo.hooks import OwnHook
from octavo.optim.base import outside_of_inference, unwrapped
from octavo.optim.clipping import clip_factor, clip_gradients, require_max_norm
from octavo.optim.joined import JoinedOptimizer, require_no_momentum
from octavo.parameters import memory_orders, require_kernels, require_memory_orders
from octavo.plan import as_plan

_log = logging.getLogger("octavo")


class Handle(SendsMomenta):
    """The handle that ``octavo.compress`` returns: the plan in force, the state to save and statistics. Most methods
    may be called from any thread, between steps.

    ``clip_grad_norm_``, ``scaled_by`` and ``drop_gradients`` are for the step under way. Call them after its backward
    pass, before the optimizer's step, and before a call that ends the step: ``end_step``, ``state_dict``,
    ``load_state_dict``, ``set_plan``, ``set_exchange`` or ``drop_residuals``.

    Save one ``state_dict`` per rank: what feedback remembers, and the momenta of Signum and Distributed Lion (float32),
    are state of each rank, kept by parameter name. Residuals are in bfloat16, with ``ef:8bit`` in 8 bits, and so is
    what ``loco`` owes. Velocities of ``dgc`` and estimates of ``ef21`` and ``econtrol`` are in float32.
    """

    def __init__(
        self,
        compressor: "_C.Compressor",
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module,
        *,
        covers: str = WHOLE_MODEL,
        delivered: Callable[[], int] = lambda: 0,
        optimizer: Optimizer | None = None,
        scaler: "torch.amp.GradScaler | None" = None,
    ):
        """``covers``: the part of the model of which the ranks hold copies, in words. A state of another part cannot be
        loaded. ``delivered``: returns how many backward passes' averages a hook of DDP has delivered. ``optimizer`` and
        ``scaler``: those of ``octavo.compress``."""
        super().__init__(compressor, parameters, delivered, scaler)
        self._model = model  # whose hooks exchange gradients: it lives as long as the handle
        self._covers = covers
        self._given = None if optimizer is None else weakref.ref(unwrapped(optimizer))  # it may refer to the handle
        if scaler is not None:  # the hook refers to no handle, which refers to the model
            model.register_forward_pre_hook(OwnHook(lambda *_: compressor.set_gradient_scale(scaler.get_scale())))

    def __reduce__(self) -> NoReturn:
        raise TypeError("[handle.Handle] a handle has connections, so it cannot be copied: save state_dict()")

    @property
    def _optimizer(self) -> Optimizer | None:
        """The optimizer that ``octavo.compress`` was given."""
        return None if self._given is None else self._given()

    @property
    def _joined(self) -> JoinedOptimizer | None:
        """That optimizer if it is a JoinedOptimizer, otherwise None."""
        optimizer = self._optimizer
        return optimizer if isinstance(optimizer, JoinedOptimizer) else None

    @property
    def plan(self) -> Plan:
        """The plan by which the next backward pass sends. With a 1-bit optimizer it is the plan of its warm-up, then
        the plan of its momentum."""
        return self._compressor.plan

    def set_plan(self, plan: str | Plan) -> None:
        """Changes the plan from the next backward pass on. Call it with the same plan on all ranks. Raises ValueError
        where the joined optimizer chooses the plan by its phases, or cannot work with this plan."""
        plan = as_plan(plan)
        joined = self._joined
        if joined is None:
            require_no_momentum(self._optimizer, plan, "handle.set_plan")
        else:
            if joined.chooses_plans:
                raise ValueError(
                    f"[handle.set_plan] the plan of this handle follows the phases of its {type(joined).__name__}: "
                    f"choose them by its warmup_plan and by the plan of octavo.compress"
                )
            joined.require_plan(plan)
        require_kernels(self.parameters)
        self._compressor.set_plan(plan)

    def stats(self) -> dict[str, Any]:
        """Returns what was sent so far, and the time that it took:

        - ``wire_bytes``: bytes sent by this rank; with ``ranks_per_host``, bytes sent to other hosts.
        - ``host_bytes``: with ``ranks_per_host``, bytes sent to other ranks of this rank's host.
        - ``dense_bytes``: bytes that a ring all-reduce of the gradients in their own dtype would have sent.
        - ``steps``: the number of steps.
        - ``nonfinite_steps``: the number of steps in which some rank had a NaN or an infinity, so that residuals were
          rolled back. A step in which nothing was sent counts where this rank had one.
        - ``encode_s``, ``reduce_s``, ``decode_s``: seconds that the hook has worked.
        - ``wait_up_s``, ``wait_down_s``: seconds that the hook has waited for other ranks, on the way to the owners and
          back.
        - ``reused_share``, only under a plan with ``lsh``: the share of the values this rank had to send that receivers
          were told to reuse from before.
        - ``auto``, only under the plan ``auto`` on several ranks: what was chosen and why, a dict of the following.

        ``auto`` has ``settled``, whether it has chosen; the number of ``measurements`` so far, of the
        ``measured_steps`` that they took, and the seconds of these (``measured_s``). ``buckets`` has a dict for each
        bucket, in the order of backward: its ``plan`` in force, the number of its ``values``, the names of its
        ``parameters``, ``ready_s``, when it was ready, in seconds after the first bucket, and ``alone``, by plan the
        seconds of work (``codec_s``) and of the network (``link_s``) that the bucket took when it was exchanged alone.
        ``tried`` has the combinations of ``plans`` (one plan per bucket) that these figures made worth trying, each
        with ``exchange_s``, the seconds of a step's exchange; it is empty where one combination was by far the best.
        The figures are this rank's; the choice was made by rank 0's.
        """
        return self._compressor.stats()

    def measure_next_step(self) -> None:
        """Makes the next step measure how far the averages are from the exact ones; ``parameter_stats`` then returns
        the figures.

        Call it on all ranks, or the step fails on all of them. In that step gradients are sent a second time, in
        float32, by an all-reduce over the connection that Octavo has made, and ``wire_bytes`` counts them. Other steps
        cost nothing more.
        """
        self._compressor.measure_next_step()

    def parameter_stats(self) -> list[dict[str, int | float | str | None]]:
        """Returns a dict for each parameter. It reads all residuals: call it now and then, not in every step.

        - ``name``, and the ``plan`` in force.
        - ``count``: the number of real numbers.
        - ``wire_bytes``: bytes that this rank sends for it in a step. This is an estimate: a sparse gradient, or one in
          bfloat16 under ``dense``, takes fewer.
        - ``dense_bytes``: bytes that a ring all-reduce in float32 sends.
        - ``gradient_rms``: the root mean square of the gradient in the last step, averaged over ranks.
        - ``residual_rms``: the root mean square of what this rank still owes to later steps. Compared with
          ``gradient_rms`` it tells how far a parameter lags behind.
        - ``reused_share``: under ``lsh`` the share of values that were reused in the last step, otherwise None.
        - ``relative_error`` and ``cosine``: figures of the last step that ``measure_next_step`` measured, as follows.

        ``relative_error`` is the norm of the difference between the average that all ranks got and the exact average,
        in float32, of what they contributed, divided by the norm of the exact average. ``cosine`` is the cosine of the
        angle between the two averages. What ranks contribute are gradients, or momenta where an optimizer has them
        sent, without what error feedback adds: what it owes from earlier steps, or leaves to later ones, counts as an
        error here. The figures are 0 and 1 where the bucket was sent as it was. They are None where nothing was
        measured, where an average is zero or not finite, and where the plan keeps a momentum, because averages are
        velocities then. ``relative_error`` is also None where the plan votes or averages over hits. With
        ``fully_shard`` both are those of this rank's shard.
        """
        return self._compressor.parameter_stats()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters of the compressed model that have gradients, exempt ones included."""
        return tuple(self._parameters.values())

    def state_dict(self) -> dict[str, Tensor | int | float | str]:
        """Returns this rank's state: a flat dict of tensors, numbers and strings. The tensors are copies. Call it
        after the optimizer's step: what the last backward pass has left out is then kept for good."""
        kept = self._compressor.state()
        tensors = {key: values.clone() for key, values in kept.tensors.items()}
        state: dict[str, Tensor | int | float | str] = {
            "schema": SCHEMA,
            "plan": str(self.plan),
            "rank": self._compressor.rank,
            "world_size": self._compressor.world_size,
            "layout": self._covers,
            "memory_orders": dumps(memory_orders(self._parameters)),
            "step": kept.step,
            "seed": kept.seed,
            "usual_share": kept.usual_factor,
            "unclipped_steps": kept.unclipped_steps,
            "of_momenta": kept.of_momenta,
            "tensors": len(tensors),
        }
        return state | tensors

    @outside_of_inference
    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Restores residuals, the step and the seed. ``state``: what this rank saved, or a list of what all ranks
        saved.

        With its own state a rank goes on with the same bits; the world must have as many ranks as when it was saved.
        The states of all ranks of any world, in any order, are redistributed over this world: what was not yet sent is
        kept, except in a world of one rank, which sends nothing. Where FSDP2 shards the model and the shards have
        replicas, the number of replicas may change, and that of the shards may not. With ``ranks_per_host`` the number
        of hosts may change. The plan stays this handle's own, with a warning where another one was saved; what the plan
        of the next step does not use is dropped in that step. Raises ValueError where a state does not fit; nothing
        changes then.
        """
        states = states_of_one_run(state, self._covers)
        for one in states:
            require_memory_orders(self._parameters, memory_orders_in(one), "handle.load_state_dict")
        ours, size = (self._compressor.rank, self._compressor.world_size), int(states[0]["world_size"])
        by_rank = {int(one["rank"]): compressor_state_of(one) for one in states}
        joined = self._joined
        follows = joined is not None and joined.chooses_plans
        if not follows and str(self.plan) != states[0]["plan"]:  # before any change: a warning may be an error
            warnings.warn(
                f"[handle.load_state_dict] the state was saved under plan {states[0]['plan']}; this handle keeps "
                f"{self.plan}: call set_plan() to change it",
                stacklevel=2,
            )
        if size == ours[1] and ours[0] in by_rank:
            self._compressor.load_state(by_rank[ours[0]])
        elif set(by_rank) == set(range(size)):
            self._load_world([by_rank[rank] for rank in range(size)])
        else:
            raise ValueError(
                f"[handle.load_state_dict] this is rank {ours[0]} of {ours[1]}, the state is of rank "
                f"{next(iter(by_rank))} of {size}: load the state that this rank saved, or the list of the states of "
                f"all {size} ranks"
            )
        if joined is not None:
            joined._after_load_of_handle()

    def _load_world(self, states: list["_C.CompressorState"]) -> None:
        """Loads the states of all ranks of another world, indexed by the rank that saved them."""
        self._compressor.load_world(states)

    def gradient_powers(self) -> dict[nn.Parameter, float]:
        """Returns the mean square of each parameter's gradient in the last step, averaged over ranks: the same on all
        ranks.

        For a large parameter it is estimated from a 32nd of the elements. For a sparse gradient it is 0. Where a rank
        keeps a momentum of its own (``keep_own_momenta``), it is the mean square of what the rank makes of its
        gradient.
        """
        return dict(zip(self._parameters.values(), self._compressor.gradient_powers(), strict=True))

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the norm of the gradients of all parameters to ``max_norm``, as ``torch.nn.utils.clip_grad_norm_``
        does. Returns the norm that they had, a tensor without dimensions. Call it on all ranks, in every step, after
        ``scaler.unscale_`` where there is a scaler, and before ``end_step``. Gradients whose norm is not finite stay as
        they are.

        Unlike torch's function it tells error feedback of the clip (``scaled_by``). If the optimizer that
        ``octavo.compress`` was given has all of these parameters and its own ``clip_grad_norm_``, that method clips,
        and the optimizer's ``nonfinite`` says what happens to gradients that are not finite. Raises ValueError for a
        joined optimizer that does not clip, or that lacks a parameter, and for a norm below 0.
        """
        require_max_norm(max_norm, "handle.clip_grad_norm_")
        optimizer = self._optimizer
        own = getattr(optimizer, "clip_grad_norm_", None)
        unowned = [] if own is None else self._parameters_without(optimizer)
        if self._joined is not None:  # it has `.grad` of its own kind, and calls scaled_by() itself
            if own is None:
                raise ValueError(
                    f"[handle.clip_grad_norm_] {type(optimizer).__name__} sends updates of its own, whose norm is not "
                    f"the gradient's: leave the clip out"
                )
            if unowned:
                raise ValueError(
                    f"[handle.clip_grad_norm_] {type(optimizer).__name__} clips its own gradients, and lacks "
                    f"{len(unowned)} parameters that other optimizers step, such as {unowned[0]}: call its "
                    f"clip_grad_norm_, and torch.nn.utils.clip_grad_norm_ for the others"
                )
            return own(max_norm)
        is_own = own is not None and not unowned
        norm = own(max_norm) if is_own else clip_gradients(self._clipped_parameters(), max_norm)
        if norm.isfinite():
            self.scaled_by(float(clip_factor(norm.cpu().double(), max_norm)))
        return norm

    def _clipped_parameters(self) -> Sequence[nn.Parameter]:
        """Returns the parameters whose gradients ``clip_grad_norm_`` clips."""
        return self.parameters

    def _parameters_without(self, optimizer: Optimizer) -> list[str]:
        """Returns the names of parameters with a gradient that the optimizer does not have."""
        own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        return [name for name, p in self._parameters.items() if p.grad is not None and p not in own]

    def scaled_by(self, factor: float) -> None:
        """Says that the gradients have been multiplied by ``factor``, as a clip does, unless ``clip_grad_norm_`` of
        this handle did it. Call it on all ranks, in every step, with 1 where nothing was clipped, before
        ``end_step`` and the optimizer's step. Several calls of a step are one, by the product of their factors.

        Error feedback adds what it has left out of a gradient to later ones, in full. Without this call, a burst
        that was clipped would come back, step by step, as large as a clip lets it. If ``factor`` is less than half of
        the usual one, which is the largest factor so far (earlier ones fade by a tenth with every call), this
        call therefore forgets:

        - what this backward pass has left out, if it alone has sent gradients since the last call,
        - all that is owed, if several passes have,
        - all that is owed, if the step has ended, by ``end_step`` or by a call that is made between steps, such as
          ``state_dict``.

        Raises ValueError for a factor outside [0, 1], and for one below 1 if ranks have sent updates of their own, as
        in syncs of ``ZeroOneAdam``.
        """
        if not is_number(factor):
            raise ValueError(f"[handle.scaled_by] expected a factor from 0 to 1, got {factor!r}")
        is_of_updates = self._joined is not None and self._joined.keeps_own_momenta and self.exchange == "planned"
        if is_of_updates and factor < 1:
            raise ValueError(
                f"[handle.scaled_by] in this step {type(self._joined).__name__} has sent updates of its own, which a "
                f"scaling of gradients does not change: leave this call out"
            )
        self._compressor.scale_step(float(factor))

    def drop_gradients(self) -> None:
        """Gives up the last backward pass, which must not have been under ``no_sync``: what feedback remembers is again
        what it was before it, so that nothing of these gradients comes back later. Call it on all ranks, in the place
        of the optimizer's step. ``.grad`` stays as it is. Raises ValueError where a finite step has ended: after
        ``end_step``, or after a call that is made between steps, such as ``state_dict``."""
        self._compressor.drop_step()
        if self._joined is not None:
            self._joined._after_drop()

    def drop_residuals(self) -> None:
        """Discards the residuals and all else that feedback remembers: what was not sent yet is lost.

        Call it on all ranks: under ``ef21`` the next step fails where some ranks have estimates and others have none.
        """
        self._compressor.drop_residuals()

    @property
    def step(self) -> int:
        """The number of steps that the ranks have made: backward passes that were not under ``no_sync``, and calls of
        ``exchange_updates`` that sent something. It is saved and loaded with the state."""
        return self._compressor.step

    def end_step(self) -> bool:
        """Ends the last step, after which it can be neither clipped nor dropped, and returns whether it was finite. The
        answer is the same on all ranks, except for a step in which nothing was sent, where a rank knows only its own
        gradients."""
        return self._compressor.end_step()

    def set_exchange(self, exchange: str) -> None:
        """Sets what the next backward passes send. Call it with the same argument on all ranks, between steps; ranks
        that differ wait for one another until the time limit.

        - ``"planned"``: what the plan says, as at first.
        - ``"gradients"``: gradients, averaged in their own dtype whatever the plan is.
        - ``"nothing"``: ``.grad`` then is the rank's own gradient, and other ranks do not see a NaN in it.

        With the last two, what feedback remembers stays as it is. Raises ValueError for another text,
        NotImplementedError for a model of FSDP2.
        """
        known = _C.Exchange.__members__
        if not isinstance(exchange, str) or exchange not in known:
            raise ValueError(f"[handle.set_exchange] expected {', '.join(known)}, got '{exchange}'")
        self._compressor.set_exchange(known[exchange])

    @property
    def exchange(self) -> str:
        """What the next backward pass sends, as ``set_exchange`` says; after the pass, what it has sent."""
        return self._compressor.exchange.name

    def _follow(self, plan: Plan, momenta: Mapping[nn.Parameter, tuple[Tensor, Tensor]], beta: float) -> None:
        """Begins a phase of the joined optimizer. ``plan`` is the plan of the momenta, or of gradients where there are
        no momenta."""
        if plan != self.plan:
            what = "momenta" if momenta else "gradients"
            name = type(self._joined).__name__
            _log.info("the joined %s averages %s now: plan %s instead of %s", name, what, plan, self.plan)
        if not momenta:
            self.set_momentum({}, 0.0)
        self._compressor.set_plan(plan)
        if momenta:
            self.set_momentum(momenta, beta)
