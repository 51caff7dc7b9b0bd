"""The id of the process that has this directory: ``<application.id>/kafka-streams-process-metadata``, Kafka Streams'
file.

JSON, ``{"processId":"<uuid>"}``. Fields may be added, and unknown ones are ignored. On disk: never change. Source:
`StateDirectory.initializeProcessId` of Kafka Streams. An unreadable file is replaced, with a warning, as there: the id
only helps to give a restarted process its old tasks back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

from stateline_store.files.durable_files import refused, replace_file

PROCESS_FILE = "kafka-streams-process-metadata"  # on disk: never change
_log = logging.getLogger(__name__)


def known_process_id(application: Path) -> UUID | None:
    """Return the id of this application's directory, None if it has none yet. Writes nothing."""
    return _read(application / PROCESS_FILE)


def process_id(application: Path) -> UUID:
    """Return the id of this application's directory. The first caller makes it, and all processes that share it agree.
    Raises `RetryLaterError` naming the file when the file system refuses."""
    path = application / PROCESS_FILE
    known = _read(path)
    if known is not None:
        return known
    with _alone(application):
        known = _read(path, warn=True)  # again: another process may have made it meanwhile
        if known is None:
            known = uuid4()
            replace_file(path, json.dumps({"processId": str(known)}, separators=(",", ":")).encode())
        return known


def _read(path: Path, *, warn: bool = False) -> UUID | None:
    """Return the id in the file, None without a file or with an unreadable one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(path, "read", error) from error
    try:
        document = json.loads(content)
        return UUID(document["processId"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if warn:
            _log.warning("%s holds no process id (%r) and is written again: %r", path, error, content[:200])
        return None


@contextlib.contextmanager
def _alone(application: Path) -> Iterator[None]:
    """Hold the directory's flock. A waiting process waits for one small file to be written, or for a death."""
    fd = os.open(application, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
