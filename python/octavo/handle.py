# SPDX-License-Identifier: Apache-2.0
"""What ``octavo.compress`` returns, whatever wraps the model."""

import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from json import dumps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.handle_state import SCHEMA, WHOLE_MODEL, State, require_memory_orders, states_of_one_run, tensors_of
from octavo.optim.joined import JoinedOptimizer, require_no_momentum
from octavo.parameters import memory_orders
from octavo.plan import as_plan

_log = logging.getLogger("octavo")


class Handle:
    """The handle that ``octavo.compress`` returns: the plan in force, the state to save and statistics.

    What feedback remembers (residuals in bfloat16, with ``ef:8bit`` in 8 bits, in which ``loco`` keeps what it owes,
    too; velocities of ``dgc``, estimates of ``ef21`` and ``econtrol`` in float32) is per-rank state, kept by parameter
    name, and so are the momenta of Signum and Distributed Lion (float32): save one ``state_dict`` per rank. Methods may
    be called between steps, from any thread.
    """

    _layout = WHOLE_MODEL

    def __init__(self, compressor: "_C.Compressor", parameters: Mapping[str, nn.Parameter], ddp: nn.Module):
        self._compressor = compressor
        self._parameters = dict(parameters)
        self._ddp = ddp
        self._joined: weakref.ref[JoinedOptimizer] | None = None  # it has the handle, and ends with its user
        self._unjoined: weakref.ref[Optimizer] | None = None  # that was passed, where it takes gradients as they come
        self._scaler: torch.amp.GradScaler | None = None
        self._guards: list[Any] = []
        #: Of how many backward passes the averages have come, where a hook of DDP delivers them.
        self._delivered: Callable[[], int] = lambda: 0

    @property
    def _optimizer(self) -> JoinedOptimizer | None:
        return None if self._joined is None else self._joined()

    @property
    def plan(self) -> Plan:
        """What the next backward pass sends. With a 1-bit optimizer: its warm-up's plan, then that of the momentum."""
        return self._compressor.plan

    def set_plan(self, plan: str | Plan) -> None:
        """Takes effect with the next backward pass. Call it with the same plan on all ranks. ValueError where an
        optimizer is joined that chooses the plan by its phases, or that this plan cannot serve."""
        plan = as_plan(plan)
        if self._optimizer is not None:
            if self._optimizer.chooses_plans:
                raise ValueError(
                    f"[ddp.set_plan] the plan of this handle follows the phases of its "
                    f"{type(self._optimizer).__name__}: choose them by its warmup_plan and by the plan of "
                    f"octavo.compress"
                )
            self._optimizer.require_plan(plan)
        if self._unjoined is not None:
            require_no_momentum(self._unjoined(), plan, "ddp.set_plan")
        self._require_kernels()
        self._compressor.set_plan(plan)

    def stats(self) -> dict[str, Any]:
        """``wire_bytes`` sent by this rank so far (with ``ranks_per_host`` to other hosts, and ``host_bytes`` to ranks
        of its own), ``dense_bytes`` that a ring all-reduce of the gradients would have sent, ``steps``, and
        ``nonfinite_steps``: steps in which some rank had a NaN or an infinity, whose residuals were rolled back (this
        rank, where nothing was sent); where the hook's time went, in seconds: ``encode_s``, ``reduce_s``, ``decode_s``,
        and waiting for the peers, ``wait_up_s`` and ``wait_down_s``. Under a plan with ``lsh`` ``reused_share``: of the
        values that this rank had to send so far, those that receivers were told to take as before.

        Under the plan ``auto``, on several ranks, ``auto`` says what was chosen and why. ``settled``: whether it has
        chosen. ``measurements``, and the ``measured_steps`` and ``measured_s`` that they took so far. ``buckets``, in
        the order of backward: the ``plan`` in force, ``values`` and ``parameters``, ``ready_s`` after the first one,
        and, alone by each plan, ``codec_s`` and ``link_s``, what the work and the network took. ``tried``: the plans by
        bucket that these figures made worth trying, and ``exchange_s``, what a step's exchange took with them; empty
        where one was by far the best. The figures are this rank's; rank 0's have decided.
        """
        return self._compressor.stats()

    def measure_next_step(self) -> None:
        """Measures in the next step how far the averages are from the exact ones: ``parameter_stats`` then tells it.

        Call it on all ranks, or the step fails on all of them. In that step gradients travel a second time, in float32
        and by the process group's own all-reduce, which ``wire_bytes`` counts; other steps cost nothing more.
        """
        self._compressor.measure_next_step()

    def parameter_stats(self) -> list[dict[str, int | float | str | None]]:
        """What the plan does to each parameter: ``name``; ``plan`` in force; ``count`` of real numbers; ``wire_bytes``
        that this rank sends of it in a step (about: a sparse gradient, or one in bfloat16 under ``dense``, is smaller)
        and ``dense_bytes`` that a ring all-reduce in float32 sends; ``gradient_rms`` of the last step, averaged over
        ranks; ``residual_rms`` of what this rank still owes to later steps: beside the gradient's it tells how far a
        parameter lags behind; ``reused_share`` of the last step, under ``lsh``, else None. Reads all residuals: call it
        now and then, not in every step.

        Of the last step that ``measure_next_step`` asked for: ``relative_error``, the norm of the difference between
        the average that all ranks got and the exact average, in float32, of what they contributed, divided by the norm
        of the exact one; and ``cosine``, of the angle between the two. Contributions are gradients, or momenta where an
        optimizer has them sent, without what error feedback adds: what it owes of earlier steps, or to later ones,
        counts as an error here. 0 and 1 where the bucket travelled as it was. None where nothing was measured, the
        average is zero or not finite, the plan keeps a momentum (averages are velocities then) and, of the error, where
        it votes or averages over hits. With ``fully_shard`` they are those of this rank's shard.
        """
        return self._compressor.parameter_stats()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those of the compressed model that have gradients, exempt ones included."""
        return tuple(self._parameters.values())

    def state_dict(self) -> dict[str, Tensor | int | str]:
        """A flat dict of tensors, ints and strings; the tensors are copies."""
        residuals = {key: values.clone() for key, values in self._compressor.residuals().items()}
        state: dict[str, Tensor | int | str] = {
            "schema": SCHEMA,
            "plan": str(self.plan),
            "rank": self._compressor.rank,
            "world_size": self._compressor.world_size,
            "layout": self._layout,
            "memory_orders": dumps(memory_orders(self._parameters)),
            "step": self._compressor.step,
            "seed": self._compressor.seed,
            "of_momenta": self._compressor.residuals_are_of_momenta,
            "tensors": len(residuals),
        }
        return state | residuals

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Restores residuals, from what this rank saved or from what all ranks saved.

        With its own state a rank goes on with the same bits; the world must be of the same size then. The states of all
        ranks of any world, in any order, are redistributed over this one: what was not yet sent is kept, except in a
        world of one rank, which sends nothing. The seed becomes the one that was saved. Where FSDP2 shards the model
        and has replicas, ranks are replicas of a shard: their number may change, that of the shards may not; with
        ``ranks_per_host`` the number of hosts may. The plan stays this handle's own, with a warning where another was
        saved; what the plan of the next step does not use is dropped there. ValueError where a state does not fit;
        nothing changes then.
        """
        states = states_of_one_run(state, self._layout)
        require_memory_orders(states, self._parameters)
        ours, size = (self._compressor.rank, self._compressor.world_size), int(states[0]["world_size"])
        tensors = {int(one["rank"]): tensors_of(one) for one in states}
        follows = self._optimizer is not None and self._optimizer.chooses_plans
        if not follows and str(self.plan) != states[0]["plan"]:  # told first, since a warning may be an error
            warnings.warn(
                f"[ddp.load_state_dict] the state was saved under plan {states[0]['plan']}; this handle goes on with "
                f"{self.plan}, call set_plan() for the other",
                stacklevel=2,
            )
        of_momenta, step = bool(states[0]["of_momenta"]), max(int(one["step"]) for one in states)
        if size == ours[1] and ours[0] in tensors:
            self._compressor.load_residuals(tensors[ours[0]], of_momenta)
        elif set(tensors) == set(range(size)):
            self._load_world([tensors[rank] for rank in range(size)], of_momenta)
        else:
            raise ValueError(
                f"[ddp.load_state_dict] this is rank {ours[0]} of {ours[1]}, the state is of rank "
                f"{next(iter(tensors))} of {size}: load the state that this rank saved, or the list of the states of "
                f"all {size} ranks"
            )
        self._compressor.step = step
        self._compressor.seed = int(states[0].get("seed", 0))
        if self._optimizer is not None:
            self._optimizer._after_load_of_handle()

    def _load_world(self, tensors: list[dict[str, Tensor]], of_momenta: bool) -> None:
        """``tensors``: by old rank."""
        self._compressor.load_residuals_of(tensors, of_momenta)

    def set_momentum(self, momenta: Mapping[nn.Parameter, tuple[Tensor, Tensor]], beta: float) -> None:
        """From now on averages ``beta * m + (1 - beta) * P * gradient`` of these parameters instead of gradients.

        ``momenta``: ``(m, P)`` by parameter, float32, equal on all ranks; shared with the hook, which reads them during
        backward; their owner updates them between steps. An empty mapping ends this: gradients are averaged again.
        ``OneBitAdamW`` is built on this. ``.grad`` of these parameters holds a momentum afterwards: a backward pass
        that would add a gradient to it raises RuntimeError.
        """
        name_of = self._names_of("set_momentum", momenta)
        for parameter, pair in momenta.items():
            for tensor in pair:
                if tensor.device != parameter.device:
                    raise ValueError(
                        f"[ddp.set_momentum] a momentum must be on its parameter's device: {name_of[parameter]} is on "
                        f"{parameter.device}, its momentum on {tensor.device}"
                    )
                if tensor.stride() != torch.empty_like(parameter, device="meta").stride():
                    raise ValueError(
                        f"[ddp.set_momentum] a momentum must lie in memory as its parameter does: {name_of[parameter]} "
                        f"has strides {parameter.stride()}, its momentum {tensor.stride()}"
                    )
        self._compressor.set_momentum({name_of[p]: pair for p, pair in momenta.items()}, beta)
        self._guard_all(name_of)

    def gradient_powers(self) -> dict[nn.Parameter, float]:
        """The mean square of each parameter's gradient in the last step, averaged over ranks: the same on all ranks.

        An estimate from a 32nd of the elements of a large parameter. 0 for a sparse gradient. Of what a rank makes of
        its gradient where it keeps a momentum of its own (``keep_own_momenta``).
        """
        return dict(zip(self._parameters.values(), self._compressor.gradient_powers(), strict=True))

    def drop_residuals(self) -> None:
        """Discards the residuals, and all else that feedback remembers: what was not sent yet is lost.

        Call it on all ranks: under ``ef21`` the next step fails where some have estimates and others none.
        """
        self._compressor.drop_residuals()

    def holds_momenta(self) -> bool:
        """Whether ``.grad`` is, bit by bit, what the hook delivered (after ``scaler.unscale_``, where there is a
        scaler): False where gradients were clipped, scaled or added to since. Only some elements of the largest
        parameter with a momentum are looked at: what changed other gradients alone is not seen."""
        index, stride, sent = self._compressor.momentum_sample()
        gradient = self.parameters[index].grad
        if sent is None or gradient is None or self._compressor.gradient_powers()[index] == 0:
            return True  # DDP may not have delivered what no rank has a gradient for
        if self._scaler is not None:
            sent = sent * (1.0 / torch.tensor(self._scaler.get_scale(), dtype=torch.float64)).float()
        found = gradient.detach().as_strided((sent.numel(),), (stride,)).cpu()
        return torch.allclose(found, sent, rtol=0.0, atol=0.0, equal_nan=True)

    def keep_own_momenta(self, parameters: Iterable[nn.Parameter], update_beta: float, kept_beta: float) -> None:
        """From now on each rank sends ``update_beta * m + (1 - update_beta) * gradient`` of these parameters instead of
        its gradient, where ``m`` is a momentum of its own gradients, which then becomes
        ``kept_beta * m + (1 - kept_beta) * gradient``.

        The momenta are kept here, float32 and zero at first, and saved in ``state_dict``; a step with a NaN on any rank
        leaves them as they were. No parameters end this. ``Signum`` and ``DistributedLion`` are built on it. What
        comes back in ``.grad`` is guarded as ``set_momentum`` says.
        """
        name_of = self._names_of("keep_own_momenta", parameters)
        self._compressor.keep_own_momenta(list(name_of.values()), update_beta, kept_beta)
        self._guard_all(name_of)

    @property
    def step(self) -> int:
        """How many steps ranks have made: backward passes that were not under ``no_sync``. Saved and loaded with the
        state."""
        return self._compressor.step

    def end_step(self) -> bool:
        """Whether the last step was finite: on all ranks alike, but for one in which nothing was sent, where a rank
        knows its own gradients alone."""
        return self._compressor.end_step()

    def set_exchange(self, exchange: str) -> None:
        """What the next backward passes send: ``planned``, by the plan, as at first; ``gradients``, averaged in their
        own dtype whatever the plan; or ``nothing``: ``.grad`` then is the rank's own gradient, and a NaN is the rank's
        own matter. What feedback remembers waits. Call it with the same argument on all ranks, between steps: ranks
        that differ wait for one another, until the time limit. NotImplementedError for a model of FSDP2."""
        known = _C.Exchange.__members__
        if exchange not in known:
            raise ValueError(f"[ddp.set_exchange] expected {', '.join(known)}, got '{exchange}'")
        self._compressor.set_exchange(known[exchange])

    @property
    def exchange(self) -> str:
        """What the next backward pass sends, as ``set_exchange`` says; after it, what it has sent."""
        return self._compressor.exchange.name

    def keep_own_updates(self, preconditioners: Mapping[nn.Parameter, Tensor], beta: float) -> None:
        """From now on ranks make updates of their own of these parameters, which they average when the exchange is
        planned: ``update + size * (beta * m + (1 - beta) * preconditioner * gradient)``. ``preconditioners``: as those
        of ``set_momentum``. ``ZeroOneAdam`` is built on it.

        The momenta ``m`` and the updates (``own_updates``) are kept here, float32 and zero at first, and saved in
        ``state_dict``. After a finite step with a planned exchange the updates are their averages over ranks, the same
        bits on all of them; who called this makes parameters of them, and sets them to zero. No preconditioners end
        this. What comes back in ``.grad`` is guarded as ``set_momentum`` says.
        """
        name_of = self._names_of("keep_own_updates", preconditioners)
        self._compressor.keep_own_updates({name_of[p]: tensor for p, tensor in preconditioners.items()}, beta)
        self._guard_all(name_of)

    def set_step_sizes(self, sizes: Mapping[nn.Parameter, float]) -> None:
        """``size`` of ``keep_own_updates`` in the next steps."""
        name_of = self._names_of("set_step_sizes", sizes)
        self._compressor.set_step_sizes({name_of[parameter]: size for parameter, size in sizes.items()})

    def own_updates(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """Momenta and updates of ``keep_own_updates``, flat, in the memory order of the preconditioners: to be changed
        in place, between steps. Ask again after every step that was sent, and after a load."""
        return {self._parameters[name]: pair for name, pair in self._compressor.own_updates().items()}

    def exchange_updates(self) -> bool:
        """Averages the updates of ``keep_own_updates`` now, outside of backward, as a step with a planned exchange and
        without gradients; returns whether it was finite. Call it on all ranks."""
        return self._compressor.exchange_updates()

    def _follow(self, plan: Plan, momenta: Mapping[nn.Parameter, tuple[Tensor, Tensor]], beta: float) -> None:
        """Begins a phase of the joined optimizer: ``plan`` for momenta, or for gradients where there are none."""
        if plan != self.plan:
            what = "momenta" if momenta else "gradients"
            name = type(self._optimizer).__name__
            _log.info("the joined %s averages %s now: plan %s instead of %s", name, what, plan, self.plan)
        if not momenta:
            self.set_momentum({}, 0.0)
        self._compressor.set_plan(plan)
        if momenta:
            self.set_momentum(momenta, beta)

    def _names_of(self, function: str, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, str]:
        """The names of these parameters. Raises ValueError, in the name of `function`, for strangers."""
        all_names = {parameter: name for name, parameter in self._parameters.items()}
        parameters = list(parameters)
        unknown = [tuple(p.shape) for p in parameters if p not in all_names]
        if unknown:
            raise ValueError(
                f"[ddp.{function}] {len(unknown)} of the parameters, of shapes {', '.join(map(str, unknown))}, are "
                f"not among those of the compressed model that have gradients: pass some of handle.parameters"
            )
        return {parameter: all_names[parameter] for parameter in parameters}

    def _guard_all(self, name_of: Mapping[nn.Parameter, str]) -> None:
        """These parameters and no others."""
        for guard in self._guards:
            guard.remove()
        self._guards = [self._guard(*pair) for pair in name_of.items() if pair[0].requires_grad]

    def _guard(self, parameter: nn.Parameter, name: str) -> Any:
        """Makes a backward pass raise that would add a gradient to a momentum: the sum could not be separated again."""
        # A hook that held what holds the parameter would keep all of it: the collector does not see through C++.
        delivered, guarded = self._delivered, weakref.ref(parameter)
        delivered_before = delivered()  # what .grad holds, which was empty or a gradient then

        def check(_: Tensor) -> None:
            nonlocal delivered_before
            parameter = guarded()
            if parameter is None or delivered() == delivered_before:
                return
            if parameter.grad is not None and parameter.grad.any():
                raise RuntimeError(
                    f"[ddp.momentum] .grad of {name} holds the averaged momentum of an earlier backward pass: call "
                    f"zero_grad() after every step, and accumulate gradients under no_sync(), so that one backward "
                    f"pass in a step is synchronised"
                )
            delivered_before = delivered()

        return parameter.register_hook(check)

    def _follow_scaler(self, model: nn.Module, scaler: "torch.amp.GradScaler | None") -> None:
        if scaler is None:
            return
        self._scaler = scaler
        compressor = self._compressor  # not self, which has the model
        model.register_forward_pre_hook(lambda *_: compressor.set_gradient_scale(scaler.get_scale()))

    def _require_kernels(self) -> None:
        """Raises NotImplementedError where a parameter's device has no kernels. Every plan needs them: dense, too,
        measures the gradients' powers."""
        for parameter in self._parameters.values():
            _C.require_kernels(parameter)
