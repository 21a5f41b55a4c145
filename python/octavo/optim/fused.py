# SPDX-License-Identifier: Apache-2.0
"""What optimizers share whose step is one C++ call over all tensors, with states in 32, 8 or 4 bits, paged or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from octavo._C import Arena
from octavo.optim.checks import require_dense, require_own_state, require_real

BLOCK = {8: 256, 4: 128}  # elements of a state that share a scale
NONFINITE = ("skip_element", "skip_step", "raise")
BF16_ROUNDING = ("nearest", "stochastic", "extra_bits")


class FusedOptimizer(Optimizer):
    """Base of ``Adam``, ``AdamW`` and ``Lion``. Every option may differ between parameter groups, and is saved with them.

    ``optim_bits`` is 32, 8 or 4: of a state's elements. Parameters of fewer than ``min_8bit_size`` elements have float32
    whatever it says. ``is_paged`` puts states of at least ``min_paged_size`` elements into managed memory, which the
    device moves to where it is used and back: shared memory of SYCL and CUDA, on the CPU memory that the system may page
    out or, with ``page_dir``, a file in that directory, so that states may be larger than RAM.

    ``nonfinite`` says what a NaN or an infinity in a gradient does: ``"skip_element"`` leaves its element and the
    element's state as they are, and ``saw_nonfinite()`` tells; ``"skip_step"`` leaves everything as it is, and
    ``"raise"`` raises FloatingPointError then. The last two wait for the device in every step.

    ``bf16_rounding`` of parameters in bfloat16: ``"nearest"`` loses steps of less than half a unit of the last place;
    ``"stochastic"`` rounds without bias, by bits that ``seed``, the step and the element's number draw, the same on
    every machine; ``"extra_bits"`` keeps 8 more bits of each parameter as a state.

    State of a parameter: ``step``, a float32 scalar on the CPU as torch has it; each moment, float32 or codes (uint8,
    with its scales beside it as ``NAME_scale``); ``extra_bits``. All are plain tensors, of the parameter's device.
    """

    _moments: ClassVar[Mapping[str, int]]  # by name: the byte that stands for zeros in codes of 8 bits
    _own_options: ClassVar[frozenset[str]]  # of parameter groups, by which a saved state is known
    _bits: ClassVar[int] = 32  # what optim_bits and is_paged are where nothing is said
    _pages: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        optim_bits: int | None = None,
        min_8bit_size: int = 4096,
        is_paged: bool | None = None,
        min_paged_size: int = 0,
        page_dir: str | None = None,
        nonfinite: str = "skip_element",
        bf16_rounding: str = "nearest",
        seed: int = 0,
    ):
        self._arenas: dict[torch.device, Arena] = {}
        self._nonfinite: dict[torch.device, Tensor] = {}
        self._factor: Tensor | None = None
        self._page_dir = page_dir
        options = dict(
            optim_bits=self._bits if optim_bits is None else optim_bits,
            min_8bit_size=min_8bit_size,
            is_paged=self._pages if is_paged is None else is_paged,
            min_paged_size=min_paged_size,
            nonfinite=nonfinite,
            bf16_rounding=bf16_rounding,
            seed=seed,
        )
        super().__init__(params, defaults | options)

    # ---- what a subclass says

    def _check(self, group: dict[str, Any]) -> None:
        """Raises ValueError for options of its own that are out of range."""
        raise NotImplementedError

    def _call(self, group: dict[str, Any], parameters: list[Tensor], tensors: dict[str, Any]) -> None:
        """Calls the operator that makes the step; ``tensors`` are its arguments by name that all such operators have."""
        raise NotImplementedError

    def _require_ready(self) -> None:
        """Raises RuntimeError where a step would take ``grad`` for what it is not."""

    # ---- options

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._require(group["optim_bits"] in (4, 8, 32), "optim_bits of 32, 8 or 4", group["optim_bits"])
        self._require(group["nonfinite"] in NONFINITE, f"nonfinite as one of {NONFINITE}", group["nonfinite"])
        self._require(
            group["bf16_rounding"] in BF16_ROUNDING, f"bf16_rounding as one of {BF16_ROUNDING}", group["bf16_rounding"]
        )
        self._require(group["lr"] >= 0, "an lr of at least 0", group["lr"])
        self._require(group["weight_decay"] >= 0, "a weight_decay of at least 0", group["weight_decay"])
        self._check(group)
        require_real(self, group["params"])

    def _require(self, condition: bool, expected: str, got: Any) -> None:
        if not condition:
            raise ValueError(f"[optim.{type(self).__name__}] expected {expected}, got {got!r}")

    # ---- steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._require_ready()
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        factor, self._factor = self._factor, None
        for group, parameters in zip(self.param_groups, moved, strict=True):
            for parameter in parameters:
                require_dense(self, parameter.grad)
            if group["nonfinite"] != "skip_element" and not self._all_finite(parameters):
                if group["nonfinite"] == "raise":
                    raise FloatingPointError(
                        f"[optim.{type(self).__name__}] a gradient is not finite; parameters and states of its group "
                        f"are as they were before the step"
                    )
                continue
            self._move(group, parameters, factor)
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the gradients of the next step to the global L2 norm ``max_norm``, as
        ``torch.nn.utils.clip_grad_norm_`` does but without a pass of its own over them: the step multiplies as it reads
        them, and ``grad`` stays as it is. Returns the norm that they have, on their device, which is not waited for.
        """
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self._factor = (max_norm / (norm.float() + 1e-6)).clamp_(max=1.0)
        return norm

    def saw_nonfinite(self) -> bool:
        """Whether a step since the last call left elements alone because their gradients were not finite. Waits for the
        devices."""
        seen = any(bool(flag.item()) for flag in self._nonfinite.values())
        for flag in self._nonfinite.values():
            flag.zero_()
        return seen

    def step_in_backward(self) -> list[RemovableHandle]:
        """From now on a parameter makes its step as soon as backward has its gradient, which is freed then: all
        gradients together need the memory of the largest alone. ``step()`` finds nothing left to do. Not for gradient
        accumulation, nor for clipping by the norm of all gradients. ``remove()`` of the handles ends it.
        """
        return [
            parameter.register_post_accumulate_grad_hook(lambda p, group=group: self._step_now(group, p))
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    @torch.no_grad()
    def _step_now(self, group: dict[str, Any], parameter: Tensor) -> None:
        require_dense(self, parameter.grad)
        self._require(
            group["nonfinite"] == "skip_element", "nonfinite as 'skip_element' in backward", group["nonfinite"]
        )
        self._move(group, [parameter], None)
        parameter.grad = None

    def _move(self, group: dict[str, Any], parameters: list[Tensor], factor: Tensor | None) -> None:
        """The step of parameters that have a ``grad``, those of a device and of a width of codes together."""
        for parameter in parameters:
            if not self.state[parameter]:
                self._first_state(group, parameter)
            self.state[parameter]["step"] += 1
        places = {parameter: number for number, parameter in enumerate(self._all_parameters())}
        by_device: dict[torch.device, list[Tensor]] = {}
        for parameter in parameters:
            by_device.setdefault(parameter.device, []).append(parameter)
        for device, here in by_device.items():
            steps = [int(self.state[p]["step"]) for p in here]
            is_random = group["bf16_rounding"] == "stochastic"
            common = dict(
                parameters=here,
                gradients=[p.grad for p in here],
                tails=self._extra_bits(here),
                code_bits=group["optim_bits"] if group["optim_bits"] != 32 else 8,
                gradient_factor=None if factor is None else factor.to(device),
                nonfinite=self._flag_on(device),
                rounding_seed=_step_seed(group["seed"], steps[0]) if is_random else None,
                numbers=[places[p] for p in here],
            )
            self._call(group, here, common)

    def _all_parameters(self) -> Iterable[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _all_finite(self, parameters: list[Tensor]) -> bool:
        norms = torch._foreach_norm([p.grad for p in parameters], float("inf"))
        return all(bool(torch.isfinite(norm)) for norm in norms)

    def _flag_on(self, device: torch.device) -> Tensor:
        if device not in self._nonfinite:
            self._nonfinite[device] = torch.zeros((), dtype=torch.int32, device=device)
        return self._nonfinite[device]

    def _states(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[parameter][name] for parameter in parameters]

    def _scales(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """Of each parameter; an empty tensor where the state is float32."""
        return [self.state[p].get(f"{name}_scale", p.new_empty(0, dtype=torch.float32)) for p in parameters]

    def _extra_bits(self, parameters: list[Tensor]) -> list[Tensor]:
        if not any("extra_bits" in self.state[p] for p in parameters):
            return []
        return [self.state[p].get("extra_bits", p.new_empty(0, dtype=torch.int8)) for p in parameters]

    # ---- states

    def _first_state(self, group: dict[str, Any], parameter: Tensor) -> None:
        state: dict[str, Tensor] = {"step": torch.zeros((), dtype=torch.float32)}
        for name, zero_code in self._moments.items():
            state |= self._zero_moment(group, parameter, name, zero_code)
        if group["bf16_rounding"] == "extra_bits" and parameter.dtype == torch.bfloat16:
            state["extra_bits"] = self._zeros_like(group, parameter, torch.int8)
        self.state[parameter] = state

    def _zero_moment(self, group: dict[str, Any], parameter: Tensor, name: str, zero_code: int) -> dict[str, Tensor]:
        bits = self._bits_of(group, parameter)
        if bits == 32:
            return {name: self._zeros_like(group, parameter, torch.float32)}
        blocks = -(-parameter.numel() // BLOCK[bits])
        if bits == 8:
            codes = self._zeros_like(group, parameter, torch.uint8)
        else:
            codes = self._zeros(group, parameter, [-(-parameter.numel() // 2)], torch.uint8)
            zero_code = zero_code // 16 * 17  # both nibbles
        if zero_code:
            codes.fill_(zero_code)
        return {name: codes, f"{name}_scale": self._zeros(group, parameter, [blocks], torch.float32)}

    def _bits_of(self, group: dict[str, Any], parameter: Tensor) -> int:
        return 32 if parameter.numel() < max(group["min_8bit_size"], 1) else group["optim_bits"]

    def _zeros_like(self, group: dict[str, Any], parameter: Tensor, dtype: torch.dtype) -> Tensor:
        if self._is_paged(group, parameter):
            return self._arena_on(parameter.device).zeros_like(parameter, dtype)
        return torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)

    def _zeros(self, group: dict[str, Any], parameter: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
        if self._is_paged(group, parameter):
            return self._arena_on(parameter.device).zeros(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=parameter.device)

    def _is_paged(self, group: dict[str, Any], parameter: Tensor) -> bool:
        return group["is_paged"] and parameter.numel() >= max(group["min_paged_size"], 1)

    def _arena_on(self, device: torch.device) -> Arena:
        if device not in self._arenas:
            directory = self._page_dir if self._page_dir is not None and device.type == "cpu" else ""
            self._arenas[device] = Arena(device, directory=directory)
        return self._arenas[device]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back ``state_dict()``. Each state is made anew where the options say, in managed memory where they say
        so, and filled from the saved one: the saved tensors may be on any device and are not kept. Raises ValueError,
        and changes nothing, for the state of another optimizer or of other shapes."""
        require_own_state(self, state_dict, self._own_options)
        saved_groups, saved_states = state_dict["param_groups"], state_dict["state"]
        keys = [key for group in saved_groups for key in group["params"]]
        before = self.state_dict()["param_groups"]
        super().load_state_dict({"state": {}, "param_groups": saved_groups})
        try:
            loaded = self._loaded_states(dict(zip(keys, self._all_parameters(), strict=True)), saved_states)
        except ValueError:
            super().load_state_dict({"state": {}, "param_groups": before})
            raise
        self.state.update(loaded)

    def _loaded_states(self, parameters: dict[Any, Tensor], saved: dict[Any, Any]) -> dict[Tensor, dict[str, Tensor]]:
        group_of = {p: group for group in self.param_groups for p in group["params"]}
        before, self_state = dict(self.state), self.state
        loaded = {}
        try:
            for key, parameter in parameters.items():
                if key not in saved:
                    continue
                self._first_state(group_of[parameter], parameter)
                for name, tensor in self.state[parameter].items():
                    self._fill(tensor, saved[key].get(name), key, name)
                loaded[parameter] = self.state[parameter]
        finally:
            self_state.clear()
            self_state.update(before)
        return loaded

    def _fill(self, tensor: Tensor, saved: Any, key: Any, name: str) -> None:
        saved = torch.as_tensor(saved) if saved is not None else None
        if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
            got = "none" if saved is None else f"{saved.dtype} {tuple(saved.shape)}"
            raise ValueError(
                f"[optim.{type(self).__name__}] expected the saved {name} of parameter {key} as {tensor.dtype} "
                f"{tuple(tensor.shape)}, got {got}; nothing has changed"
            )
        tensor.copy_(saved)


def _step_seed(seed: int, step: int) -> int:
    """Of a step's random bits, in 63 bits."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
