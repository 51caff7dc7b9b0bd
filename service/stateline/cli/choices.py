"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

Word = TypeVar("Word", bound=str)


def word_of(option: str, given: str, among: Iterable[Word]) -> Word:
    """The word that was given. Raises `InvalidArgumentError`, which names the option, what it was given and what there
    is."""
    words = list(among)
    for word in words:
        if word == given:
            return word
    raise InvalidArgumentError(f"{option} {shown(given)}: {' or '.join(words)} is accepted.")
