"""Pipelines need Spark's classic session, which has the driver's JVM in reach: what is said where they get another one.

A checkpoint on HDFS or in an object store is read and written by the JVM, a micro-batch is known by the query's id
there, and executors send its rows to the driver's own process. Of Spark Connect a client has none of these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.util import default_api_mode

from stateline_store import ConfigurationError


def refuse_connect(settings: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` where Spark, with these settings and this environment, would make a session of Spark
    Connect. Starts nothing."""
    named = [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if name in os.environ]
    named += [name for name in ("spark.remote",) if name in settings]
    default = os.environ.get("SPARK_API_MODE", default_api_mode())  # as Spark's own builder
    if settings.get("spark.api.mode", default).lower() == "connect":
        named.append(
            "spark.api.mode=connect, or what has set it (SPARK_API_MODE, SPARK_CONNECT_MODE, pyspark_connect),"
        )
    if named:
        raise ConfigurationError(
            f"Pipelines run in Spark's classic session, but {named[0]} selects Spark Connect. Unset it for pipelines. "
            'Spark Connect can read stores: format("stateline") and stateline.spark.cut.'
        )


def require_classic(session: SparkSession) -> None:
    """Raise `ConfigurationError` for a session of Spark Connect."""
    if not isinstance(session, SparkSession):
        raise ConfigurationError(
            "Pipelines run in Spark's classic session, but this session is of Spark Connect. Leave it out: they "
            'start their own. Spark Connect can read stores: format("stateline") and stateline.spark.cut.'
        )
