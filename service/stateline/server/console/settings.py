"""`GET /v1/console/settings`: the settings of this server process, as `stateline config` lists them.

{"settings": [{"name", "value", "origin", "about"}]}    a secret's value is "[hidden]"
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from stateline.config.secrets import HIDDEN
from stateline.config.settings import Config
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.guard.caller import require_everything

# Settings of logins, also the mechanism. The page does not show them.
_LOGIN = ".sasl."


def console_settings(config: Config) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint. It raises `ForbiddenError` for a token that may not read every store."""
    listed = cache(partial(_listed, config))

    async def settings(request: Request) -> Response:
        require_everything(request, "The settings are")
        refuse_parameters(request)
        return Response(listed(), media_type="application/json")

    return settings


def _listed(config: Config) -> bytes:
    rows = [
        {
            "name": row.name,
            "value": HIDDEN if _LOGIN in row.name else row.value,
            "origin": row.origin,
            "about": row.description,
        }
        for row in config.describe()
    ]
    return orjson.dumps({"settings": rows})
