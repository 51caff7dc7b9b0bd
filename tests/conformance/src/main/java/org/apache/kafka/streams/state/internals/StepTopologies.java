package org.apache.kafka.streams.state.internals;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.ValueJoinerWithKey;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.processor.ProcessorContext;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

import java.time.Duration;

/** Joiners that take the key, values of tables made with stores, and topics that the rows choose. */
final class StepTopologies {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Consumed<String, String> READ = Consumed.with(TEXT, TEXT);
    private static final Produced<String, String> WRITE = Produced.with(TEXT, TEXT);
    private static final ValueJoinerWithKey<String, String, String, String> PLUS =
        (key, left, right) -> key + "=" + left + "+" + right;

    private StepTopologies() { }

    static void keyed(final String name, final StreamsBuilder builder) {
        final KStream<String, String> a = builder.stream("a", READ);
        final KStream<String, String> made = switch (name) {
            case "keyed_table" -> a.leftJoin(builder.table("b", READ, Materialized.as("tb")), PLUS);
            case "keyed_global" -> a.leftJoin(builder.globalTable("b", READ, Materialized.as("tb")),
                (key, value) -> value == null ? null : value.substring(0, 2), PLUS);
            case "keyed_streams" -> a.join(builder.stream("b", READ), PLUS,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(40), Duration.ofMillis(30)),
                StreamJoined.with(TEXT, TEXT, TEXT).withStoreName("j"));
            default -> throw new IllegalArgumentException(name);
        };
        made.to("out", WRITE);
    }

    static KTable<String, String> transformed(final StreamsBuilder builder) {
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("seen"), TEXT, Serdes.Long()));
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept =
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("st").withKeySerde(TEXT).withValueSerde(TEXT);
        return builder.table("a", READ, Materialized.as("ta")).transformValues(Numbered::new, kept, "seen");
    }

    /** Rows at an even time go to `out`, others to `other`. */
    static void routed(final StreamsBuilder builder) {
        builder.stream("a", READ).to((key, value, context) -> context.timestamp() % 2 == 0 ? "out" : "other", WRITE);
    }

    private static final class Numbered implements ValueTransformerWithKey<String, String, String> {
        private KeyValueStore<String, Long> seen;

        @Override
        public void init(final ProcessorContext context) {
            seen = context.getStateStore("seen");
        }

        @Override
        public String transform(final String key, final String value) {
            final Long before = seen.get(key);
            final long number = before == null ? 1 : before + 1;
            seen.put(key, number);
            return number % 5 == 0 ? null : key + ":" + value + "#" + number;
        }

        @Override
        public void close() { }
    }
}
