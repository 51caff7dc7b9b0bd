"""The state directory of one node, written as its workers write it, and what one server process reads there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from stateline import serdes
from stateline.deployment.stores.topology_file import PublishedTopology, publish_topology
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.server.nodes.own_map import OwnMap
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.pipeline_states import PipelineStates
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline.worker.files.registration import Registration
from stateline.worker.queries.query_socket import QuerySocket
from stateline_store import IsolationLevel, KeyValueStore, StateDirectory, StoreContext, StoreState, TopicPartition
from support.processes.linked_nodes import until

APPLICATION = "app"


class NodeFiles:
    """`stores` are those of subtopology 0."""

    def __init__(self, root: Path, stores: Sequence[StoreDefinition], partitions: int) -> None:
        app = App(APPLICATION)
        kept = [app.store(each) for each in stores]
        topic = app.topic("in", key=serdes.bytes, value=serdes.bytes)

        @app.process(topic, stores=kept)
        def update(record: Any, *views: Any) -> None: ...

        self._root, self._topology = root, app.topology()
        self.directory = StateDirectory(root, APPLICATION)
        self.stores = ServedStores(self._topology, self.directory.application)
        self.count(partitions)
        self.workers = Workers(self.directory.application, lambda: None, TimeLimits())
        self.ownership = Ownership(self._topology, self.workers, None, exactly_once=True)
        self.partitions = Partitions(self.directory, root / "scratch", self.ownership)
        pipelines = PipelineStates(self._topology, root)
        self.own = OwnMap(self.stores, self.ownership, self.partitions, self.workers, pipelines)
        self._registrations: dict[str, Registration] = {}

    def count(self, partitions: int) -> None:
        """Write that the input topic has this many partitions, and read it."""
        published = PublishedTopology.of(self._topology, {0: partitions}, IsolationLevel.READ_COMMITTED)
        publish_topology(self.directory.application, published)
        self.stores.read()

    def write(self, task: str, offset: int, state: StoreState, *, plain: bool = False, remaining: int = 0) -> None:
        """Commit this offset of each store's changelog. `plain`: to the plain files of timestamped stores."""
        for definition in self._topology.stores.values():
            store = KeyValueStore(definition.name) if plain and definition.timestamped else definition.build()
            assert isinstance(store, KeyValueStore)
            with closing(store):
                store.init(StoreContext(task, self.directory.task(task), types=definition.types))
                store.set_state(state, remaining)
                changelog = TopicPartition(str(definition.changelog(APPLICATION)), int(task.removeprefix("0_")))
                store.commit({changelog: offset})

    def read(self, *tasks: str) -> None:
        """Open the stores on disk of these tasks."""
        for store in self.stores:
            for task in tasks if store.definition.persistent else ():
                self.partitions.open(store, int(task.removeprefix("0_")))

    async def say(self, worker: str, tasks: Mapping[str, str], generation: int = 1) -> None:
        """Publish that this worker has these tasks, and read it."""
        self._registrations[worker].update(self._socket(worker), tasks, uuid4(), "member", generation)
        await self.workers.refresh()
        await until(lambda: self.workers._connections[worker].owns_tasks)

    @contextmanager
    def running(self, *workers: str) -> Iterator[None]:
        """Workers that answer on a thread of their own, and are known by `say`."""
        ends = threading.Event()

        def answer(socket: QuerySocket) -> None:
            with closing(socket):
                while not ends.is_set():
                    socket.let_in(0.05)

        sockets = [QuerySocket(self._socket(worker), lambda store, partition: None) for worker in workers]
        threads = [threading.Thread(target=answer, args=[socket]) for socket in sockets]
        self._registrations = {worker: Registration(self.directory.application, worker) for worker in workers}
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.partitions.close()
            ends.set()
            for thread in threads:
                thread.join()
            for registration in self._registrations.values():
                registration.remove()

    def _socket(self, worker: str) -> Path:
        return self._root / f"{worker}.sock"
