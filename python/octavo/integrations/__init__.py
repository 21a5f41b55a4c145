# SPDX-License-Identifier: Apache-2.0
"""Octavo inside other packages. Each module here imports the package that it is named after."""
