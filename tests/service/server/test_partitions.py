"""What a server keeps of an open partition, and when it looks anew."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.stores.topology_file import Placement
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.stores import key_value, timestamped_key_value, window
from stateline_store import (
    IsolationLevel,
    KeyQuery,
    KeyValueStore,
    NotReadyError,
    Position,
    SecondaryReader,
    StateDirectory,
    StoreContext,
    StoreState,
    TopicPartition,
    Windowed,
    WindowKeyQuery,
    WindowStore,
)
from support.processes.owned import Owned
from support.processes.query_server import OwningWorker
from support.processes.served_here import served_here

DAY_MS = 86_400_000


def rebuilt(directory: StateDirectory, retention_ms: int, starts: list[int]) -> None:
    """The store of partition 0, made anew with windows that start then."""
    shutil.rmtree(directory.store("0_0", "w", timestamped=False), ignore_errors=True)
    store = WindowStore("w", retention_ms=retention_ms, window_size_ms=10)
    store.init(StoreContext("0_0", directory.task("0_0")))
    for start in starts:
        store.put(b"k", b"v", start)
    store.commit({})
    store.set_state(StoreState.ACTIVE)
    store.close()


def test_a_store_that_was_rebuilt_in_other_segments_is_read_in_those(tmp_path: Path) -> None:
    directory, kept = StateDirectory(tmp_path / "state", "app"), timedelta(days=30)
    declared = window("w", size=timedelta(milliseconds=10), retention=kept, key=serdes.bytes, value=serdes.bytes)
    served = ServedStore(declared, Placement(0, 1, None))
    partitions = Partitions(directory, tmp_path / "scratch", Owned())
    starts = [day * DAY_MS for day in range(20)]
    for retention_days in (100, 30):  # segments of 50 days, then of 15
        rebuilt(directory, retention_days * DAY_MS, starts)
        answer = partitions.ask(served, Terms("w", IsolationLevel.READ_COMMITTED), 0, WindowKeyQuery(b"k"))
        assert isinstance(answer, PartitionAnswer)
        assert list(answer.rows.entries) == [(Windowed(b"k", start, start + 10), b"v") for start in starts]
    partitions.close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_values_with_headers_are_never_read_as_values_without_or_the_other_way_round(
    tmp_path: Path, on_disk: bool
) -> None:
    directory = StateDirectory(tmp_path / "state", "app")
    kinds = {
        headers: timestamped_key_value("kept", key=serdes.bytes, value=serdes.bytes, headers=headers)
        for headers in (True, False)
    }
    store = kinds[on_disk].build()
    store.init(StoreContext("0_0", directory.task("0_0")))
    store.close()
    partitions = Partitions(directory, tmp_path / "scratch", Owned())
    with closing(partitions), pytest.raises(NotReadyError, match="run its workers and this server with the same"):
        partitions.open(ServedStore(kinds[not on_disk], Placement(0, 1, None)), 0)


@pytest.mark.parametrize("at_last", [StoreState.RESTORING, StoreState.ACTIVE])
def test_what_was_read_in_the_middle_of_a_restore_does_not_count_as_what_is_there_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_last: StoreState
) -> None:
    """Rows of a restore are beyond their Position until it ends, which may be while a reader catches up."""
    directory, input_ = StateDirectory(tmp_path / "state", "app"), TopicPartition("in", 0)
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", directory.task("0_0")))
    store.put(b"k", b"old")
    store.commit({}, position=Position.of({input_: 1}))
    store.set_state(StoreState.RESTORING, 2)
    declared = key_value("s", key=serdes.bytes, value=serdes.bytes)
    served, refresh = ServedStore(declared, Placement(0, 1, None)), SecondaryReader.refresh
    partitions = Partitions(directory, tmp_path / "scratch", Owned())
    partitions.open(served, 0)
    store.put(b"k", b"new")
    store.commit({})  # a batch of the restore

    def refresh_and_fall_behind(reader: SecondaryReader) -> None:
        refresh(reader)
        if reader.notice.restore_remaining:
            store.commit({}, position=Position.of({input_: 9}))
            store.set_state(at_last, 0)

    monkeypatch.setattr(SecondaryReader, "refresh", refresh_and_fall_behind)
    answer = partitions.ask(served, Terms("s", IsolationLevel.READ_COMMITTED), 0, KeyQuery(b"k"))
    assert isinstance(answer, PartitionAnswer)
    assert (list(answer.rows.entries), answer.position) == ([(b"k", b"new")], Position.of({input_: 9}))
    partitions.close()
    store.close()


def test_what_a_server_keeps_among_temporary_files_its_user_alone_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker, before = OwningWorker(tmp_path / "state"), os.umask(0)
    try:
        with served_here(tmp_path / "state") as here:
            assert here.client.get("/v1/stores/counts/count").status_code == 200
            (folder,) = tmp_path.glob("stateline-server-*")
            assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.glob("*/*"))} == {0o700}
    finally:
        os.umask(before)
        worker.close()
