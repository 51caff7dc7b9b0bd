"""What who asks may know of an application beside its stores: of what has one that it may read."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request

from stateline.model.pipeline import Pipeline
from stateline.model.topology import Subtopology
from stateline.server.guard.caller import may_read, reads_all


def concerns(subtopology: Subtopology, request: Request) -> bool:
    """Whether who asks may know of this subtopology: of one store in it, or of everything."""
    return reads_all(request) or any(may_read(request, store.name) for store in subtopology.stores)


def feeds(pipeline: Pipeline, subtopologies: Iterable[Subtopology], request: Request) -> bool:
    """Whether who asks may know of this pipeline, these being the subtopologies that it may know of."""
    sources = {topic.name for subtopology in subtopologies for topic in subtopology.sources}
    return reads_all(request) or any(t.name in sources for t in (pipeline.writes, *pipeline.branches))
