package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.bytes;
import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.processor.internals.ChangelogRecordDeserializationHelper;
import org.apache.kafka.streams.query.Position;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;

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
        sections.put("values_with_headers", valuesWithHeaders());
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

    private static List<?> valuesWithHeaders() {
        final List<Object> vectors = new ArrayList<>();
        final ValueTimestampHeadersSerializer<byte[]> serializer =
            new ValueTimestampHeadersSerializer<>(new ByteArraySerializer());
        final AggregationWithHeadersSerializer<byte[]> aggregations =
            new AggregationWithHeadersSerializer<>(new ByteArraySerializer());
        final List<List<Header>> samples = List.of(
            List.of(),
            List.of(new RecordHeader("", new byte[0])),
            List.of(new RecordHeader("a", bytes("7879"))),
            List.of(new RecordHeader("a", (byte[]) null), new RecordHeader("\u00e9", bytes("00ff")),
                new RecordHeader("a", bytes("01"))),
            List.of(new RecordHeader("long", new byte[70]), new RecordHeader("longer", new byte[9000]))
        );
        for (final List<Header> headers : samples) {
            final List<Object> pairs = new ArrayList<>();
            headers.forEach(header -> pairs.add(vector("name", header.key(), "value", header.value())));
            for (final String value : new String[] {"", "00ff"}) {
                final Headers given = new RecordHeaders(headers);
                vectors.add(vector("headers", pairs, "value", value, "timestamp", 5L,
                    "bytes", serializer.serialize("topic", ValueTimestampHeaders.make(bytes(value), 5L, given)),
                    "aggregation", aggregations.serialize("topic", AggregationWithHeaders.make(bytes(value), given))));
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
