package stateline;

import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.Query;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.query.TimestampedKeyQuery;
import org.apache.kafka.streams.query.TimestampedRangeQuery;
import org.apache.kafka.streams.query.WindowKeyQuery;
import org.apache.kafka.streams.query.WindowRangeQuery;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedRecordIterator;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * One interactive query (IQv2) at an isolation level of its own, of partition 0.
 *
 * <p>The first line of an answer is the Position as Kafka Streams prints it. Then a line for each entry:
 * <code>KEY START END TIMESTAMP VALUE</code>, <code>-</code> for what an entry does not have. Of a version START is its
 * time and END the end of its validity.
 */
final class StoreQuestion {
    private final KafkaStreams streams;

    StoreQuestion(KafkaStreams streams) {
        this.streams = streams;
    }

    /** Words: <code>KIND KEY [KEY|FROM TO]</code>, <code>-</code> for an open end. */
    String answer(String store, IsolationLevel level, String[] words) {
        StringBuilder lines = new StringBuilder();
        switch (words[0]) {
            case "key" -> ask(store, level, TimestampedKeyQuery.<String, Object>withKey(words[1]), lines, (found, out) -> {
                if (found != null) {
                    add(out, words[1], "-", "-", found.timestamp(), found.value());
                }
            });
            case "range" -> ask(
                    store,
                    level,
                    TimestampedRangeQuery.<String, Object>withRange(text(words[1]), text(words[2])),
                    lines,
                    StoreQuestion::addAll);
            case "windows" -> ask(
                    store,
                    level,
                    WindowKeyQuery.<String, ValueAndTimestamp<Object>>withKeyAndWindowStartRange(
                            words[1], instant(words[2]), instant(words[3])),
                    lines,
                    (found, out) -> addWindows(words[1], found, out));
            case "all_windows" -> ask(
                    store,
                    level,
                    WindowRangeQuery.<String, ValueAndTimestamp<Object>>withWindowStartRange(
                            instant(words[1]), instant(words[2])),
                    lines,
                    StoreQuestion::addAllWindows);
            case "sessions" -> ask(
                    store, level, WindowRangeQuery.<String, Object>withKey(words[1]), lines, StoreQuestion::addSessions);
            case "versions" -> ask(
                    store,
                    level,
                    MultiVersionedKeyQuery.<String, Object>withKey(words[1]),
                    lines,
                    (found, out) -> addVersions(words[1], found, out));
            default -> throw new IllegalArgumentException(Arrays.toString(words));
        }
        return lines.toString();
    }

    private <R> void ask(
            String store, IsolationLevel level, Query<R> query, StringBuilder lines, BiConsumer<R, StringBuilder> add) {
        StateQueryRequest<R> asked = StateQueryRequest.inStore(store)
                .withQuery(query)
                .withPartitions(Set.of(0))
                .withIsolationLevel(level);
        Map<Integer, QueryResult<R>> found = streams.query(asked).getPartitionResults();
        QueryResult<R> result = found.get(0);
        if (result == null || result.isFailure()) {
            throw new IllegalStateException(result == null ? "no result" : result.getFailureMessage());
        }
        lines.append(result.getPosition()).append('\n');
        R answer = result.getResult();
        add.accept(answer, lines);
        if (answer instanceof AutoCloseable open) {
            try {
                open.close();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static void addAll(KeyValueIterator<String, ValueAndTimestamp<Object>> found, StringBuilder out) {
        found.forEachRemaining(row -> add(out, row.key, "-", "-", row.value.timestamp(), row.value.value()));
    }

    private static void addWindows(
            String key, WindowStoreIterator<ValueAndTimestamp<Object>> found, StringBuilder out) {
        found.forEachRemaining(row -> add(out, key, row.key, "-", row.value.timestamp(), row.value.value()));
    }

    private static void addAllWindows(
            KeyValueIterator<Windowed<String>, ValueAndTimestamp<Object>> found, StringBuilder out) {
        found.forEachRemaining(row ->
                add(out, row.key.key(), row.key.window().start(), "-", row.value.timestamp(), row.value.value()));
    }

    private static void addSessions(KeyValueIterator<Windowed<String>, Object> found, StringBuilder out) {
        found.forEachRemaining(row -> add(
                out, row.key.key(), row.key.window().start(), row.key.window().end(), "-", row.value));
    }

    private static void addVersions(String key, VersionedRecordIterator<Object> found, StringBuilder out) {
        while (found.hasNext()) {
            var row = found.next();
            Object end = row.validTo().isPresent() ? row.validTo().get() : "-";
            add(out, key, row.timestamp(), end, "-", row.value());
        }
    }

    private static void add(StringBuilder out, Object... words) {
        for (int at = 0; at < words.length; at++) {
            out.append(at == 0 ? "" : "\t").append(words[at]);
        }
        out.append('\n');
    }

    private static String text(String word) {
        return word.equals("-") ? null : word;
    }

    private static Instant instant(String word) {
        return Instant.ofEpochMilli(Long.parseLong(word));
    }
}
