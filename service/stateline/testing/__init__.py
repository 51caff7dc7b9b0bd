"""Runs an application in its own tests, with a worker's code: no broker, no waiting.

    from stateline.testing import TestDriver

    with TestDriver(app) as driver:
        driver.pipe("orders", "alice", {"amount": 30}, timestamp_ms=0)
        assert driver.store("totals").get("alice") == 30

`docs/testing.md` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.testing.driver import TestDriver
    from stateline.testing.pipelines import run_pipeline
    from stateline.testing.records import DeadLetter, Record
    from stateline.testing.stores import TestedStore

__all__ = ["DeadLetter", "Record", "TestDriver", "TestedStore", "run_pipeline"]

_HOMES = {
    "DeadLetter": "records",
    "Record": "records",
    "TestDriver": "driver",
    "TestedStore": "stores",
    "run_pipeline": "pipelines",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for, so that only `run_pipeline` loads PySpark."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
