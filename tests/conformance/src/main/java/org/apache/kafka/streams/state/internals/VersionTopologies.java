package org.apache.kafka.streams.state.internals;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

import java.time.Duration;
import java.util.function.Function;

/** The topologies of versioned tables (KIP-914). `golden_topologies.py` declares the same ones. */
final class VersionTopologies {
    private static final Function<String, String> ON = value -> value.endsWith("7") ? null : value.split(":")[0];

    private VersionTopologies() { }

    static KTable<String, String> of(final String name, final StreamsBuilder builder,
                                     final Consumed<String, String> read,
                                     final ValueJoiner<String, String, String> plus) {
        if (name.equals("versioned_to_table")) {
            return builder.stream("a", read).toTable(versions("st", 400));
        }
        final KTable<String, String> a = builder.table("a", read, versions("ta", 150));
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> newest =
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("st")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
        return switch (name) {
            case "versioned_filter" -> a.filter((key, value) -> !value.endsWith("5"), versions("st", 150));
            case "versioned_map" -> a.mapValues(value -> value + "!", versions("st", 150));
            case "versioned_join" -> a.join(builder.table("b", read, versions("tb", 150)), plus, newest);
            case "versioned_left" -> a.leftJoin(builder.table("b", read, Materialized.as("tb")), plus, newest);
            case "versioned_fk_join" ->
                a.join(builder.table("b", read, versions("tb", 150)), ON, plus, TableJoined.as("fk"), newest);
            case "versioned_fk_left" ->
                a.leftJoin(builder.table("b", read, versions("tb", 150)), ON, plus, TableJoined.as("fk"), newest);
            case "versioned_outer" -> a.outerJoin(builder.table("b", read, versions("tb", 150)), plus, newest);
            default -> a.groupBy((key, value) -> KeyValue.pair(value.substring(0, 2), value),
                    Grouped.<String, String>as("g").withKeySerde(Serdes.String()).withValueSerde(Serdes.String()))
                .reduce((reduced, row) -> row, (reduced, row) -> "-" + row, newest);
        };
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> versions(final String name,
                                                                                       final long history) {
        return Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore(name, Duration.ofMillis(history)))
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.String());
    }
}
