package org.apache.kafka.streams.state.internals;

import static org.apache.kafka.streams.state.internals.GoldenVectors.vector;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.query.Position;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** `.checkpoint` and `.position` files: what is written, and what is made of other texts. */
final class FileVectors {
    private static final String[] TEXTS = {
        "0\n1\nt 0 5\n", "0\n2\nt 0 5\nt 1 -4\n", "0\n0\n", "0\n1\nt 0 5", "0\r\n1\r\nt 0 5\r\n", "0\n1\nt  0\t5\n",
        "0\n1\nt 0 5 \n",
        "0\n2\nt 0 -1\nt 1 7\n", "0\n1\nt 0 -1\n", "0\n1\nt 0 -3\n", "0\n1\nt 0 +5\n",
        "0\n1\nt 0 9223372036854775807\n",
        "", "0\n", "1\n1\nt 0 5\n", "x\n1\nt 0 5\n", "-1\n1\nt 0 5\n", "0 \n1\nt 0 5\n", "0\nx\nt 0 5\n",
        "0\n2\nt 0 5\n", "0\n0\nt 0 5\n",
        "0\n1\nt 0 5\nt 1 6\n", "0\n2\nt 0 5\nt 0 6\n", "0\n1\nt 0\n", "0\n1\nt 0 5 6\n", "0\n1\n t 0 5\n",
        "0\n1\nt 0 5\n\n\n", "0\n1\nt x 5\n", "0\n1\nt 0 x\n", "0\n1\n\n",
        "0\n1\nt 0 5\n\n", "0\n1\nt 0 9223372036854775808\n", "0\n1\nt 2147483648 5\n", "\u0000\u0000\u0000\u0000",
        "0\n1\nt 0 5\n\u0000\u0000",
    };

    private FileVectors() { }

    static void addTo(final Map<String, List<?>> sections) throws IOException {
        final File folder = Files.createTempDirectory("golden-vectors").toFile();
        final File file = new File(folder, ".checkpoint");
        try {
            sections.put("checkpoint_files", written(file));
            sections.put("position_files", positions(file));
            sections.put("checkpoint_texts", read(file));
        } finally {
            Files.deleteIfExists(file.toPath());
            Files.delete(folder.toPath());
        }
    }

    private static List<?> written(final File file) throws IOException {
        final Map<TopicPartition, Long> one = Map.of(new TopicPartition("app-counts-changelog", 0), 41L);
        final Map<TopicPartition, Long> several = new LinkedHashMap<>();
        several.put(new TopicPartition("app-a.b_c-changelog", 3), 0L);
        several.put(new TopicPartition("app-counts-changelog", 3), Long.MAX_VALUE);
        several.put(new TopicPartition("app-unknown-changelog", 3), OffsetCheckpoint.OFFSET_UNKNOWN);
        final Map<TopicPartition, Long> global = new LinkedHashMap<>();
        for (int partition = 0; partition < 12; partition++) {
            global.put(new TopicPartition("planes", partition), 100L + partition);
        }
        final List<Object> vectors = new ArrayList<>();
        for (final Map<TopicPartition, Long> offsets : List.of(one, several, global)) {
            new OffsetCheckpoint(file).write(offsets);
            vectors.add(vector("offsets", triples(offsets), "text", Files.readString(file.toPath())));
        }
        return vectors;
    }

    private static List<?> positions(final File file) throws IOException {
        final List<Object> vectors = new ArrayList<>();
        for (final Position position : ValueVectors.samples()) {
            if (!position.isEmpty()) {
                StoreQueryUtils.checkpointPosition(new OffsetCheckpoint(file), position);
                vectors.add(vector("position", ValueVectors.decoded(position), "text",
                    Files.readString(file.toPath())));
            }
        }
        return vectors;
    }

    private static List<?> read(final File file) throws IOException {
        final List<Object> vectors = new ArrayList<>();
        for (final String text : TEXTS) {
            Files.writeString(file.toPath(), text);
            vectors.add(vector("text", text, "offsets", offsetsIn(file)));
        }
        return vectors;
    }

    /** What is read; null when reading fails. */
    private static List<?> offsetsIn(final File file) {
        try {
            return triples(new OffsetCheckpoint(file).read());
        } catch (final IOException | RuntimeException refused) {
            return null;
        }
    }

    private static List<?> triples(final Map<TopicPartition, Long> offsets) {
        final Map<String, Object> sorted = new TreeMap<>();
        offsets.forEach((tp, offset) -> sorted.put(String.format("%s %010d", tp.topic(), tp.partition()),
            List.of(tp.topic(), tp.partition(), offset)));
        return new ArrayList<>(sorted.values());
    }
}
