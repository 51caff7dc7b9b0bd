package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.hex;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.test.TestRecord;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.BiConsumer;

/** A topology of one logged store: each input record makes one call, and everything that this call leaves is kept. */
final class StoreHistory {
    private static final String CHANGELOG = "app-s-changelog";
    private static final long RECORD_TIME = 1_700_000_000_000L;

    private final String name;
    private final StoreBuilder<?> builder;
    private final boolean withPositions;
    private StoreVectors.Call next;

    StoreHistory(final String name, final StoreBuilder<?> builder, final boolean withPositions) {
        this.name = name;
        this.builder = builder.withCachingDisabled().withLoggingEnabled(Map.of());
        this.withPositions = withPositions;
    }

    Object run(final Map<String, Object> options, final List<StoreVectors.Call> calls, final BiConsumer<StateStore,
        StoreVectors.Call> caller) {
        final Path folder = temporaryFolder();
        final List<Object> steps = new ArrayList<>();
        try (TopologyTestDriver driver = new TopologyTestDriver(topology(caller), settings(folder))) {
            final var input = driver.createInputTopic("input", new ByteArraySerializer(), new ByteArraySerializer());
            for (final StoreVectors.Call call : calls) {
                next = call;
                final Headers headers = new RecordHeaders();
                if (call.headers() != null) { // those of the record differ from those of the value
                    headers.add("record", new byte[] {(byte) steps.size()});
                }
                input.pipeInput(new TestRecord<>(new byte[0], new byte[0], headers, RECORD_TIME + steps.size()));
                steps.add(vector("call", call.asVector(), "records", records(driver), "rows",
                    rows(driver.getAllStateStores().get("s"))));
            }
        } finally {
            delete(folder);
        }
        final Map<String, Object> history = new LinkedHashMap<>();
        history.put("name", name);
        history.putAll(options);
        history.put("record_time", RECORD_TIME);
        history.put("with_positions", withPositions);
        history.put("steps", steps);
        return history;
    }

    private Topology topology(final BiConsumer<StateStore, StoreVectors.Call> caller) {
        final Topology topology = new Topology();
        topology.addSource("source", "input");
        topology.addProcessor("caller", () -> new Processor<Object, Object, Void, Void>() {
            private StateStore store;

            @Override
            public void init(final ProcessorContext<Void, Void> context) {
                store = context.getStateStore("s");
            }

            @Override
            public void process(final Record<Object, Object> record) {
                caller.accept(store, next);
            }
        }, "source");
        topology.addStateStore(builder, "caller");
        return topology;
    }

    private static Path temporaryFolder() {
        try {
            return Files.createTempDirectory("golden-vectors");
        } catch (final IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void delete(final Path folder) {
        try {
            Utils.delete(folder.toFile());
        } catch (final IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private Properties settings(final Path folder) {
        final Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:9092");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG,
            "org.apache.kafka.common.serialization.Serdes$ByteArraySerde");
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG,
            "org.apache.kafka.common.serialization.Serdes$ByteArraySerde");
        settings.put(StreamsConfig.InternalConfig.IQ_CONSISTENCY_OFFSET_VECTOR_ENABLED, withPositions);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder.toString());
        settings.put("enable.transactional.statestores", Boolean.getBoolean("transactional"));
        return settings;
    }

    private static List<?> records(final TopologyTestDriver driver) {
        final List<Object> records = new ArrayList<>();
        if (driver.producedTopicNames().contains(CHANGELOG)) {
            final var output = driver.createOutputTopic(CHANGELOG, new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
            for (final TestRecord<byte[], byte[]> record : output.readRecordsToList()) {
                records.add(vector("key", record.key(), "value", record.value(), "timestamp", record.timestamp(),
                    "headers", pairs(record.headers())));
            }
        }
        return records;
    }

    static List<Object> pairs(final Headers headers) {
        final List<Object> pairs = new ArrayList<>();
        for (final Header header : headers) {
            pairs.add(Arrays.asList(header.key(), header.value() == null ? null : hex(header.value())));
        }
        return pairs;
    }

    /** Every row as RocksDB holds it: segment (null without), key behind the segment, value. */
    private static List<?> rows(final StateStore outer) {
        StateStore store = outer;
        while (store instanceof WrappedStateStore<?, ?, ?> wrapper) {
            store = wrapper.wrapped();
        }
        final List<Object> rows = new ArrayList<>();
        if (store instanceof VersionedKeyValueToBytesStoreAdapter versioned) {
            final Object segments = field(versioned.inner, RocksDBVersionedStore.class, "segmentStores");
            final var database = (RocksDBStore) field(segments, LogicalKeyValueSegments.class, "physicalStore");
            addRows(rows, null, database.all(new HashSet<>()), true);
        } else if (store instanceof AbstractRocksDBSegmentedBytesStore<?> segmented) {
            for (final Segment segment : segmented.getSegments()) {
                addRows(rows, segment.id(), ((RocksDBStore) segment).all(), false);
            }
        } else {
            addRows(rows, null, ((RocksDBStore) store).all(), false);
        }
        return rows;
    }

    private static void addRows(
        final List<Object> rows, final Long segment, final KeyValueIterator<Bytes, byte[]> opened,
            final boolean prefixed
    ) {
        try (KeyValueIterator<Bytes, byte[]> all = opened) {
            while (all.hasNext()) {
                final KeyValue<Bytes, byte[]> row = all.next();
                final ByteBuffer key = ByteBuffer.wrap(row.key.get());
                final Long id = prefixed ? Long.valueOf(key.getLong()) : segment;
                final byte[] rest = new byte[key.remaining()];
                key.get(rest);
                final List<Object> triple = new ArrayList<>();
                triple.add(id);
                triple.add(hex(rest));
                triple.add(hex(row.value));
                rows.add(triple);
            }
        }
    }

    private static Object field(final Object owner, final Class<?> type, final String name) {
        try {
            final Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(owner);
        } catch (final ReflectiveOperationException error) {
            throw new IllegalStateException("Kafka Streams has no " + name + " in " + type, error);
        }
    }
}
