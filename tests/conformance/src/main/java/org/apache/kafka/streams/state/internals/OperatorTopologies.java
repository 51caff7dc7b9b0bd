package org.apache.kafka.streams.state.internals;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * The topologies of `operators`, by name: of the topics `a` and `b`, to the topic `out`. `golden_topologies.py` declares the
 * same ones.
 */
final class OperatorTopologies {
    static final List<String> NAMES = List.of("stream_inner", "stream_left", "stream_outer", "stream_lopsided",
        "stream_self", "stream_self_one_store", "table_count", "table_reduce", "table_aggregate", "cogroup",
        "cogroup_tumbling", "cogroup_hopping", "cogroup_sliding", "cogroup_session", "fk_inner", "fk_left",
        "suppress_time_limit", "suppress_max_records", "suppress_max_bytes", "emit_on_close", "keyed_table",
        "keyed_global", "keyed_streams", "transform_values", "to_chosen", "grace_inner",
        "grace_left", "unlimited_count", "unlimited_reduce", "topics_reduce", "versioned_filter", "versioned_map",
        "versioned_join", "versioned_left", "versioned_outer", "versioned_fk_join", "versioned_fk_left", "versioned_group",
        "versioned_to_table", "final_tumbling", "final_session");

    private static final Set<String> OF_A_ALONE = Set.of("stream_self", "stream_self_one_store", "table_count",
        "table_reduce", "table_aggregate", "suppress_time_limit", "suppress_max_records", "suppress_max_bytes",
        "emit_on_close", "transform_values", "to_chosen", "unlimited_count", "unlimited_reduce",
        "versioned_filter", "versioned_map", "versioned_group", "versioned_to_table", "final_tumbling",
        "final_session");
    private static final Serde<String> TEXT = Serdes.String();
    private static final Consumed<String, String> READ = Consumed.with(TEXT, TEXT);
    private static final Produced<String, String> WRITE = Produced.with(TEXT, TEXT);
    private static final ValueJoiner<String, String, String> PLUS = (left, right) -> left + "+" + right;

    private OperatorTopologies() { }

    static boolean readsB(final String name) {
        return !OF_A_ALONE.contains(name);
    }

    static Map<String, Object> settings(final String name) {
        return name.equals("stream_self_one_store")
            ? Map.of(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.SINGLE_STORE_SELF_JOIN) : Map.of();
    }

    static void build(final String name, final StreamsBuilder builder) {
        final boolean makesOwn = name.matches("(table|fk|suppress|keyed|transform|to|topics|versioned)_.*");
        final KStream<String, String> a = makesOwn ? null : builder.stream("a", READ);
        final JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(ms(40), ms(30));
        final StreamJoined<String, String, String> joined = StreamJoined.with(TEXT, TEXT, TEXT).withStoreName("j");
        switch (name) {
            case "stream_inner" -> a.join(builder.stream("b", READ), PLUS, windows, joined).to("out", WRITE);
            case "stream_left" -> a.leftJoin(builder.stream("b", READ), PLUS, windows, joined).to("out", WRITE);
            case "stream_outer" -> a.outerJoin(builder.stream("b", READ), PLUS, windows, joined).to("out", WRITE);
            case "stream_lopsided" -> a.outerJoin(builder.stream("b", READ), PLUS,
                windows.before(ms(-5)).after(ms(90)), joined).to("out", WRITE);
            case "stream_self", "stream_self_one_store" -> a.join(a, PLUS, windows, joined).to("out", WRITE);
            case "table_count", "table_reduce", "table_aggregate" -> GroupTopologies.table(name, builder, READ)
                .toStream().to("out", Produced.keySerde(TEXT));
            case "cogroup", "cogroup_tumbling", "cogroup_hopping", "cogroup_sliding", "cogroup_session" ->
                GroupTopologies.cogrouped(name, a, builder.stream("b", READ)).to("out", WRITE);
            case "fk_inner", "fk_left" -> byForeignKey(name, builder).toStream().to("out", WRITE);
            case "suppress_time_limit", "suppress_max_records", "suppress_max_bytes" ->
                SuppressTopologies.suppressed(name, builder, READ).toStream().to("out", WRITE);
            case "grace_inner", "grace_left" -> withGrace(name, a, builder).to("out", WRITE);
            case "versioned_filter", "versioned_map", "versioned_join", "versioned_left", "versioned_outer",
                "versioned_fk_join", "versioned_fk_left", "versioned_group", "versioned_to_table" ->
                VersionTopologies.of(name, builder, READ, PLUS).toStream().to("out", WRITE);
            case "final_tumbling", "final_session" -> SuppressTopologies.closed(name, a).to("out", WRITE);
            case "emit_on_close" -> SuppressTopologies.onClose(a).to("out", WRITE);
            case "keyed_table", "keyed_global", "keyed_streams" ->
                StepTopologies.keyed(name, builder);
            case "transform_values" -> StepTopologies.transformed(builder).toStream().to("out", WRITE);
            case "to_chosen" -> StepTopologies.routed(builder);
            case "unlimited_count" -> unlimited(a).count(Materialized.as("st"))
                .toStream(OperatorTopologies::start).to("out", Produced.with(TEXT, Serdes.Long()));
            case "unlimited_reduce" -> unlimited(a).reduce((reduced, value) -> reduced + "+" + value,
                Materialized.as("st")).toStream(OperatorTopologies::start).to("out", WRITE);
            case "topics_reduce" -> builder.stream(List.of("a", "b"), READ).groupByKey(Grouped.with(TEXT, TEXT))
                .reduce((reduced, value) -> reduced.substring(Math.max(0, reduced.length() - 20)) + "+" + value,
                    Materialized.as("st")).toStream().to("out", WRITE);
            default -> throw new IllegalArgumentException(name);
        }
    }

    private static KTable<String, String> byForeignKey(final String name, final StreamsBuilder builder) {
        final KTable<String, String> a = builder.table("a", READ, Materialized.as("ta"));
        final KTable<String, String> b = builder.table("b", READ, Materialized.as("tb"));
        final Function<String, String> on = value -> value.endsWith("7") ? null : value.split(":")[0];
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept =
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("st").withKeySerde(TEXT).withValueSerde(TEXT);
        return name.equals("fk_inner") ? a.join(b, on, PLUS, TableJoined.as("fk"), kept)
            : a.leftJoin(b, on, PLUS, TableJoined.as("fk"), kept);
    }

    private static KStream<String, String> withGrace(final String name, final KStream<String, String> a,
                                                     final StreamsBuilder builder) {
        final KTable<String, String> b = builder.table("b", READ,
            Materialized.as(Stores.persistentVersionedKeyValueStore("tb", ms(400))));
        final Joined<String, String, String> joined = Joined.with(TEXT, TEXT, TEXT).withName("j")
            .withGracePeriod(ms(60));
        // A row without a key ends a left join of Kafka Streams with a NullPointerException.
        return name.equals("grace_inner") ? a.join(b, PLUS, joined)
            : a.filter((key, value) -> key != null).leftJoin(b, PLUS, joined);
    }

    private static TimeWindowedKStream<String, String> unlimited(final KStream<String, String> a) {
        return a.groupByKey(Grouped.with(TEXT, TEXT))
            .windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(3_000)));
    }

    private static String start(final Windowed<String> key, final Object value) {
        return key.key() + "@" + key.window().start();
    }

    private static Duration ms(final long milliseconds) {
        return Duration.ofMillis(milliseconds);
    }
}
