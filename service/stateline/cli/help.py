"""How the command line's help looks."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

FLAGS = "Everywhere: -v says more, -q says less, --traceback shows where an error arose."


class PlainHelp(TyperCommand):
    """Typer puts Python's type behind every argument; the argument's own help says more."""

    def get_help(self, ctx: Any) -> str:  # a Context of the click inside Typer, which does not export it
        return _TYPE.sub(lambda shown: " " * len(shown[0]), super().get_help(ctx))


_TYPE = re.compile(r" <(str|list\[str\]|path)>")
