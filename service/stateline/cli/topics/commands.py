"""Declare the commands `topics`, `produce` and `consume`."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from stateline.cli.target import AsJson, ConfigFile, Settings, Target, confirmed, loaded


def topics(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    create: Annotated[bool, typer.Option("--create", help="Create the missing topics that are yours.")] = False,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Partitions of the created topics.", show_default="4")
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Delete this topic with all its records. Repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --delete.")] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Count the committed records. This reads all of them.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List the application's topics, create or delete some.

    The list has each topic's role, its partitions and its offsets. On Kafka, transactions take offsets too, so
    --count counts the records. Stateline creates its own topics at a start. Source topics are yours: --create
    creates them for you. --delete asks, and is refused while any process of the application runs.

    Example: stateline topics flights:app --create --partitions 8
    """
    from stateline.cli.topics import listing as cli_topics
    from stateline.cli.topics.deletion import delete_topics

    app, config = loaded(target, config_file, settings, to_write=create or bool(delete))
    if delete and not delete_topics(
        app,
        config,
        delete,
        agreed=lambda: confirmed("Delete them?", yes=yes),
        warn=lambda text: typer.echo(text, err=True),
    ):
        return 1
    typer.echo(cli_topics.topics(app, config, create=create, partitions=partitions, count=count, as_json=as_json))
    return 0


def produce(
    target: Target,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic that the application reads.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="- or none: standard input.", show_default=False)
    ] = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="text or jsonl.")] = "text",
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="For records without a timestamp: ms, or ISO 8601.", show_default="now"),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For every record. Repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="For records without a partition.", show_default="by the key")
    ] = None,
    on_error: Annotated[
        str, typer.Option(metavar="WHAT", help="stop: a wrong line, and nothing is written. skip: leave it out.")
    ] = "stop",
) -> None:
    """Write records to a topic.

    A line of text is a key, a tab and a value. A key, a tab and nothing else deletes the key. A line of jsonl is an
    object with key, value and, optionally, timestamp, headers and partition. The command prints the Position that it
    wrote. A query can wait for it.

    Example: stateline produce hello:app people people.tsv
    """
    from stateline.cli.records import produce as cli_produce

    if isinstance(sys.stdin, io.TextIOWrapper):  # like files: other bytes than UTF-8 are errors of their line
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    terms = cli_produce.terms_of(format_, on_error, timestamp, header or (), partition)
    app, config = loaded(target, config_file, settings, to_write=True)
    written = cli_produce.produce(app, config, topic, files or (), terms, sys.stdin)
    typer.echo(written.summary(topic), err=True)
    typer.echo(written.position)


def consume(
    target: Target,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Topics of the log.", show_default=False)
    ] = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    dead_letters: Annotated[bool, typer.Option("--dead-letters", help="The dead-letter topic, with reasons.")] = False,
    begin: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="earliest, latest, an offset, a time, or -15m.")
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End before this place.", show_default="the end as it is now"),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=0, metavar="N", help="Show at most so many records.")] = None,
    partition: Annotated[list[int] | None, typer.Option(metavar="N", help="Only this partition. Repeatable.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for new records, until Ctrl-C.")] = False,
    isolation_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_committed",
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="text or jsonl.")] = "text",
) -> int:
    """Show records of topics.

    Keys and values have the application's types. Without a type they are text, or base64. The command joins no group
    and commits nothing. `stateline produce` can write its jsonl again.

    Example: stateline consume hello:app orders --from -15m --follow
    """
    from stateline.cli.records import consume as cli_consume

    wanted = cli_consume.wanted_of(begin, until, partition or (), most, isolation_level, format_, follow=follow)
    app, config = loaded(target, config_file, settings)
    names = cli_consume.topics_of(config, topics or (), dead_letters=dead_letters)
    return cli_consume.quietly(app, config, names, wanted)
