"""Calls, pages and terms of a store's queries, for both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from stateline.client import answers, requests
from stateline.client.answers import AnswerReader
from stateline.client.requests import Paged, Part, Request, TimeArguments
from stateline.client.results import Answer, Page
from stateline.client.session import Session
from stateline.client.terms import TermArguments, Terms

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
A = TypeVar("A", bound=Answer)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the reader of its answer."""

    request: Request
    reader: AnswerReader[T]


@dataclass(frozen=True, slots=True)
class PagedCall(Generic[E]):
    """A query that is answered in pages."""

    paged: Paged
    reader: AnswerReader[Page[E]]

    def page(self, cursor: str | None) -> Call[Page[E]]:
        """Return the call for the page of this cursor, or for the first page (None)."""
        return Call(self.paged.page(cursor), self.reader)

    def advance(self, page: Page[E], left: int | None) -> tuple[Page[E], int | None, str | None]:
        """Return the page cut to `left` entries, the entries left after it, and the cursor of the next page. `left` is
        None without a limit. The cursor is None after the last page.
        """
        if left is not None:
            page = replace(page, entries=page.entries[:left])
            left -= len(page.entries)
            if left == 0:
                return page, left, None
        return page, left, page.cursor

    @staticmethod
    def cut(batch: pa.RecordBatch, left: int | None) -> tuple[pa.RecordBatch, int | None]:
        """Return the batch cut to `left` rows, and the rows left after it. `left` is None without a limit."""
        if left is None:
            return batch, None
        batch = batch.slice(0, left)
        return batch, left - batch.num_rows


class StoreTerms:
    """A store's name, the terms of its queries, and their session. Thread-safe."""

    def __init__(self, name: str, terms: Terms, session: Session | None) -> None:
        self.name = name
        self._terms = terms
        self._session = session

    @property
    def partitions(self) -> Sequence[int] | None:
        """The partitions of queries that name none; None for all."""
        return self._terms.partitions

    def parts(self, what: Part, given: TimeArguments, key: str | None = None) -> Paged:
        """Return the query for windows, sessions or versions of the key with this text, or of every key."""
        return requests.parts(self.name, key, what, self.terms(given, TimeArguments), given)

    def terms(self, given: Mapping[str, object], of: type = TermArguments) -> Terms:
        """Return the terms of a query with these arguments. Raises `TypeError` for arguments that `of` does not
        have."""
        if unknown := sorted(given.keys() - of.__annotations__.keys()):
            # Python does not check **arguments, and a misspelt prefix would read the whole store.
            raise TypeError(f"{unknown[0]!r} is no argument here: {', '.join(sorted(of.__annotations__))} are.")
        own = {name: value for name, value in given.items() if name in TermArguments.__annotations__}
        terms = self._terms.with_(cast(Any, own))
        if self._session is None:
            return terms
        return terms.at_least(self._session.position(self.name), self._session.wait_ms)

    def saw(self, answer: A) -> A:
        """Remember the answer's Position in the session. Returns the answer."""
        if self._session is not None:
            self._session.saw(self.name, answer.position)
        return answer

    def saw_stream(self, headers: Mapping[str, str]) -> None:
        """Remember the Position of a stream's headers in the session."""
        if self._session is not None:
            self._session.saw(self.name, answers.stream_position(headers))
