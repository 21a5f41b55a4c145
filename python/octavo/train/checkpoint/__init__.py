# SPDX-License-Identifier: Apache-2.0
"""What a run keeps in `--out` so that it can be resumed: whose folder it is, its checkpoints, how they are found
again."""
