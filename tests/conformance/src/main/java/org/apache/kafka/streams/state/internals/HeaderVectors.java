package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;
import static org.apache.kafka.streams.state.internals.StoreVectors.BYTES;
import static org.apache.kafka.streams.state.internals.StoreVectors.RETENTION;
import static org.apache.kafka.streams.state.internals.StoreVectors.WINDOW;

import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.SessionStoreWithHeaders;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.TimestampedWindowStoreWithHeaders;
import org.apache.kafka.streams.state.ValueTimestampHeaders;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The histories of stores with headers (KIP-1271): each call's value has headers, and its record has others. */
final class HeaderVectors {
    private HeaderVectors() { }

    static Object keyValue(final List<StoreVectors.Call> calls) {
        final var builder = Stores.timestampedKeyValueStoreWithHeadersBuilder(
            Stores.persistentTimestampedKeyValueStoreWithHeaders("s"), BYTES, BYTES);
        return new StoreHistory("key_value with headers", builder, true)
            .run(headers(vector("kind", "key_value", "timestamped", true)), with(calls), HeaderVectors::onKeyValue);
    }

    static Object window(final List<StoreVectors.Call> calls) {
        final var builder = Stores.timestampedWindowStoreWithHeadersBuilder(
            Stores.persistentTimestampedWindowStoreWithHeaders("s", RETENTION, WINDOW, false), BYTES, BYTES);
        return new StoreHistory("window with headers", builder, true)
            .run(headers(StoreVectors.windowOptions(true, false)), with(calls), HeaderVectors::onWindow);
    }

    static Object session(final List<StoreVectors.Call> calls) {
        final var builder = Stores.sessionStoreWithHeadersBuilder(
            Stores.persistentSessionStoreWithHeaders("s", RETENTION), BYTES, BYTES);
        final Map<String, Object> options = vector("kind", "session", "timestamped", false, "retention_ms",
            RETENTION.toMillis());
        return new StoreHistory("session with headers", builder, true)
            .run(headers(options), with(calls), HeaderVectors::onSession);
    }

    private static Map<String, Object> headers(final Map<String, Object> options) {
        options.put("headers", true);
        return options;
    }

    /** The calls with headers in turn: none, one, and several with a name twice, without a value, and named as those
     * of the Position are. */
    private static List<StoreVectors.Call> with(final List<StoreVectors.Call> calls) {
        final List<Headers> turns = List.of(
            new RecordHeaders(),
            new RecordHeaders().add("a", bytes("7879")),
            new RecordHeaders().add("a", null).add("\u00e9", bytes("00ff")).add("a", new byte[0]).add("v", bytes("00")),
            new RecordHeaders().add("v", bytes("00")).add("c", bytes("01"))
        );
        final List<StoreVectors.Call> all = new ArrayList<>();
        calls.forEach(call -> all.add(call.with(turns.get(all.size() % turns.size()))));
        return all;
    }

    @SuppressWarnings("unchecked")
    private static void onKeyValue(final StateStore store, final StoreVectors.Call call) {
        final var keyValue = (TimestampedKeyValueStoreWithHeaders<byte[], byte[]>) store;
        switch (call.method()) {
            case "put" -> keyValue.put(bytes(call.key()), value(call));
            case "put_if_absent" -> keyValue.putIfAbsent(bytes(call.key()), value(call));
            default -> keyValue.delete(bytes(call.key()));
        }
    }

    @SuppressWarnings("unchecked")
    private static void onWindow(final StateStore store, final StoreVectors.Call call) {
        ((TimestampedWindowStoreWithHeaders<byte[], byte[]>) store).put(bytes(call.key()), value(call), call.start());
    }

    @SuppressWarnings("unchecked")
    private static void onSession(final StateStore store, final StoreVectors.Call call) {
        final var session = (SessionStoreWithHeaders<byte[], byte[]>) store;
        final Windowed<byte[]> key = new Windowed<>(bytes(call.key()), new SessionWindow(call.start(), call.end()));
        if (call.method().equals("put")) {
            session.put(key, call.value() == null
                ? null : AggregationWithHeaders.make(bytes(call.value()), call.headers()));
        } else {
            session.remove(key);
        }
    }

    private static ValueTimestampHeaders<byte[]> value(final StoreVectors.Call call) {
        return call.value() == null
            ? null : ValueTimestampHeaders.make(bytes(call.value()), call.timestamp(), call.headers());
    }
}
