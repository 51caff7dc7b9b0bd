"""`stateline node` and `stateline certificates`: manage the nodes of an application."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from stateline.cli.target import FLAGS, AsJson, ConfigFile, PlainHelp, Settings, Target, loaded
from stateline.config.types import NODE_NAME
from stateline_store.errors import ConfigurationError, InvalidArgumentError

commands = typer.Typer(
    name="node",
    help="Manage the nodes of an application.\n\nExample: stateline node certificate machine-1",
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
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="One more name or address in the certificate. Repeatable."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="The folder of the authority and the certificates.")
    ] = Path("nodes-tls"),
    days: Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="Days until the certificate expires.")] = 365,
) -> None:
    """Make a certificate that shows other nodes who this node is.

    Your own authority signs it: ca.pem and ca.key in DIR. The first certificate makes the authority too. To renew a
    certificate, use stateline certificates renew.

    Example: stateline node certificate machine-1 --host machine-1.example
    """
    from stateline.cli.nodes.certificates import authority_files, make_authority, make_certificate
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
        list[str] | None, typer.Argument(metavar="NODE", help="The nodes to renew. All by default.", show_default=False)
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="The folder of the authority and the certificates.")
    ] = Path("nodes-tls"),
    days: Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="Days until the certificates expire.")] = 365,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make new keys too.")] = False,
) -> None:
    """Renew certificates of nodes, before they expire.

    The authority in DIR signs them again, for the same names. The keys stay, unless you ask for new ones. Copy each
    new file over the old one on its node. The server loads it without a restart, and links stay. To make
    a node's first certificate, use stateline node certificate.

    Example: stateline certificates renew machine-1
    """
    from stateline.cli.nodes.certificates import renew_certificate

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
    """Remove a dead node from the list of nodes.

    Use it for a node that died and does not come back. A node that stops in order removes itself. It is refused while
    the node answers, or while a worker of the node is in the group. It deletes only the entry.

    Example: stateline node forget flights:app machine-3
    """
    from stateline.cli.nodes.known import forget_node

    _, config = loaded(target, config_file, settings)
    forget_node(config, name)
    typer.echo(f"Node {name!r} is forgotten.", err=True)


@commands.command("list", cls=PlainHelp, epilog=FLAGS)
def list_(target: Target, settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the nodes and their versions.

    A node is listed from its first start until it leaves. GET /v1/nodes of another node says whether it lives. WIRE
    lists the versions of the protocol between nodes that the node understands.

    Example: stateline node list flights:app
    """
    from stateline.cli.nodes.known import list_nodes
    from stateline.cli.table import as_text

    _, config = loaded(target, config_file, settings)
    typer.echo(as_text(list_nodes(config), as_json=as_json))


@commands.command(cls=PlainHelp, epilog=FLAGS)
def drain(
    target: Target,
    settings: Settings = None,
    config_file: ConfigFile = None,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds to wait for it.")] = 60.0,
) -> None:
    """Hand this node's tasks over, before a stop.

    Its workers commit and leave their group, so other nodes get the tasks at once. Without it, the tasks wait until
    the node's session ends. Its pipelines stop. With pipeline.checkpoint.location, another node continues them. The
    server keeps answering, from the other nodes. After a restart, the node takes tasks again.

    Example: stateline node drain flights:app
    """
    from stateline.cli.nodes.drain import drain_node

    _, config = loaded(target, config_file, settings)
    drain_node(config, lambda name: typer.echo(f"{name} has handed over.", err=True), timeout)
    typer.echo(f"Node {config.node!r} has no tasks. Stop it now.", err=True)
