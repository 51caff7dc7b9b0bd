"""The Python client of Stateline's HTTP API: `Client` waits in threads, `AsyncClient` awaits in asyncio.

    with Client("http://127.0.0.1:8000") as client:
        flights = client.store("flights")
        answer = flights.get("UA1545")
        for entry in flights.range(prefix="UA"):
            ...

Needs httpx, pydantic and orjson, and pyarrow only where Arrow is read; `lean` needs none of them.

`client` and `sync_transport` are generated from `async_client` and `async_transport`: change those, then run
`python docs/generate.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateline.client.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Load the public names, all of which are capitalized, when one is first asked for: `lean` loads none of them."""
    if name == "__all__" or name[0].isupper():
        return getattr(importlib.import_module("stateline.client.public"), name)
    raise AttributeError(f"module 'stateline.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
