"""The application of nodes under faults, in a build whose nodes say other things to each other."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from stateline.server import serving
from stateline.server.nodes.greeting import Hello
from stateline.server.nodes.joining import hello_of
from support.apps import nodes_app


def _of_another_wire(*given: Any) -> Hello:
    return replace(hello_of(*given), wire=(99,), version="99.0.0")


vars(serving)["hello_of"] = _of_another_wire
app = nodes_app.build(os.environ.get("CRASH_RUN", "none"))
