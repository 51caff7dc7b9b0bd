"""What a newer version wrote: a worker that does not know it ends, says what to run, and deletes nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rocksdict import Rdict

from service.worker.faults import CHANGELOG, Place, counting, entries
from stateline.log import NewTopic
from stateline_store import NewerFormatError, NoticeView, Position
from stateline_store.rocksdb.options import DEFAULT_TUNING, primary_options

NEWER_POSITION = b"\x01" + Position.of([]).encode()[1:]


def database(place: Place) -> Path:
    return place.task() / "rocksdb" / "counts"


@contextmanager
def opened(place: Place) -> Iterator[Rdict]:
    """The store's database without Stateline; all of it is in table files afterwards."""
    families = {"default": primary_options(DEFAULT_TUNING), "offsets": primary_options(DEFAULT_TUNING)}
    db = Rdict(str(database(place)), primary_options(DEFAULT_TUNING), column_families=families)
    yield db
    for family in families:
        handle = db.get_column_family(family)
        handle.flush()
        handle.close()
    db.close()


def row(name: bytes, value: bytes) -> Callable[[Place], Path]:
    def write(place: Place) -> Path:
        with opened(place) as db, closing(db.get_column_family("offsets")) as offsets:
            offsets[name] = value
        return database(place)

    return write


def another_family(place: Place) -> Path:
    with opened(place) as db:
        db.create_column_family("blobs", primary_options(DEFAULT_TUNING)).close()
    return database(place)


def another_table(place: Place) -> Path:
    """A table of a RocksDB of years to come: the version is in front of the magic number that a table ends with."""
    with opened(place):
        pass
    for table in database(place).glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[-12:-8] = struct.pack("<I", 99)
        table.write_bytes(data)
    return database(place)


def checkpoint(place: Place) -> Path:
    path = place.task() / ".checkpoint"
    path.write_text("1\n0\n")
    return path


def position_file(place: Place) -> Path:
    """Beside a store that has no Position itself."""
    with opened(place) as db, closing(db.get_column_family("offsets")) as offsets:
        del offsets[b"position"]
    path = place.task() / "counts.position"
    path.write_text("1\n0\n")
    return path


def notice(place: Place) -> Path:
    path = place.task() / "counts.notice"
    path.write_bytes(struct.pack("=16Q", int.from_bytes(b"STLNOTE2", "big"), *range(15)))
    with pytest.raises(NewerFormatError, match=r"counts\.notice has version 2"):
        NoticeView(path)
    return path


def journal(place: Place) -> Path:
    path = place.task().parent / ".relocation.json"
    path.write_text(json.dumps({"version": 2, "steps": []}))
    return path


NEWER: dict[str, tuple[Callable[[Place], Path], str]] = {
    "format version": (row(b"format_version", struct.pack(">I", 2)), "has format version 2; .* reads up to 1"),
    "kind": (row(b"layout", b'{"kind": "bitemporal"}'), "has a store of kind 'bitemporal'; .* reads key_value, window"),
    "layout": (row(b"layout", b'{"kind": "key_value", "ttl_ms": 5}'), r"has a layout with \['ttl_ms'\]"),
    "position": (row(b"position", NEWER_POSITION), "has Position version 1; .* reads version 0"),
    "row": (row(b"compression", b"zstd"), "has a row b'compression' in its offsets"),
    "column family": (another_family, "has column families that this version of Stateline does not know"),
    "table": (another_table, "has files that this version's RocksDB does not know"),
    "checkpoint": (checkpoint, "has version 1; .* reads version 0"),
    "position file": (position_file, "has version 1; .* reads version 0"),
    "notice": (notice, "has version 2; .* reads up to 1"),
    "journal": (journal, "has version 2; .* reads up to 1"),
}


@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_version_left_on_disk_ends_the_worker_and_stays(place: Place, what: str) -> None:
    write, message = NEWER[what]
    app = counting()
    config = place.config(app)
    place.send(entries("ab"))
    place.work_off(app, config, 1)
    where = write(place)
    kept = {path: path.read_bytes() for path in [where, *place.root.rglob("*.sst")] if path.is_file()}
    with pytest.raises(NewerFormatError, match=f"{where.name}.* {message}"):
        place.work_off(app, config, 2)
    assert {path: path.read_bytes() for path in kept} == kept


HEADERS = {"headers": (b"\1", b"?"), "position": (b"\0", NEWER_POSITION)}


@pytest.mark.parametrize("what", HEADERS)
def test_what_a_newer_version_wrote_to_a_changelog_is_not_restored_by_halves(place: Place, what: str) -> None:
    app, headers = counting(), tuple(zip("vc", HEADERS[what], strict=True))
    place.admin.create_topics([NewTopic(CHANGELOG, 1)])
    with closing(place.log.producer()) as producer:
        producer.produce(CHANGELOG, b"a", b"1", timestamp_ms=1, headers=headers)
        producer.flush()
    with pytest.raises(NewerFormatError, match=f"{CHANGELOG}-0 at offset 0 has (headers of|Position) version 1"):
        place.work_off(app, place.config(app), 0)
