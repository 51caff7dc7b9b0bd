"""The look of the command line's help."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

FLAGS = "All commands take -v (says more), -q (says less) and --traceback (shows where an error arose)."


class PlainHelp(TyperCommand):
    """Leaves out the Python type that Typer puts after every argument."""

    def get_help(self, ctx: Any) -> str:  # a Context of Typer's own click, which Typer does not export
        return _TYPE.sub(lambda shown: " " * len(shown[0]), super().get_help(ctx))


_TYPE = re.compile(r" <(str|list\[str\]|path)>")
