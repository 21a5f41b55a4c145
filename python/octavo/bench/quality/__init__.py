# SPDX-License-Identifier: Apache-2.0
"""`octavo bench quality`: the loss that each way of sending gradients reaches, with every contender tuned alike.

Each contender gets the same number of trials (`search`), with a quarter or half of the steps, on a tuning seed and on
tuning data that are not reported (`data`, `settings`). Its best trial then trains for the full length, once per seed,
on the other data (`protocol`). Every training is `octavo train` in a process of its own with an `--out` of its own
(`runs`). So the bench can be killed at any time, and a finished training is not repeated. `results` makes one JSON of a
work folder, `report` makes the tables of docs/quality.md, docs/quality/trials.md and the README from that JSON.
"""
