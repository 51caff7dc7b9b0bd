"""The slowest tests of a run, kept in a file, also of one in several processes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

_COUNT = 50


class Slowest:
    """A plugin of pytest, in the process that has every report. `file` is written when the run is over."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid][report.when or ""] += report.duration

    def pytest_sessionfinish(self) -> None:
        files: defaultdict[str, float] = defaultdict(float)
        for test, parts in self._seconds.items():
            files[test.split("::")[0]] += sum(parts.values())
        slowest = sorted(self._seconds.items(), key=lambda item: -sum(item[1].values()))[:_COUNT]
        lines = ["   all  set-up    call  test (seconds)"]
        lines += [f"{sum(s.values()):6.1f}  {s['setup']:6.1f}  {s['call']:6.1f}  {test}" for test, s in slowest]
        lines += ["", "   all  file"]
        lines += [f"{s:6.1f}  {file}" for file, s in sorted(files.items(), key=lambda item: -item[1])[:_COUNT]]
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")
