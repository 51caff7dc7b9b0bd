"""``declaration.json`` in a pipeline's checkpoint: what its state and results depend on, for the next driver.

    {"version": 1, "reads": [topic], "tables": [topic], "key": [column], "windowing": [kind, ms] or null, "result",
     "output_mode", "operators": [{"operator": name, parameter: value}],
     "topics": {topic: {"partitions", "topic_id"}} whose keys the pipeline keeps}

On disk: never change. ASCII without spaces, replaced atomically by `stateline.spark.sink.checkpoint`.
`stateline.spark.sink.declaration` compares declarations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stateline.deployment.json_files import decoded
from stateline.deployment.partition_counts import TopicCount
from stateline_store import DamagedDataError, NewerFormatError

_VERSION = 1
DECLARATION_FILE = "declaration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeclaration:
    """A pipeline as the file describes it. An operator has its name under ``operator``, and its parameters by their
    names."""

    version: int = _VERSION
    reads: Sequence[str]
    tables: Sequence[str]
    key: Sequence[str]
    windowing: tuple[str, int] | None
    result: str
    output_mode: str
    operators: Sequence[Mapping[str, Any]]
    topics: Mapping[str, TopicCount]

    @classmethod
    def decode(cls, content: bytes, where: object = DECLARATION_FILE) -> PipelineDeclaration:
        """Raises `NewerFormatError` for another version, `DamagedDataError` for other content. Both name `where`."""
        try:
            version = json.loads(content)["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise _no_declaration(where) from error
        if version != _VERSION:
            raise NewerFormatError.of(where, f"version {version}", f"version {_VERSION}")
        try:
            return decoded(cls, content)
        except DamagedDataError as error:
            raise _no_declaration(where) from error

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), default=str).encode()


def _no_declaration(where: object) -> DamagedDataError:
    return DamagedDataError(
        f"{where} is not the JSON that Stateline writes: delete that file if the checkpoint is this pipeline's."
    )
