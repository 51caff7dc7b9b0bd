"""Stores of a user's own, of every sort that the contract knows: transactional or not, with or without offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from stateline_store import Change, StateStore, StoreContext, TopicPartition


class OwnStore(StateStore):
    """Text by key in a JSON file below ``<task>/<name>/``. One that is not transactional writes it at each put."""

    def __init__(self, name: str, *, transactional: bool, manages_offsets: bool) -> None:
        self._name, self._transactional, self._manages = name, transactional, manages_offsets
        self._rows: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        self._staged: dict[str, str | None] = {}
        self._changes: list[Change] = []
        self._path: Path | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def persistent(self) -> bool:
        return True

    @property
    def transactional(self) -> bool:
        return self._transactional

    @property
    def manages_offsets(self) -> bool:
        return self._manages

    @property
    def is_open(self) -> bool:
        return self._path is not None

    def init(self, context: StoreContext) -> None:
        directory = context.directory / self._name
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "rows.json"
        found = json.loads(self._path.read_text()) if self._path.exists() else {"rows": {}, "offsets": {}}
        self._rows, self._offsets = found["rows"], found["offsets"]

    def close(self) -> None:
        self._path = None
        self._staged, self._changes = {}, []

    def get(self, key: str) -> str | None:
        return self._staged[key] if key in self._staged else self._rows.get(key)

    def put(self, key: str, value: str | None) -> None:
        self._changes.append(Change(key.encode(), None if value is None else value.encode(), None))
        self._apply(key, value)

    def staged_changes(self) -> Iterable[Change]:
        return list(self._changes)

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        for key, value, _ in changes:
            self._apply(key.decode(), None if value is None else value.decode())

    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        for key, value in self._staged.items():
            self._keep(key, value)
        self._staged, self._changes = {}, []
        if self._manages:
            self._offsets |= {str(partition): offset for partition, offset in changelog_offsets.items()}
        self._write()

    def committed_offset(self, partition: TopicPartition) -> int | None:
        return self._offsets.get(str(partition)) if self._manages else None

    def rows(self) -> dict[str, str]:
        return dict(self._rows)

    def _apply(self, key: str, value: str | None) -> None:
        if self._transactional:
            self._staged[key] = value
        else:
            self._keep(key, value)
            self._write()

    def _keep(self, key: str, value: str | None) -> None:
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value

    def _write(self) -> None:
        assert self._path is not None
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps({"rows": self._rows, "offsets": self._offsets}))
        draft.replace(self._path)
