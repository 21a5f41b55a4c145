# SPDX-License-Identifier: Apache-2.0
"""What a run keeps in `--out` so that it can go on: whose folder it is, its checkpoints, how they are found again."""
