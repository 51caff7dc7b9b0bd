"""Pages of answers over HTTP, and rows to page through while they change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx

from support.processes.query_server import PARTITIONS, OwningWorker
from support.processes.served_here import Here

Json: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[], None]

LEVELS = ["read_committed", "read_uncommitted"]
STORES = ["aircraft", "cache"]  # on disk, in memory


class EndlessScan:
    """What a cursor keeps open, where only the cursor matters."""

    held_bytes = 0

    async def page(self, limit: int) -> list[Any]:
        return []

    async def has_more(self) -> bool:
        return True

    async def more(self, limit: int) -> Any: ...

    def close(self) -> None: ...


class Rows:
    """Rows under a prefix of their own: some are committed, some staged, and more changes are at hand."""

    def __init__(self, worker: OwningWorker, prefix: str, count: int = 60) -> None:
        self._worker, self.prefix, self._count = worker, prefix, count
        self._chance = random.Random(prefix)
        worker.put_all({f"{prefix}{n:03}": n for n in range(count)})
        worker.commit()
        worker.put_all({f"{prefix}{n:03}": "staged" for n in (*range(0, count, 4), count)})

    def change(self) -> None:
        """Change, delete and add rows anywhere, in every partition, and commit."""
        changed: dict[str, str | None] = {}
        for n in self._chance.sample(range(self._count), 6):
            changed[f"{self.prefix}{n:03}"] = self._chance.choice([None, "changed"])
            changed[f"{self.prefix}{n:03}-new"] = "new"
        self._worker.put_all(changed)
        for partition in range(PARTITIONS):
            self._worker.put(f"{self.prefix}-{partition}", "new", partition=partition)
        self._worker.commit()


def first(
    client: httpx.Client, rows: Rows, store: str = "aircraft", level: str = "read_committed", **params: Any
) -> Json:
    """The first page."""
    return good(client.get(f"/v1/stores/{store}/range", params=terms(rows, level) | params))


def terms(rows: Rows, level: str) -> Json:
    return {"prefix": rows.prefix, "isolation_level": level}


def follow(
    client: httpx.Client, cursor: str, store: str = "aircraft", *, limit: int | str | None = None, **params: Any
) -> httpx.Response:
    """The answer to this cursor, with a limit of its own if there is one."""
    given: Json = {"cursor": cursor} | ({} if limit is None else {"limit": limit}) | params
    return client.get(f"/v1/stores/{store}/range", params=given)


def good(response: httpx.Response) -> Json:
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["reason"]


def pages(
    client: httpx.Client, page: Json, store: str = "aircraft", between: Change = lambda: None, **params: Any
) -> list[Json]:
    """This page and all after it; something happens before each."""
    found = [page]
    while "cursor" in found[-1]:
        between()
        found.append(good(follow(client, found[-1]["cursor"], store, **params)))
    return found


def entries(answers: list[Json]) -> list[Json]:
    return [entry for answer in answers for entry in answer["entries"]]


def pins(here: Here) -> int:
    """How many scans of the server have not let go of their state."""
    cursors = here.serving.cursors.open.values()
    return sum(part.rest is not None for cursor in cursors for part in cursor.scan.parts)
