"""`stateline node`: what the machines of an application need before they answer as one, and after one is gone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from stateline.cli.help import FLAGS, PlainHelp
from stateline.cli.target import AsJson, ConfigFile, Settings, Target, loaded
from stateline.config.types import NODE_NAME
from stateline_store.errors import ConfigurationError, InvalidArgumentError

commands = typer.Typer(
    name="node",
    help="Machines that answer as one.\n\nExample: stateline node certificate machine-1",
    epilog=FLAGS,
    rich_markup_mode=None,
)

certificates = typer.Typer(
    name="certificates",
    help="Renew certificates of nodes.\n\nExample: stateline certificates renew machine-1",
    epilog=FLAGS,
    rich_markup_mode=None,
)


def _refuse_strange(name: str) -> None:
    if not re.fullmatch(NODE_NAME, name) or name.lower() == "ca":
        raise InvalidArgumentError(f"{name!r} is no name of a node: use letters, digits, '.', '_' and '-', and not ca.")


@certificates.callback()
def _group() -> None:
    """Without it, a group of one command would be that command."""


@commands.command(cls=PlainHelp, epilog=FLAGS)
def certificate(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node's name (node.name).")],
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="One more name or address; may be repeated.")
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Where the authority is, and what it signs.")
    ] = Path("nodes-tls"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make a certificate by which other nodes know this one.

    Signed by an authority of your own, ca.pem and ca.key in DIR, made with the first certificate.

    Example: stateline node certificate machine-1 --host machine-1.example
    """
    from stateline.cli.certificates import authority_files, make_authority, make_certificate
    from stateline.server.certificates import expiry_s

    _refuse_strange(name)
    now = datetime.now(UTC)
    is_new = make_authority(directory, now)
    made = make_certificate(directory, name, hosts or (), now, timedelta(days=days))
    authority = authority_files(directory)
    if is_new:
        typer.echo(f"{authority.key} signs, so it makes nodes: keep it where no node is.", err=True)
    until = datetime.fromtimestamp(expiry_s(made.certificate), UTC).date()
    typer.echo(f"{made.certificate} is valid until {until}. For the settings of that node:", err=True)
    settings = {
        "node.name": name,
        "node.peer.tls.certificate.file": made.certificate.absolute(),
        "node.peer.tls.key.file": made.key.absolute(),
        "node.peer.tls.ca.file": authority.certificate.absolute(),
    }
    for setting, value in settings.items():
        typer.echo(f'{setting} = "{value}"')


@certificates.command(cls=PlainHelp, epilog=FLAGS)
def renew(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NODE", help="Some of its nodes; else all.", show_default=False)
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Where the authority is, and what it has signed.")
    ] = Path("nodes-tls"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new key as well.")] = False,
) -> None:
    """Renew certificates of nodes, before they expire.

    The authority in DIR signs them again, for the same names. The key stays unless --new-key asks for a new one.
    Copy the new file over the old one on the node. Its server loads it without a restart, and links stay.

    Example: stateline certificates renew machine-1
    """
    from stateline.cli.certificates import renew_certificate

    found = names or sorted(path.stem for path in directory.glob("[!.]*.pem") if path.name != "ca.pem")
    if not found:
        raise ConfigurationError(
            f"{directory} has no certificates of nodes. Name the directory where `stateline node certificate` made "
            "them, with --directory DIR."
        )
    for name in found:
        _refuse_strange(name)
    for name in found:
        until = renew_certificate(directory, name, datetime.now(UTC), timedelta(days=days), new_key=new_key)
        typer.echo(f"{directory / name}.pem is valid until {until.date()}.")
    also = " and .key" if new_key else ""
    typer.echo(
        f"Copy each .pem{also} over the node's own file. Its server loads it within 10 s, and links stay.", err=True
    )


@commands.command(cls=PlainHelp, epilog=FLAGS)
def forget(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node's name (node.name).")],
    settings: Settings = None,
    config_file: ConfigFile = None,
) -> None:
    """Have the others forget a node that is gone for good.

    For one that died and will not come back; one that is stopped in order needs no such word. Refused while
    it answers, or a worker of it is in the group. Nothing but its entry is deleted.

    Example: stateline node forget flights:app machine-3
    """
    from stateline.cli.forget_node import forget_node

    _, config = loaded(target, config_file, settings)
    forget_node(config, name)
    typer.echo(f"Node {name!r} is forgotten.", err=True)


@commands.command("list", cls=PlainHelp, epilog=FLAGS)
def list_(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the nodes, and which versions they run.

    Each is there from when it has said that it comes until it says that it leaves; whether it lives says GET
    /v1/nodes of any other. WIRE are the versions of what nodes say to each other that it understands.

    Example: stateline node list flights:app
    """
    from stateline.cli.list_nodes import list_nodes
    from stateline.cli.table import as_text

    _, config = loaded(target, config_file, settings)
    typer.echo(as_text(list_nodes(config), as_json=as_json))


@commands.command(cls=PlainHelp, epilog=FLAGS)
def drain(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="How many seconds to wait for it.")] = 60.0,
) -> None:
    """Have this node hand over its tasks, before it is stopped.

    Its workers commit and leave their group for good, so that others have the tasks at once; without it
    they wait for the node's session to end. Its pipelines stop, and another node goes on with them where
    pipeline.checkpoint.location is set. The server goes on and asks the other nodes. Started anew, the
    node takes tasks again.

    Example: stateline node drain flights:app
    """
    from stateline.cli.drain_node import drain_node

    _, config = loaded(target, config_file, settings)
    drain_node(config, lambda name: typer.echo(f"{name} has handed over.", err=True), timeout)
    typer.echo(f"Node {config.node!r} has no tasks. Stop it now.", err=True)
