"""Errors of Stateline's sources in one line, where Spark tells of them.

What a Python data source raises Spark puts into an error of its own, with the whole traceback: the sentence that says
what to do would be the last of thirty lines. Of an error that is meant for the user the traceback says nothing, so it
is left out; of any other it stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stateline_store import StatelineError

# What Spark's own setting spark.sql.execution.pyspark.udf.hideTraceback.enabled sets for the processes of UDFs.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def in_one_line() -> Iterator[None]:
    """What Spark calls of a source, as a block or a decorator: a `StatelineError` from in there comes to the user as
    ``stateline_store.errors.…: …`` without a traceback. In processes of Spark's alone; others see it as it is."""
    try:
        yield
    except StatelineError:
        if _is_sparks_process():
            os.environ[_HIDE_TRACEBACK] = "1"  # for this error alone: Spark ends a process that raised
        raise


def _is_sparks_process() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
