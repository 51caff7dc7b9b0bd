"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

Word = TypeVar("Word", bound=str)


def word_of(option: str, given: str, among: Iterable[Word]) -> Word:
    """The given word. Raises `InvalidArgumentError` with the option, its value and the accepted words."""
    words = list(among)
    for word in words:
        if word == given:
            return word
    raise InvalidArgumentError(f"{option} {shown(given)}: {' or '.join(words)} is accepted.")
