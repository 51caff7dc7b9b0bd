"""`stateline inspect`: show the content of a state directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stateline.cli.state.inspect_entries import LocatedEntry, Notation, entries_as_json, entries_as_table, notation
from stateline.cli.state.inspect_view import report_as_json, report_as_table
from stateline_store import DoesNotExistError, InvalidArgumentError, StatelineError
from stateline_store.inspection.inspection import inspect_directory, problem_of
from stateline_store.inspection.inspection_report import (
    ApplicationReport,
    DirectoryReport,
    StoreReport,
    TaskReport,
    UnreadablePart,
)
from stateline_store.inspection.offline_entries import entries
from stateline_store.rocksdb.offline_store import OfflineStore

_LIMIT = 100  # entries


class InspectRequest(NamedTuple):
    """The options of the command. With a key or a range it lists entries of a store, otherwise stores."""

    store: str | None = None
    task: str | None = None
    key: str | None = None
    lower: str | None = None
    upper: str | None = None
    limit: int | None = None
    key_type: str | None = None
    value_type: str | None = None


def inspect(directory: Path, request: InspectRequest, *, as_json: bool) -> tuple[str, int]:
    """Return the text to print and the exit code: 1 if something is damaged or unreadable.

    Raises `CallerError` if the directory is not Stateline's, or names, keys or types do not fit.
    """
    keys, values = notation("--key-type", request.key_type), notation("--value-type", request.value_type)
    bounds = key_bounds(request, keys)
    report = narrowed(inspect_directory(directory), request)
    if bounds is None:
        return (report_as_json if as_json else report_as_table)(report), 1 if any(report.problems) else 0
    problems: list[UnreadablePart] = []
    limit = request.limit or _LIMIT
    found = list(islice(_found(report, *bounds, problems), limit + 1))
    more, shown = len(found) > limit, found[:limit]
    view = entries_as_json if as_json else entries_as_table
    return view(shown, problems, keys, values, more=more), 1 if problems else 0


def key_bounds(request: InspectRequest, keys: Notation) -> tuple[bytes | None, bytes | None] | None:
    """The range of keys, both ends included; None for a listing. Raises `InvalidArgumentError` for contradictions."""
    if request.key == request.lower == request.upper is None:
        _refuse_options_of_entries(request)
        return None
    if request.store is None:
        raise InvalidArgumentError("--key, --from and --to ask for entries of a store: name it with --store.")
    if request.key is not None:
        if request.lower is not None or request.upper is not None:
            raise InvalidArgumentError("--key asks for one key, --from and --to for a range: give one of the two.")
        key = keys.parsed("--key", request.key)
        return key, key
    lower = None if request.lower is None else keys.parsed("--from", request.lower)
    upper = None if request.upper is None else keys.parsed("--to", request.upper)
    if lower is not None and upper is not None and lower > upper:
        raise InvalidArgumentError(
            f"--from {request.lower!r} is above --to {request.upper!r}: keys are compared as bytes, as stores do."
        )
    return lower, upper


def _refuse_options_of_entries(request: InspectRequest) -> None:
    given = {"--limit": request.limit, "--key-type": request.key_type, "--value-type": request.value_type}
    for option, value in given.items():
        if value is not None:
            raise InvalidArgumentError(f"{option} is about entries: ask for some with --key, or --from and --to.")


def narrowed(report: DirectoryReport, request: InspectRequest) -> DirectoryReport:
    """Reduce the report to the task and the store. A store is named as in the application, or by its directory.

    Raises `DoesNotExistError` with the existing names.
    """
    if request.task is not None:
        names = [task.task_id for _, task in report.tasks]
        if request.task not in names:
            raise DoesNotExistError(f"There is no task {request.task!r} in {report.path}: it holds {_listed(names)}.")
    if request.store is not None:
        tasks = [task for _, task in report.tasks if request.task in (None, task.task_id)]
        stores = [store for task in tasks for store in task.stores]
        if not any(request.store in _names(store) for store in stores):
            where = str(report.path) if request.task is None else f"task {request.task} of {report.path}"
            held = _listed(store.name for store in stores)
            unread = " Not everything can be read: the listing says what." if any(report.problems) else ""
            raise DoesNotExistError(f"There is no store {request.store!r} in {where}: it holds {held}.{unread}")
    if request.store is None and request.task is None:
        return report
    chosen = (_chosen(application, request) for application in report.applications)
    return replace(report, applications=tuple(application for application in chosen if application.tasks))


def _chosen(application: ApplicationReport, request: InspectRequest) -> ApplicationReport:
    tasks = [task for task in application.tasks if request.task in (None, task.task_id)]
    if request.store is not None:
        named = ((task, [store for store in task.stores if request.store in _names(store)]) for task in tasks)
        tasks = [_about(task, stores) for task, stores in named if stores]
    return replace(application, tasks=tuple(tasks), others=(), problems=())


def _about(task: TaskReport, stores: list[StoreReport]) -> TaskReport:
    positions = {name: task.positions[name] for store in stores for name in _names(store) if name in task.positions}
    return replace(
        task, stores=tuple(stores), offset_checkpoint=None, positions=positions, topics=None, others=(), problems=()
    )


def _names(store: StoreReport) -> tuple[str, str]:
    return store.name, store.path.name


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _found(
    report: DirectoryReport, lower: bytes | None, upper: bytes | None, problems: list[UnreadablePart]
) -> Iterator[LocatedEntry]:
    """Yield the entries of every store, task by task. A store that cannot be read becomes a problem."""
    for application, task in report.tasks:
        for store in task.stores:
            try:
                with OfflineStore(store.path) as opened:
                    for entry in entries(opened, lower, upper, timestamped=store.timestamped):
                        yield LocatedEntry(application.application_id, task.task_id, store, entry)
            except StatelineError as error:
                problems.append(problem_of(store.path, error))
