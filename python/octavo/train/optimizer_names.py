# SPDX-License-Identifier: Apache-2.0
"""The optimizers of `octavo train` by name, what they have in common, and their default hyperparameters."""

ADAMS = {
    "adam": "Adam",
    "adam8bit": "Adam8bit",
    "adam4bit": "Adam4bit",
    "adamw8bit": "AdamW8bit",
    "adamw4bit": "AdamW4bit",
    "paged-adam": "PagedAdam",
    "paged-adam8bit": "PagedAdam8bit",
    "paged-adamw": "PagedAdamW",
    "paged-adamw8bit": "PagedAdamW8bit",
}
LIONS = {"lion8bit": "Lion8bit", "paged-lion": "PagedLion", "paged-lion8bit": "PagedLion8bit"}
FUSED = ADAMS | LIONS
"""Optimizers of averaged gradients with fused steps, most of them with states of 8 or 4 bits or with paged states, and
their classes in octavo.optim."""
OPTIMIZERS = ("adamw", "onebit-adamw", "onebit-lamb", "zero-one-adam", "muon", "signum", "lion", *FUSED)
ONEBIT = ("onebit-adamw", "onebit-lamb")
"""Optimizers that freeze their variance and send momenta afterwards."""
ELEMENTWISE = ("adamw", *FUSED)
"""Optimizers that step each element by itself, so that a rank can step any part of a parameter, as with --zero."""
STEPPED_ALONE = (*ELEMENTWISE, "muon")
"""Optimizers that only need averaged gradients: a rank can step by itself, between the rounds of --outer."""
SIGN_STEPPED = ("signum", "lion")
"""Optimizers that step by the sign of what the ranks send."""
UNCLIPPED = ("zero-one-adam", *SIGN_STEPPED)
"""Optimizers for which --clip-norm has no meaning: config_checks refuses it, in the words of each."""
LR = {
    "adamw": 3e-3,
    "onebit-adamw": 3e-3,
    "onebit-lamb": 1e-2,
    "zero-one-adam": 3e-3,
    "muon": 3e-3,
    **dict.fromkeys(("signum", "lion", *LIONS), 6e-4),
    **dict.fromkeys(ADAMS, 3e-3),
}
"""The default of --lr for each optimizer. Together with BETA1 it is the best value, or nearly the best, on all data
sets of `octavo bench quality`. Not tuned there are 0/1 Adam, which has AdamW's rate, and the optimizers that step by
signs, which have a fifth of it, as the paper on Lion advises. LAMB's rate is relative to the size of each tensor."""
BETA1 = {
    "adamw": 0.5,
    "onebit-adamw": 0.5,
    "onebit-lamb": 0.5,
    "zero-one-adam": 0.5,
    "muon": 0.95,
    **dict.fromkeys(("signum", "lion", *LIONS), 0.9),
    **dict.fromkeys(ADAMS, 0.5),
}
"""The default of --beta1 for each optimizer. AdamW learns these short runs faster with 0.5 than with the usual 0.9."""
BETA2 = {
    "adamw": 0.999,
    "onebit-adamw": 0.999,
    "onebit-lamb": 0.999,
    "zero-one-adam": 0.999,
    "muon": 0.999,
    **dict.fromkeys(("lion", *LIONS), 0.99),
    **dict.fromkeys(ADAMS, 0.999),
}
"""The default of --beta2 for each optimizer that has one."""
