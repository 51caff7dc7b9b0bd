"""The Python client of Stateline's HTTP API: `Client` waits in threads, `AsyncClient` awaits in asyncio.

    with Client("http://127.0.0.1:8000") as client:
        flights = client.store("flights")
        answer = flights.get("UA1545")
        for entry in flights.range(prefix="UA"):
            ...

`backup` reads the stores of a backup without a server.

Needs httpx, pydantic and orjson, and pyarrow only where Arrow is read; `lean` needs none of them.

`client` and `sync_transport` are generated from `async_client` and `async_transport`: change those, then run
`python docs/generate.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from stateline.client.backups import OpenBackup
    from stateline.client.public import *  # noqa: F403


def backup(
    location: str, as_of: str | int | datetime | None = None, *, application_id: str | None = None
) -> OpenBackup:
    """Open the newest backup at a location that has every partition, to read its stores here, without a server.

    `location` is the `backup.location` of an application. `as_of` is the id of another backup, or a time: the newest
    backup up to then (ISO 8601, `datetime`, or milliseconds since the epoch). `application_id` may be left out if the
    location has backups of one application.

    Raises `DoesNotExistError` if there is none, `DamagedDataError` if the backup with this id is unreadable,
    `ConfigurationError` without the extra `backup`, and `RetryLaterError` when the location refuses."""
    from stateline.backup.cut import find_cut
    from stateline.client.backups import OpenBackup

    return OpenBackup(find_cut(location, as_of, application_id))


def __getattr__(name: str) -> Any:
    """Load the public names, all of which are capitalized, when one is first asked for: `lean` loads none of them."""
    if name == "__all__" or name[0].isupper():
        return getattr(importlib.import_module("stateline.client.public"), name)
    raise AttributeError(f"module 'stateline.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
