"""One real broker for all processes of a run: each broker that is there costs a thirtieth of a processor, also idle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from support.kafka.kafka_broker import KafkaBroker
from support.kafka.maven import one_at_a_time


@dataclass(frozen=True)
class SharedBroker:
    """A broker that other tests use meanwhile: who wants it stopped, paused or empty starts one of their own."""

    bootstrap_servers: str


def shared_broker(run: Path) -> SharedBroker:
    """The broker of the run that this directory belongs to; who is the first starts it.

    It ends with the run, by the guard of `support.run.left_running`: the process that started it may end before others
    have done with it. Raises as `KafkaBroker` does.
    """
    address = run / "bootstrap.servers"
    with one_at_a_time("shared-broker"):
        if not address.exists():
            address.write_text(KafkaBroker(directory=Path(mkdtemp(dir=run))).bootstrap_servers)
    return SharedBroker(address.read_text())
