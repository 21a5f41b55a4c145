# SPDX-License-Identifier: Apache-2.0
"""The optimizer of local steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.arguments import require_seed
from octavo.hooks import OwnHook, remove_after
from octavo.optim.base import of_itself, outside_of_inference
from octavo.outer.buffers import FiniteBuffers
from octavo.outer.checks import (
    plan_of,
    require_inner_optimizer,
    require_numbers,
    require_unwrapped,
)
from octavo.outer.inner import StepsOfInner
from octavo.outer.rates import outer_rates, warning_of_few_rounds
from octavo.outer.state import SCHEMA, is_finite, require_of_rank, states_by_rank, states_of
from octavo.parameters import Exempt, exempt_by_name, memory_orders, not_trained, plain_name, saved_buffers
from octavo.plain_model import require_plain_model
from octavo.rendezvous import (
    Rendezvous,
    as_group,
    broadcast_from_rank_0,
    require_backend,
    require_same_on_all_ranks,
)


class Outer(StepsOfInner):
    """An optimizer with which ranks train by steps of their own, and come together every ``every`` steps.

    >>> outer = octavo.Outer(model, torch.optim.AdamW(model.parameters()), plan="sign+ef", every=20)
    >>> for batch in batches:            # each rank has its own
    ...     loss(model, batch).backward()
    ...     outer.step()
    ...     outer.zero_grad()
    >>> outer.synchronize()              # at the end: the same parameters on all ranks

    ``step()`` makes a step of ``inner_optimizer`` with this rank's own gradient, and counts it. In a round the ranks
    average, by ``plan``, how far each of them has moved from the anchor: the parameters that all ranks have in common,
    in float32. A step along that average, with ``lr`` and ``momentum``, moves the anchor, and the ranks go on from
    there (DiLoCo, Douillard et al. 2023). Under a plan with error feedback, what codes leave out is made up for later,
    on both ways, from ranks to owners and back. What a rank owes by ``+ef`` of values stays in its own parameters until
    it is sent, so that its gradients know of it.

    - ``model``: a plain module on one device, not wrapped in ``DistributedDataParallel``. The parameters and buffers of
      rank 0 become those of all ranks. Afterwards each rank has buffers of its own. The parameters that require
      gradients now are exchanged. A step in which the inner optimizer would move others is refused (ValueError),
      because they would differ between ranks. Load weights before, not after.
    - ``inner_optimizer``: any optimizer that moves parameters from where they are. It must not keep them in its state
      as well (such as float32 copies), because a round moves them, too. Its state stays on its rank. Schedules of the
      learning rate and a ``GradScaler`` take this object as they take any optimizer.
    - ``plan``: how ranks send how far they have moved, an ``octavo.Plan`` or its text. ``+warmup:N`` counts steps, as
      if each round stood for ``every`` of them; the period of ``+loco`` counts rounds.
    - ``every``: the number of steps from one round to the next.
    - ``lr`` and ``momentum``: the rates of the outer step; by default those of ``outer_rates``, which suit inner
      optimizers that normalize, such as AdamW and Muon. Plain SGD does not: with a rate of 1 and a momentum of 0
      rounds amount to the mean over ranks.
    - ``spread``: whether the momentum is applied in equal parts, one after each step of the next round. Otherwise
      Nesterov's method applies all of it to the anchor at the end of a round. Where parts overshoot, the ranks' next
      gradients correct it. It suits plans of several bits (docs/quality/experiments.md). Parameters of 16 bits lose
      parts that are less than half of a unit in the last place. Parts that come after a round was sent, within
      ``delay``, do not count.
    - ``delay``: the number of steps for which a round is under way while the rank goes on (Streaming DiLoCo, 2025).
    - ``mix``: the share of its own values that a rank keeps when a round arrives. The only error feedback that can be
      used with it is ``+ef``, which knows that what is kept need not be sent. ``synchronize`` gives up what was kept.
    - ``fragments``: the number of parts of equal size into which the model is cut. Their rounds follow one another at
      equal distances, so that less is sent at a time.
    - ``decay``: the share of the ranks' error feedback that is kept from round to round; 0.9 to 0.95 suit plans that
      leave most values unsent.
    - ``average``: ``"ranks"`` for averages over all ranks; for plans that leave most values unsent also ``"hits"``, for
      averages over the ranks that have sent the value.
    - ``group``: the ranks; None: all ranks.
    - ``exempt``: the parameters that are sent in float32, as in ``octavo.compress``: by default norms, biases and tiny
      parameters.
    - ``seed``: the seed of the run, the same on all ranks.
    - ``steps``: the number of steps of the whole run, if it is known: a warning tells where it makes too few rounds.
    - ``timeout_s``: how long a round waits for the other ranks, in seconds.

    All ranks skip a round in which some rank has a NaN or an infinity, with a warning that names the rank. That rank
    goes back to where its round began, and its inner optimizer's state of a parameter is dropped if it contains a NaN
    or an infinity. A buffer that contains one, such as a running mean of a batch norm, gets back its value from the end
    of the last round. Buffers get it back even if no round is skipped: the inner optimizer may leave out a gradient
    with a NaN, but the forward pass has already written to the buffer.

    Between rounds the ranks' parameters differ: evaluate, and save the model, ``with outer.at_anchor():``. Call all
    methods on all ranks. Raises ValueError for arguments that make no sense or differ between ranks. ``step`` and
    ``synchronize`` raise TimeoutError or RuntimeError where another rank is lost: start again from a saved state.
    """

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: Optimizer,
        plan: str | Plan = "sign+ef",
        every: int = 20,
        lr: float | None = None,
        momentum: float | None = None,
        *,
        delay: int = 0,
        mix: float = 0.0,
        spread: bool = False,
        fragments: int = 1,
        decay: float = 1.0,
        average: str = "ranks",
        group: dist.ProcessGroup | None = None,
        exempt: Exempt = None,
        seed: int = 0,
        steps: int | None = None,
        timeout_s: float = 300.0,
    ):
        require_plain_model(model, "outer.Outer")
        if isinstance(inner_optimizer, Outer):
            raise ValueError(
                "[outer.Outer] the inner optimizer is an Outer, whose steps have rounds of their own: pass the "
                "optimizer inside of it, `outer.inner`"
            )
        require_inner_optimizer(inner_optimizer, model)
        require_seed(seed, "outer.Outer")
        chosen = {name: rate for name, rate in dict(lr=lr, momentum=momentum).items() if rate is not None}
        require_numbers(
            dict(
                every=(every, 1), delay=(delay, 0), fragments=(fragments, 1), steps=(0 if steps is None else steps, 0)
            ),
            dict(mix=mix, decay=decay, **chosen),
        )
        if not isinstance(spread, bool):
            raise ValueError(f"[outer.Outer] spread must be True or False, got {spread!r}")
        self.inner, self._plan, self._seed = inner_optimizer, plan_of(plan, decay, average), seed
        group = as_group(group, "outer.Outer")
        self._rank, self._size = group.rank(), group.size()
        lr, momentum = outer_rates(every, self._plan, self._size, lr, momentum, mix, spread)
        whole = dict(every=int(every), delay=int(delay), fragments=int(fragments))
        self._options = whole | dict(lr=float(lr), momentum=float(momentum), mix=float(mix), spread=spread)
        self._model = model
        self._parameters = {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}
        self._exchanged = set(self._parameters.values())
        self._own: dict[str, Tensor] | None = None  # this rank's parameters, while the model has the anchor's values
        self._connect(group, exempt, timeout_s)
        remove_after(self, [model.register_forward_pre_hook(OwnHook(require_unwrapped))])
        trouble = None if steps is None or self._rank else warning_of_few_rounds(steps, every)
        if trouble:
            warnings.warn(f"[outer.Outer] {trouble}", stacklevel=2)

    def _connect(self, group: dist.ProcessGroup, exempt: Exempt, timeout_s: float) -> None:
        """Connects the ranks, which then all have the parameters and buffers of rank 0. Raises ValueError, before the
        model changes, for what cannot be exchanged and where ranks differ."""
        for device in {parameter.device for parameter in self._parameters.values()}:
            require_backend(group, device, "outer.Outer")
        exempt_of = exempt_by_name(exempt, self._parameters, "outer.Outer")
        table = [(name, p, exempt_of[name]) for name, p in self._parameters.items()]
        rendezvous = Rendezvous(group, "outer.Outer", timeout_s)
        self._require_alike(rendezvous, table)
        options = _C.OuterOptions(**self._options)
        _C.Outer.require(self._plan, table, options)
        rendezvous.exchange("")  # so that a rank that was refused here lets the others end in time
        broadcast_from_rank_0([*self._model.parameters(), *self._model.buffers()], group)
        self._finite_buffers = FiniteBuffers(self._model)
        self._outer = _C.Outer(rendezvous.connect(), timeout_s, self._plan, table, options, self._seed)

    def _require_alike(self, rendezvous: Rendezvous, table: list[tuple[str, Tensor, bool]]) -> None:
        """Raises ValueError where ranks differ in what must be the same on all of them."""
        ours = {
            "plan": str(self._plan),
            "options": self._options,
            "seed": self._seed,
            "model": [(name, p.shape, p.stride(), p.dtype, is_exempt) for name, p, is_exempt in table],
            **not_trained(self._model),
        }
        require_same_on_all_ranks(rendezvous, self._rank, ours, "outer.Outer")

    def __reduce__(self) -> NoReturn:
        raise TypeError("[outer.Outer] an Outer has connections, so it cannot be copied: save state_dict()")

    # ---- what it was made with

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def every(self) -> int:
        return self._options["every"]

    @property
    def delay(self) -> int:
        return self._options["delay"]

    @property
    def fragments(self) -> int:
        return self._options["fragments"]

    @property
    def lr(self) -> float:
        """The learning rate of the outer optimizer. That of the inner optimizer is in ``param_groups``."""
        return self._options["lr"]

    @property
    def momentum(self) -> float:
        return self._options["momentum"]

    @property
    def spread(self) -> bool:
        """Whether ranks move along the momentum after each of their steps."""
        return self._options["spread"]

    # ---- steps

    def step(self, closure: Callable[[], Tensor] | None = None) -> Any:
        """Makes a step of the inner optimizer, and a round where one is due. Returns what the inner optimizer's
        ``step`` returns. Under a ``GradScaler``, whose ``step`` takes this object, a step that the scaler leaves out on
        this rank counts, too."""
        with self._scaled_step():
            self._require_own("step")
            self._require_exchanged("step")
            result = self._step_inner(None if closure is None else self._watched(closure))
            self._count_step()
            return result

    def count_step(self) -> None:
        """Counts a step that the caller made with the inner optimizer, or left out; ``step()`` makes a step and counts
        it. All ranks must count the same steps, also a rank that leaves a step out. Raises ValueError where a parameter
        that is not exchanged has a gradient; the inner optimizer has moved it by then."""
        self._require_own("count_step")
        self._require_exchanged("count_step")
        self._count_step()

    @outside_of_inference
    def _count_step(self) -> None:
        self._opt_called = True  # which schedules of the learning rate ask for
        with _failed_rounds_explained("step"):
            skipped = self._outer.after_step()
        self._warn_of_skipped(skipped, "step", "where its round began", stacklevel=5)
        if self._outer.steps % self.every == 0:
            self._remember_buffers(stacklevel=5)

    def _watched(self, closure: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def watched() -> Tensor:
            loss = closure()
            self._require_exchanged("step")
            return loss

        return watched

    def _require_exchanged(self, function: str) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._exchanged:
                    raise ValueError(
                        f"[outer.{function}] the inner optimizer has a {tuple(parameter.shape)} parameter with a "
                        f"gradient, which Outer does not exchange: ranks would differ in it. Build Outer once the "
                        f"model and the optimizer have everything that is trained"
                    )

    @outside_of_inference
    def synchronize(self) -> None:
        """Makes a round at once. Afterwards all ranks have the same parameters: the anchor's. Call it on all ranks,
        which may have made different numbers of steps since they sent their last round."""
        self._require_own("synchronize")
        with _failed_rounds_explained("synchronize"):
            skipped = self._outer.synchronize()
        self._warn_of_skipped(skipped, "synchronize", "the anchor", stacklevel=4)

    def __repr__(self) -> str:
        return f"Outer(plan='{self.plan}', every={self.every}, lr={self.lr}, momentum={self.momentum}, {self.inner!r})"

    # ---- the anchor

    @of_itself
    @contextmanager
    def at_anchor(self) -> Iterator[None]:
        """A context in which the model's parameters are the anchor, the same on all ranks; afterwards they are this
        rank's own again. ``state_dict`` may be called inside; ``step``, ``synchronize`` and ``load_state_dict`` raise
        RuntimeError there."""
        self._require_own("at_anchor")
        self._own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        try:
            self._set_parameters(self._outer.anchors())
            yield
        finally:
            own, self._own = self._own, None
            self._set_parameters(own)

    def _require_own(self, function: str) -> None:
        if self._own is not None:
            raise RuntimeError(f"[outer.{function}] the model has the anchor's parameters: leave at_anchor() first")

    @torch.no_grad()
    def _set_parameters(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])

    def wait(self) -> None:
        """Waits until the rounds under way have been exchanged. They still arrive at their own steps."""
        self._outer.wait()

    def stats(self) -> dict[str, Any]:
        """Returns figures since this object was made:

        - ``wire_bytes``: bytes sent by this rank, in rounds that have arrived.
        - ``dense_bytes``: bytes that ring all-reduces of a gradient in each step would have sent.
        - ``steps``, ``rounds`` and ``skipped_rounds``: their numbers.
        - ``waited_s``: seconds that ``step`` and ``synchronize`` have waited for rounds.
        - ``encode_s``, ``reduce_s``, ``decode_s``, ``wait_up_s`` and ``wait_down_s``: seconds of the exchanges.
        """
        return self._outer.stats()

    def _warn_of_skipped(
        self, skipped: list[tuple[int, int, list[int], bool]], function: str, back_to: str, stacklevel: int
    ) -> None:
        if any(returned for _, _, _, returned in skipped):
            self._forget_what_is_not_finite()
        for fragment, round_, ranks, returned in skipped:
            names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            warnings.warn(
                f"[outer.{function}] round {round_} of fragment {fragment} was skipped by all ranks, because "
                f"{names if ranks else 'some rank, or a sum over ranks,'} had a NaN or an infinity in it; this rank, "
                f"{self._rank}, {f'goes back to {back_to}' if returned else 'goes on from its own parameters'}",
                stacklevel=stacklevel,
            )

    @torch.no_grad()
    def _forget_what_is_not_finite(self) -> None:
        """Drops the inner optimizer's state of each parameter where it is not finite, and restores such buffers: the
        next step would make values that are not finite again."""
        for parameter, of_one in self.inner.state.items():
            if isinstance(parameter, Tensor) and not all(is_finite(value) for value in of_one.values()):
                of_one.clear()
        self._finite_buffers.restore()

    def _remember_buffers(self, stacklevel: int) -> None:
        for name in self._finite_buffers.remember():
            warnings.warn(
                f"[outer.step] the buffer {name} of this rank, {self._rank}, had a NaN or an infinity at the end of a "
                f"round, and is again what it was at the end of the round before",
                stacklevel=stacklevel,
            )

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Returns all that this rank needs to go on exactly where it is, also inside a round: save one state per rank.
        ``shared`` (the anchor, the momentum and what has arrived) is the same on all ranks. ``own`` has this rank's
        residuals and parameters, ``buffers`` those of its buffers that ``model.state_dict()`` has, ``last_buffers`` the
        values to which a buffer with a NaN returns, and ``inner`` the state of its inner optimizer. The tensors are
        copies, except those of ``inner``."""
        return {**self.own_state(), "shared": self.shared_state()}

    def shared_state(self) -> dict[str, Tensor]:
        """Returns ``shared`` of ``state_dict``, for callers that save it once for all ranks."""
        return self._outer.shared_state()

    def own_state(self) -> dict[str, Any]:
        """Returns all of ``state_dict`` but ``shared``."""
        own = self._outer.own_state()
        parameters = self._parameters if self._own is None else self._own
        own |= {f"parameter/{name}": p.detach().clone() for name, p in parameters.items()}
        return {
            "schema": SCHEMA,
            "rank": self._rank,
            "world_size": self._size,
            "options": self._saved_options(),
            "memory_orders": memory_orders(self._parameters),
            "step": self._outer.steps,
            "positions": [list(position) for position in self._outer.positions()],
            "own": own,
            "buffers": {name: buffer.detach().clone() for name, buffer in saved_buffers(self._model).items()},
            "last_buffers": {name: last.clone() for name, last in self._finite_buffers.values.items()},
            "inner": self.inner.state_dict(),
        }

    def _saved_options(self) -> dict[str, Any]:
        """Returns the options that a state belongs to. The rates of the outer optimizer may change, and are not among
        them."""
        options = {name: self._options[name] for name in ("every", "delay", "fragments", "mix", "spread")}
        return options | dict(momentum=self.momentum > 0 or self.spread, seed=self._seed, plan=str(self.plan))

    @outside_of_inference
    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restores what this rank saved, or a list of what the ranks of any world saved: in any order, but the same
        list on all ranks.

        - With its own state, or with all states of a world of as many ranks, a rank resumes with the same bits.
        - Otherwise what the ranks still owed is redistributed, and is removed from their parameters. A lone rank sends
          nothing, so it can owe nothing: its own debt stays in its parameters, as progress, or, where the parameters
          are the anchor's, as after ``synchronize``, the debt of all ranks is added to them.
        - A rank beyond those that saved begins at the anchor, with the state of one of their inner optimizers and the
          buffers of that rank.
        - States may be missing, such as those of a host that was lost. What their ranks owed is then lost, too.

        Raises ValueError where a state does not fit, TypeError for what is none; nothing has changed then.
        """
        self._require_own("load_state_dict")
        is_own = isinstance(state_dict, Mapping)
        states, buffers = states_of(state_dict), saved_buffers(self._model)
        by_rank = states_by_rank(states, self._saved_options(), self._parameters, buffers, self.inner)
        if is_own:
            require_of_rank(state_dict, self._rank, self._size)
        size, first = int(states[0]["world_size"]), states[0]
        own, added, before = by_rank.get(self._rank), {}, self.inner.state_dict()
        place = ((own or first)["positions"], int(first["step"]))  # ranks may have made other numbers of steps
        like = own or states[self._rank % len(states)]
        try:
            self.inner.load_state_dict(like["inner"])
            if size == self._size and (is_own or len(by_rank) == size):
                self._outer.load({**own["shared"], **own["own"]}, *place)
            else:
                owns = [by_rank[rank]["own"] if rank in by_rank else {} for rank in range(size)]
                rank = None if own is None else self._rank
                added = self._outer.load_world([{**first["shared"], **of_rank} for of_rank in owns], *place, rank)
        except BaseException:
            self.inner.load_state_dict(before)
            raise
        if own is None:
            self._outer.begin_at_start()
        values = self._parameters if own is None else self._saved_parameters(own["own"])
        with torch.no_grad():
            sums = {name: values[name] + more.to(values[name].device) for name, more in added.items()}
        self._set_parameters({**values, **sums})
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(like["buffers"][name])
            self._finite_buffers.load(like["last_buffers"])

    def _saved_parameters(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: own[f"parameter/{name}"] for name in self._parameters}


@contextmanager
def _failed_rounds_explained(function: str) -> Iterator[None]:
    """A context that raises the errors of an exchange again, with what they mean for ``Outer``."""
    try:
        yield
    except (TimeoutError, RuntimeError) as error:
        if not str(error).startswith(("[comm", "[outer.round")):
            raise
        raise type(error)(
            f"[outer.{function}] a round failed: {error}. Ranks must be in the same round; start again from "
            f"a saved state"
        ) from error
