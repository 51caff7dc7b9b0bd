"""Streams of all topics whose names match a regular expression (docs/stream-functions.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from stateline.config.settings import Config
from stateline.model.declared_at import SourceLine, here, placed
from stateline.model.nodes import OperatorNode, Root
from stateline.model.topic import Topic
from stateline.model.topic_patterns import NamePattern, matches
from stateline.processing.operators import Merge, StreamSource
from stateline.serde.plain import Serde, shown
from stateline_store import ConfigurationError, LogUnavailableError, TopologyError

PATTERN_TOPICS = "topology.pattern.topics"


@dataclass(frozen=True, slots=True)
class _Stream:
    """A declared pattern. All rows of its topics go to `node`. `place` is its line in the application."""

    pattern: NamePattern
    key: Serde
    value: Serde
    node: OperatorNode
    place: SourceLine

    @property
    def text(self) -> str:
        return f"Pattern {self.pattern.pattern!r}"


class TopicPatterns:
    """Not thread-safe, as `Declarations`."""

    def __init__(self, application_id: str, topic_of: Callable[[str, Serde, Serde], Topic]) -> None:
        """`topic_of` returns the declared topic of a name, or a new one with these serdes."""
        self._application_id, self._topic_of = application_id, topic_of
        self._streams: list[_Stream] = []
        self._config: Config | None = None
        self._configured: Collection[str] | None = None
        self._found: Collection[str] | None = None  # in the log; None: not looked up yet

    @property
    def all(self) -> tuple[NamePattern, ...]:
        """The declared patterns, in order."""
        return tuple(stream.pattern for stream in self._streams)

    def pin(self, topics: Collection[str] | None) -> None:
        """Set the configured topics, before the settings in force are known. None: the log is to be asked."""
        self._configured = topics

    def use(self, config: Config) -> None:
        """Take the topics from these settings. If they name none, the log is asked when they are needed next."""
        self._config, self._configured, self._found = config, config.pattern_topics, None

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that a declared pattern matches."""
        return [topic for topic in topics if any(self._is_of(stream, topic) for stream in self._streams)]

    def read(self, pattern: NamePattern, key: Serde, value: Serde) -> OperatorNode:
        """Declare a stream of the topics, and return the node that all rows come from. A pattern that is declared again
        gives the same node. Raises `TopologyError` for a pattern of bytes, and for one declared with other types."""
        if not isinstance(pattern.pattern, str):
            raise TopologyError(f"app.stream was given {shown(pattern)}: topics have names of text. Leave out the b.")
        known = next((stream for stream in self._streams if stream.pattern == pattern), None)
        if known is None:
            known = _Stream(pattern, key, value, OperatorNode("merge", Merge, in_order=True), here())
            self._streams.append(known)
        if (key.name, value.name) != (known.key.name, known.value.name):
            raise TopologyError(
                f"{known.text} is declared in {known.place}, already, with key {known.key.name} and value "
                f"{known.value.name}: one stream has one type."
            )
        return known.node

    def roots(self, by_name: Mapping[str, SourceLine]) -> dict[str, list[Root]]:
        """Return the roots of all matching topics, by pattern and name. `by_name` has the topics that the workers read
        otherwise, with their places.

        Raises `TopologyError` if a pattern matches one of these, or no topic, or a topic of another pattern or of other
        types. Raises `ConfigurationError` if a configured topic matches no pattern, and `LogUnavailableError`."""
        found: dict[str, list[Root]] = {}
        readers: dict[str, _Stream] = {}
        for stream in self._streams:
            self._refuse_registered(stream, by_name)
        known = self._known_topics()
        for stream in self._streams:
            names = sorted(topic for topic in known if self._is_of(stream, topic))
            if not names:
                raise _at(stream, self._nothing_matches(stream))
            for name in names:
                if (other := readers.setdefault(name, stream)) is not stream:
                    raise _at(
                        stream,
                        f"Topic {name!r} is already matched by another pattern, {other.pattern.pattern!r} "
                        f"({other.place}), and cannot be matched by the pattern {stream.pattern.pattern!r} too: change "
                        "one of them.",
                    )
                topic = self._topic(stream, name)
                found[name] = [Root(topic, partial(StreamSource, topic), children=[stream.node])]
        return found

    def _is_of(self, stream: _Stream, topic: str) -> bool:
        dead_letters = None if self._config is None else self._config.dead_letter_topic
        return topic != dead_letters and matches(stream.pattern, self._application_id, topic)

    def _refuse_registered(self, stream: _Stream, by_name: Mapping[str, SourceLine]) -> None:
        for name, place in by_name.items():
            if self._is_of(stream, name):
                raise _at(
                    stream,
                    f"{stream.text} will match topic {name!r}, which has already been registered by its name ({place})"
                    ": read it there or here, and change the pattern or leave the name out.",
                )

    def _known_topics(self) -> Collection[str]:
        if self._configured is None:
            if self._found is None and self._streams:
                self._found = self._look_up(self._streams[0])
            return self._found or ()
        for name in self._configured:
            if not any(matches(each.pattern, self._application_id, name) for each in self._streams):
                raise ConfigurationError(
                    f"{PATTERN_TOPICS} names {name!r}, and no pattern of app.stream matches it: remove it, or change "
                    "the pattern. `stateline run` gives its processes the topics of its start: if you have changed a "
                    "pattern, start it again."
                )
        return self._configured

    def _look_up(self, first: _Stream) -> Collection[str]:
        from stateline.deployment.configured_log import configured_log, log_exists  # here: few applications need it

        if self._config is None:
            raise _at(
                first,
                f"The topics of pattern {first.pattern.pattern!r} are not known without settings: call "
                f"app.configure(…) first, or name the topics in App(config={{{PATTERN_TOPICS!r}: …}}).",
            )
        if not log_exists(self._config):
            return ()
        try:
            with closing(configured_log(self._config, read_only=True)) as log, closing(log.admin()) as admin:
                return admin.topics().keys()
        except LogUnavailableError as error:
            raise LogUnavailableError(
                f"The topics of pattern {first.pattern.pattern!r} cannot be looked up: {error} Try again, or name the "
                f"topics in {PATTERN_TOPICS}."
            ) from error

    def _nothing_matches(self, stream: _Stream) -> str:
        if self._configured is not None:
            return f"{stream.text} matches no topic of {PATTERN_TOPICS}. Name all topics there, or leave it out."
        return (
            f"{stream.text} matches no topic. Create a topic that it matches and start again, or name the topics in "
            f"{PATTERN_TOPICS}."
        )

    def _topic(self, stream: _Stream, name: str) -> Topic:
        topic = self._topic_of(name, stream.key, stream.value)
        if (topic.key.name, topic.value.name) != (stream.key.name, stream.value.name):
            raise _at(
                stream,
                f"{stream.text} reads ({stream.key.name}, {stream.value.name}) and matches topic {name!r}, which is "
                f"declared with ({topic.key.name}, {topic.value.name}): bring both to the same types, or change the "
                "pattern.",
            )
        return topic


def _at(stream: _Stream, message: str) -> TopologyError:
    error = TopologyError(message)
    placed(error, stream.place)
    return error
