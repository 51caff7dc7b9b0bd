package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.hex;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.internals.RocksDBVersionedStoreSegmentValueFormatter.SegmentValue;
import org.apache.kafka.streams.state.internals.RocksDBVersionedStoreSegmentValueFormatter.SegmentValue.SegmentSearchResult;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Intervals and numbers of segments, and the rows of versioned stores. */
final class SegmentVectors {
    private static final long[] RETENTIONS = {
        0, 1, 2_000, 5_999, 6_000, 59_999, 60_000, 60_001, 100_000, 119_999, 120_000, 120_001, 299_999, 300_000,
            300_001,
        600_000, 719_999, 720_000, 3_600_000, 3_600_001, 7_200_000, 86_400_000, 604_800_000,
    };

    private SegmentVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        sections.put("segment_intervals", intervals());
        sections.put("segment_ids", ids());
        sections.put("latest_values", latestValues());
        sections.put("versioned_rows", versionedRows());
    }

    private static List<?> intervals() {
        final List<Object> vectors = new ArrayList<>();
        for (final long retention : RETENTIONS) {
            final Duration kept = Duration.ofMillis(retention);
            final var versioned =
                (RocksDbVersionedKeyValueBytesStoreSupplier) Stores.persistentVersionedKeyValueStore("s", kept);
            vectors.add(vector(
                "retention", retention,
                "window", Stores.persistentWindowStore("s", kept, Duration.ofMillis(retention), false)
                .segmentIntervalMs(),
                "session", Stores.persistentSessionStore("s", kept).segmentIntervalMs(),
                "versioned", versioned.segmentIntervalMs()
            ));
        }
        return vectors;
    }

    private static List<?> ids() {
        final List<Object> vectors = new ArrayList<>();
        for (final long interval : new long[] {60_000, 300_000, 43_200_000}) {
            final KeyValueSegments segments = new KeyValueSegments("s", "scope", 2 * interval, interval);
            for (final long time : new long[] {0, 1, interval - 1, interval, 10 * interval + 1, 1_795_259_814_382L,
                Long.MAX_VALUE}) {
                vectors.add(vector("interval", interval, "timestamp", time, "segment", segments.segmentId(time)));
            }
        }
        return vectors;
    }

    private static List<?> latestValues() {
        final List<Object> vectors = new ArrayList<>();
        for (final String value : new String[] {"", "00", "76616c7565"}) {
            for (final long time : new long[] {0, 1, 1_795_259_814_382L, Long.MAX_VALUE}) {
                final byte[] row = RocksDBVersionedStore.LatestValueFormatter.from(bytes(value), time);
                vectors.add(vector("value", value, "timestamp", time, "bytes", row));
            }
        }
        return vectors;
    }

    private static List<?> versionedRows() {
        return List.of(
            new Row("one version").begin("76", 10, 20).vectors(),
            new Row("empty value").begin("", 0, Long.MAX_VALUE).vectors(),
            new Row("tombstone").begin(null, 10, 20).vectors(),
            new Row("latest, adjacent").begin("76", 10, 20).latest("7777", 20, 30).latest("", 30, 31).vectors(),
            new Row("latest, a gap").begin("76", 10, 20).latest("7777", 25, 30).vectors(),
            new Row("latest, tombstone").begin("76", 10, 20).latest(null, 20, 30).vectors(),
            new Row("latest, cut back").begin("76", 10, 20).latest("77", 20, 30).latest("78", 25, 40).vectors(),
            new Row("latest, cut back to nothing").begin("76", 10, 20).latest("77", 10, 40).vectors(),
            new Row("earliest").begin("76", 10, 20).earliest("7575", 5).earliest(null, 2).earliest("", 1).vectors(),
            new Row("between").begin("76", 10, 20).latest("78", 20, 30).insert("777777", 15, 1).insert(null, 25, 0)
                .vectors(),
            new Row("overwritten").begin("76", 10, 20).latest("78", 20, 30).update("797979", 20, 0).update(null, 10, 1)
                .update("", 10, 1).vectors(),
            new Row("overwritten, moved").begin("76", 10, 20).update("77", 12, 0).vectors(),
            new Row("degenerate").begin(null, 10, 10).vectors(),
            new Row("degenerate, latest adjacent").begin(null, 10, 10).latest("76", 10, 20).vectors(),
            new Row("degenerate, latest with a gap").begin(null, 10, 10).latest("76", 15, 20).vectors(),
            new Row("degenerate, earliest").begin(null, 10, 10).earliest("76", 5).vectors(),
            new Row("real times").begin("6f6c64", 1_795_259_800_000L, 1_795_259_814_382L)
                .latest("6e6577", 1_795_259_814_382L, 1_795_259_900_000L).vectors()
        );
    }

    /** One row of a versioned store's segment, and its bytes after each step. */
    private static final class Row {
        private final String name;
        private final List<Object> steps = new ArrayList<>();
        private SegmentValue row;

        private Row(final String name) {
            this.name = name;
        }

        private Row begin(final String value, final long from, final long to) {
            row = RocksDBVersionedStoreSegmentValueFormatter.newSegmentValueWithRecord(bytes(value), from, to);
            return done("begin", value, from, to, null);
        }

        private Row latest(final String value, final long from, final long to) {
            row.insertAsLatest(from, to, bytes(value));
            return done("latest", value, from, to, null);
        }

        private Row earliest(final String value, final long from) {
            row.insertAsEarliest(from, bytes(value));
            return done("earliest", value, from, null, null);
        }

        private Row insert(final String value, final long from, final int index) {
            unpackAll();
            row.insert(from, bytes(value), index);
            return done("insert", value, from, null, index);
        }

        private Row update(final String value, final long from, final int index) {
            unpackAll();
            row.updateRecord(from, bytes(value), index);
            return done("update", value, from, null, index);
        }

        private void unpackAll() {
            row.find(RocksDBVersionedStoreSegmentValueFormatter.minTimestamp(row.serialize()), false);
        }

        private Row done(final String step, final String value, final long from, final Long to, final Integer index) {
            final byte[] bytes = row.serialize();
            steps.add(vector(
                "step", step, "value", value, "from", from, "to", to, "index", index, "bytes", bytes.clone(),
                "next", RocksDBVersionedStoreSegmentValueFormatter.nextTimestamp(bytes),
                "min", RocksDBVersionedStoreSegmentValueFormatter.minTimestamp(bytes),
                "versions", versions(bytes)
            ));
            return this;
        }

        /** What a reader finds, newest first: one by one, as a query that asks for each moment would. */
        private static List<?> versions(final byte[] bytes) {
            final List<Object> found = new ArrayList<>();
            final long min = RocksDBVersionedStoreSegmentValueFormatter.minTimestamp(bytes);
            long end = RocksDBVersionedStoreSegmentValueFormatter.nextTimestamp(bytes);
            while (end > min) {
                final SegmentSearchResult result = RocksDBVersionedStoreSegmentValueFormatter.deserialize(bytes)
                    .find(end - 1, true);
                found.add(vector("from", result.validFrom(), "to", result.validTo(), "value", hex(result.value())));
                end = result.validFrom();
            }
            return found;
        }

        private Object vectors() {
            return vector("name", name, "steps", steps);
        }
    }
}
