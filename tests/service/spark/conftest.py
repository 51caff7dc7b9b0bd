"""One Spark session for the whole test process, its class archive, and the jars of Spark's Kafka connector."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from service.spark.departures import settings
from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session
from support import REPOSITORY
from support.hadoop.hdfs import hdfs, hdfs_jars
from support.kafka.kafka_broker import missing_is_a_failure, needed
from support.kafka.maven import JarsUnavailableError, jars
from support.spark import spark_archive, spark_cluster

_POM = REPOSITORY / "service" / "stateline" / "spark" / "pom.xml"


@pytest.fixture(scope="session")
def class_archive() -> Path:
    """The JVM's class archive: recorded once per machine, so that each of many drivers starts in half the time."""
    return spark_archive.class_archive()


@pytest.fixture(scope="session")
def connector_jars() -> Path | None:
    """The folder of the connector's jars; None where they cannot be had (an error in CI)."""
    try:
        return jars(_POM, "spark-kafka-4.2.0")
    except JarsUnavailableError as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        return None


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster of two workers, and a real HDFS."""

    master: str
    hdfs: str


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster | None]:
    """None unless ``SPARK_ON=cluster`` has the tests run on one."""
    if os.environ.get("SPARK_ON") != "cluster":
        yield None
        return
    place = tmp_path_factory.mktemp("cluster")
    with spark_cluster.standalone(place, workers=2) as master, hdfs(needed(hdfs_jars), place / "hdfs") as url:
        yield Cluster(master, url)


@pytest.fixture(scope="session")
def session(
    class_archive: Path,
    connector_jars: Path | None,
    python_of_spark: None,
    cluster: Cluster | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """Spark, started once."""
    jars = None if connector_jars is None else str(connector_jars)
    state = tmp_path_factory.mktemp("session")
    given = settings(str(state), spark_jars=jars)
    if cluster is not None:
        local = [f"spark.{name}=127.0.0.1" for name in ("driver.host", "driver.bindAddress")]
        path = os.pathsep.join([str(REPOSITORY), *sys.path])  # where tests' own functions are; workers start elsewhere
        given += [f"spark.master={cluster.master}", "spark.executor.memory=512m", *local]
        given += [f"spark.executorEnv.PYTHONPATH={path}"]
    session = spark_session(load_config("tests", overrides=given), class_archive=class_archive)
    yield session
    close_session(session)


@pytest.fixture
def checkpoints(cluster: Cluster | None, tmp_path: Path) -> str:
    """Where a test's checkpoints are."""
    return str(tmp_path) if cluster is None else f"{cluster.hdfs}/{uuid4().hex}"
