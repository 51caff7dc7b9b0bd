"""Declare the commands that show stores, settings and progress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateline.cli.target import AsJson, CaFile, ConfigFile, ServerUrl, Settings, Target, TokenFile, loaded, read


def stores(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
    delete: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete the files of a store that the App does not declare.")
    ] = None,
) -> None:
    """List the application's stores.

    It shows the committed state of each store in this machine's state directory, and names stores there that the App
    does not declare. It only reads, and may run beside workers. Before --delete, stop the workers of this machine.

    Example: stateline stores flights:app --json
    """
    from stateline.cli.state import stores as cli_stores

    app, config = loaded(target, config_file, settings, to_write=delete is not None)
    if delete is not None:
        typer.echo(cli_stores.delete(app, config, delete))
        return
    for said in (cli_stores.nothing_there(config), cli_stores.leftover_stores(app, config)):
        if said is not None:
            typer.echo(said, err=True)
    typer.echo(cli_stores.stores(app, config, as_json=as_json))


def config(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List every setting and where it was set.

    A later source overrides an earlier one: defaults, the App, ./stateline.toml or --config, STATELINE_… variables,
    --set.

    Example: stateline config flights:app --set processing.guarantee=exactly_once_v2
    """
    from stateline.cli.table import as_text

    _, loaded = read(target, config_file, settings)
    typer.echo(as_text([row._asdict() for row in loaded.describe()], as_json=as_json, hide=("description",)))


def inspect(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A state directory, an application in it, or a task.")
    ],
    store: Annotated[str | None, typer.Option(metavar="NAME", help="Only this store.")] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="Only this task, such as 0_3.")] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Only entries of this key.")] = None,
    lower: Annotated[str | None, typer.Option("--from", metavar="K", help="Entries from this key on.")] = None,
    upper: Annotated[str | None, typer.Option("--to", metavar="K", help="Entries up to this key.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, metavar="N", help="Entries to show, at most. 100 by default.")
    ] = None,
    key_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="string, json, bytes, int32, int64, float64, uuid or datetime.")
    ] = None,
    value_type: Annotated[str | None, typer.Option(metavar="TYPE", help="The same types, for values.")] = None,
    as_json: AsJson = False,
) -> int:
    """Show the content of a state directory, offline.

    It lists tasks and stores, their commits and their damages, or the entries of a store. It needs no application,
    only reads, and may run beside workers.

    Example: stateline inspect .stateline --store totals --key Ada --value-type int64
    """
    from stateline.cli.state import inspect as cli_inspect

    request = cli_inspect.InspectRequest(store, task, key, lower, upper, limit, key_type, value_type)
    text, code = cli_inspect.inspect(directory, request, as_json=as_json)
    typer.echo(text)
    return code


def snapshot(
    names: Annotated[list[str], typer.Argument(metavar="STORE", help="The stores.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="parquet or arrow.")] = "parquet",
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty folder.")] = Path("snapshot"),
    url: ServerUrl = None,
    application: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="The server in the settings of this App, instead of --url."),
    ] = None,
    config_file: ConfigFile = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="K", help="Only keys with this beginning.")] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="In versioned stores: the versions valid then. ISO 8601, or ms.")
    ] = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    ttl: Annotated[int, typer.Option(metavar="S", min=1, help="The lease in seconds, renewed while this runs.")] = 300,
) -> None:
    """Export stores of a running server to files.

    All stores are of one moment. Each partition is a file. The file DIR/_SUCCESS is written last.

    Example: stateline snapshot flights delays --to parquet --out today
    """
    from stateline.cli.state import snapshot as cli_snapshot

    if url is None and application is not None:
        url = cli_snapshot.url_of(read(application, config_file, None)[1])
    counts = cli_snapshot.export(
        cli_snapshot.server_at(url, token_file, ca_file),
        cli_snapshot.export_of(names, to, out, columns=columns, prefix=prefix, as_of=as_of, ttl_s=ttl),
    )
    for name, count in counts.items():
        typer.echo(f"{out / name}: {count} rows")


def status(
    target: Target,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Wait until it has read its topics. Exit code 1 after S seconds.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, metavar="S", help="Seconds to wait for it.")] = 3600.0,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Show how far an application is behind its topics.

    The lag comes from its commits, and for pipelines from their drivers on this machine. Dropped records are shown by
    step and reason, as counted by the workers on this machine since their start.

    Example: stateline status flights:app --until-caught-up --timeout 600
    """
    from stateline.cli.state import status as cli_status
    from stateline.cli.table import as_text

    app, config = loaded(target, config_file, settings)
    is_there = True
    if until_caught_up:
        is_there = cli_status.wait_until_caught_up(app, config, timeout, lambda text: typer.echo(text, err=True))
    found = cli_status.status(app, config)
    rows, dropped = found.rows(), found.dropped_rows()
    if as_json:
        typer.echo(as_text([*rows, *dropped], as_json=True))
    else:
        typer.echo("\n\n".join(as_text(each, as_json=False) for each in (rows, dropped) if each or each is rows))
    return 0 if is_there else 1
