# SPDX-License-Identifier: Apache-2.0
"""`octavo train`: the data, the job, its checkpoints and its report."""
