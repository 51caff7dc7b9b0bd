package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.processor.internals.ChangelogRecordDeserializationHelper;
import org.apache.kafka.streams.query.Position;
import org.apache.kafka.streams.state.ValueAndTimestamp;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Values with timestamps, Positions, and the headers of changelog records. */
final class ValueVectors {
    private ValueVectors() { }

    static void addTo(final Map<String, List<?>> sections) {
        sections.put("timestamped_values", timestampedValues());
        sections.put("positions", positions());
        sections.put("changelog_headers", changelogHeaders());
    }

    private static List<?> timestampedValues() {
        final List<Object> vectors = new ArrayList<>();
        final ValueAndTimestampSerializer<byte[]> serializer =
            new ValueAndTimestampSerializer<>(new ByteArraySerializer());
        for (final String value : new String[] {"", "00", "ffff", "7b22616d6f756e74223a2031327d", null}) {
            for (final long time : new long[] {0, 1, -1, 1_795_259_814_382L, Long.MAX_VALUE, Long.MIN_VALUE}) {
                final byte[] stored = serializer.serialize("topic", ValueAndTimestamp.makeAllowNullable(bytes(value),
                    time));
                vectors.add(vector("value", value, "timestamp", time, "bytes", stored));
            }
        }
        return vectors;
    }

    static List<Position> samples() {
        final Position wide = Position.emptyPosition();
        for (int partition = 0; partition < 40; partition++) {
            wide.withComponent("wide", partition, 1000L * partition);
        }
        return List.of(
            Position.emptyPosition(),
            Position.emptyPosition().withComponent("a", 0, 0),
            Position.emptyPosition().withComponent("orders", 0, 2).withComponent("orders", 1, 300),
            Position.emptyPosition().withComponent("a", 0, 1).withComponent("b", 0, 2)
                .withComponent("c", 7, Long.MAX_VALUE),
            Position.emptyPosition().withComponent("zebra.v1", 3, 5).withComponent("Alpha_2", 3, 6)
                .withComponent("m-3", Integer.MAX_VALUE, 7),
            Position.emptyPosition().withComponent("тема", 1, 9),
            wide
        );
    }

    private static List<?> positions() {
        final List<Object> vectors = new ArrayList<>();
        for (final Position position : samples()) {
            vectors.add(vector("position", decoded(position), "bytes", PositionSerde.serialize(position).array()));
        }
        return vectors;
    }

    static Map<String, Map<String, Long>> decoded(final Position position) {
        final Map<String, Map<String, Long>> topics = new TreeMap<>();
        for (final String topic : position.getTopics()) {
            final Map<String, Long> partitions = new LinkedHashMap<>();
            new TreeMap<>(position.getPartitionPositions(topic)).forEach((partition,
                offset) -> partitions.put(partition.toString(), offset));
            topics.put(topic, partitions);
        }
        return topics;
    }

    private static List<?> changelogHeaders() {
        final Header version = ChangelogRecordDeserializationHelper.CHANGELOG_VERSION_HEADER_RECORD_CONSISTENCY;
        return List.of(vector(
            "version_name", version.key(), "version", version.value(),
            "position_name", ChangelogRecordDeserializationHelper.CHANGELOG_POSITION_HEADER_KEY
        ));
    }
}
