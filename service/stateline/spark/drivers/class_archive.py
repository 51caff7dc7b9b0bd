"""Has a driver's JVM record its class archive, once.

    python -m stateline.spark.drivers.class_archive APPLICATION STATE_DIR

Recording runs a second JVM at the lowest priority, for about 20 s of processor time and 600 MB of memory. A driver
starts it 60 s after its own start, and stops it when the driver stops. The next driver tries again. Without an archive,
sessions start slower.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pyspark

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.processes.machine import free_bytes, is_submitted
from stateline.spark.drivers.process import kill_descendants
from stateline.spark.session import default_class_archive, java_program, record_class_archive
from stateline_store import LockedError
from stateline_store.files.directory import TaskLock, make_directory

_logger = logging.getLogger(__name__)
_DELAY_S = 60.0  # by then pipelines have started, and most have caught up
_NEEDED_BYTES = 1 << 30
_LOOK_INTERVAL_S = 0.5


@contextmanager
def recording_class_archive(config: Config, *, delay_s: float = _DELAY_S) -> Iterator[None]:
    """While the block runs, record the archive that `spark_session` looks for, unless a current one exists."""
    archive = default_class_archive(config)
    if is_submitted() or is_current(archive):
        yield
        return
    stopping = threading.Event()
    recorder = threading.Thread(target=_record, args=(config, archive, stopping, delay_s), name="class-archive")
    recorder.start()
    try:
        yield
    finally:
        stopping.set()
        recorder.join()


def is_current(archive: Path) -> bool:
    """Return whether the archive is newer than the installed Java and Spark."""
    java = java_program()
    if java is None or not archive.exists():
        return False
    installed = (Path(java).resolve(), Path(pyspark.__file__).parent / "jars")
    # By ctime, since packages keep the mtime of their build.
    return all(archive.stat().st_ctime >= path.stat().st_ctime for path in installed if path.exists())


def _record(config: Config, archive: Path, stopping: threading.Event, delay_s: float) -> None:
    if stopping.wait(delay_s):
        return
    if (free := free_bytes()) is not None and free < _NEEDED_BYTES:
        _logger.info("no class archive is recorded: %d MB of memory are free, less than 1 GB", free >> 20)
        return
    make_directory(archive.parent)
    with suppress(LockedError), TaskLock(archive.with_suffix(".lock")):  # one driver of several does it
        for unfinished in archive.parent.glob(f"{archive.name}.*"):
            unfinished.unlink(missing_ok=True)
        command = [sys.executable, "-m", "stateline.spark.drivers.class_archive"]
        command += [config.application_id, str(config.state_dir.resolve())]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not stopping.wait(_LOOK_INTERVAL_S):
            pass
        if process.poll() is None:
            process.terminate()
        if process.wait() == 0:
            _logger.info("recorded the class archive %s: the next start is quicker", archive)


def _stop(number: int, frame: FrameType | None) -> None:
    kill_descendants()  # only this: the lock of a starting process may be held
    os._exit(1)  # before PySpark uses the killed JVM


def main(application_id: str, state_dir: str) -> None:
    """Record the archive in this process, which has no session."""
    os.nice(19)
    signal.signal(signal.SIGTERM, _stop)
    config = load_config(
        application_id, environment={}, overrides=[f"state.dir={state_dir}", "spark.driver.memory=512m"]
    )
    archive = default_class_archive(config)
    archive.unlink(missing_ok=True)  # a stale one
    record_class_archive(config, archive)


if __name__ == "__main__":
    main(*sys.argv[1:])
