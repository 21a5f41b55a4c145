# SPDX-License-Identifier: Apache-2.0
"""What is sent in the place of gradients: momenta, and updates of the ranks' own. 1-bit optimizers are built on it."""

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from octavo import _C
from octavo.parameters import dense_strides


class SendsMomenta:
    """The part of ``Handle`` that joined optimizers use, between steps."""

    def __init__(
        self,
        compressor: "_C.Compressor",
        parameters: Mapping[str, nn.Parameter],
        delivered: Callable[[], int],
        scaler: "torch.amp.GradScaler | None",
    ):
        self._compressor = compressor
        self._parameters = dict(parameters)
        self._delivered = delivered
        self._scaler = scaler
        self._guards: dict[nn.Parameter, RemovableHandle] = {}

    def set_momentum(self, momenta: Mapping[nn.Parameter, tuple[Tensor, Tensor]], beta: float) -> None:
        """From now on averages ``beta * m + (1 - beta) * P * gradient`` of these parameters instead of gradients.

        ``momenta``: for each parameter the pair ``(m, P)``, both float32, equal on all ranks, on the parameter's device
        and in its memory order. The tensors are shared with the hook, which reads them during backward; their owner
        updates them between steps. An empty mapping ends this: gradients are averaged again. ``OneBitAdamW`` is built
        on this. Afterwards ``.grad`` of these parameters holds a momentum: a backward pass that would add a gradient to
        it raises RuntimeError. Raises ValueError for tensors that do not fit.
        """
        name_of = self._names_of("set_momentum", momenta)
        for parameter, pair in momenta.items():
            for tensor in pair:
                _require_place("set_momentum", "momentum", name_of[parameter], parameter, tensor)
        self._compressor.set_momentum({name_of[p]: pair for p, pair in momenta.items()}, beta)
        self._guard_all(name_of)

    def keep_own_momenta(self, parameters: Iterable[nn.Parameter], update_beta: float, kept_beta: float) -> None:
        """From now on each rank sends ``update_beta * m + (1 - update_beta) * gradient`` of these parameters instead of
        its gradient. ``m`` is a momentum of the rank's own gradients. It becomes
        ``kept_beta * m + (1 - kept_beta) * gradient``.

        The momenta are kept by this handle, in float32, are zero at first and are saved in ``state_dict``. A step with
        a NaN on any rank leaves them as they were. No parameters end this. ``Signum`` and ``DistributedLion`` are built
        on it. What comes back in ``.grad`` is guarded as ``set_momentum`` says.
        """
        name_of = self._names_of("keep_own_momenta", parameters)
        self._compressor.keep_own_momenta(list(name_of.values()), update_beta, kept_beta)
        self._guard_all(name_of)

    def keep_own_updates(self, preconditioners: Mapping[nn.Parameter, Tensor], beta: float) -> None:
        """From now on ranks make updates of their own of these parameters,
        ``update + size * (beta * m + (1 - beta) * preconditioner * gradient)``, and average them in steps whose
        exchange is planned. ``preconditioners``: by parameter, as ``P`` of ``set_momentum``. ``ZeroOneAdam`` is built
        on it.

        The momenta ``m`` and the updates (``own_updates``) are kept by this handle, in float32, are zero at first and
        are saved in ``state_dict``. After a finite step with a planned exchange the updates are their averages over
        ranks, with the same bits on all of them. Then the caller makes parameters of the updates, and sets the updates
        to zero. No preconditioners end this. What comes back in ``.grad`` is guarded as ``set_momentum`` says.
        """
        name_of = self._names_of("keep_own_updates", preconditioners)
        for parameter, tensor in preconditioners.items():
            _require_place("keep_own_updates", "preconditioner", name_of[parameter], parameter, tensor)
        self._compressor.keep_own_updates({name_of[p]: tensor for p, tensor in preconditioners.items()}, beta)
        self._guard_all(name_of)

    def set_step_sizes(self, sizes: Mapping[nn.Parameter, float]) -> None:
        """Sets ``size`` of ``keep_own_updates`` for the next steps. Parameters that are not named keep theirs."""
        name_of = self._names_of("set_step_sizes", sizes)
        self._compressor.set_step_sizes({name_of[parameter]: size for parameter, size in sizes.items()})

    def own_updates(self) -> dict[nn.Parameter, tuple[Tensor, Tensor]]:
        """Returns the momenta and the updates of ``keep_own_updates`` by parameter. They are flat, in the memory order
        of the preconditioners, and may be changed in place, between steps. Call it again after every step that was
        sent, and after a load."""
        return {self._parameters[name]: pair for name, pair in self._compressor.own_updates().items()}

    def exchange_updates(self) -> bool:
        """Averages the updates of ``keep_own_updates`` now, outside of backward: a step with a planned exchange and
        without gradients. Returns whether it was finite. Call it on all ranks."""
        return self._compressor.exchange_updates()

    def drop_step_or_residuals(self) -> None:
        """Gives up the step whose momenta came back last. Where it has ended, and what it left out is kept, all
        residuals are discarded. Call it on all ranks."""
        self._compressor.drop_step_or_residuals()

    def holds_momenta(self) -> bool:
        """Whether ``.grad`` is, bit by bit, what the hook delivered (after ``scaler.unscale_``, where there is a
        scaler). It is False where gradients have been clipped, scaled or added to since. It looks only at some elements
        of the largest parameter with a momentum, so it does not see it where only other gradients have changed."""
        index, stride, sent = self._compressor.momentum_sample()
        gradient = list(self._parameters.values())[index].grad
        if sent is None or gradient is None or self._compressor.gradient_powers()[index] == 0:
            return True  # DDP may deliver nothing where no rank has a gradient
        if self._scaler is not None:
            scale = torch.tensor(self._scaler.get_scale(), dtype=torch.float64, device=sent.device)
            sent = sent * (1.0 / scale).float()
        found = gradient.detach().as_strided((sent.numel(),), (stride,)).cpu()
        return torch.allclose(found, sent, rtol=0.0, atol=0.0, equal_nan=True)

    def _names_of(self, function: str, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, str]:
        """Returns the names of these parameters. Raises ValueError, with `function` in its text, for parameters that
        the model does not have."""
        all_names = {parameter: name for name, parameter in self._parameters.items()}
        parameters = list(parameters)
        unknown = [tuple(p.shape) for p in parameters if p not in all_names]
        if unknown:
            raise ValueError(
                f"[handle.{function}] {len(unknown)} of the parameters, of shapes {', '.join(map(str, unknown))}, are "
                f"not among those of the compressed model that have gradients: pass some of handle.parameters"
            )
        return {parameter: all_names[parameter] for parameter in parameters}

    def _guard_all(self, name_of: Mapping[nn.Parameter, str]) -> None:
        """Guards these parameters and no others. A guard that there is stays, with what it knows: a schedule of betas
        names the parameters anew in every step."""
        for parameter in self._guards.keys() - name_of.keys():
            self._guards.pop(parameter).remove()
        for parameter, name in name_of.items():
            if parameter not in self._guards:
                self._guards[parameter] = self._guard(parameter, name)

    def _guard(self, parameter: nn.Parameter, name: str) -> RemovableHandle:
        """Makes a backward pass raise RuntimeError if it would add a gradient to a momentum: the sum could not be
        separated again."""
        # A hook must not refer to what refers to its parameter: the garbage collector does not see through C++.
        delivered, guarded = self._delivered, weakref.ref(parameter)
        delivered_before = delivered()  # the count when .grad last was empty or a gradient

        def check(_: Tensor) -> None:
            nonlocal delivered_before
            parameter = guarded()
            if parameter is None or delivered() == delivered_before:
                return
            if parameter.grad is not None and parameter.grad.any():
                raise RuntimeError(
                    f"[handle.backward] .grad of {name} holds the averaged momentum of an earlier backward pass: call "
                    f"zero_grad() after every step, and accumulate gradients under no_sync(), so that one backward "
                    f"pass in a step is synchronised"
                )
            delivered_before = delivered()

        # torch takes a hook only of what needs a gradient, and keeps it while that is frozen
        needs_gradient = parameter.requires_grad
        guard = parameter.requires_grad_(True).register_hook(check)
        parameter.requires_grad_(needs_gradient)
        return guard


def _require_place(call: str, what: str, name: str, parameter: Tensor, tensor: Tensor) -> None:
    """Raises ValueError unless ``tensor`` is on the parameter's device and in the memory order (``dense_strides``) in
    which gradients are combined with it."""
    if tensor.device != parameter.device:
        raise ValueError(
            f"[handle.{call}] a {what} must be on its parameter's device: {name} is on {parameter.device}, its {what} "
            f"on {tensor.device}"
        )
    if tensor.stride() != (strides := dense_strides(parameter)):
        raise ValueError(
            f"[handle.{call}] a {what} must lie in memory as its parameter does, or in rows where that is not dense: "
            f"that of {name} must have strides {strides}, and has {tensor.stride()}"
        )
