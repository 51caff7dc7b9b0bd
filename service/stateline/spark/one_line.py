"""Shows errors of Stateline's sources in one line.

Spark wraps an error of a Python data source with its traceback of thirty lines. A `StatelineError` tells the user what
to do, so its traceback is left out. Other errors keep theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stateline_store import StatelineError

# Spark's setting spark.sql.execution.pyspark.udf.hideTraceback.enabled sets it for the processes of UDFs.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def in_one_line() -> Iterator[None]:
    """Run a block or a decorated function that Spark calls in a source. A `StatelineError` then reaches the user as
    ``stateline_store.errors.…: …`` without a traceback. Only Spark's own processes are affected."""
    try:
        yield
    except StatelineError:
        if _is_sparks_process():
            os.environ[_HIDE_TRACEBACK] = "1"  # for this error alone: Spark ends the process
        raise


def _is_sparks_process() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
