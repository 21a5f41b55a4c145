# SPDX-License-Identifier: Apache-2.0
"""The mark of tests that make hosts of their own. Finding out whether this machine can make them makes one, so it is
done once."""

import pytest

from octavo.bench.linked_hosts import why_no_hosts

_REASON = why_no_hosts()
needs_hosts = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
