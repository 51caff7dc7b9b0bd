"""A seam for crash tests: a process can be made to kill itself between two steps of what must survive that.

``STATELINE_CRASH_AT=relocation:journal-written`` kills the process (SIGKILL) when it comes there for the first time,
``…#3`` the third time. ``STATELINE_TEST_STOP_AT`` stops it there (SIGSTOP) until a SIGCONT: a worker that others
take for dead and that is not. Unset, as they are outside of tests, a step costs two comparisons.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from threading import Lock

_CRASH_AT = os.environ.get("STATELINE_CRASH_AT")
_STOP_AT = os.environ.get("STATELINE_TEST_STOP_AT")
_seen: Counter[str] = Counter()
_counting = Lock()


def reached(step: str) -> None:
    """Stop or kill the process here, if a test wants it: this step is done, the next one not begun."""
    if _CRASH_AT is None and _STOP_AT is None:
        return
    with _counting:
        _seen[step] += 1
        number = _seen[step]
    for at, sent in ((_CRASH_AT, signal.SIGKILL), (_STOP_AT, signal.SIGSTOP)):
        if at == f"{step}#{number}" or (at == step and number == 1):
            os.kill(os.getpid(), sent)
