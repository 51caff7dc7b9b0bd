"""`GET /v1/console/settings`: the settings of this server process, as `stateline config` lists them.

{"settings": [{"name", "value", "origin", "about"}]}    a secret's value is "[hidden]"
"""

from __future__ import annotations

from functools import cached_property

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stateline.config.secrets import HIDDEN
from stateline.config.settings import Config
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.guard.caller import require_everything

# What a login is made of, down to its mechanism: nothing that a page has to show.
_LOGIN = ".sasl."


class ConsoleSettings:
    """The endpoint. For the event loop's thread."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def routes(self) -> list[BaseRoute]:
        """What to mount."""
        return [Route("/v1/console/settings", self.settings)]

    async def settings(self, request: Request) -> Response:
        """GET /v1/console/settings. Raises `ForbiddenError` for a token that may not read every store."""
        require_everything(request, "The settings are")
        refuse_parameters(request)
        return Response(self._listed, media_type="application/json")

    @cached_property
    def _listed(self) -> bytes:
        rows = [
            {
                "name": row.name,
                "value": HIDDEN if _LOGIN in row.name else row.value,
                "origin": row.origin,
                "about": row.description,
            }
            for row in self._config.describe()
        ]
        return orjson.dumps({"settings": rows})
