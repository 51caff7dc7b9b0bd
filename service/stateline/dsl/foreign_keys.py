"""`Table.join(…, on=…)`: the operators, topics and store of a join of tables by foreign key (docs/joins.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from stateline import stores
from stateline.dsl.declarations import Declarations
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic, checked_name
from stateline.model.unnamed_stores import generated_name, number_in
from stateline.processing.operators import AnswerSubscribers, ForeignKeyJoin, Register, Resolve, Subscribe
from stateline.serde.plain import Serde
from stateline.serde.subscription import AnswerSerde, SubscriberSerde, SubscriptionSerde
from stateline_store import TopologyError

Side: TypeAlias = tuple[OperatorNode | Root, StoreDefinition]
"""Where changes of a table come from, and the table's store."""


def join_by_foreign_key(
    declarations: Declarations,
    what: str,
    sides: tuple[Side, Side],
    on: Callable[[Any, Any], Any],
    joiner: Callable[[bytes | None, Any, Any], Any],
    value: Serde,
    name: str | None,
    *,
    is_left: bool,
    persistent: bool,
) -> OperatorNode:
    """Join the left side with the right one, whose key `on` returns. Returns the node with the changes of the result,
    of the serde `value`. The topics and the store of subscriptions are named as by Kafka Streams' ``TableJoined.as``.
    Raises `TopologyError` without a name."""
    if name is None:
        raise TopologyError(
            f'{what}: give the join a name too: name="a-name". Its topics are <application.id>-a-name-'
            "subscription-registration-topic and -subscription-response-topic."
        )
    (left_node, left), (right_node, right) = sides
    store, registration_name, response_name = _names(checked_name("topic", name))
    kept = declarations.operators_store(
        stores.timestamped_key_value(
            store, key=SubscriberSerde(right.key, left.key), value=SubscriptionSerde(left.key), persistent=persistent
        )
    )
    prefix = declarations.application_id
    primary, answer = SubscriptionSerde(left.key), AnswerSerde(right.value)
    registration = declarations.declare(Topic(f"{prefix}-{registration_name}", right.key, primary, internal=True))
    response = declarations.declare(Topic(f"{prefix}-{response_name}", left.key, answer, internal=True))
    declarations.claim_outputs(f"`{what}`", [registration, response])
    join = ForeignKeyJoin(
        f"{what} {name}", is_left, on, joiner, left, right, kept, registration, response,
        _inner(registration.value), _inner(response.value), value,
    )  # fmt: skip
    left_node.then(
        OperatorNode(f"subscribe {name}", partial(Subscribe, join), forwards=(registration,), on_changes=True)
    )
    right_node.then(OperatorNode(f"answer {name}", partial(AnswerSubscribers, join), (kept,), forwards=(response,)))
    declarations.stream_root(registration).then(
        OperatorNode(f"register {name}", partial(Register, join), (kept, right), forwards=(response,))
    )
    asks_again = () if is_left else (registration,)
    return declarations.stream_root(response).then(
        OperatorNode(f"resolve {name}", partial(Resolve, join), (left,), forwards=asks_again, on_changes=True)
    )


def _names(name: str) -> tuple[str, str, str]:
    """Return the names of the store of subscriptions and of the two topics, the topics without the application's. From
    a generated name of the first topic, they are those of `KTableImpl.doJoinOnForeignKey`."""
    generated = "KTABLE-FK-JOIN-SUBSCRIPTION"
    number = number_in(name, f"{generated}-REGISTRATION")
    if number is None:
        named = f"{name}-subscription"
        return f"{named}-store", f"{named}-registration-topic", f"{named}-response-topic"
    store = generated_name(generated, number + 4)
    return store, f"{name}-topic", f"{generated}-RESPONSE-{number + 8:010d}-topic"


def _inner(serde: Serde) -> Serde:
    if not isinstance(serde, SubscriptionSerde | AnswerSerde):
        raise AssertionError(f"{serde.name} is no serde of a join by foreign key.")
    return serde.inner
