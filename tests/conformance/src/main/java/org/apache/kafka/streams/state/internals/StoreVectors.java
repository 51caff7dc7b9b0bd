package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.TimestampedWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** One history per kind of store: what each put leaves in the changelog and in RocksDB. */
final class StoreVectors {
    static final Serde<byte[]> BYTES = Serdes.ByteArray();
    private static final long REAL = 1_795_259_814_382L;
    static final Duration RETENTION = Duration.ofMillis(600_000);
    static final Duration WINDOW = Duration.ofMillis(60_000);
    private static final Duration HISTORY = Duration.ofMillis(60_000);

    private StoreVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        sections.put("stores", List.of(
            keyValue("key_value", true), keyValue("key_value, no headers", false), timestamped(),
            window("window", false, windowCalls(null)),
            window("window, duplicates", true, withoutDeletes(windowCalls(null))),
            window("window, duplicates, deletes", true, windowCalls(null)),
            timestampedWindow(), session(), versioned(), deletedWithItsTimestamp(),
            HeaderVectors.keyValue(timestampedCalls()), HeaderVectors.window(windowCalls(REAL)),
            HeaderVectors.session(sessionCalls())
        ));
    }

    /** One call of a store's method. What it does not need is null. */
    record Call(String method, String key, String value, Long timestamp, Long start, Long end, Headers headers) {
        Call(final String method, final String key, final String value, final Long timestamp, final Long start,
            final Long end) {
            this(method, key, value, timestamp, start, end, null);
        }

        Call with(final Headers with) {
            return new Call(method, key, value, timestamp, start, end, with);
        }

        Object asVector() {
            final Map<String, Object> vector = vector("method", method, "key", key, "value", value, "timestamp",
                timestamp, "start", start, "end", end);
            if (headers != null) {
                vector.put("headers", StoreHistory.pairs(headers));
            }
            return vector;
        }
    }

    private static Object keyValue(final String name, final boolean withPositions) {
        final List<Call> calls = new ArrayList<>();
        for (final String key : new String[] {"", "00", "ff00ff", "6b6579"}) {
            calls.add(new Call("put", key, "6f6e65", null, null, null));
        }
        calls.add(new Call("put", "6b6579", "", null, null, null));
        calls.add(new Call("put", "00", null, null, null, null));
        calls.add(new Call("put_if_absent", "6b6579", "74776f", null, null, null));
        calls.add(new Call("put_if_absent", "00", "74776f", null, null, null));
        calls.add(new Call("delete", "ff00ff", null, null, null, null));
        calls.add(new Call("delete", "6e6f6e65", null, null, null, null));
        final StoreBuilder<?> builder = Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("s"), BYTES, BYTES);
        return new StoreHistory(name, builder, withPositions).run(vector("kind", "key_value", "timestamped", false),
            calls, StoreVectors::onKeyValue);
    }

    @SuppressWarnings("unchecked")
    private static void onKeyValue(final StateStore store, final Call call) {
        final KeyValueStore<byte[], byte[]> keyValue = (KeyValueStore<byte[], byte[]>) store;
        switch (call.method()) {
            case "put" -> keyValue.put(bytes(call.key()), bytes(call.value()));
            case "put_if_absent" -> keyValue.putIfAbsent(bytes(call.key()), bytes(call.value()));
            default -> keyValue.delete(bytes(call.key()));
        }
    }

    private static List<Call> timestampedCalls() {
        final List<Call> calls = new ArrayList<>();
        for (final String key : new String[] {"", "00", "ff00ff", "6b6579"}) {
            calls.add(new Call("put", key, "6f6e65", REAL, null, null));
        }
        calls.add(new Call("put", "6b6579", "", REAL - 5, null, null));
        calls.add(new Call("put", "6b6579", "00", 0L, null, null));
        calls.add(new Call("put", "00", null, REAL + 1, null, null));
        calls.add(new Call("put_if_absent", "6b6579", "74776f", REAL + 2, null, null));
        calls.add(new Call("put_if_absent", "00", "74776f", REAL + 3, null, null));
        calls.add(new Call("delete", "ff00ff", null, null, null, null));
        return calls;
    }

    private static Object timestamped() {
        final StoreBuilder<?> builder =
            Stores.timestampedKeyValueStoreBuilder(Stores.persistentTimestampedKeyValueStore("s"), BYTES, BYTES);
        return new StoreHistory("timestamped key_value", builder, true)
            .run(vector("kind", "key_value", "timestamped", true), timestampedCalls(), StoreVectors::onTimestamped);
    }

    @SuppressWarnings("unchecked")
    private static void onTimestamped(final StateStore store, final Call call) {
        final TimestampedKeyValueStore<byte[], byte[]> keyValue = (TimestampedKeyValueStore<byte[], byte[]>) store;
        switch (call.method()) {
            case "put" -> keyValue.put(bytes(call.key()), timestampedValue(call));
            case "put_if_absent" -> keyValue.putIfAbsent(bytes(call.key()), timestampedValue(call));
            default -> keyValue.delete(bytes(call.key()));
        }
    }

    private static ValueAndTimestamp<byte[]> timestampedValue(final Call call) {
        return call.value() == null ? null : ValueAndTimestamp.make(bytes(call.value()), call.timestamp());
    }

    /** Calls whose window or session begins or ends where a segment does; the last ones come after others expired. */
    private static List<Call> windowCalls(final Long timestamp) {
        final List<Call> calls = new ArrayList<>();
        for (final String key : new String[] {"", "00", "ff00ff", "6b6579"}) {
            calls.add(new Call("put", key, "6f6e65", timestamp, 0L, null));
        }
        for (final long start : new long[] {60_000, 299_999, 300_000, 300_000}) {
            calls.add(new Call("put", "6b6579", "74776f", timestamp, start, null));
        }
        calls.add(new Call("put", "6b65790000000000000000000000", "", timestamp, 60_000L, null));
        calls.add(new Call("put", "6b6579", null, timestamp, 60_000L, null));
        calls.add(new Call("put", "6b6579", null, timestamp, 120_000L, null));
        calls.add(new Call("put", "6b6579", "74776f", timestamp, 1_000_000L, null));
        calls.add(new Call("put", "6b6579", "6c617465", timestamp, 310_000L, null));
        calls.add(new Call("put", "6b6579", "65787069726564", timestamp, 299_999L, null));
        calls.add(new Call("put", "ff00ff", "6e6577", timestamp, REAL, null));
        return calls;
    }

    private static List<Call> withoutDeletes(final List<Call> calls) {
        return calls.stream().filter(call -> call.value() != null).toList();
    }

    private static Object window(final String name, final boolean duplicates, final List<Call> calls) {
        final StoreBuilder<?> builder = Stores.windowStoreBuilder(Stores.persistentWindowStore("s", RETENTION, WINDOW,
            duplicates), BYTES, BYTES);
        return new StoreHistory(name, builder, true).run(windowOptions(false, duplicates), calls,
            StoreVectors::onWindow);
    }

    static Map<String, Object> windowOptions(final boolean timestamped, final boolean duplicates) {
        return vector(
            "kind", "window", "timestamped", timestamped, "retain_duplicates", duplicates,
            "retention_ms", RETENTION.toMillis(), "window_size_ms", WINDOW.toMillis()
        );
    }

    @SuppressWarnings("unchecked")
    private static void onWindow(final StateStore store, final Call call) {
        ((WindowStore<byte[], byte[]>) store).put(bytes(call.key()), bytes(call.value()), call.start());
    }

    private static Object timestampedWindow() {
        final StoreBuilder<?> builder =
            Stores.timestampedWindowStoreBuilder(Stores.persistentTimestampedWindowStore("s", RETENTION, WINDOW,
            false), BYTES, BYTES);
        return new StoreHistory("timestamped window", builder, true).run(windowOptions(true, false), windowCalls(REAL),
            StoreVectors::onTimestampedWindow);
    }

    @SuppressWarnings("unchecked")
    private static void onTimestampedWindow(final StateStore store, final Call call) {
        ((TimestampedWindowStore<byte[], byte[]>) store).put(bytes(call.key()), timestampedValue(call), call.start());
    }

    private static List<Call> sessionCalls() {
        final List<Call> calls = new ArrayList<>();
        for (final String key : new String[] {"", "00", "ff00ff", "6b6579"}) {
            calls.add(new Call("put", key, "6f6e65", null, 0L, 0L));
        }
        calls.add(new Call("put", "6b6579", "74776f", null, 250_000L, 299_999L));
        calls.add(new Call("put", "6b6579", "74776f", null, 250_000L, 300_000L));
        calls.add(new Call("remove", "6b6579", null, null, 250_000L, 299_999L));
        calls.add(new Call("put", "00", null, null, 0L, 0L));
        calls.add(new Call("remove", "6e6f6e65", null, null, 10L, 20L));
        calls.add(new Call("put", "6b65790000000000000000000000", "", null, 5L, 310_000L));
        calls.add(new Call("put", "6b6579", "74776f", null, 900_000L, 1_000_000L));
        calls.add(new Call("put", "6b6579", "6c617465", null, 100L, 310_000L));
        calls.add(new Call("put", "6b6579", "65787069726564", null, 100L, 299_999L));
        calls.add(new Call("put", "ff00ff", "6e6577", null, REAL - 1000, REAL));
        return calls;
    }

    private static Object session() {
        final StoreBuilder<?> builder = Stores.sessionStoreBuilder(Stores.persistentSessionStore("s", RETENTION),
            BYTES, BYTES);
        final Map<String, Object> options = vector("kind", "session", "timestamped", false, "retention_ms",
            RETENTION.toMillis());
        return new StoreHistory("session", builder, true).run(options, sessionCalls(), StoreVectors::onSession);
    }

    @SuppressWarnings("unchecked")
    private static void onSession(final StateStore store, final Call call) {
        final SessionStore<byte[], byte[]> session = (SessionStore<byte[], byte[]>) store;
        final Windowed<byte[]> key = new Windowed<>(bytes(call.key()), new SessionWindow(call.start(), call.end()));
        if (call.method().equals("put")) {
            session.put(key, bytes(call.value()));
        } else {
            session.remove(key);
        }
    }

    private static Object versioned() {
        final List<Call> calls = new ArrayList<>();
        version(calls, "6b", "7631", 10_000);
        version(calls, "6b", "7632", 15_000);
        version(calls, "6b", "763262", 15_000);  // in place of the latest
        version(calls, "6b", "7630", 12_000);  // between two
        version(calls, "6b", "", 12_000);
        version(calls, "6b", null, 22_000);  // a tombstone as the latest
        version(calls, "6b", "7633", 25_000);
        version(calls, "6b", "7634", 70_000);
        version(calls, "6b", null, 18_000);  // a tombstone out of order
        version(calls, "6b", "31", 45_000);
        version(calls, "6b", "32", 33_000);
        version(calls, "6b", "6c617465", 9_999);  // expired
        version(calls, "6b", "6f6c64657374", 10_000);
        version(calls, "", "656d707479", 70_001);
        version(calls, "", "", 65_000);
        version(calls, "00ff", null, 50_000);  // a tombstone as the first of its key
        version(calls, "00ff", "78", 45_000);
        version(calls, "00ff", "79", 62_000);
        version(calls, "00ff", null, 61_000);
        calls.add(new Call("delete", "6b", null, 80_000L, null, null));
        calls.add(new Call("delete", "6b", null, 75_000L, null, null));
        version(calls, "ff", "7a", 100_000);
        version(calls, "ff", "7a31", 135_000);
        version(calls, "6b", "61667465722065787069727973", 130_000);
        version(calls, "00ff", "6f6c64", 76_000);
        version(calls, "6b", "7265616c", REAL);
        version(calls, "6b", "6c61746572", REAL + 1);
        return versionedHistory("versioned", calls);
    }

    /** Kafka Streams forgets this delete: an older version that comes after it is the latest again. */
    private static Object deletedWithItsTimestamp() {
        final List<Call> calls = new ArrayList<>();
        version(calls, "6b", "76", 50_000);
        version(calls, "6b", null, 50_000);
        version(calls, "6b", "6f6c64", 40_000);
        return versionedHistory("versioned, deleted with its timestamp", calls);
    }

    private static Object versionedHistory(final String name, final List<Call> calls) {
        final var supplier = Stores.persistentVersionedKeyValueStore("s", HISTORY);
        final StoreBuilder<?> builder = Stores.versionedKeyValueStoreBuilder(supplier, BYTES, BYTES);
        final Map<String, Object> options = vector("kind", "versioned", "timestamped", false, "history_retention_ms",
            HISTORY.toMillis());
        return new StoreHistory(name, builder, true).run(options, calls, StoreVectors::onVersioned);
    }

    private static void version(final List<Call> calls, final String key, final String value, final long timestamp) {
        calls.add(new Call("put", key, value, timestamp, null, null));
    }

    @SuppressWarnings("unchecked")
    private static void onVersioned(final StateStore store, final Call call) {
        final VersionedKeyValueStore<byte[], byte[]> versioned = (VersionedKeyValueStore<byte[], byte[]>) store;
        if (call.method().equals("put")) {
            versioned.put(bytes(call.key()), bytes(call.value()), call.timestamp());
        } else {
            versioned.delete(bytes(call.key()), call.timestamp());
        }
    }
}
