package stateline;

import java.time.Duration;
import java.util.function.Function;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Operators whose rows meet others, move to another key, or wait.
 *
 * <p><code>joined</code>, <code>joinedleft</code>, <code>joinedouter</code> events joined with others within 20 s ·
 * <code>foreignkey</code>, <code>foreignleft</code>, <code>customers</code> left joined with right by the end of its
 * values · <code>groupsum</code> the lengths of left's values by their end · <code>limited</code> changes of left, 5 s later.
 * Streams are written to topics of the prefix, <code>java-</code> and the name.
 */
final class MovedRows {
    private static final Serde<String> TEXT = Serdes.String();
    private static final Duration WAIT = Duration.ofSeconds(5);

    private MovedRows() { }

    static KStream<String, String> joined(String name, KStream<String, String> one, KStream<String, String> other) {
        JoinWindows near = JoinWindows.ofTimeDifferenceAndGrace(KeptStores.DIFFERENCE, KeptStores.GRACE);
        StreamJoined<String, String, String> with = StreamJoined.with(TEXT, TEXT, TEXT).withStoreName(name);
        return switch (name) {
            case "joinedleft" -> one.leftJoin(other, MovedRows::both, near, with);
            case "joinedouter" -> one.outerJoin(other, MovedRows::both, near, with);
            default -> one.join(other, MovedRows::both, near, with);
        };
    }

    static void byForeignKey(
            String name,
            KTable<String, String> left,
            KTable<String, String> right,
            Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept) {
        Function<String, String> on = value -> value.isEmpty() || value.endsWith("7") ? null : "key-" + end(value, 2);
        TableJoined<String, String> named = TableJoined.as(name);
        switch (name) {
            case "foreignleft" -> left.leftJoin(right, on, MovedRows::both, named, kept);
            case "customers" -> left.join(right, value -> "key-" + end(value, 8), MovedRows::both, named, kept);
            default -> left.join(right, on, MovedRows::both, named, kept);
        }
    }

    static void sum(String name, KTable<String, String> left) {
        left.groupBy((key, value) -> KeyValue.pair(end(value, 2), value), Grouped.with("for-sum", TEXT, TEXT))
                .aggregate(
                        () -> 0L,
                        (key, value, sum) -> sum + value.length(),
                        (key, value, sum) -> sum - value.length(),
                        Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(name)
                                .withKeySerde(TEXT)
                                .withValueSerde(Serdes.Long()));
    }

    static KStream<String, String> limited(KTable<String, String> table) {
        return table.suppress(Suppressed.untilTimeLimit(WAIT, Suppressed.BufferConfig.unbounded()).withName("limited"))
                .toStream();
    }

    private static String both(String one, String other) {
        return one + "|" + other;
    }

    private static String end(String text, int length) {
        return KeptStores.end(text, length);
    }
}
