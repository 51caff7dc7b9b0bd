"""The parser of Server-Sent Events, against what it was written from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stateline.client.events import Event, EventParser

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
# What is in a line: anything but its ends, and no surrogates, which UTF-8 does not have.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=20)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Event], str | None]:
    """Bytes, the events that they are, and the last id."""
    text, events, last_id = "", [], None
    end = draw(LINE_ENDS)  # one for all: CR before LF would be one end, not two
    shapes = st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT, TEXT | st.none(), TEXT)
    for data, kind, id, comment in draw(st.lists(shapes, max_size=6)):
        lines = [f"event: {kind}"] if kind else []
        if id is not None:
            lines.append(f"id: {id}")
            last_id = id
        lines = draw(st.permutations([*lines, f":{comment}"])) + [f"data: {line}" for line in data]
        text += "".join(line + end for line in [*lines, ""])
        events.append(Event("\n".join(data), kind or "message", last_id))
    return text.encode(), events, last_id


@given(streams(), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(
    stream: tuple[bytes, list[Event], str | None], data: st.DataObject
) -> None:
    content, events, last_id = stream
    content += b":\n"  # a CR at the very end waits for what follows
    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)), max_size=8)))
    parser = EventParser()
    chunks = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == events
    assert parser.last_id == last_id


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_read_the_same_whole_and_in_two_parts(content: bytes, cut: int) -> None:
    whole, parted = EventParser(), EventParser()
    assert whole.feed(content) == [*parted.feed(content[:cut]), *parted.feed(content[cut:])]
    assert (whole.last_id, whole.retry_ms) == (parted.last_id, parted.retry_ms)


def test_the_examples_of_the_standard_are_read_as_it_says() -> None:
    stocks = b"data: YHOO\ndata: +2\ndata: 10\n\n"
    assert EventParser().feed(stocks) == [Event("YHOO\n+2\n10")]
    blocks = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event"
    parser = EventParser()
    assert parser.feed(blocks) == [Event("first event", id="1"), Event("second event", id="")]
    assert parser.last_id == ""
    assert EventParser().feed(b"data\n\ndata\ndata\n\ndata:") == [Event(""), Event("\n")]
    assert EventParser().feed(b"data:test\n\ndata: test\n\n") == [Event("test"), Event("test")]


def test_only_whole_events_move_the_last_id() -> None:
    parser = EventParser()
    assert parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n") == [Event("a", id="1")]
    assert parser.last_id == "1"
    assert parser.feed(b"\n") == [Event("b", id="2")]
    assert parser.last_id == "2"


def test_an_id_without_data_moves_the_last_id_and_is_no_event() -> None:
    parser = EventParser()
    assert parser.feed(b"id: 7\n\n") == []
    assert parser.last_id == "7"


def test_a_line_separator_of_unicode_ends_no_line() -> None:
    assert EventParser().feed("data: a\u2028b\x0bc\x85d\n\n".encode()) == [Event("a\u2028b\x0bc\x85d")]


def test_the_servers_pause_is_remembered_and_nonsense_is_not() -> None:
    parser = EventParser()
    parser.feed(b"retry: 250\nretry: soon\nretry: -1\n")
    assert parser.retry_ms == 250


def test_a_byte_order_mark_is_skipped_and_a_null_in_an_id_ignored() -> None:
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbfid: a\0b\ndata: x\n\n") == [Event("x")]
    assert parser.last_id is None
