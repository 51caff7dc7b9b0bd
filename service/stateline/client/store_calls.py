"""What the methods of a store ask and how the answers are read, the same for both clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from stateline.client import answers, requests
from stateline.client.answers import AnswerReader
from stateline.client.feed import Following
from stateline.client.requests import Key, Paged, RangeArguments, Request, Since, Time, TimeArguments
from stateline.client.results import (
    Answer,
    CountAnswer,
    Entry,
    ExactCountAnswer,
    KeyAnswer,
    KeyedWindow,
    KeysAnswer,
    Page,
    PositionAnswer,
    Version,
    Window,
)
from stateline.client.retries import Retries
from stateline.client.session import Session
from stateline.client.terms import TermArguments, Terms

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
A = TypeVar("A", bound=Answer)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer is read."""

    request: Request
    reader: AnswerReader[T]


@dataclass(frozen=True, slots=True)
class PagedCall(Generic[E]):
    """A query that is answered in pages."""

    paged: Paged
    reader: AnswerReader[Page[E]]

    def page(self, cursor: str | None) -> Call[Page[E]]:
        """The call for the page that begins here."""
        return Call(self.paged.page(cursor), self.reader)

    def advance(self, page: Page[E], left: int | None) -> tuple[Page[E], int | None, str | None]:
        """The page, cut to the entries that are left of the limit, what is left after it, and where the next one
        begins, if there is one.
        """
        if left is not None:
            page = replace(page, entries=page.entries[:left])
            left -= len(page.entries)
            if left == 0:
                return page, left, None
        return page, left, page.cursor

    @staticmethod
    def cut(batch: pa.RecordBatch, left: int | None) -> tuple[pa.RecordBatch, int | None]:
        """The rows that are left of the limit, and what is left after them."""
        if left is None:
            return batch, None
        batch = batch.slice(0, left)
        return batch, left - batch.num_rows


class StoreCalls:
    """The calls of one store, under its terms and in its session. Thread-safe."""

    def __init__(self, name: str, terms: Terms, session: Session | None) -> None:
        self.name = name
        self._terms = terms
        self._session = session

    def get(self, key: Key, as_of: Time | None, given: TermArguments) -> Call[KeyAnswer]:
        """One key."""
        return Call(requests.key(self.name, key, self._with(given), as_of), answers.KEY)

    def get_many(self, keys: Iterable[Key], given: TermArguments) -> Call[KeysAnswer]:
        """Many keys."""
        return Call(requests.keys(self.name, keys, self._with(given)), answers.KEYS)

    def count(self, given: TermArguments) -> Call[CountAnswer]:
        """How many."""
        return Call(requests.count(self.name, self._with(given)), answers.COUNT)

    def exact_count(self, given: TermArguments) -> Call[ExactCountAnswer]:
        """How many, counted."""
        return Call(requests.count(self.name, self._with(given), exact=True), answers.EXACT_COUNT)

    def position(self, given: TermArguments) -> Call[PositionAnswer]:
        """How far."""
        return Call(requests.position(self.name, self._with(given)), answers.POSITION)

    def range(self, given: RangeArguments) -> PagedCall[Entry]:
        """Keys in order."""
        return PagedCall(requests.entries(self.name, self._with(given, RangeArguments), given), answers.ENTRIES)

    def versions(self, key: Key, given: TimeArguments) -> PagedCall[Version]:
        """Versions of a key."""
        return PagedCall(self._parts(key, "versions", given), answers.VERSIONS)

    def windows(self, key: Key, given: TimeArguments) -> PagedCall[Window]:
        """Windows of a key."""
        return PagedCall(self._parts(key, "windows", given), answers.WINDOWS)

    def sessions(self, key: Key, given: TimeArguments) -> PagedCall[Window]:
        """Sessions of a key."""
        return PagedCall(self._parts(key, "sessions", given), answers.WINDOWS)

    def all_windows(self, given: TimeArguments) -> PagedCall[KeyedWindow]:
        """Windows of every key."""
        return PagedCall(self._of_every_key("windows", given), answers.KEYED_WINDOWS)

    def all_sessions(self, given: TimeArguments) -> PagedCall[KeyedWindow]:
        """Sessions of every key."""
        return PagedCall(self._of_every_key("sessions", given), answers.KEYED_WINDOWS)

    def changes(self, since: Since, partitions: Sequence[int] | None, retries: Retries) -> Following:
        """The change feed."""
        return Following(self.name, since, self._terms.partitions if partitions is None else partitions, retries)

    def saw(self, answer: A) -> A:
        """The answer, its Position remembered by the session."""
        if self._session is not None:
            self._session.saw(self.name, answer.position)
        return answer

    def saw_stream(self, headers: Mapping[str, str]) -> None:
        """As `saw`, of a stream, which says its Position in a header."""
        if self._session is not None:
            self._session.saw(self.name, answers.stream_position(headers))

    def _parts(self, key: Key, what: Literal["windows", "sessions", "versions"], given: TimeArguments) -> Paged:
        return requests.parts(self.name, key, what, self._with(given, TimeArguments), given)

    def _of_every_key(self, what: Literal["windows", "sessions"], given: TimeArguments) -> Paged:
        return requests.parts_of_every_key(self.name, what, self._with(given, TimeArguments), given)

    def _with(self, given: TermArguments | RangeArguments | TimeArguments, of: type = TermArguments) -> Terms:
        if unknown := sorted(given.keys() - of.__annotations__.keys()):
            # Python itself does not look into **arguments: a misspelt prefix would read the whole store.
            raise TypeError(f"{unknown[0]!r} is no argument here: {', '.join(sorted(of.__annotations__))} are.")
        own = {name: value for name, value in given.items() if name in TermArguments.__annotations__}
        terms = self._terms.with_(cast(Any, own))
        if self._session is None:
            return terms
        return terms.at_least(self._session.position(self.name), self._session.wait_ms)
