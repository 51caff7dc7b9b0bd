"""Show the report of `stateline inspect`: columns for people, JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stateline.cli.table import as_text
from stateline.serde.iso_times import utc_text
from stateline_store import TopicPartition
from stateline_store.inspection.inspection_report import (
    ApplicationReport,
    DirectoryReport,
    OtherFile,
    StoreReport,
    TaskReport,
    UnreadablePart,
)


def report_as_json(report: DirectoryReport) -> str:
    """The whole report. docs/operations/inspect.md lists its members."""
    return dumped(
        {
            "path": str(report.path),
            "level": report.level,
            "applications": [
                {
                    "application": application.application_id,
                    "path": str(application.path),
                    "tasks": [_task_json(task) for task in application.tasks],
                    "other_files": [_other(other) for other in application.others],
                    "problems": [problem_json(problem) for problem in application.problems],
                }
                for application in report.applications
            ],
        }
    )


def _task_json(task: TaskReport) -> dict[str, object]:
    return {
        "task": task.task_id,
        "path": str(task.path),
        "locked": task.locked,
        "owner_pid": task.owner_pid,
        "stores": [_store_json(store) for store in task.stores],
        "checkpoint": None if task.offset_checkpoint is None else _offsets(task.offset_checkpoint),
        "position_files": {name: position.to_json() for name, position in task.positions.items()},
        "topics": task.topics,
        "other_files": [_other(other) for other in task.others],
        "problems": [problem_json(problem) for problem in task.problems],
    }


def _store_json(store: StoreReport) -> dict[str, object]:
    commit, layout = store.commit, store.layout
    return {
        "store": store.name,
        "path": str(store.path),
        "state": _state(store),
        "problem": store.problem and store.problem.message,
        "kind": store.kind,
        "format": format_name(store),
        "format_version": store.format_version,
        "segment_interval_ms": layout and layout.segment_interval_ms,
        "retain_duplicates": layout and layout.retain_duplicates,
        **({"headers": True} if layout and layout.headers else {}),
        "commit_number": commit and commit.number,
        "committed_at_ms": commit and (commit.committed_at_ms or None),
        "offsets": commit and _offsets(commit.offsets),
        "position": commit and commit.position.to_json(),
        "stream_time_ms": None if commit is None or commit.stream_time_ms < 0 else commit.stream_time_ms,
        "approximate_entries": store.approximate_entries,
        "size_bytes": store.size_bytes,
    }


def report_as_table(report: DirectoryReport) -> str:
    """A line per store, or per task without stores, then other files, then problems."""
    rows = [
        {"application": application.application_id, "task": task.task_id, "owner": _owner(task), **_store_row(store)}
        for application, task in report.tasks
        for store in task.stores or (None,)
    ]
    lines = [as_text(rows, as_json=False)]
    beside = [line for application in report.applications for line in _beside(application)]
    return "\n".join([*lines, *([""] if beside else []), *beside, *problem_lines(list(report.problems))])


def _store_row(store: StoreReport | None) -> dict[str, object]:
    commit = store.commit if store else None
    return {
        "store": store and store.name,
        "kind": store and store.kind,
        "format": store and format_name(store),
        "commit": commit and commit.number,
        "committed at": commit and moment(commit.committed_at_ms or None),
        "offsets": commit and _pairs(commit.offsets.items()),
        "position": commit and _pairs(commit.position),
        "stream time": commit and moment(commit.stream_time_ms),
        "bytes": store and store.size_bytes,
        "state": store and _state(store),
    }


def _beside(application: ApplicationReport) -> Iterator[str]:
    for task in application.tasks:
        where = f"{application.application_id}/{task.task_id}"
        if task.offset_checkpoint is not None:
            yield f"{where}/.checkpoint: {_pairs(task.offset_checkpoint.items()) or 'no offsets'}"
        for name, position in task.positions.items():
            yield f"{where}/{name}.position: {_pairs(position) or 'nothing'}"
        if task.topics is not None:
            yield f"{where}/topics.json: {', '.join(f'{topic} is {id}' for topic, id in task.topics.items()) or 'none'}"
        for other in task.others:
            yield f"{where}/{other.path.name}: {other.what}, {other.size_bytes:,} bytes"
    for other in application.others:
        yield f"{application.application_id}/{other.path.name}: {other.what}, {other.size_bytes:,} bytes"


# ---- Used by `inspect_entries` too


def moment(ms: int | None) -> str | None:
    """Milliseconds since the epoch as UTC text. None for None and negative values."""
    return None if ms is None or ms < 0 else utc_text(ms)


def problem_lines(problems: Sequence[UnreadablePart]) -> list[str]:
    return ["", *(f"{problem.state}: {problem.message}" for problem in problems)] if problems else []


def dumped(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def problem_json(problem: UnreadablePart) -> dict[str, str]:
    return {"path": str(problem.path), "state": problem.state, "message": problem.message}


def _other(other: OtherFile) -> dict[str, object]:
    return {"path": str(other.path), "what": other.what, "size_bytes": other.size_bytes}


def _state(store: StoreReport) -> str:
    return store.problem.state if store.problem else "ok"


def format_name(store: StoreReport) -> str:
    return "v2" if store.timestamped else "v1"


def _owner(task: TaskReport) -> str | None:
    if task.locked is None:
        return "unknown"
    return f"pid {task.owner_pid or 'unknown'}" if task.locked else None


def _offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def _pairs(offsets: Iterable[tuple[TopicPartition, int]]) -> str:
    return " ".join(f"{partition}={offset}" for partition, offset in sorted(offsets))
