"""The query processes of a server that is a process of its own, and whether they run a statement."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from support.processes.serve_process import Served, arguments_of, descendants_of
from support.run.patience import HANGING_S

ENDLESS = "with recursive r(i) as (select 1 union all select i + 1 from r) select count(*) from r, aircraft"
"""A statement that runs until it is ended."""
_BUSY_TICKS = 250
"""Of a process that runs a statement. One that starts takes less than half as many."""


def query_processes(one: Served) -> set[int]:
    found = set()
    for pid in descendants_of(one.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends
            if "stateline.sql.process" in arguments_of(pid):
                found.add(pid)
    return found


def ticks_of(pid: int) -> int:
    """The processor time of a process so far, in ticks of the clock; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


def ticks_by_process(one: Served) -> dict[int, int]:
    return {pid: ticks_of(pid) for pid in query_processes(one)}


def busy(one: Served, before: Mapping[int, int]) -> set[int]:
    """The query processes that have run a statement since then (`ticks_by_process`)."""
    return {pid for pid, ticks in ticks_by_process(one).items() if ticks - before.get(pid, 0) > _BUSY_TICKS}


def sent(one: Served, sql: str, token: str = "", method: str = "POST", **members: Any) -> socket.socket:
    """The connection of a client that waits for the answer; it leaves when this is closed."""
    url = httpx.URL(one.url)
    given: dict[str, Any] = {"json": {"sql": sql, **members}} if method == "POST" else {"params": {"q": sql, **members}}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = httpx.Request(method, url.join("/v1/sql"), headers=headers, **given)
    head = [f"{method} {request.url.raw_path.decode()} HTTP/1.1", *(f"{n}: {v}" for n, v in request.headers.items())]
    connection = socket.create_connection((url.host, url.port or 80), timeout=HANGING_S)
    connection.sendall("\r\n".join([*head, "", ""]).encode() + request.read())
    return connection


def is_answered(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
