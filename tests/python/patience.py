# SPDX-License-Identifier: Apache-2.0
"""How much longer than on two quiet cores a test may take.

`OCTAVO_TEST_PATIENCE` multiplies a test's time limit, and how long the helpers here wait for processes. `tools/test`
sets it, because its tests share the cores with the sanitizers' builds, and some machines are half as fast as others.
These limits are there to end what hangs. What a user waits for has deadlines of its own, which do not change.
"""

import os

PATIENCE = float(os.environ.get("OCTAVO_TEST_PATIENCE", "1"))
