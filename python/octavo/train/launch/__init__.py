# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: how they are started, meet, agree and end."""
