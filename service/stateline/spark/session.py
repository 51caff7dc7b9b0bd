"""Starts and ends the Spark session of pipelines: small, quiet, and quick to start.

The settings measured best on one machine (two cores, PySpark 4.2, Java 17). ``spark.*`` settings of the configuration
win over them. A **class archive** (JEP 350) keeps the JVM's parsed classes (150 MB) and halves the start time.
`record_class_archive` writes one in about 20 s. Nothing depends on it, and the JVM ignores a stale one.
`stateline.spark.drivers.class_archive` has drivers record it.

Under ``spark-submit`` the JVM already runs with its master, memory, addresses, Java options and settings, and keeps
them. On a cluster (a master other than ``local``) addresses and the way to write checkpoints are Spark's own, too.

Pipelines need Spark's classic session, with the driver's JVM in reach. The JVM reads and writes checkpoints on HDFS or
in object stores, has the query's id of a micro-batch, and lets executors send rows to the driver. Spark Connect offers
none of these.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.util import default_api_mode

from stateline.config.settings import Config
from stateline.deployment.pipelines.checkpoint_location import is_url
from stateline.processes.machine import is_submitted
from stateline.spark.connector import jar_settings
from stateline_store import ConfigurationError

_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOCAL_PYTHON, _LOCAL_PYTHON_RUNS = Path(__file__).with_name("local_python.sh"), "_STATELINE_LOCAL_PYTHON"
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_STREAMING = "org.apache.spark.sql.execution.streaming"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",  # no pipeline of a driver waits for another's tasks
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",  # streaming turns it off itself, with a warning
    # TCP would add 20 ms to a micro-batch's way to its Python workers and back.
    "spark.python.unix.domain.socket.enabled": "true",
    # How long a Python process may take to connect. Beyond the default, 15 s, it fails, and Spark starts another one:
    # on a busy machine again and again.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How soon an idle query reports that it waits for input.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}
# For a master on this machine alone.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # With this manager a write of a checkpoint's log takes 8 ms instead of 33. Safe on local disks.
    _CHECKPOINT_FILES: f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
}
# Settings that a running JVM cannot take.
_OF_THE_JVM = ("spark.driver.memory", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.extraJavaOptions")
# SerialGC collects a heap of 1 GB on few cores as fast, and the JVM starts faster. Xss: Spark searches failures' texts
# with a regular expression whose stack grows with the text.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:-UsePerfData -Xss8m -Xlog:cds=off -Xlog:cds+dynamic=off "
    f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
)
_EXIT_TIMEOUT_S = 60.0
_RECORDING_TIMEOUT_S = 300.0  # the JVM writes the archive at exit: 10 s or longer
_JAVA_PACKAGE = "openjdk-17-jre-headless"


def spark_session(config: Config, *, class_archive: Path | None = None) -> SparkSession:
    """Return the process's Spark session, and start it if there is none. `close_session` ends it. `class_archive` is
    used if it exists, by default ``<state.dir>/.cache/spark-<version>.jsa``. Raises `ConfigurationError` if Java is
    missing, ``spark.jars`` names a folder without jars, Spark Connect is asked for, or the JVM refuses these
    settings."""
    refuse_connect(config.spark)
    if is_submitted():
        return _start_submitted(config)
    archive = class_archive or default_class_archive(config)
    option = f'"-XX:SharedArchiveFile={archive.resolve()}"' if archive.exists() else ""
    return _start(config, session_settings(config, option))


def is_local(master: str) -> bool:
    """Return whether this Spark master runs everything in the driver's JVM."""
    return master.split("[")[0] == "local"


def _start_submitted(config: Config) -> SparkSession:
    """Return the session of ``spark-submit``'s JVM. Its settings win over those here."""
    SparkContext._ensure_initialized()
    given = SparkConf(_jvm=SparkContext._jvm)
    master = given.get("spark.master") or config.spark_master
    settings = session_settings(config.model_copy(update={"spark_master": master}))
    ours = {name: value for name, value in settings.items() if name not in _OF_THE_JVM and not given.contains(name)}
    return _session(config, ours | {"spark.master": master})


def _start(config: Config, settings: Mapping[str, str]) -> SparkSession:
    java = _java()
    if is_local(config.spark_master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers run the interpreter of this process, whatever `python3` is on the PATH.
    python = local_python() if is_local(config.spark_master) else sys.executable
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # the latter plans sources on the driver's machine
        if os.environ.get(name) in (None, str(_LOCAL_PYTHON)):  # or else the user's choice
            os.environ[name] = python
    try:
        return _session(config, {**settings, "spark.master": config.spark_master})
    except PySparkRuntimeError as error:
        raise ConfigurationError(
            f"Spark did not start with {java}: its message stands above. Check spark.master = "
            f"{config.spark_master!r} and that this is Java 17 or newer (Debian: {_JAVA_PACKAGE})."
        ) from error


def local_python() -> str:
    """Return the program for Spark's Python processes on this machine, for a JVM that is not started yet. If PySpark is
    installed beside this interpreter, it is a script that runs the interpreter without Spark's zip. Sets the script's
    variable in `os.environ`, which the JVM passes on."""
    is_installed = Path(pyspark.__file__).is_relative_to(sys.prefix)
    if not is_installed or SparkContext._gateway is not None or not os.access(_LOCAL_PYTHON, os.X_OK):
        return sys.executable
    os.environ[_LOCAL_PYTHON_RUNS] = sys.executable
    return str(_LOCAL_PYTHON)


def _session(config: Config, settings: Mapping[str, str]) -> SparkSession:
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every connection
    builder = SparkSession.builder.appName(f"stateline {config.application_id}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    session = builder.getOrCreate()
    # It would print a traceback when its connection ends, with each session.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return session


def record_class_archive(config: Config, archive: Path) -> None:
    """Write the class archive of a session that ran a small query and a small stream. Run it in a process without a
    session. The file appears whole or not at all, and fits this version of Spark and Java only."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.resolve().with_name(f"{archive.name}.{os.getpid()}")
    session = _start(config, session_settings(config, f'"-XX:ArchiveClassesAtExit={unfinished}"'))
    rows = session.range(100).selectExpr("cast(id % 7 as string) AS key", "to_json(struct(id)) AS value")
    rows.groupBy("key").count().toArrow()
    with tempfile.TemporaryDirectory() as scratch:
        _stream_a_little(session, scratch)
    close_session(session, _RECORDING_TIMEOUT_S)
    unfinished.replace(archive)


def _stream_a_little(session: SparkSession, scratch: str) -> None:
    """Do the work of most pipelines: read, aggregate, join, pass rows to Python."""
    session.range(100).selectExpr("id % 7 AS key", "now() AS at").write.parquet(f"{scratch}/rows")
    rows = session.readStream.schema("key bigint, at timestamp").parquet(f"{scratch}/rows")
    counted = (
        rows.withWatermark("at", "1 minute").groupBy("key").count().join(session.range(7), F.col("key") == F.col("id"))
    )
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", f"{scratch}/checkpoint")
    writer.foreachBatch(_take).trigger(availableNow=True).start().awaitTermination()


def _take(frame: DataFrame, batch_id: int) -> None:
    frame.toArrow()


def session_settings(config: Config, java_option: str = "") -> dict[str, str]:
    """Return Spark's settings for the configuration. Reads the folder of jars, changes nothing."""
    settings = {**_SETTINGS, **jar_settings(config.spark_jars)}
    if is_local(config.spark_master):
        settings |= _LOCAL_SETTINGS
        if is_url(config.pipeline_checkpoint_location or ""):
            del settings[_CHECKPOINT_FILES]  # Spark chooses the manager of other file systems
    entries = (Path(entry) for entry in sys.path)  # so that Spark's Python workers find the user's modules
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(str(each.resolve()) for each in entries if each.is_dir())
    settings.update(config.spark)
    options = f"{_JAVA_OPTIONS} {java_option} {settings.get('spark.driver.extraJavaOptions', '')}"
    settings["spark.driver.extraJavaOptions"] = options.strip()
    return settings


def close_session(session: SparkSession, timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Stop Spark and wait until its JVM has ended, so that it writes no more. A JVM that has ended, or is
    ``spark-submit``'s, is left alone."""
    gateway = session.sparkContext._gateway
    with suppress(Py4JError, OSError):  # of a JVM that is gone
        session.stop()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    type(session.sparkContext)._gateway = None
    type(session.sparkContext)._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its input does
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def java_program() -> str | None:
    """Return the path of the `java` that Spark will start, or None."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)


def _java() -> str:
    java = java_program()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        place = f"JAVA_HOME={home}" if home else "the PATH"
        raise ConfigurationError(
            f"Pipelines run on Spark, which needs Java 17 or newer, and there is no java in {place}: "
            f"install {_JAVA_PACKAGE} (Debian, Ubuntu), or set JAVA_HOME."
        )
    return java


def default_class_archive(config: Config) -> Path:
    """Return where `spark_session` looks for the class archive."""
    return config.state_dir / ".cache" / f"spark-{pyspark.__version__}.jsa"


def refuse_connect(settings: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if Spark, with these settings and this environment, would make a Spark Connect
    session. Starts nothing."""
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
