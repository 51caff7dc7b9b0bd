"""What a pipeline's checkpoint says: Spark's files, and two of ours.

``checkpoint/stateline.json`` (on disk: never change) says whose it is: ``{"application": …, "pipeline": …}``. A
checkpoint that was copied to another pipeline or application is known by it. ``checkpoint/declaration.json`` says what
the pipeline was like: `stateline.deployment.pipeline_declaration`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession

from stateline.deployment.pipeline_declaration import keep
from stateline_store import DamagedDataError, NewerFormatError, TopologyError

_OWNER = "stateline.json"


Ends = tuple[str | None, ...]
"""Where a micro-batch ends in each source, as that writes it; None for a source that has nothing yet."""


def checkpoint_query_id(checkpoint: Path) -> str | None:
    """The id of the query that this checkpoint belongs to; None when there is no checkpoint."""
    try:
        return str(orjson.loads((checkpoint / "metadata").read_bytes())["id"])
    except FileNotFoundError:
        return None


def checkpoint_end_offsets(checkpoint: Path, batch_id: int) -> Ends:
    """Where the micro-batch ends in each source, as Spark wrote it down before it computed the batch.

    The file is Spark's OffsetSeqLog: ``v1``, a line of metadata, then one line per source, "-" for none.
    Raises `NewerFormatError` for another format.
    """
    path = checkpoint / "offsets" / str(batch_id)
    version, _metadata, *offsets = path.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise NewerFormatError(
            f"{path} begins with {version[:40]!r}, not 'v1': this version of Spark writes checkpoints that Stateline "
            "does not know. Use pyspark 4.2 or 4.3."
        )
    return tuple(None if line == "-" else line for line in offsets)


def planned_ends(session: SparkSession, query_id: str, batch_id: int) -> Ends:
    """The same as the query that runs has it in memory. Where two drivers plan one micro-batch within milliseconds, one
    on a file system that replaces when it renames has another plan than the file."""
    query: Any = session.streams.get(query_id)
    assert query is not None, "a query that computes is there"
    plan = query._jsq.streamingQuery().offsetLog().get(batch_id).get().offsets()
    ends = (plan.apply(source) for source in range(plan.size()))
    return tuple(str(end.get().json()) if end.isDefined() else None for end in ends)


def newest_commit(checkpoint: Path) -> int | None:
    """The newest micro-batch that Spark has finished; None before the first."""
    try:
        names = [path.name for path in (checkpoint / "commits").iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdigit()), default=None)


def claim(checkpoint: Path, application_id: str, pipeline: str) -> None:
    """Write down whose checkpoint this is, unless it says so. Raises `TopologyError` when it is another's, and
    `NewerFormatError` when it says more than this version knows."""
    owner = {"application": application_id, "pipeline": pipeline}
    found = _read(checkpoint / _OWNER)
    if found is None:
        keep(checkpoint / _OWNER, orjson.dumps(owner))
    elif more := sorted(found.keys() - owner.keys()):
        raise NewerFormatError.of(checkpoint / _OWNER, f"members {more!r:.200}", ", ".join(owner))
    elif found != owner:
        raise TopologyError(
            f"The checkpoint {checkpoint} is of pipeline {found.get('pipeline')!r} of application "
            f"{found.get('application')!r}, not of {pipeline!r} of {application_id!r}: it was copied, and going on "
            "from it would leave out what this pipeline has not read. Put this pipeline's own back; or, to start over, "
            f"delete it, and the topics {application_id}-{pipeline}-epochs and those of the pipeline's results."
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DamagedDataError(
            f"{path} is not the JSON that Stateline writes: delete that file if the checkpoint is this pipeline's."
        )
    return found
