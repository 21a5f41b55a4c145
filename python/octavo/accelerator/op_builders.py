# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's builders of native operators, for who runs DeepSpeed on an accelerator from here."""

from __future__ import annotations

import importlib
from typing import Any


class OpBuilders:
    """The part of an accelerator that finds them. Raises ImportError where DeepSpeed is not installed."""

    _name: str

    def op_builder_dir(self) -> str:
        """The module that has the builders for this device type."""
        folders = {"cuda": "", "xpu": ".xpu"}  # the builders for cpu serve wherever the host does the work
        return "deepspeed.ops.op_builder" + folders.get(self._name, ".cpu")

    def get_op_builder(self, class_name: str) -> type:
        """The builder's class; for a name that this device type has not, the one that says so when it is used."""
        try:
            module = importlib.import_module(self.op_builder_dir())
        except ModuleNotFoundError as missing:
            raise ImportError(
                f"[accelerator.get_op_builder] expected the package deepspeed, whose builders these are, got: {missing}"
            ) from missing
        return getattr(module, class_name, None) or module.NotImplementedBuilder

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()
