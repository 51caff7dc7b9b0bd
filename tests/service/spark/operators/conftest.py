"""A log with topics and a way to run a pipeline's function over it, in one micro-batch or in many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.spark.operators.bench import OperatorBench
from stateline.config.loading import load_config
from support.run.length import long_or_short


@pytest.fixture
def bench(session: SparkSession, tmp_path: Path, checkpoints: str) -> Iterator[OperatorBench]:
    session.conf.set("spark.sql.shuffle.partitions", "1")  # half the tasks: each starts Python workers
    yield OperatorBench(session, tmp_path, load_config("operators", overrides=[f"state.dir={tmp_path}"]), checkpoints)
    session.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.fixture(params=long_or_short(["one micro-batch", "many"], ["many"]))
def rows_per_batch(request: pytest.FixtureRequest) -> int:
    """How many records a micro-batch may read of each topic: few, and with `--long` all of them, too."""
    return 1_000_000 if request.param == "one micro-batch" else 40
