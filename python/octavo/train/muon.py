# SPDX-License-Identifier: Apache-2.0
"""Muon, which is for matrices, together with an AdamW for all other parameters."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from octavo.train.config import TrainConfig
from octavo.train.optimizer_kinds import ADAMW
from octavo.train.parameter_groups import parameter_groups


class MuonWithAdamW:
    """Muon for the hidden matrices, AdamW for everything else: embeddings, the output layer, norms and biases.

    Muon's update is scaled to the root mean square of AdamW's ("match_rms_adamw", Liu et al. 2025), so that one
    learning rate may be used for both; ``--adamw-lr`` gives AdamW one of its own. The class has what a training loop
    uses of ``torch.optim.Optimizer``; its state is that of both.
    """

    def __init__(self, model: PreTrainedModel, config: TrainConfig) -> None:
        hidden = _hidden_matrices(model)
        known = set(hidden)
        others = (parameter for parameter in model.parameters() if parameter not in known)
        rest = parameter_groups(others, config.weight_decay)
        adamw_lr = config.resolved_lr if config.adamw_lr is None else config.adamw_lr
        if config.adamw_lr is not None:
            for group in rest:
                group["lr_share"] = adamw_lr / config.resolved_lr
        self._parts = {
            "muon": torch.optim.Muon(
                hidden,
                lr=config.resolved_lr,
                momentum=config.resolved_beta1,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            "adamw": torch.optim.AdamW(rest, lr=adamw_lr, betas=(ADAMW.beta1, config.resolved_beta2), eps=ADAMW.eps),
        }

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of both."""
        return [group for part in self._parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict[torch.nn.Parameter, dict[str, Any]]:
        """The state of each parameter, in a new dict. Its values are the optimizers' own dicts."""
        return {parameter: state for part in self._parts.values() for parameter, state in part.state.items()}

    def step(self) -> None:
        """Makes one step of both."""
        for part in self._parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients."""
        for part in self._parts.values():
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of both, by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned. Raises ValueError for the state of another optimizer."""
        if state.keys() != self._parts.keys():
            raise ValueError(f"[train.optimizer] the saved state is not that of muon: it has the parts {sorted(state)}")
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def _hidden_matrices(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Returns the matrices between the embeddings and the output layer."""
    outer = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    return [parameter for parameter in model.parameters() if parameter.ndim == 2 and id(parameter) not in outer]
