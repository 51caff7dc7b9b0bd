package org.apache.kafka.streams.state.internals;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateStore;

import java.time.Duration;

/** Tables grouped by another key, and several streams in one aggregate. Values look like `k2:17`. */
final class GroupTopologies {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Initializer<String> EMPTY = () -> "";
    private static final int LENGTH = 24;

    private GroupTopologies() { }

    static KTable<String, ?> table(
        final String name, final StreamsBuilder builder, final Consumed<String, String> read
    ) {
        final KGroupedTable<String, String> groups = builder.table("a", read, Materialized.as("ta")).groupBy(
            (key, value) -> KeyValue.pair(value.endsWith("7") ? null : value.substring(0, 2),
                value.endsWith("3") ? null : key + value), Grouped.with("g", TEXT, TEXT));
        return switch (name) {
            case "table_count" -> groups.count(Materialized.as("st"));
            case "table_reduce" -> groups.reduce((reduced, value) -> added(reduced, "+", value),
                (reduced, value) -> removed(reduced, value), Materialized.as("st"));
            case "table_aggregate" -> groups.aggregate(EMPTY, (key, value, reduced) -> added(reduced, "+", value),
                (key, value, reduced) -> removed(reduced, value), GroupTopologies.kept());
            default -> throw new IllegalArgumentException(name);
        };
    }

    static KStream<String, String> cogrouped(
        final String name, final KStream<String, String> a, final KStream<String, String> b
    ) {
        final Grouped<String, String> texts = Grouped.with(TEXT, TEXT);
        final CogroupedKStream<String, String> both = a.groupByKey(texts)
            .<String>cogroup((key, value, reduced) -> added(reduced, "A", value))
            .cogroup(b.groupByKey(texts), (key, value, reduced) -> added(reduced, "B", value));
        return switch (name) {
            case "cogroup" -> both.aggregate(EMPTY, GroupTopologies.kept()).toStream();
            case "cogroup_tumbling" -> ofWindows(both.windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(60)))
                .aggregate(EMPTY, GroupTopologies.kept()));
            case "cogroup_hopping" -> ofWindows(both.windowedBy(
                TimeWindows.ofSizeAndGrace(ms(100), ms(60)).advanceBy(ms(30))).aggregate(EMPTY,
                GroupTopologies.kept()));
            case "cogroup_sliding" -> ofWindows(both.windowedBy(
                SlidingWindows.ofTimeDifferenceAndGrace(ms(100), ms(60))).aggregate(EMPTY, GroupTopologies.kept()));
            case "cogroup_session" -> ofWindows(both.windowedBy(
                SessionWindows.ofInactivityGapAndGrace(ms(30), ms(60))).aggregate(EMPTY,
                (key, one, other) -> added(one, "|", other), GroupTopologies.kept()));
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static <S extends StateStore> Materialized<String, String, S> kept() {
        return Materialized.<String, String, S>as("st").withKeySerde(TEXT).withValueSerde(TEXT);
    }

    private static KStream<String, String> ofWindows(final KTable<Windowed<String>, String> table) {
        return table.toStream((key, value) -> key.key() + "@" + key.window().start() + "-" + key.window().end());
    }

    private static String added(final String reduced, final String sign, final String value) {
        return value != null && value.endsWith("5") && !sign.equals("|") ? null
            : last(reduced + sign + value);
    }

    private static String removed(final String reduced, final String value) {
        return value.endsWith("9") ? null : last(reduced + "-" + value);
    }

    private static String last(final String text) {
        return text.substring(Math.max(0, text.length() - LENGTH));
    }

    private static Duration ms(final long milliseconds) {
        return Duration.ofMillis(milliseconds);
    }
}
