package stateline;

import java.time.Duration;
import java.util.List;
import java.util.function.BiConsumer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.SessionStoreWithHeaders;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.TimestampedWindowStoreWithHeaders;
import org.apache.kafka.streams.state.ValueTimestampHeaders;

/**
 * Stores that a processor fills with values and the headers of their records (KIP-1271). A class of its own, because Kafka
 * Streams before 4.4 has none of this.
 *
 * <p><code>notedkey</code> events joined with left, after steps that headers pass, by another key ·
 * <code>notedwindow</code> events in windows of 60 s · <code>notedsession</code> events in sessions of 20 s from the start.
 * A value with 7 before its end or before the bar of the join is deleted.
 */
final class NotedStores {
    private static final Duration RETENTION = Duration.ofDays(1); // of all of the input: nothing expires
    private static final long LENGTH_MS = 20_000;

    private NotedStores() { }

    static StoreDump.Kind keep(
            String store, StreamsBuilder builder, KStream<String, String> events, KTable<String, String> left) {
        KStream<String, String> known = events.filter((key, value) -> key != null);
        switch (store) {
            case "notedkey" -> {
                builder.addStateStore(Stores.timestampedKeyValueStoreWithHeadersBuilder(
                        Stores.persistentTimestampedKeyValueStoreWithHeaders(store), Serdes.String(), Serdes.String()));
                var joined = Joined.with(Serdes.String(), Serdes.String(), Serdes.String());
                known.filter((key, value) -> value != null)
                        .leftJoin(left, (one, other) -> one + "|" + other, joined)
                        .flatMapValues(value -> List.of(value))
                        .peek((key, value) -> { })
                        .mapValues(value -> "<" + value)
                        .selectKey((key, value) -> key + "~")
                        .repartition(Repartitioned.with(Serdes.String(), Serdes.String()).withName("noted"))
                        .process(() -> new Noting<TimestampedKeyValueStoreWithHeaders<String, String>>(
                                store, NotedStores::note), store);
                return StoreDump.Kind.KEY_VALUE;
            }
            case "notedwindow" -> {
                builder.addStateStore(Stores.timestampedWindowStoreWithHeadersBuilder(
                        Stores.persistentTimestampedWindowStoreWithHeaders(store, RETENTION, KeptStores.SIZE, false),
                        Serdes.String(),
                        Serdes.String()));
                known.process(() -> new Noting<TimestampedWindowStoreWithHeaders<String, String>>(
                        store, NotedStores::noteWindow), store);
                return StoreDump.Kind.WINDOW;
            }
            default -> {
                builder.addStateStore(Stores.sessionStoreWithHeadersBuilder(
                        Stores.persistentSessionStoreWithHeaders(store, RETENTION), Serdes.String(), Serdes.String()));
                known.process(() -> new Noting<SessionStoreWithHeaders<String, String>>(
                        store, NotedStores::noteSession), store);
                return StoreDump.Kind.SESSION;
            }
        }
    }

    private static void note(TimestampedKeyValueStoreWithHeaders<String, String> store, Record<String, String> record) {
        store.put(record.key(), stamped(record));
    }

    private static void noteWindow(
            TimestampedWindowStoreWithHeaders<String, String> store, Record<String, String> record) {
        long at = record.timestamp();
        store.put(record.key(), stamped(record), at - at % KeptStores.SIZE.toMillis());
    }

    private static void noteSession(SessionStoreWithHeaders<String, String> store, Record<String, String> record) {
        long start = record.timestamp() - record.timestamp() % LENGTH_MS;
        store.put(
                new Windowed<>(record.key(), new SessionWindow(start, start + LENGTH_MS)),
                isGone(record) ? null : AggregationWithHeaders.make(record.value(), record.headers()));
    }

    private static ValueTimestampHeaders<String> stamped(Record<String, String> record) {
        return isGone(record)
                ? null
                : ValueTimestampHeaders.make(record.value(), record.timestamp(), record.headers());
    }

    private static boolean isGone(Record<String, String> record) {
        return record.value() == null || record.value().endsWith("7") || record.value().contains("7|");
    }

    private static final class Noting<S extends StateStore> extends ContextualProcessor<String, String, Void, Void> {
        private final String store;
        private final BiConsumer<S, Record<String, String>> put;

        Noting(String store, BiConsumer<S, Record<String, String>> put) {
            this.store = store;
            this.put = put;
        }

        @Override
        public void process(Record<String, String> record) {
            put.accept(context().getStateStore(store), record);
        }
    }
}
