# SPDX-License-Identifier: Apache-2.0
"""``octavo.compress``: hooks by which DistributedDataParallel and ``fully_shard`` send gradients by a plan, and the
handle with which a program follows and saves what they do."""
