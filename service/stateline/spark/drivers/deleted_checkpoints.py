"""Deletes checkpoints of pipelines at a URL: that takes a Spark session, as running them does."""

from __future__ import annotations

from collections.abc import Iterable

from stateline.config.settings import Config
from stateline.spark.session import close_session, spark_session
from stateline.spark.sink.checkpoint_folder import HadoopFolder


def delete_checkpoints(config: Config, urls: Iterable[str]) -> None:
    """Delete what is at these URLs; what is not there is passed over. Raises as `spark_session` does, and
    `RetryLaterError` where a deletion is refused."""
    session = spark_session(config)
    try:
        for url in urls:
            HadoopFolder(session, url).delete()
    finally:
        close_session(session)
