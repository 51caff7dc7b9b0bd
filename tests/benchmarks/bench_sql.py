"""SQL over a store of a million JSON orders, beside the same work by the HTTP API and by a client.

`points`: reads of random keys, one after the other, over one connection. The median by SQL is at most 10 ms.

`groups`: count and sum per city over all rows, with server and client on one core: at most 1.5 s by SQL. A client reads
all rows and groups them itself.

`panels`: 50 dashboards ask for the same panel once a second, each at a moment of its own. Server and children take at
most 0.1 of a core more than when nobody asks. The panel is a group by over all rows, and then the rows of a small
store, as a declared aggregate has.

Each wall time has processor time beside it, of the server and its children: on a busy machine it is the better figure.

`bench_sql.py NAME …` takes some of: points, groups, panels. ROWS and SECONDS change the store and the time of a panel.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import orjson
from cores import CORES, family_cpu_s, pin
from figures import at_most, percentile
from http_client import Connection
from processes import until
from scan_scene import scene
from topic import key_of

from stateline.client import Client

ROWS = int(os.environ.get("ROWS", "1_000_000"))
SMALL_ROWS = 20
READS, ROUNDS, DASHBOARDS = 500, 3, 50
PANEL_S = float(os.environ.get("SECONDS", "15"))
COMMITTED = "isolation_level=read_committed"
CITIES = ("Berlin", "Hamburg", "Bremen", "Leipzig", "Dresden", "Essen", "Bonn", "Kiel", "Mainz", "Ulm")

POINT = "select value from orders where key = $1"
GROUPS = (
    "select value->>'city' as city, count(*) as orders, sum((value->>'amount')::int) as amount "
    "from orders group by city order by city"
)
DECLARED = "select key, value->>'city' as city, (value->>'amount')::int as amount from by_city"


def orders() -> list[bytes]:
    """JSON values of about 110 bytes."""
    chosen = random.Random(5)
    return [
        orjson.dumps({
            "city": chosen.choice(CITIES), "amount": chosen.randrange(1, 500), "customer": f"customer-{number:06}",
            "note": f"{chosen.getrandbits(128):032x}", "paid": chosen.random() < 0.5,
        })
        for number in range(1_000)
    ]  # fmt: skip


def sql_path(sql: str, *params: object, max_age_ms: int = 1_000) -> str:
    """The path of a GET for this statement."""
    return "/v1/sql?" + urlencode({"q": sql, "params": json.dumps(params), "max_age_ms": max_age_ms})


def asked(connection: Connection, path: str) -> bytes:
    """The answer's body."""
    status, body = connection.get(path)
    assert status == 200, body
    return body


def until_started(port: int) -> None:
    """Wait until a query process answers."""
    with Connection(port) as connection:
        until(lambda: connection.get(sql_path("select 1"))[0] == 200, "SQL answers", 0.1)


def points(port: int, pid: int) -> None:
    """Reads of a key."""
    chosen = [key_of(number).decode() for number in random.Random(4).sample(range(ROWS), READS + 20)]
    warm, keys = chosen[:20], chosen[20:]
    with Connection(port) as connection, Client(f"http://127.0.0.1:{port}") as client:
        store = client.store("orders", isolation_level="read_committed")
        ways: dict[str, Callable[[str], object]] = {
            "SQL": lambda key: asked(connection, sql_path(POINT, key)),
            "HTTP API": lambda key: asked(connection, f"/v1/stores/orders/keys/{key}?{COMMITTED}"),
            "client": store.get,
        }
        p50_ms = {}
        for name, way in ways.items():
            for key in warm:
                way(key)
            before_s, taken = family_cpu_s(pid), array("d")
            for key in keys:
                began_s = time.perf_counter()
                way(key)
                taken.append(time.perf_counter() - began_s)
            used_ms = (family_cpu_s(pid) - before_s) / READS * 1000
            p50_ms[name], p99, longest = (percentile(taken, share) * 1000 for share in (0.5, 0.99, 1.0))
            print(
                f"  a key by {name}: p50 {p50_ms[name]:.2f} ms, p99 {p99:.2f} ms, longest {longest:.1f} ms; "
                f"server's processor {used_ms:.2f} ms",
                flush=True,
            )
    at_most(f"p50 of a key by SQL, {ROWS:,} rows", p50_ms["SQL"], 10, " ms")


def groups(port: int, pid: int) -> None:
    """Count and sum of each city."""
    pin([pid, os.getpid()], CORES[-1:])
    try:
        with Connection(port) as connection, Client(f"http://127.0.0.1:{port}") as client:
            store = client.store("orders", isolation_level="read_committed")

            def by_sql() -> object:
                rows = json.loads(asked(connection, sql_path(GROUPS, max_age_ms=0)))
                return {row["city"]: (row["orders"], row["amount"]) for row in rows}

            def by_client() -> object:
                counts, sums = Counter[str](), Counter[str]()
                for batch in store.range().batches():
                    for text in batch.column("value").to_pylist():
                        order = orjson.loads(text)
                        counts[order["city"]] += 1
                        sums[order["city"]] += order["amount"]
                return {city: (counts[city], sums[city]) for city in counts}

            found = {name: _rounds(name, way, pid) for name, way in (("SQL", by_sql), ("a client", by_client))}
    finally:
        pin([pid, os.getpid()], CORES)
    (rows, wall_s, server_s), (same_rows, *_) = found["SQL"], found["a client"]
    assert rows == same_rows, (rows, same_rows)
    at_most(f"a group by of {ROWS:,} rows by SQL on one core", wall_s, 1.5, " s")
    at_most("its processor time in server and children", server_s, 1.5, " s")


def _rounds(name: str, way: Callable[[], object], pid: int) -> tuple[object, float, float]:
    """Its answer, and the median seconds by the wall clock and of the server's processors."""
    rows, walls_s, servers_s, own_s = way(), [], [], []
    for _ in range(ROUNDS):
        before_s, own_before_s, began_s = family_cpu_s(pid), time.process_time(), time.perf_counter()
        rows = way()
        walls_s.append(time.perf_counter() - began_s)
        servers_s.append(family_cpu_s(pid) - before_s)
        own_s.append(time.process_time() - own_before_s)
    wall_s, server_s, client_s = map(statistics.median, (walls_s, servers_s, own_s))
    print(
        f"  a group by {name}: {wall_s:.2f} s ({min(walls_s):.2f} to {max(walls_s):.2f}); processor: server "
        f"{server_s:.2f} s, who asks {client_s:.2f} s",
        flush=True,
    )
    return rows, wall_s, server_s


def panels(port: int, pid: int) -> None:
    """Fifty dashboards."""
    before_s = family_cpu_s(pid)
    time.sleep(5)
    idle = (family_cpu_s(pid) - before_s) / 5
    print(f"  nobody asks: {idle:.3f} of a core", flush=True)
    wanted = {
        "a group by of all rows": sql_path(GROUPS),
        "a declared aggregate by SQL": sql_path(DECLARED),
        "a declared aggregate by the HTTP API": f"/v1/stores/by_city/range?limit={SMALL_ROWS}&{COMMITTED}",
    }
    for name, path in wanted.items():
        before_s, began_s = family_cpu_s(pid), time.perf_counter()
        with ThreadPoolExecutor(DASHBOARDS) as dashboards:
            answers = [dashboards.submit(_dashboard, port, path, number) for number in range(DASHBOARDS)]
            found = [answer for each in answers for answer in each.result()]
        share = (family_cpu_s(pid) - before_s) / (time.perf_counter() - began_s) - idle
        taken, refused = [s for status, s in found if status == 200], sum(status != 200 for status, _ in found)
        p50, p99 = (percentile(taken, part) * 1000 for part in (0.5, 0.99))
        print(f"  {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms; {refused} of {len(found)} refused", flush=True)
        at_most(f"{DASHBOARDS} dashboards of {name}, of a core", share, 0.1)


def _dashboard(port: int, path: str, number: int) -> list[tuple[int, float]]:
    """Status and seconds of each answer: a question a second, at this dashboard's own moment, none before the last is
    answered."""
    found = []
    with Connection(port) as connection:
        due_s = time.perf_counter() + number / DASHBOARDS
        end_s = due_s + PANEL_S
        while due_s < end_s:
            time.sleep(max(0.0, due_s - time.perf_counter()))
            began_s = time.perf_counter()
            status, _ = connection.get(path)
            found.append((status, time.perf_counter() - began_s))
            due_s = max(due_s + 1, time.perf_counter())
    return found


PARTS = {"points": points, "groups": groups, "panels": panels}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        rows = {"orders": ROWS, "by_city": SMALL_ROWS}
        patient = {"sql.timeout.ms": 120_000}  # a busy machine is slow, and is to be measured nevertheless
        with scene(Path(directory), rows, "sql_app", orders(), patient) as (port, pid):
            until_started(port)
            for name in sys.argv[1:] or PARTS:
                PARTS[name](port, pid)


if __name__ == "__main__":
    main()
