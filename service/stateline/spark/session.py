"""The Spark session that pipelines run in: small, quiet, and quick to start.

The settings are those that measured best on one machine (two cores, PySpark 4.3, Java 17). Whatever the
configuration passes on under ``spark.*`` wins over them.

A **class archive** (JEP 350) keeps the JVM's parsed classes (150 MB): a session starts in 2.5 s instead of 6.
`record_class_archive` writes one, which takes about 20 s; nothing depends on it, and the JVM ignores a
stale one.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from stateline.config import Config
from stateline_store import ConfigurationError

_LOG4J = Path(__file__).with_name("log4j2.properties")
_STREAMING = "org.apache.spark.sql.execution.streaming"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",  # streaming turns it off itself, with a warning
    # Each write of a checkpoint's log takes 8 ms instead of 33 with this manager; safe on local disks.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How soon an idle query says that it is up and waits for input.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}
# SerialGC: a heap of one gigabyte on few cores is collected as fast, and the JVM starts quicker.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:-UsePerfData -Xlog:cds=off -Xlog:cds+dynamic=off "
    f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
)
_EXIT_TIMEOUT_S = 60  # recording a class archive happens at exit and takes 10 s of it
_JAVA_PACKAGE = "openjdk-17-jre-headless"


def spark_session(config: Config, *, class_archive: Path | None = None) -> SparkSession:
    """The process's Spark session, started if there is none. `close_session` ends it.

    `class_archive` is used if it exists, by default ``<state.dir>/.cache/spark-<version>.jsa``.
    Raises `ConfigurationError` when Java is missing, when ``spark.jars`` names a folder without jars, or
    when the JVM refuses these settings.
    """
    archive = class_archive or default_class_archive(config)
    option = f'"-XX:SharedArchiveFile={archive.resolve()}"' if archive.exists() else ""
    return _start(config, session_settings(config, option))


def _start(config: Config, settings: Mapping[str, str]) -> SparkSession:
    java = _java()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers run the interpreter of this process, whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"stateline {config.application_id}").master(config.spark_master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            f"Spark did not start with {java}: its message stands above. Check spark.master = "
            f"{config.spark_master!r} and that this is Java 17 or newer (Debian: {_JAVA_PACKAGE})."
        ) from error


def record_class_archive(config: Config, archive: Path) -> None:
    """Write the class archive of a session that ran one small query. In a process that has no session yet.

    Appears at once or not at all. It fits this version of Spark and of Java only.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.resolve().with_name(f"{archive.name}.{os.getpid()}")
    session = _start(config, session_settings(config, f'"-XX:ArchiveClassesAtExit={unfinished}"'))
    rows = session.range(100).selectExpr("cast(id % 7 as string) AS key", "to_json(struct(id)) AS value")
    rows.groupBy("key").count().toArrow()
    close_session(session)
    unfinished.replace(archive)


def session_settings(config: Config, java_option: str = "") -> dict[str, str]:
    """Spark's settings that follow from the configuration. Reads the folder of jars, changes nothing."""
    settings = {**_SETTINGS, **_jars(config.spark_jars)}
    settings["spark.executorEnv.PYTHONPATH"] = _module_path()
    settings.update(config.spark)
    options = f"{_JAVA_OPTIONS} {java_option} {settings.get('spark.driver.extraJavaOptions', '')}"
    settings["spark.driver.extraJavaOptions"] = options.strip()
    return settings


def close_session(session: SparkSession) -> None:
    """Stop Spark and wait until its JVM is gone, so that nothing of it writes any more."""
    gateway = session.sparkContext._gateway
    session.stop()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    type(session.sparkContext)._gateway = None
    type(session.sparkContext)._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its input does
    try:
        process.wait(timeout=_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _java() -> str:
    """The `java` that Spark will start. Raises `ConfigurationError` when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        place = f"JAVA_HOME={home}" if home else "the PATH"
        raise ConfigurationError(
            f"Pipelines run on Spark, which needs Java 17 or newer, and there is no java in {place}: "
            f"install {_JAVA_PACKAGE} (Debian, Ubuntu), or set JAVA_HOME."
        )
    return java


def _jars(spark_jars: str | None) -> Mapping[str, str]:
    if spark_jars is None:
        return {}
    if ":" in spark_jars:
        return {"spark.jars.packages": spark_jars}
    jars = sorted(str(jar) for jar in Path(spark_jars).resolve().glob("*.jar"))
    if not jars:
        raise ConfigurationError(
            f"spark.jars = {spark_jars!r} has no *.jar in it: give a folder of jars, or Maven coordinates "
            f"such as org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}."
        )
    return {"spark.jars": ",".join(jars)}


def _module_path() -> str:
    """This process's module path, so that Spark's Python workers find the user's modules."""
    return os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if Path(entry).is_dir())


def default_class_archive(config: Config) -> Path:
    """Where `spark_session` looks for the class archive."""
    return config.state_dir / ".cache" / f"spark-{pyspark.__version__}.jsa"
