"""What a pipeline's checkpoint says: Spark's files, and two of ours.

``checkpoint/stateline.json`` (on disk: never change) says whose it is: ``{"application": …, "pipeline": …}``. A
checkpoint that was copied to another pipeline or application is known by it. ``checkpoint/declaration.json`` says what
the pipeline was like: `stateline.deployment.pipelines.declaration`. `checkpoint_folder` reads and writes.
"""

from __future__ import annotations

from typing import Any

import orjson
from pyspark.sql import SparkSession

from stateline.deployment.pipelines.declaration import DECLARATION_FILE, PipelineDeclaration
from stateline.spark.sink.checkpoint_folder import CheckpointFolder
from stateline_store import DamagedDataError, NewerFormatError, TopologyError

_OWNER = "stateline.json"


Ends = tuple[str | None, ...]
"""Where a micro-batch ends in each source, as that writes it; None for a source that has nothing yet."""


def checkpoint_query_id(checkpoint: CheckpointFolder) -> str | None:
    """The id of the query that this checkpoint belongs to; None when there is no checkpoint."""
    content = checkpoint.read("metadata")
    return None if content is None else str(orjson.loads(content)["id"])


def checkpoint_end_offsets(checkpoint: CheckpointFolder, batch_id: int) -> Ends | None:
    """Where the micro-batch ends in each source, as Spark wrote it down before it computed the batch;
    None when it has not, or has deleted it since.

    The file is Spark's OffsetSeqLog: ``v1``, a line of metadata, then one line per source, "-" for none.
    Raises `NewerFormatError` for another format.
    """
    name = f"offsets/{batch_id}"
    content = checkpoint.read(name)
    if content is None:
        return None
    version, _metadata, *offsets = content.decode().split("\n")
    if version != "v1":
        raise NewerFormatError(
            f"{checkpoint}/{name} begins with {version[:40]!r}, not 'v1': this version of Spark writes "
            "checkpoints that Stateline does not know. Use pyspark 4.2."
        )
    return tuple(None if line == "-" else line for line in offsets)


def ends_of_batch(checkpoint: CheckpointFolder, batch_id: int) -> Ends:
    """The same of a micro-batch that Spark has planned. Raises `DamagedDataError` when its plan is gone."""
    ends = checkpoint_end_offsets(checkpoint, batch_id)
    if ends is None:
        raise DamagedDataError(
            f"{checkpoint}/offsets/{batch_id} is gone, and Spark works on it: restore the checkpoint."
        )
    return ends


def planned_ends(session: SparkSession, query_id: str, batch_id: int) -> Ends:
    """The same as the query that runs has it in memory. Where two drivers plan one micro-batch within milliseconds, one
    on a file system that replaces when it renames has another plan than the file."""
    query: Any = session.streams.get(query_id)
    assert query is not None, "a query that computes is there"
    plan = query._jsq.streamingQuery().offsetLog().get(batch_id).get().offsets()
    ends = (plan.apply(source) for source in range(plan.size()))
    return tuple(str(end.get().json()) if end.isDefined() else None for end in ends)


def newest_commit(checkpoint: CheckpointFolder) -> int | None:
    """The newest micro-batch that Spark has finished; None before the first."""
    return max((int(name) for name in checkpoint.names("commits") if name.isdigit()), default=None)


def claim(checkpoint: CheckpointFolder, application_id: str, pipeline: str) -> None:
    """Write down whose checkpoint this is, unless it says so. Raises `TopologyError` when it is another's, and
    `NewerFormatError` when it says more than this version knows."""
    owner = {"application": application_id, "pipeline": pipeline}
    found = _owner(checkpoint)
    if found is None:
        checkpoint.keep(_OWNER, orjson.dumps(owner))
    elif more := sorted(found.keys() - owner.keys()):
        raise NewerFormatError.of(f"{checkpoint}/{_OWNER}", f"members {more!r:.200}", ", ".join(owner))
    elif found != owner:
        raise TopologyError(
            f"The checkpoint {checkpoint} is of pipeline {found.get('pipeline')!r} of application "
            f"{found.get('application')!r}, not of {pipeline!r} of {application_id!r}: it was copied, and going on "
            "from it would leave out what this pipeline has not read. Put this pipeline's own back; or, to start over, "
            f"delete it, and the topics {application_id}-{pipeline}-epochs and those of the pipeline's results "
            f"(stateline reset MODULE:APP --pipeline {pipeline} --delete-results)."
        )


def kept_declaration(checkpoint: CheckpointFolder) -> PipelineDeclaration | None:
    """Return the declaration in this checkpoint, None if there is none. Raises as `PipelineDeclaration.decode`."""
    content = checkpoint.read(DECLARATION_FILE)
    return None if content is None else PipelineDeclaration.decode(content, f"{checkpoint}/{DECLARATION_FILE}")


def keep_declaration(checkpoint: CheckpointFolder, declaration: PipelineDeclaration) -> None:
    """Write it down for good. Raises `RetryLaterError` where that is refused."""
    checkpoint.keep(DECLARATION_FILE, declaration.encode())


def _owner(checkpoint: CheckpointFolder) -> dict[str, Any] | None:
    content = checkpoint.read(_OWNER)
    if content is None:
        return None
    try:
        found = orjson.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DamagedDataError(
            f"{checkpoint}/{_OWNER} is not the JSON that Stateline writes: delete that file if the checkpoint is this "
            "pipeline's."
        )
    return found
