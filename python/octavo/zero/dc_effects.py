# SPDX-License-Identifier: Apache-2.0
"""Keeps those of DeepSpeed's operators in compiled graphs whose schemas do not say that they do something. Without this
``torch.compile`` would leave them out wherever their results are not used, and gradients would not be reduced."""

from torch import library
from torch._library.effects import EffectType

#: Of ``torch.ops.dc``. ``wait_allgather`` and ``release_param`` return their argument, which ``torch.compile`` refuses.
#: ``free_tensors`` may be left out: Inductor itself reuses the memory of what nobody reads any more.
WITH_EFFECTS = (
    "reduce_grad",
    "end_backward",
    "prefetch_params_fused",
    "offload_parameter",
    "reload_parameter",
)

for _name in WITH_EFFECTS:
    library._register_effectful_op(f"dc::{_name}", EffectType.ORDERED)
