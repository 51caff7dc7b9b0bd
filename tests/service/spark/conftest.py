"""One Spark session for the whole test process, its class archive, and the jars of Spark's Kafka connector."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.spark.departures import create_topics, settings
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.log.embedded import EmbeddedLog
from stateline.spark.session import close_session, spark_session
from support import REPOSITORY
from support.kafka.kafka_broker import missing_is_a_failure
from support.kafka.maven import JarsUnavailableError, jars
from support.spark import spark_archive
from support.spark.on_cluster import Cluster, wanted_cluster

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


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster | None]:
    """None unless ``SPARK_ON=cluster`` has the tests run on one."""
    with wanted_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Of the application in `departures`, on an embedded log: that of `log`."""
    return load_config("flights", overrides=settings(str(tmp_path)))


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    """With the topics of `departures`."""
    made = EmbeddedLog(tmp_path / "log.db")
    create_topics(made)
    return made


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
    given = [*settings(str(state), spark_jars=jars), f"spark.sql.warehouse.dir={state / 'warehouse'}"]
    if cluster is not None:
        path = os.pathsep.join([str(REPOSITORY), *sys.path])  # where tests' own functions are; workers start elsewhere
        given += [*cluster.settings, f"spark.executorEnv.PYTHONPATH={path}"]
    session = spark_session(load_config("tests", overrides=given), class_archive=class_archive)
    yield session
    # A JVM that has run all of these tests took a minute to end, at the end of a run. Nothing of it is needed then.
    close_session(session, timeout_s=3.0)


@pytest.fixture
def checkpoints(cluster: Cluster | None, tmp_path: Path) -> str:
    """Where a test's checkpoints are."""
    return str(tmp_path) if cluster is None else cluster.new_folder()
