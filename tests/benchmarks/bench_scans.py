"""Reads of the store library against rocksdict itself.

A range scan gives at least 0.7 of the rows per second of a raw iteration, also with 10,000 staged records merged in. A
committed read from a secondary, with nothing new, takes at most 1.3 of a read from the primary.

Then scans over HTTP, of every kind and format: rows per second and processor seconds of the server for a million rows,
and reads of a key at a fixed rate (open loop) beside the scan: their median is at most 5 ms.

Then 1,000 reads of a key per second beside two endless Arrow scans: median and p99 are at most 1.5 times what they are
beside two processes that only compute, with the same number of processors.

Then streams of all rows whose readers take 5 MB a second each: a stream takes at most 16 MB of memory, in the server
and its scan process together.

`bench_scans.py NAME …` takes some of: library, beside, two, slow. SCANS names some of the scans, by a part of their
names. ROUNDS repeats `two`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

from cores import cpu_s, family, memory_mb
from figures import at_least, at_most, percentile
from processes import process
from rocksdict import Rdict
from scan_scene import scene
from topic import key_of, value

from stateline_store import IsolationLevel, KeyValueStore, Reader, SecondaryReader, StoreContext

ROWS = 500_000
STAGED = 10_000
GETS = 100_000
ROUNDS = 7


def rows_per_second(rows: Iterable[tuple[object, object]]) -> float:
    started = time.perf_counter()
    count = 0
    for _key, _value in rows:
        count += 1
    assert count == ROWS
    return count / (time.perf_counter() - started)


def ratio(store: KeyValueStore, raw: Rdict) -> float:
    """Median of scan ÷ raw iteration, one after the other."""
    return statistics.median(
        rows_per_second(store.range(None, None)) / rows_per_second(raw.items()) for _ in range(ROUNDS)
    )


def seconds(get: Callable[[bytes], object], keys: list[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        get(key)
    return time.perf_counter() - started


def asked(reader: SecondaryReader) -> Callable[[bytes], bytes | None]:
    """A read as a server makes it: look whether there is anything new, then read."""

    def get(key: bytes) -> bytes | None:
        if reader.is_behind:
            reader.refresh()
        return reader.get(key)

    return get


def library() -> None:
    """Scans and reads of the store library."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        store = KeyValueStore("rows")
        store.init(StoreContext("0_0", root, None))
        store.put_all((key_of(number), value()) for number in range(ROWS))
        store.commit({})
        raw: Rdict = store._open()._db  # type: ignore[attr-defined]  # the very database, for a fair comparison
        at_least("a range scan ÷ raw iteration", ratio(store, raw), 0.7)
        store.put_all((key_of(number), value()) for number in random.Random(3).sample(range(ROWS), STAGED))
        at_least(f"a range scan with {STAGED:,} staged records ÷ raw iteration", ratio(store, raw), 0.7)
        store.rollback()

        keys = random.Random(4).choices([key_of(number) for number in range(ROWS)], k=GETS)
        primary: Reader = store.reader(IsolationLevel.READ_COMMITTED)
        reader = SecondaryReader(root / "rocksdb" / "rows", root / "rows.notice", root / "scratch")
        found = [seconds(asked(reader), keys) / seconds(primary.get, keys) for _ in range(ROUNDS)]
        at_most("a read from a secondary with nothing new ÷ a read from the primary", statistics.median(found), 1.3)
        reader.close()
        store.close()


ARROW, NDJSON = "application/vnd.apache.arrow.stream", "application/x-ndjson"
HELD_ROWS = {"rows": 2_000_000, "windows": 1_000_000, "sessions": 1_000_000, "versions": 500_000}
SLOW_STREAMS = 8
TWO_RATE, POINT_RATE, POINT_S = 1_000.0, 200.0, float(os.environ.get("SECONDS", "8"))
COMMITTED = "isolation_level=read_committed"
POINTS = f"/v1/stores/rows/keys/%s?{COMMITTED}"

_CURSOR = re.compile(rb'"cursor":"([^"]+)"')


class Scanned(NamedTuple):
    """A scan to measure: how it is asked, and of which store."""

    name: str
    store: str
    path: str
    accept: str = ARROW


SCANS = [
    Scanned("range, Arrow", "rows", f"/v1/stores/rows/range?{COMMITTED}"),
    Scanned("range, NDJSON", "rows", f"/v1/stores/rows/range?{COMMITTED}", NDJSON),
    Scanned("range, pages", "rows", f"/v1/stores/rows/range?limit=10000&{COMMITTED}", "application/json"),
    Scanned("versions, Arrow", "versions", f"/v1/stores/versions/range?{COMMITTED}"),
    Scanned("windows, Arrow", "windows", f"/v1/stores/windows/windows?{COMMITTED}"),
    Scanned("windows, NDJSON", "windows", f"/v1/stores/windows/windows?{COMMITTED}", NDJSON),
    Scanned("sessions, Arrow", "sessions", f"/v1/stores/sessions/sessions?{COMMITTED}"),
    Scanned("sessions, NDJSON", "sessions", f"/v1/stores/sessions/sessions?{COMMITTED}", NDJSON),
    Scanned("snapshot of rows", "rows", "snapshot"),
    Scanned("snapshot of windows", "windows", "snapshot"),
    Scanned("snapshot of sessions", "sessions", "snapshot"),
]


def read_all(port: int, scan: Scanned, done: threading.Event) -> None:
    """Read this scan to its end, or until `done`; what comes is thrown away."""
    with ExitStack() as stack:
        paths = [scan.path]
        if scan.path == "snapshot":
            made = json.loads(_asked(port, "POST", "/v1/snapshots", {"stores": [scan.store], "ttl_s": 3000}))
            stack.callback(_asked, port, "DELETE", f"/v1/snapshots/{made['id']}")
            paths = [each["path"] for each in made["stores"][scan.store].values()]
        connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)))
        while paths:
            connection.request("GET", paths.pop(), headers={"Accept": scan.accept})
            response, last = connection.getresponse(), b""
            while piece := response.read(1 << 20):
                last = last[-4096:] + piece
                if done.is_set():
                    return
            assert response.status == 200, last
            if scan.accept == "application/json" and (more := _CURSOR.search(last[-4096:])):
                paths.append(f"/v1/stores/{scan.store}/range?cursor={more[1].decode()}")


def _asked(port: int, method: str, path: str, body: object = None) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = response.read()
        assert response.status < 300, answer
        return answer


def points(port: int, root: Path, rate: float = POINT_RATE) -> array[float]:
    """Seconds of each answer to reads of a key at the fixed rate, from when the question was due."""
    output, keys = root / "taken", root / "keys"
    chosen = random.Random(7)
    keys.write_text("\n".join(key_of(chosen.randrange(HELD_ROWS["rows"])).decode() for _ in range(20_000)))
    command = ["asker.py", str(rate), str(POINT_S), str(output), POINTS, str(port), str(keys)]
    with process(command, root / "asker.txt") as child:
        child.wait()
    return array("d", output.read_bytes())


def shown(taken: array[float]) -> str:
    p50, p99, longest = (percentile(taken, share) * 1000 for share in (0.5, 0.99, 1.0))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.0f} ms"


def beside() -> None:
    """Scans over HTTP, and reads of a key beside them."""
    wanted = [each for each in SCANS if os.environ.get("SCANS", "") in each.name]
    held = {store: rows for store, rows in HELD_ROWS.items() if store == "rows" or store in {s.store for s in wanted}}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with scene(root, held) as (port, pid):
            print(f"  nothing beside: {shown(points(port, root))}", flush=True)
            for scan in wanted:
                before_s, began_s, rows = cpu_s(pid), time.perf_counter(), HELD_ROWS[scan.store]
                read_all(port, scan, threading.Event())
                alone_s, used_s = time.perf_counter() - began_s, cpu_s(pid) - before_s
                done = threading.Event()
                reading = threading.Thread(target=_read_on, args=(port, scan, done))
                reading.start()
                taken = points(port, root)
                done.set()
                reading.join()
                rate, million_s = rows / alone_s, used_s / rows * 1e6
                print(
                    f"  {scan.name}: {rate:,.0f} rows/s, {million_s:.2f} s for a million; beside it {shown(taken)}",
                    flush=True,
                )
                at_most(f"p50 of reads of a key beside {scan.name}", percentile(taken, 0.5) * 1000, 5, " ms")


def two() -> None:
    """Reads of a key beside two endless scans, and beside two processes that compute."""
    ratios: dict[str, list[float]] = {"p50": [], "p99": []}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with scene(root, {"rows": HELD_ROWS["rows"]}) as (port, _):
            print(f"  nothing beside: {shown(points(port, root, TWO_RATE))}", flush=True)
            for _ in range(int(os.environ.get("ROUNDS", "3"))):
                with ExitStack() as stack:
                    for number in range(2):
                        stack.enter_context(process(["-c", "while True: pass"], root / f"computes-{number}.txt"))
                    computing = points(port, root, TWO_RATE)
                with ExitStack() as stack:
                    for number in range(2):
                        command = [__file__, "read", str(port)]
                        stack.enter_context(process(command, root / f"reads-{number}.txt"))
                    scanning = points(port, root, TWO_RATE)
                print(f"  beside two that compute: {shown(computing)}; beside two scans: {shown(scanning)}", flush=True)
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    ratios[name].append(percentile(scanning, share) / percentile(computing, share))
    for name, found in ratios.items():
        at_most(f"{name} beside two scans ÷ beside two that compute", statistics.median(found), 1.5)


def slow() -> None:
    """Memory of streams that are read slowly, after one that was read to its end: what the store itself takes is there
    then."""
    with tempfile.TemporaryDirectory() as directory, scene(Path(directory), {"rows": HELD_ROWS["rows"]}) as (port, pid):
        read_all(port, SCANS[0], threading.Event())
        before, peak = _own_mb(pid), 0.0
        with ExitStack() as stack:
            for _ in range(SLOW_STREAMS):
                connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)))
                connection.request("GET", SCANS[0].path, headers={"Accept": ARROW})
                stack.callback(_read_slowly(connection.getresponse()))
            for _ in range(int(POINT_S * 10)):
                time.sleep(0.1)
                peak = max(peak, _own_mb(pid))
    print(f"  {before:.0f} MB before, {peak:.0f} MB beside {SLOW_STREAMS} slow streams", flush=True)
    at_most("memory of a stream", (peak - before) / SLOW_STREAMS, 16, " MB")


def _own_mb(pid: int) -> float:
    """Memory that this process and its descendants share with no file."""
    found = 0.0
    for member in family(pid):
        with suppress(OSError):
            found += memory_mb(member, "RssAnon")
    return found


def _read_slowly(response: http.client.HTTPResponse) -> Callable[[], None]:
    """Read it in a thread, 5 MB a second. Returns what ends that."""
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.1) and response.read(500_000):
            pass

    thread = threading.Thread(target=read)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def _read_on(port: int, scan: Scanned, done: threading.Event) -> None:
    while not done.is_set():
        read_all(port, scan, done)


PARTS = {"library": library, "beside": beside, "two": two, "slow": slow}

if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        _read_on(int(sys.argv[2]), SCANS[0], threading.Event())
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
