"""The Spark session that pipelines run in: small, quiet, and quick to start.

The settings are those that measured best on one machine (two cores, PySpark 4.2, Java 17). Whatever the
configuration passes on under ``spark.*`` wins over them.

A **class archive** (JEP 350) keeps the JVM's parsed classes (150 MB): a session starts in half the time.
`record_class_archive` writes one, which takes about 20 s; nothing depends on it, and the JVM ignores a
stale one. `stateline.spark.drivers.class_archive` has drivers do that.

Under ``spark-submit`` the JVM is there already, and what it was started with stays as it is: master, memory, addresses,
Java's options, and every setting that was given to it. On a cluster (a master that is not ``local``) addresses and the
way in which checkpoints are written are Spark's own, too.
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

from stateline.config.settings import Config
from stateline.deployment.pipelines.checkpoint_location import is_url
from stateline.processes.machine import is_submitted
from stateline.spark.classic import refuse_connect
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
    "spark.scheduler.mode": "FAIR",  # of several pipelines in one driver none waits for another's tasks
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",  # streaming turns it off itself, with a warning
    # Over TCP a micro-batch's way to its Python workers and back takes 20 ms longer.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How soon an idle query says that it is up and waits for input.
    "spark.sql.streaming.noDataProgressEventInterval": "1000",
}
# Of a master that runs on this machine alone.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Each write of a checkpoint's log takes 8 ms instead of 33 with this manager; safe on local disks.
    _CHECKPOINT_FILES: f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
}
# What a JVM that runs already cannot be given.
_OF_THE_JVM = ("spark.driver.memory", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.extraJavaOptions")
# SerialGC: a heap of one gigabyte on few cores is collected as fast, and the JVM starts quicker. Xss: Spark looks
# through the texts of failures with a regular expression, which needs a stack as deep as the text is long.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:-UsePerfData -Xss8m -Xlog:cds=off -Xlog:cds+dynamic=off "
    f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
)
_EXIT_TIMEOUT_S = 60.0
_RECORDING_TIMEOUT_S = 300.0  # a class archive is written at exit: 10 s, and longer when others need the processors
_JAVA_PACKAGE = "openjdk-17-jre-headless"


def spark_session(config: Config, *, class_archive: Path | None = None) -> SparkSession:
    """The process's Spark session, started if there is none. `close_session` ends it.

    `class_archive` is used if it exists, by default ``<state.dir>/.cache/spark-<version>.jsa``.
    Raises `ConfigurationError` when Java is missing, when ``spark.jars`` names a folder without jars, when Spark
    Connect is asked for, or when the JVM refuses these settings.
    """
    refuse_connect(config.spark)
    if is_submitted():
        return _start_submitted(config)
    archive = class_archive or default_class_archive(config)
    option = f'"-XX:SharedArchiveFile={archive.resolve()}"' if archive.exists() else ""
    return _start(config, session_settings(config, option))


def is_local(master: str) -> bool:
    """Whether this Spark master runs everything in the driver's JVM."""
    return master.split("[")[0] == "local"


def _start_submitted(config: Config) -> SparkSession:
    """The session of ``spark-submit``'s JVM: whatever that was given wins over the settings here."""
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
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # the latter plans sources, on the driver's machine
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
    """What Spark's own Python processes run on this machine, of a JVM that is not started yet: where PySpark is
    installed beside this interpreter, a script that runs it without Spark's zip. Sets the script's variable in
    `os.environ`, which the JVM hands on."""
    is_installed = Path(pyspark.__file__).is_relative_to(sys.prefix)
    if not is_installed or SparkContext._gateway is not None or not os.access(_LOCAL_PYTHON, os.X_OK):
        return sys.executable
    os.environ[_LOCAL_PYTHON_RUNS] = sys.executable
    return str(_LOCAL_PYTHON)


def _session(config: Config, settings: Mapping[str, str]) -> SparkSession:
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection
    builder = SparkSession.builder.appName(f"stateline {config.application_id}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    session = builder.getOrCreate()
    # It prints a traceback when its connection ends, which it does with each session.
    session.sparkContext._accumulatorServer.handle_error = _say_nothing  # type: ignore[method-assign]
    return session


def _say_nothing(request: object, client_address: object) -> None:
    """Of a connection that ended."""


def record_class_archive(config: Config, archive: Path) -> None:
    """Write the class archive of a session that ran a small query and a small stream. In a process that has no session
    yet.

    Appears at once or not at all. It fits this version of Spark and of Java only.
    """
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
    """What most pipelines do: read, aggregate, join, hand on to Python."""
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
    """Spark's settings that follow from the configuration. Reads the folder of jars, changes nothing."""
    settings = {**_SETTINGS, **jar_settings(config.spark_jars)}
    if is_local(config.spark_master):
        settings |= _LOCAL_SETTINGS
        if is_url(config.pipeline_checkpoint_location or ""):
            del settings[_CHECKPOINT_FILES]  # Spark knows how other file systems are written to
    settings["spark.executorEnv.PYTHONPATH"] = _module_path()
    settings.update(config.spark)
    options = f"{_JAVA_OPTIONS} {java_option} {settings.get('spark.driver.extraJavaOptions', '')}"
    settings["spark.driver.extraJavaOptions"] = options.strip()
    return settings


def close_session(session: SparkSession, timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Stop Spark and wait until its JVM is gone, so that nothing of it writes any more. One that has ended already, or
    that is ``spark-submit``'s, is left to itself."""
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
    """The path of the `java` that Spark will start; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)


def _java() -> str:
    """As `java_program`. Raises `ConfigurationError` when there is none."""
    java = java_program()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        place = f"JAVA_HOME={home}" if home else "the PATH"
        raise ConfigurationError(
            f"Pipelines run on Spark, which needs Java 17 or newer, and there is no java in {place}: "
            f"install {_JAVA_PACKAGE} (Debian, Ubuntu), or set JAVA_HOME."
        )
    return java


def _module_path() -> str:
    """This process's module path, so that Spark's Python workers find the user's modules."""
    return os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if Path(entry).is_dir())


def default_class_archive(config: Config) -> Path:
    """Where `spark_session` looks for the class archive."""
    return config.state_dir / ".cache" / f"spark-{pyspark.__version__}.jsa"
