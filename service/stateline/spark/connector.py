"""Finds the jars of Spark's Kafka connector, in the folder that ``spark.jars`` names or in `JARS`."""

from __future__ import annotations

import os
import shlex
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyspark

from stateline.config.settings import Config
from stateline.log import Log
from stateline.processes.machine import is_submitted
from stateline_store import ConfigurationError

JARS = Path(sys.prefix) / "share" / "stateline" / "spark-jars"
"""The default folder, in this Python environment."""
_POM = Path(__file__).with_name("pom.xml")
_CLASS = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"
# Settings through which Spark may get it elsewhere.
_ELSEWHERE = ("spark.jars.packages", "spark.driver.extraClassPath")


def jar_settings(spark_jars: str | None) -> Mapping[str, str]:
    """Return Spark's settings for the jars that ``spark.jars`` names, or those of the default folder. Raises
    `ConfigurationError` for a folder without jars."""
    if spark_jars is not None and ":" in spark_jars:
        return {"spark.jars.packages": spark_jars}
    jars = _jars(spark_jars)
    if not jars and spark_jars is not None:
        raise ConfigurationError(
            f"spark.jars = {spark_jars!r} has no *.jar in it: give a folder of jars, or Maven coordinates "
            f"such as {_coordinates()}."
        )
    return {"spark.jars": ",".join(map(str, jars))} if jars else {}


def require_connector(config: Config, log: Log) -> None:
    """Raise `ConfigurationError`, with a command that fetches it, if this log needs Spark's Kafka connector and it is
    certainly missing. Reads folders only. Jars that Spark gets from Maven or its own settings are not checked."""
    if log.embedded_file is not None or is_submitted() or "PYSPARK_SUBMIT_ARGS" in os.environ:
        return
    if ":" in (config.spark_jars or "") or any(name in config.spark for name in _ELSEWHERE):
        return
    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    settings = Path(os.environ.get("SPARK_CONF_DIR", home / "conf")) / "spark-defaults.conf"
    if settings.exists() or any((home / "jars").glob("spark-sql-kafka-0-10*.jar")):
        return
    if not any(map(_has_connector, _jars(config.spark_jars))):
        raise no_connector(config.spark_jars)


def no_connector(spark_jars: str | None = None) -> ConfigurationError:
    """Return the error for a folder without the connector, by default `JARS`."""
    folder = Path(spark_jars or JARS).absolute()
    fetch = ["mvn", "-q", "-f", str(_POM), f"-Dspark.version={pyspark.__version__}", "dependency:copy-dependencies"]
    return ConfigurationError(
        f"Spark has no Kafka connector, and pipelines on Kafka need it: no jar in {folder} has it. Fetch it once: "
        f"{shlex.join([*fetch, f'-DoutputDirectory={folder}'])} (or set spark.jars={_coordinates()}, and Spark fetches "
        "it when it starts)."
    )


def _jars(folder: str | None) -> list[Path]:
    return sorted((JARS if folder is None else Path(folder).resolve()).glob("*.jar"))


def _has_connector(jar: Path) -> bool:
    try:
        with zipfile.ZipFile(jar) as archive:
            return _CLASS in archive.NameToInfo
    except zipfile.BadZipFile:
        return False


def _coordinates() -> str:
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
