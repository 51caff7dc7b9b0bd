"""The command `stateline`, with a worker that writes when each of its commits ended and how long it took.

Each line of the file `TIMED_COMMITS` is ``<seconds since the epoch> <seconds>``.
"""

from __future__ import annotations

import os
import sys
import time

from stateline.cli.main import main
from stateline.worker.files.figures import Figures

if __name__ == "__main__":
    counted, file = Figures.committed, open(os.environ["TIMED_COMMITS"], "a", buffering=1)  # noqa: SIM115

    def committed(self: Figures, seconds: float, *, forced: bool) -> None:
        file.write(f"{time.time()} {seconds}\n")
        counted(self, seconds, forced=forced)

    Figures.committed = committed  # type: ignore[method-assign]
    sys.exit(main())
