package stateline;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedRecord;

/**
 * The rows of stores, as they can be queried: what their retention has dropped is not among them.
 *
 * <p>A line is <code>PARTITION KEY TIMESTAMP VALUE VALID_TO HEADERS</code>: key and value in hex, <code>-</code> for what
 * the store does not have. Headers begin with <code>+</code>, then <code>NAME:VALUE,</code> for each, in hex, the value
 * <code>-</code> for null. The key of a window is <code>key ‖ start ‖ 0</code>, of a session <code>key ‖ end ‖ start</code>, as in a
 * changelog.
 */
final class StoreDump {
    /** How a store is asked. A store with duplicates is one of windows without timestamps. */
    enum Kind { KEY_VALUE, WINDOW, DUPLICATES, SESSION, VERSIONED }

    private static final HexFormat HEX = HexFormat.of();

    private final KafkaStreams streams;
    private final Map<String, Kind> kinds;
    private final int partitions;
    private final boolean headers;

    /** With <code>headers</code>, stores keep those of their records (<code>dsl.store.format=HEADERS</code>). */
    StoreDump(KafkaStreams streams, Map<String, Kind> kinds, int partitions, boolean headers) {
        this.streams = streams;
        this.kinds = kinds;
        this.partitions = partitions;
        this.headers = headers;
    }

    /** Every row of a store; of a versioned one the versions of these keys. */
    String rows(String store, List<String> keys) {
        Kind kind = kinds.get(store);
        if (kind == null) {
            throw new IllegalArgumentException("There is no store " + store + ".");
        }
        Lines lines = new Lines();
        for (int partition = 0; partition < partitions; partition++) {
            lines.partition = partition;
            boolean hasHeaders = headers ? !store.startsWith("plain") : store.startsWith("noted"); // of a supplier
            if (hasHeaders && HeaderRows.add(streams, store, kind, lines)) {
                continue;
            }
            switch (kind) {
                case KEY_VALUE -> keyValues(store, lines);
                case WINDOW -> windows(store, lines);
                case DUPLICATES -> duplicates(store, lines);
                case SESSION -> sessions(store, lines);
                case VERSIONED -> versions(store, keys, lines);
                default -> throw new IllegalStateException(kind.toString());
            }
        }
        return lines.text.toString();
    }

    private void keyValues(String store, Lines lines) {
        try (var rows = opened(store, lines, QueryableStoreTypes.<String, Object>timestampedKeyValueStore()).all()) {
            rows.forEachRemaining(row -> lines.add(bytes(row.key), row.value));
        }
    }

    private void windows(String store, Lines lines) {
        try (var rows = opened(store, lines, QueryableStoreTypes.<String, Object>timestampedWindowStore()).all()) {
            rows.forEachRemaining(row -> lines.add(windowKey(row.key), row.value));
        }
    }

    private void duplicates(String store, Lines lines) {
        try (var rows = opened(store, lines, QueryableStoreTypes.<String, Object>windowStore()).all()) {
            rows.forEachRemaining(row -> lines.add(windowKey(row.key), -1, row.value, -1, "-"));
        }
    }

    private void sessions(String store, Lines lines) {
        try (var rows = opened(store, lines, QueryableStoreTypes.<String, Object>sessionStore()).fetch(null, null)) {
            rows.forEachRemaining(row -> lines.add(sessionKey(row.key), -1, row.value, -1, "-"));
        }
    }

    static byte[] sessionKey(Windowed<String> session) {
        byte[] key = bytes(session.key());
        ByteBuffer data = ByteBuffer.allocate(key.length + 16).put(key);
        return data.putLong(session.window().end()).putLong(session.window().start()).array();
    }

    private void versions(String store, List<String> keys, Lines lines) {
        for (String key : keys) {
            var asked = StateQueryRequest.inStore(store)
                    .withQuery(MultiVersionedKeyQuery.<String, Object>withKey(key))
                    .withPartitions(Set.of(lines.partition));
            var found = streams.query(asked).getPartitionResults().get(lines.partition);
            if (found.isFailure()) {
                throw new IllegalStateException(found.getFailureMessage());
            }
            try (var versions = found.getResult()) {
                while (versions.hasNext()) {
                    VersionedRecord<Object> each = versions.next();
                    lines.add(bytes(key), each.timestamp(), each.value(), each.validTo().orElse(-1L), "-");
                }
            }
        }
    }

    private <T> T opened(String store, Lines lines, QueryableStoreType<T> type) {
        return streams.store(StoreQueryParameters.fromNameAndType(store, type).withPartition(lines.partition));
    }

    static byte[] windowKey(Windowed<String> window) {
        byte[] key = bytes(window.key());
        return ByteBuffer.allocate(key.length + 12).put(key).putLong(window.window().start()).putInt(0).array();
    }

    /** What the serializer of longs or of strings makes of it. */
    static byte[] bytes(Object value) {
        return value instanceof Long number
                ? ByteBuffer.allocate(8).putLong(number).array()
                : ((String) value).getBytes(StandardCharsets.UTF_8);
    }

    static final class Lines {
        private final StringBuilder text = new StringBuilder();
        int partition;

        private void add(byte[] key, ValueAndTimestamp<Object> row) {
            add(key, row.timestamp(), row.value(), -1, "-");
        }

        void add(byte[] key, long timestamp, Object value, long validTo, String headers) {
            text.append(partition).append(' ').append(HEX.formatHex(key)).append(' ');
            text.append(timestamp < 0 ? "-" : timestamp).append(' ').append(HEX.formatHex(bytes(value))).append(' ');
            text.append(validTo < 0 ? "-" : validTo).append(' ').append(headers).append('\n');
        }
    }
}
