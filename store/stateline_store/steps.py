"""A seam for crash tests: a process can be made to kill itself between two steps of what must survive that.

``STATELINE_CRASH_AT=relocation:journal-written`` kills the process (SIGKILL) when it comes there for the first time,
``…#3`` the third time. Unset, as it is outside of tests, a step costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_CRASH_AT = os.environ.get("STATELINE_CRASH_AT")
_seen: Counter[str] = Counter()


def reached(step: str) -> None:
    """This step is done, the next one not begun."""
    if _CRASH_AT is None:
        return
    _seen[step] += 1
    if _CRASH_AT in (step, f"{step}#{_seen[step]}"):
        os.kill(os.getpid(), signal.SIGKILL)
