"""What a pipeline's state and results depend on, compared with what the checkpoint has kept at each start. Pure.

That is a `stateline.deployment.pipelines.declaration`. Of its `topics` `stateline.spark.sink.partitions` tells; of the
rest

- the topics that are read and each operator with state are compared always;
- key and windows where the newest row of a key counts: rows of the former ones would stay for ever;
- the output mode where it is complete now: what an earlier mode has forgotten would be deleted.

What else may change does: the pause between micro-batches, timestamps, branches, steps without state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.model.pipeline import Pipeline
from stateline.spark.operators.declared import Declared

_SHOWN_CHARACTERS = 200  # of a value in an error
_SHOWN_BEFORE = 40  # of these, before the first that differs


def declaration_of(pipeline: Pipeline, operators: Sequence[Declared]) -> PipelineDeclaration:
    """That of the pipeline as it is now, as a file would have it; `topics` are not counted."""
    windowing = pipeline.windowing
    made = PipelineDeclaration(
        reads=[topic.name for topic in pipeline.reads],
        tables=[topic.name for topic in pipeline.tables],
        key=pipeline.key,
        windowing=None if windowing is None else (windowing.kind, windowing.size_ms),
        result=pipeline.result,
        output_mode=pipeline.output_mode,
        operators=operators,
        topics={},
    )
    return PipelineDeclaration.decode(made.encode())


def differences(was: PipelineDeclaration, now: PipelineDeclaration) -> list[str]:
    """What has changed that must not, for a message; empty when `now` may go on."""
    found = list(_changes(asdict(was), asdict(now), _compared(now)))
    before, after = was.operators, now.operators
    if _names(before) != _names(after):
        return [*found, f"its operators with state were {_names(before)} and are {_names(after)}"]
    for number, (one, other) in enumerate(zip(before, after, strict=True), 1):
        place = f" of operator {number}" if len(after) > 1 else ""
        found += (f"{one['operator']}{place}: {change}" for change in _changes(one, other, {**one, **other}))
    return found


def _compared(now: PipelineDeclaration) -> list[str]:
    if now.output_mode == "complete":
        return ["reads", "tables", "output_mode"]
    return ["reads", "tables", *(["key", "windowing"] if now.result == "table" else [])]


def _changes(was: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if was.get(name) != now.get(name):
            before, after = _shown(was.get(name), now.get(name))
            yield f"{name} was {before} and is {after}"


def _names(operators: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(each["operator"] for each in operators) or "none"


def _shown(was: Any, now: Any) -> list[str]:
    """Both as texts; long ones from shortly before where they differ."""
    texts = [json.dumps(value, ensure_ascii=False) for value in (was, now)]
    if max(map(len, texts)) <= _SHOWN_CHARACTERS:
        return texts
    differs = (at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    first = max(next(differs, 0) - _SHOWN_BEFORE, 0)
    return [_part(text, first) for text in texts]


def _part(text: str, first: int) -> str:
    end = first + _SHOWN_CHARACTERS
    return f"{'…' if first else ''}{text[first:end]}{'…' if end < len(text) else ''}"
