"""Reads and writes a pipeline's checkpoint: Spark's files, and two of ours.

``checkpoint/stateline.json`` (on disk: never change) names the owner: ``{"application": …, "pipeline": …}``. It shows
that a checkpoint was copied to another pipeline or application. ``checkpoint/declaration.json`` describes the pipeline
(`stateline.deployment.pipelines.declaration`).
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
"""The end of a micro-batch in each source, in its own format. None for a source without data."""


def checkpoint_query_id(checkpoint: CheckpointFolder) -> str | None:
    """Return the id of the checkpoint's query, or None without a checkpoint."""
    content = checkpoint.read("metadata")
    return None if content is None else str(orjson.loads(content)["id"])


def checkpoint_end_offsets(checkpoint: CheckpointFolder, batch_id: int) -> Ends | None:
    """Return where the micro-batch ends in each source, as Spark planned it. None if Spark has not planned it or has
    deleted the plan. The file is Spark's OffsetSeqLog: ``v1``, a line of metadata, then one line per source, "-" for
    none. Raises `NewerFormatError` for another format."""
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
    """Return where a planned micro-batch ends in each source. Raises `DamagedDataError` if its plan is gone."""
    ends = checkpoint_end_offsets(checkpoint, batch_id)
    if ends is None:
        raise DamagedDataError(
            f"{checkpoint}/offsets/{batch_id} is gone, and Spark works on it: restore the checkpoint."
        )
    return ends


def planned_ends(session: SparkSession, query_id: str, batch_id: int) -> Ends:
    """Return the ends that the running query has in memory. If two drivers plan a micro-batch within milliseconds on a
    file system whose rename replaces, one has another plan than the file."""
    query: Any = session.streams.get(query_id)
    assert query is not None, "a query that computes is there"
    plan = query._jsq.streamingQuery().offsetLog().get(batch_id).get().offsets()
    ends = (plan.apply(source) for source in range(plan.size()))
    return tuple(str(end.get().json()) if end.isDefined() else None for end in ends)


def newest_commit(checkpoint: CheckpointFolder) -> int | None:
    """Return the newest micro-batch that Spark has finished, or None."""
    return max((int(name) for name in checkpoint.names("commits") if name.isdigit()), default=None)


def claim(checkpoint: CheckpointFolder, application_id: str, pipeline: str) -> None:
    """Write the owner of this checkpoint, unless it has one. Raises `TopologyError` if it is another's, and
    `NewerFormatError` if it has unknown members."""
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
    """Return the declaration in this checkpoint, or None. Raises the errors of `PipelineDeclaration.decode`."""
    content = checkpoint.read(DECLARATION_FILE)
    return None if content is None else PipelineDeclaration.decode(content, f"{checkpoint}/{DECLARATION_FILE}")


def keep_declaration(checkpoint: CheckpointFolder, declaration: PipelineDeclaration) -> None:
    """Write the declaration durably. Raises `RetryLaterError` if that is refused."""
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
