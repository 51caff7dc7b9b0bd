"""State and topics that released versions have written are opened, gone on from and restored by this one."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from golden.golden_state import ARCHIVES, Rows, make_topics, open_log, rows_in, send, work

KEPT = sorted(ARCHIVES.glob("*.tar.xz"))


@pytest.fixture(params=KEPT, ids=[archive.name.removesuffix(".tar.xz") for archive in KEPT])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path / "golden", filter="data")
    return tmp_path / "golden"


def written(root: Path) -> Rows:
    found: Rows = json.loads((root / "rows.json").read_text(encoding="utf-8"))
    return found


def without_positions(found: Rows) -> Rows:
    return {store: each["rows"] for store, each in found.items()}


def test_there_is_something_in_every_store(root: Path) -> None:
    counts = Counter[str]()
    for store, each in written(root).items():
        counts[store.rsplit("/", 1)[1]] += len(each["rows"])
    assert len(counts) >= 20
    assert all(counts.values())


def test_each_database_has_the_rows_that_were_written(root: Path) -> None:
    assert rows_in(root) == written(root)


def test_a_worker_goes_on_from_the_state_as_if_this_version_had_made_it(root: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with closing(open_log(fresh)) as log:
        make_topics(log)
        for part in range(2):
            send(log, part)
            expected = work(fresh, log)
    with closing(open_log(root)) as log:
        send(log, 1)
        assert without_positions(work(root, log)) == without_positions(expected)


def test_stores_are_restored_from_the_changelogs(root: Path) -> None:
    shutil.rmtree(root / "state")
    with closing(open_log(root)) as log:
        assert without_positions(work(root, log)) == without_positions(written(root))
