"""The class archive of Spark's JVM, recorded once per machine, so that each of many drivers starts in half the time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark

from support import CACHE
from support.kafka.maven import one_at_a_time
from support.run.left_running import RUN
from support.run.patience import HANGING_S

# As the sessions of the tests have it: what the JVM and Spark compile is in no archive, and took a quarter of the time.
_SETTINGS = [
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
]
_log = logging.getLogger(__name__)
_NAME = f"spark-{pyspark.__version__}.jsa"
_RECORD = (
    "import sys; from pathlib import Path; from stateline.config.loading import load_config;"
    "from stateline.spark.session import record_class_archive;"
    "record_class_archive(load_config('archive', overrides=sys.argv[2:]), Path(sys.argv[1]))"
)


def class_archive() -> Path:
    """The file; recorded first, in 20 s, when there is none. Nothing needs it: where it cannot be made, or that takes
    too long, it is left out, a JVM passes over the file that is missing, and nobody of this run tries again.
    """
    archive = CACHE / _NAME
    with one_at_a_time("spark"):
        tried, run = archive.with_suffix(".tried"), os.environ.get(RUN, "")
        if not archive.exists() and not (tried.exists() and tried.read_text() == run):
            tried.write_text(run)
            _record(archive, timeout_s=HANGING_S / 2)
    return archive


def _record(archive: Path, timeout_s: float) -> None:
    command = [sys.executable, "-c", _RECORD, str(archive), *_SETTINGS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as recording:
        try:
            recording.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(recording.pid, signal.SIGKILL)  # its JVM is of its group
    if recording.returncode != 0:
        _log.warning("Spark goes on without %s: recording it has ended with %d.", archive, recording.returncode)


def put_class_archive(state_dir: Path) -> None:
    """Let the drivers of this state directory find it."""
    (state_dir / ".cache").mkdir(parents=True)
    (state_dir / ".cache" / _NAME).symlink_to(class_archive())
