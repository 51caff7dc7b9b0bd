"""`TaskId`: which task, as `0_3` in directories, files between processes, messages and figures."""

from __future__ import annotations

import re
from typing import NamedTuple

from stateline_store.errors import InvalidArgumentError

_FORM = re.compile(r"([0-9]+)_([0-9]+)")


class TaskId(NamedTuple):
    """One partition of one subtopology. Its text names directories and is in files. On disk: never change."""

    subtopology: int
    partition: int

    @staticmethod
    def is_one(text: str) -> bool:
        """Return whether this text has the form of a task's id."""
        return _FORM.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read the text of an id. Raises `InvalidArgumentError` for another form."""
        if (found := _FORM.fullmatch(text)) is None:
            raise InvalidArgumentError(f"{text[:100]!r} is not a task id: <subtopology>_<partition>, such as 0_3.")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"
