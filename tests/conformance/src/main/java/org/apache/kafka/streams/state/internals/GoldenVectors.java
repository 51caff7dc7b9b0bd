package org.apache.kafka.streams.state.internals;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.utils.internals.AppInfoParser;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Writes what Kafka Streams' own classes make of given input, as JSON: byte arrays in hex, one vector per line.
 *
 * It lives in this package because most of those classes are visible nowhere else. Nothing random and no clock goes
 * into a vector, so that two runs write the same file.
 */
public final class GoldenVectors {
    private static final ObjectMapper JSON = new ObjectMapper();

    private GoldenVectors() { }

    public static void main(final String[] arguments) throws Exception {
        final Map<String, List<?>> sections = new LinkedHashMap<>();
        KeyVectors.addTo(sections);
        ValueVectors.addTo(sections);
        SegmentVectors.addTo(sections);
        FileVectors.addTo(sections);
        StoreVectors.addTo(sections);
        OperatorVectors.addTo(sections);
        NameVectors.addTo(sections);
        write(Path.of(arguments[0]), sections);
    }

    private static void write(final Path path, final Map<String, List<?>> sections) throws IOException {
        try (BufferedWriter out = Files.newBufferedWriter(path)) {
            out.write("{\n\"kafka_streams\": " + JSON.writeValueAsString(AppInfoParser.getVersion()));
            for (final Map.Entry<String, List<?>> section : sections.entrySet()) {
                out.write(",\n\"" + section.getKey() + "\": [");
                String separator = "\n";
                for (final Object vector : section.getValue()) {
                    out.write(separator + JSON.writeValueAsString(vector));
                    separator = ",\n";
                }
                out.write("\n]");
            }
            out.write("\n}\n");
        }
    }

    /** One JSON object: names and values in turn; byte arrays become hex. */
    static Map<String, Object> vector(final Object... namesAndValues) {
        final Map<String, Object> vector = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            final Object value = namesAndValues[i + 1];
            vector.put((String) namesAndValues[i], value instanceof byte[] bytes ? hex(bytes) : value);
        }
        return vector;
    }

    static String hex(final byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }

    static byte[] bytes(final String hex) {
        return hex == null ? null : HexFormat.of().parseHex(hex);
    }
}
