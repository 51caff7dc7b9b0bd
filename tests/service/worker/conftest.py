"""A place for workers, and what a restore was handed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.worker.faults import Place
from stateline.log import Record
from stateline.worker.restore.store_restore import StoreRestore


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with closing(Place(tmp_path)) as made:
        yield made


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Every record that a restore was handed."""
    apply, handed = StoreRestore.apply, list[Record]()

    def counted(each: StoreRestore, records: list[Record]) -> None:
        handed.extend(records)
        apply(each, records)

    monkeypatch.setattr(StoreRestore, "apply", counted)
    return handed
