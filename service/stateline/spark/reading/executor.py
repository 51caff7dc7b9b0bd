"""Prepares Spark's Python process for many tasks."""

from __future__ import annotations

import gc

from pyspark import TaskContext


def spare_loaded_code() -> None:
    """Exclude modules and classes from garbage collection, if this process runs a task of Spark. Spark collects after
    each task. With all of this code, a collection takes as long as reading 50,000 rows."""
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
