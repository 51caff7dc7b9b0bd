package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.kstream.SessionWindowedSerializer;
import org.apache.kafka.streams.kstream.TimeWindowedSerializer;
import org.apache.kafka.streams.kstream.Window;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.kstream.internals.TimeWindow;
import org.apache.kafka.streams.kstream.internals.WindowedSerializer;
import org.apache.kafka.streams.kstream.internals.WindowedStreamPartitioner;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Keys of window and session stores, windowed keys in topics, and the partitions that keys go to. */
final class KeyVectors {
    private static final String[] KEYS = {
        "", "00", "ff", "00ff00", "ffffffffffffffffff", "6b6579", "d0bad0bbd18ed187", "0000000000000000000000000000",
        "6b65790000000000000000000000",
    };
    private static final long[] TIMES = {
        0, 1, -1, 60_000, 1_795_259_814_382L, 0x00ff00ff00ff00ffL, Long.MAX_VALUE, Long.MIN_VALUE,
    };
    private static final int[] SEQUENCES = {0, 1, 255, Integer.MAX_VALUE, -1};

    private KeyVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        sections.put("window_keys", windowKeys());
        sections.put("window_ends", windowEnds());
        sections.put("session_keys", sessionKeys());
        sections.put("topic_keys", topicKeys());
        sections.put("partitions", partitions());
        sections.put("windowed_partitions", windowedPartitions());
    }

    private static List<?> windowKeys() {
        final List<Object> vectors = new ArrayList<>();
        for (final String key : KEYS) {
            for (final long time : TIMES) {
                vectors.add(windowKey(key, time, 0));
            }
            for (final int sequence : SEQUENCES) {
                vectors.add(windowKey(key, 60_000, sequence));
            }
        }
        return vectors;
    }

    private static Object windowKey(final String key, final long start, final int sequence) {
        final Bytes binary = WindowKeySchema.toStoreKeyBinary(Bytes.wrap(bytes(key)), start, sequence);
        return vector("key", key, "start", start, "sequence", sequence, "bytes", binary.get());
    }

    private static List<?> windowEnds() {
        final List<Object> vectors = new ArrayList<>();
        for (final long start : new long[] {0, 60_000, Long.MAX_VALUE - 10_000}) {
            for (final long size : new long[] {1, 10_000, 60_000, Long.MAX_VALUE}) {
                vectors.add(vector("start", start, "size", size, "end", WindowKeySchema.timeWindowForSize(start, size)
                    .end()));
            }
        }
        return vectors;
    }

    private static List<?> sessionKeys() {
        final List<Object> vectors = new ArrayList<>();
        for (final String key : KEYS) {
            for (final long start : TIMES) {
                for (final long end : new long[] {start, start + 30_000}) {
                    final Bytes binary = SessionKeySchema.toBinary(Bytes.wrap(bytes(key)), start, end);
                    vectors.add(vector("key", key, "start", start, "end", end, "bytes", binary.get()));
                }
            }
        }
        return vectors;
    }

    private static List<?> topicKeys() {
        final List<Object> vectors = new ArrayList<>();
        for (final String key : KEYS) {
            for (final long start : new long[] {0, 60_000, 1_795_259_814_382L}) {
                vectors.add(topicKey("time", new TimeWindowedSerializer<>(new ByteArraySerializer()), key,
                    new TimeWindow(start, start + 10_000)));
                vectors.add(topicKey("session", new SessionWindowedSerializer<>(new ByteArraySerializer()), key,
                    new SessionWindow(start, start + 7)));
            }
        }
        return vectors;
    }

    private static Object topicKey(
        final String kind, final WindowedSerializer<byte[]> serializer, final String key, final Window window
    ) {
        final byte[] binary = serializer.serialize("topic", new Windowed<>(bytes(key), window));
        return vector("kind", kind, "key", key, "start", window.start(), "end", window.end(), "bytes", binary);
    }

    private static List<?> partitions() {
        final List<Object> vectors = new ArrayList<>();
        for (int length = 0; length < 40; length++) {
            final byte[] key = new byte[length];
            for (int i = 0; i < length; i++) {
                key[i] = (byte) (37 * i + 101 * length);
            }
            for (final int count : new int[] {1, 2, 3, 12, 64, 1000}) {
                vectors.add(vector("key", key, "murmur2", Utils.murmur2(key), "partitions", count, "partition",
                    BuiltInPartitioner.partitionForKey(key, count)));
            }
        }
        return vectors;
    }

    private static List<?> windowedPartitions() {
        final List<Object> vectors = new ArrayList<>();
        final WindowedStreamPartitioner<byte[], byte[]> partitioner =
            new WindowedStreamPartitioner<>(new TimeWindowedSerializer<>(new ByteArraySerializer()));
        for (final String key : KEYS) {
            final Windowed<byte[]> windowed = new Windowed<>(bytes(key), new TimeWindow(60_000, 120_000));
            final int partition = partitioner.partitions("topic", windowed, new byte[0], new RecordHeaders(), 12)
                .orElseThrow().iterator().next();
            vectors.add(vector("key", key, "partitions", 12, "partition", partition));
        }
        return vectors;
    }
}
