"""`stateline adopt` of a large store: the time from the command to the first answer over HTTP.

RocksDB writes the database in the format of Kafka Streams 4.4: a timestamped key-value store, values of 100 bytes.

Usage: .venv/bin/python tests/benchmarks/bench_adopt.py [--rows 10000000]
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import httpx
from rocksdict import IngestExternalFileOptions, Options, Rdict, SstFileWriter

from stateline.log import NewTopic, open_log

APP = """
from stateline import App, serdes, stores
app = App("adopting", config={"bootstrap.servers": "embedded", "server.port": "8391"})
app.external_store(stores.timestamped_key_value("rows", key=serdes.string, value=serdes.string), of="java")
"""


def main() -> None:
    """Make the store, adopt it, and ask for a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows: int = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="bench-adopt-") as scratch:
        folder = Path(scratch)
        (folder / "adopting.py").write_text(APP)
        make_store(folder / "java" / "0_0" / "rocksdb" / "rows", rows)
        make_changelog(folder)
        command = [sys.executable, "-m", "stateline"]
        begun = time.monotonic()
        subprocess.run([*command, "adopt", "adopting:app", "--from", "java"], cwd=folder, check=True)
        adopted_s = time.monotonic() - begun
        with (folder / "output.txt").open("wb") as output:
            run = subprocess.Popen([*command, "run", "adopting:app"], cwd=folder, stdout=output, stderr=output)
        try:
            wait_for_row(rows - 1)
            served_s = time.monotonic() - begun
        finally:
            run.terminate()
            run.wait()
    print(f"{rows:,} rows: adopted after {adopted_s:.1f} s, first answer after {served_s:.1f} s")


def make_store(path: Path, rows: int) -> None:
    """Write a closed store of this many rows, as Kafka Streams has it on disk."""
    path.parent.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    tables = []
    value = struct.pack(">q", 1_700_000_000_000) + b"v" * 100
    for first in range(0, rows, 500_000):
        tables.append(str(path.parent / f"{first}.sst"))
        writer = SstFileWriter(Options(raw_mode=True))
        writer.open(tables[-1])
        for number in range(first, min(first + 500_000, rows)):
            writer[b"key-%012d" % number] = value
        writer.finish()
    families = {name: Options(raw_mode=True) for name in ("default", "keyValueWithTimestamp", "offsets")}
    with closing(Rdict(str(path), options, column_families=families)) as db:
        with closing(db.get_column_family("keyValueWithTimestamp")) as family:
            moving = IngestExternalFileOptions()
            moving.set_move_files(True)
            family.ingest_external_file(tables, moving)
        with closing(db.get_column_family("offsets")) as offsets:
            offsets[b"java-rows-changelog-0"] = bytes(8)
            offsets[b"status"] = bytes(8)
    path.parent.parent.parent.joinpath(".lock").touch()


def make_changelog(folder: Path) -> None:
    """Write the last record of the store's changelog."""
    with closing(open_log("embedded", folder / ".stateline")) as log:
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic("java-rows-changelog", 1)])
        with closing(log.producer()) as producer:
            producer.produce("java-rows-changelog", b"key-%012d" % 0, b"v" * 100, timestamp_ms=1_700_000_000_000)
            producer.flush()


def wait_for_row(number: int) -> None:
    """Ask for this row until it is there."""
    address = f"http://127.0.0.1:8391/v1/stores/rows/keys/key-{number:012d}"
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(address).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
