"""Which process's directory this is: ``<application.id>/kafka-streams-process-metadata``, Kafka Streams' file.

JSON, ``{"processId":"<uuid>"}``; fields may be added, and unknown ones are ignored. On disk: never change. Source:
`StateDirectory.initializeProcessId` of Kafka Streams. It makes a file that cannot be read anew, with a warning, and so
does this: the id only helps to give a restarted process its old tasks back.
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

from stateline_store.durable_files import refused, replace_file

PROCESS_FILE = "kafka-streams-process-metadata"  # on disk: never change
_log = logging.getLogger(__name__)


def known_process_id(application: Path) -> UUID | None:
    """The id of this application's directory; None while nobody has made it. Writes nothing."""
    return _read(application / PROCESS_FILE)


def process_id(application: Path) -> UUID:
    """The id of this application's directory, made by whoever asks first: all processes that share it agree.

    Raises `RetryLaterError` naming the file when the file system refuses.
    """
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
    """None when there is no file, or none that can be read."""
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
    """One process at a time. Whoever waits here waits for one small file to be written, or for a death."""
    fd = os.open(application, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
