package org.apache.kafka.streams.state.internals;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

import java.time.Duration;

/** Tables whose changes wait, and windows whose values leave once. */
final class SuppressTopologies {
    private static final Serde<String> TEXT = Serdes.String();

    private SuppressTopologies() { }

    static KTable<String, String> suppressed(
        final String name, final StreamsBuilder builder, final Consumed<String, String> read
    ) {
        final var buffer = switch (name) {
            case "suppress_time_limit" -> BufferConfig.unbounded();
            case "suppress_max_records" -> BufferConfig.maxRecords(2).emitEarlyWhenFull();
            case "suppress_max_bytes" -> BufferConfig.maxBytes(120).emitEarlyWhenFull();
            default -> throw new IllegalArgumentException(name);
        };
        return builder.table("a", read, Materialized.as("ta"))
            .suppress(Suppressed.<String>untilTimeLimit(Duration.ofMillis(100), buffer).withName("s"));
    }

    static KStream<String, String> closed(final String name, final KStream<String, String> a) {
        final var groups = a.groupByKey(Grouped.with(TEXT, TEXT));
        final Duration grace = Duration.ofMillis(60);
        final KTable<Windowed<String>, String> table = name.equals("final_session")
            ? groups.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(30), grace))
                .reduce((reduced, value) -> value, Materialized.as("st"))
            : groups.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), grace))
                .reduce((reduced, value) -> value, Materialized.as("st"));
        return table.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("s"))
            .toStream((key, value) -> key.key() + "@" + key.window().start() + "-" + key.window().end());
    }

    static KStream<String, String> onClose(final KStream<String, String> a) {
        return a.groupByKey(Grouped.with(TEXT, TEXT))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(100), Duration.ofMillis(60)))
            .emitStrategy(EmitStrategy.onWindowClose())
            .reduce((reduced, value) -> value, Materialized.as("st"))
            .toStream((key, value) -> key.key() + "@" + key.window().start() + "-" + key.window().end());
    }
}
