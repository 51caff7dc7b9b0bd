"""OpenTelemetry traces of a process, sent by OTLP over HTTP (`tracing.exporter`). Off, each call here does nothing.

    server    GET /v1/stores/{store}/keys/{key}     a request
              ├─ read totals                        one partition of a store here, or asked of a worker
              └─ ask two                            another node, whose spans follow in the same trace
    worker    work                                  from the first slice behind a commit to the end of the next commit
              ├─ process 0_3                        a slice of records, with links to the traces of its records
              └─ commit

Context comes and goes as W3C Trace Context (`traceparent`): in headers of requests, between nodes, and in headers of
records. The exporter's own settings are OpenTelemetry's: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ….
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from stateline.config.extras import need_extra
from stateline.config.settings import Config

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

Kind = Literal["INTERNAL", "SERVER", "CLIENT"]
Attributes = Mapping[str, str | int]

TRACEPARENT = "traceparent"
_CARRIED = (TRACEPARENT, "tracestate")
_MOST_LINKS = 32  # per span: a slice may have a thousand records

_tracer: Tracer | None = None


def is_tracing() -> bool:
    return _tracer is not None


@contextmanager
def traced(config: Config, process: str) -> Iterator[None]:
    """Send spans during the block if `tracing.exporter` says so, and the remaining ones at its end. `process` follows
    the node's name in ``service.instance.id``. Raises `ConfigurationError` without the extra otel."""
    global _tracer
    if config.tracing_exporter == "none":
        yield
        return
    need_extra("otel", "Traces")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    origin = {"service.name": config.application_id, "service.instance.id": f"{config.node}/{process}"}
    resource = Resource.create().merge(Resource(origin)).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer("stateline")
    try:
        yield
    finally:
        _tracer = None
        provider.shutdown()


@contextmanager
def span(
    name: str, attributes: Attributes, kind: Kind = "INTERNAL", parent: Mapping[str, str] | None = None
) -> Iterator[Span | None]:
    """A span of the block, below the current one or below `parent`'s `traceparent`. None while no spans are sent. It
    records an exception."""
    if _tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind

    context = None if parent is None else _context_of(parent)
    with _tracer.start_as_current_span(name, context, SpanKind[kind], attributes) as made:
        yield made


def carrier() -> dict[str, str]:
    """`traceparent` and `tracestate` of the current span, to pass on; empty while no spans are sent."""
    found: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(found)
    return found


def carried_by(message: Mapping[str, object]) -> dict[str, str]:
    """The members that `carrier` put into another process's message."""
    return {name: value for name in _CARRIED if isinstance(value := message.get(name), str)} if _tracer else {}


def links_of(traceparents: Iterable[str]) -> list[Link]:
    """Links to the spans in these headers of records, each once, at most `_MOST_LINKS`."""
    from opentelemetry.trace import Link, get_current_span

    links = []
    for traceparent in dict.fromkeys(traceparents):
        context = get_current_span(_context_of({TRACEPARENT: traceparent})).get_span_context()
        if context.is_valid:
            links.append(Link(context))
        if len(links) == _MOST_LINKS:
            break
    return links


def tracer() -> Tracer | None:
    """The tracer for spans whose times are known afterwards; None while no spans are sent."""
    return _tracer


def _context_of(carried: Mapping[str, str]) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(carried, Context())
