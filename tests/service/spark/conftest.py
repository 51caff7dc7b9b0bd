"""One Spark session for the whole test process, its class archive, and the jars of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.spark.departures import settings
from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session
from support import REPOSITORY
from support.kafka.kafka_broker import missing_is_a_failure
from support.kafka.maven import JarsUnavailableError, jars
from support.spark import spark_archive

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
def session(
    class_archive: Path,
    connector_jars: Path | None,
    python_of_spark: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """Spark, started once."""
    jars = None if connector_jars is None else str(connector_jars)
    state = tmp_path_factory.mktemp("session")
    config = load_config("tests", overrides=settings(str(state), spark_jars=jars))
    session = spark_session(config, class_archive=class_archive)
    yield session
    close_session(session)
