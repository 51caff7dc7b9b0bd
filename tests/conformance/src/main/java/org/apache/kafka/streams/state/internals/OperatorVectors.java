package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.test.TestRecord;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeSet;

/**
 * The same input through many topologies of the DSL, record by record, and all that each record leaves in topics:
 * results, changelogs, and topics between subtopologies. `operator_input` has the records; a history has, for the
 * number of a record, what it left.
 */
final class OperatorVectors {
    private static final int RECORDS = 300;
    private static final List<String> KEYS = List.of("k1", "k2", "k3", "k4");

    private record Input(String topic, String key, String value, long timestamp, String header) { }

    private OperatorVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        final List<Input> input = input();
        final List<Object> written = new ArrayList<>();
        for (final Input each : input) {
            written.add(vector("topic", each.topic, "key", each.key, "value", each.value, "timestamp", each.timestamp,
                "header", each.header));
        }
        sections.put("operator_input", written);
        final List<Object> histories = new ArrayList<>();
        for (final String name : OperatorTopologies.NAMES) {
            histories.add(vector("name", name, "left", left(name, input)));
        }
        sections.put("operators", histories);
    }

    /** Both topics in turn, out of order, late, doubled, without keys or values, in three groups. */
    private static List<Input> input() {
        final Random chance = new Random(40);
        final List<Input> input = new ArrayList<>();
        long time = 1_000;
        for (int n = 0; n < RECORDS; n++) {
            time += chance.nextInt(10) == 0 ? 60 + chance.nextInt(200) : chance.nextInt(20);
            final long at = chance.nextInt(5) == 0 ? Math.max(0, time - chance.nextInt(300)) : time;
            final String topic = chance.nextBoolean() ? "a" : "b";
            final String key = chance.nextInt(20) == 0 ? null : KEYS.get(chance.nextInt(KEYS.size()));
            final String value = chance.nextInt(8) == 0 ? null : "k" + (1 + chance.nextInt(3)) + ":" + n;
            input.add(new Input(topic, key, value, at, chance.nextInt(3) == 0 ? "h" + n : null));
        }
        return input;
    }

    private static Map<String, Object> left(final String name, final List<Input> input) {
        final Path folder = temporaryFolder();
        final Map<String, Object> left = new LinkedHashMap<>();
        final Properties settings = settings(folder);
        settings.putAll(OperatorTopologies.settings(name));
        final StreamsBuilder builder = new StreamsBuilder();
        OperatorTopologies.build(name, builder);
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(settings), settings, Instant.EPOCH)) {
            for (int n = 0; n < input.size(); n++) {
                final Input each = input.get(n);
                if (each.topic.equals("a") || OperatorTopologies.readsB(name)) {
                    pipe(driver, each);
                    final List<Object> produced = produced(driver);
                    if (!produced.isEmpty()) {
                        left.put(String.valueOf(n), produced);
                    }
                }
            }
        } finally {
            delete(folder);
        }
        return left;
    }

    private static void pipe(final TopologyTestDriver driver, final Input each) {
        final Headers headers = new RecordHeaders();
        if (each.header != null) {
            headers.add("h", each.header.getBytes(StandardCharsets.UTF_8));
        }
        driver.createInputTopic(each.topic, new StringSerializer(), new StringSerializer())
            .pipeInput(new TestRecord<>(each.key, each.value, headers, Instant.ofEpochMilli(each.timestamp)));
    }

    private static List<Object> produced(final TopologyTestDriver driver) {
        final List<Object> produced = new ArrayList<>();
        for (final String topic : new TreeSet<>(driver.producedTopicNames())) {
            final var output = driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            for (final TestRecord<byte[], byte[]> record : output.readRecordsToList()) {
                // As a list: topic, key, value, timestamp, headers.
                produced.add(Arrays.asList(topic, GoldenVectors.hex(record.key()), GoldenVectors.hex(record.value()),
                    record.timestamp(), StoreHistory.pairs(record.headers())));
            }
        }
        return produced;
    }

    private static Properties settings(final Path folder) {
        final Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:9092");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder.toString());
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put("enable.transactional.statestores", Boolean.getBoolean("transactional"));
        // Nothing waits for the machine's clock, as nothing does in Stateline.
        settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        return settings;
    }

    private static Path temporaryFolder() {
        try {
            return Files.createTempDirectory("golden-operators");
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
}
