package stateline;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ValueTimestampHeaders;

/** The rows of stores with headers (KIP-1271). A class of its own, because Kafka Streams before 4.4 has none of this. */
final class HeaderRows {
    private static final HexFormat HEX = HexFormat.of();

    private HeaderRows() { }

    /** Adds the rows of a partition; false for a kind of store that has no headers. */
    static boolean add(KafkaStreams streams, String store, StoreDump.Kind kind, StoreDump.Lines lines) {
        switch (kind) {
            case KEY_VALUE -> {
                var type = QueryableStoreTypes.<String, Object>timestampedKeyValueStoreWithHeaders();
                try (var rows = opened(streams, store, lines.partition, type).all()) {
                    rows.forEachRemaining(row -> add(lines, StoreDump.bytes(row.key), row.value));
                }
            }
            case WINDOW -> {
                var type = QueryableStoreTypes.<String, Object>timestampedWindowStoreWithHeaders();
                try (var rows = opened(streams, store, lines.partition, type).all()) {
                    rows.forEachRemaining(row -> add(lines, StoreDump.windowKey(row.key), row.value));
                }
            }
            case SESSION -> {
                var type = QueryableStoreTypes.<String, Object>sessionStoreWithHeaders();
                try (var rows = opened(streams, store, lines.partition, type).fetch(null, null)) {
                    rows.forEachRemaining(row -> lines.add(
                            StoreDump.sessionKey(row.key), -1, row.value.aggregation(), -1, text(row.value.headers())));
                }
            }
            default -> {
                return false;
            }
        }
        return true;
    }

    private static <T> T opened(KafkaStreams streams, String store, int partition, QueryableStoreType<T> type) {
        return streams.store(StoreQueryParameters.fromNameAndType(store, type).withPartition(partition));
    }

    private static void add(StoreDump.Lines lines, byte[] key, ValueTimestampHeaders<Object> row) {
        lines.add(key, row.timestamp(), row.value(), -1, text(row.headers()));
    }

    private static String text(Headers headers) {
        StringBuilder text = new StringBuilder("+");
        for (Header header : headers) {
            text.append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8))).append(':');
            text.append(header.value() == null ? "-" : HEX.formatHex(header.value())).append(',');
        }
        return text.toString();
    }
}
