package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyDescription;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.Consumer;

/** The names that Kafka Streams generates: of stores, and of topics between subtopologies, without the application's. */
final class NameVectors {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Consumed<String, String> READ = Consumed.with(TEXT, TEXT);
    private static final Grouped<String, String> GROUPED = Grouped.with(TEXT, TEXT);
    private static final ValueJoiner<String, String, String> PLUS = (left, right) -> left + "+" + right;
    private static final JoinWindows WITHIN = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(40), Duration.ZERO);
    private static final StreamJoined<String, String, String> JOINED = StreamJoined.with(TEXT, TEXT, TEXT);

    private NameVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        final List<Object> found = new ArrayList<>();
        topologies().forEach((name, declare) -> {
            final StreamsBuilder builder = new StreamsBuilder();
            declare.accept(builder);
            found.add(named(name, builder.build().describe()));
        });
        sections.put("generated_names", found);
    }

    private static Map<String, Consumer<StreamsBuilder>> topologies() {
        final Map<String, Consumer<StreamsBuilder>> all = new LinkedHashMap<>();
        all.put("count", b -> a(b).groupByKey().count());
        all.put("regrouped_count", b -> a(b).filter((k, v) -> true).groupBy((k, v) -> v, GROUPED).count());
        all.put("windowed_reduce", b -> a(b).groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1))).reduce((x, y) -> y));
        all.put("sessions", b -> a(b).peek((k, v) -> { }).groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofMinutes(1))).count());
        all.put("repartition", b -> a(b).selectKey((k, v) -> v).repartition(Repartitioned.with(TEXT, TEXT)).to("out"));
        all.put("cogroup", b -> a(b).groupByKey().<String>cogroup((k, v, all_) -> v)
            .cogroup(b.stream("b", READ).groupByKey(), (k, v, all_) -> v).aggregate(() -> "", Materialized.with(TEXT, TEXT)));
        all.put("table_count", b -> table(b, "a").groupBy(KeyValue::pair, GROUPED).count());
        all.put("table_reduce", b -> table(b, "a").groupBy(KeyValue::pair, GROUPED).reduce((x, y) -> y, (x, y) -> x));
        all.put("inner_join", b -> a(b).join(b.stream("b", READ), PLUS, WITHIN, JOINED));
        all.put("left_join", b -> a(b).leftJoin(b.stream("b", READ), PLUS, WITHIN, JOINED));
        all.put("outer_join", b -> a(b).outerJoin(b.stream("b", READ), PLUS, WITHIN, JOINED));
        all.put("suppress", b -> table(b, "a").suppress(
            Suppressed.untilTimeLimit(Duration.ofMinutes(1), BufferConfig.unbounded())));
        all.put("foreign_key_join", b -> table(b, "a").join(table(b, "b"), v -> v, PLUS, Materialized.with(TEXT, TEXT)));
        all.put("foreign_key_left_join", b -> {
            a(b).filter((k, v) -> true).toTable(Materialized.as("a-kept"))
                .leftJoin(table(b, "b"), v -> v, PLUS, Materialized.with(TEXT, TEXT));
        });
        return all;
    }

    private static KStream<String, String> a(final StreamsBuilder builder) {
        return builder.stream("a", READ);
    }

    private static KTable<String, String> table(final StreamsBuilder builder, final String topic) {
        return builder.table(topic, READ, Materialized.as("t" + topic));
    }

    private static Map<String, Object> named(final String name, final TopologyDescription described) {
        final TreeSet<String> stores = new TreeSet<>();
        final TreeSet<String> topics = new TreeSet<>();
        for (final TopologyDescription.Subtopology part : described.subtopologies()) {
            for (final TopologyDescription.Node node : part.nodes()) {
                if (node instanceof TopologyDescription.Processor processor) {
                    stores.addAll(processor.stores());
                } else if (node instanceof TopologyDescription.Source source) {
                    topics.addAll(source.topicSet());
                }
            }
        }
        topics.removeAll(List.of("a", "b"));
        return vector("name", name, "stores", List.copyOf(stores), "topics", List.copyOf(topics));
    }
}
