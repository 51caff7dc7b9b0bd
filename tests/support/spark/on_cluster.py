"""Tests of pipelines on a standalone cluster, checkpoints on HDFS, instead of in one JVM: with ``SPARK_ON=cluster``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import needed
from support.spark import spark_cluster


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster of two workers, and a real HDFS."""

    master: str
    hdfs: str

    @property
    def settings(self) -> list[str]:
        """Of a driver that works on it."""
        local = [f"spark.{name}=127.0.0.1" for name in ("driver.host", "driver.bindAddress")]
        return [f"spark.master={self.master}", "spark.executor.memory=512m", *local]

    def new_folder(self) -> str:
        """The URL of a folder that nobody else has."""
        return f"{self.hdfs}/{uuid4().hex}"


@contextmanager
def wanted_cluster(place: Path) -> Iterator[Cluster | None]:
    """As long as the block runs, with its files in `place`; None unless tests are to run on one."""
    if os.environ.get("SPARK_ON") != "cluster":
        yield None
        return
    with spark_cluster.standalone(place, workers=2) as master, hdfs(needed(hdfs_jars), place / "hdfs") as url:
        yield Cluster(master, url)
