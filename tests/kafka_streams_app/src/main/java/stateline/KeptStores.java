package stateline;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The stores that the application can keep. Keys and values are strings, counts longs; windows take what is late by 30 s.
 *
 * <p>The input topics, each with the prefix, are <code>events</code> of everything that is a stream, <code>table</code>,
 * <code>versioned</code> <code>others</code>, and, of the joins, <code>left</code> and <code>right</code>: a topic of its own for each table.
 *
 * <p><code>outer</code> events and rows of right within 20 s of each other · <code>foreign</code> left with the row of
 * table that its value names ·
 * <code>table</code> the newest values · <code>count</code>, <code>reduce</code> (the largest value) by key ·
 * <code>plain</code> a count without timestamps · <code>tumbling</code> (60 s), <code>hopping</code> (60 s, every 20 s),
 * <code>sliding</code> (20 s), <code>session</code> (gap 10 s) counts · <code>plainwindow</code> a tumbling count without
 * timestamps · <code>timed</code>, <code>skipped</code> tumbling counts of a topic of the same name, by the times that
 * values begin with · <code>versioned</code> two minutes of values, <code>versionedevents</code> of events ·
 * <code>tablejoin</code> left and right ·
 * <code>everywhere</code> a global table · <code>words</code> a count of the words of lines, also written to <code>counts</code> · <code>streamjoin</code> events
 * and left · <code>groupcount</code> left by the end of its values · <code>cogroup</code>, <code>cowindows</code> events
 * with odd numbers and the others in one aggregate · <code>processed</code> events with their number, from a processor's store ·
 * <code>notedkey</code>, <code>notedwindow</code>, <code>notedsession</code>: see {@link NotedStores} ·
 * <code>joined</code>, <code>joinedleft</code>, <code>joinedouter</code>, <code>foreignkey</code>,
 * <code>foreignleft</code>, <code>customers</code>, <code>groupsum</code>, <code>limited</code>: see {@link MovedRows} ·
 * <code>duplicates</code> events joined with themselves within 20 s, whose
 * stores are <code>duplicates-this-join-store</code> and <code>duplicates-other-join-store</code>.
 */
final class KeptStores {
    static final Duration SIZE = Duration.ofSeconds(60);
    static final Duration ADVANCE = Duration.ofSeconds(20);
    static final Duration DIFFERENCE = Duration.ofSeconds(20);
    static final Duration GAP = Duration.ofSeconds(10);
    static final Duration GRACE = Duration.ofSeconds(30);
    static final Duration HISTORY = Duration.ofMinutes(2);

    private static final Consumed<String, String> STRINGS = Consumed.with(Serdes.String(), Serdes.String());
    private static final Produced<String, String> WRITTEN = Produced.with(Serdes.String(), Serdes.String());

    private final StreamsBuilder builder;
    private final String prefix;
    private final Map<String, StoreDump.Kind> kinds = new LinkedHashMap<>();
    private KStream<String, String> events;
    private KStream<String, String> others;
    private KTable<String, String> left;
    private KTable<String, String> right;

    KeptStores(StreamsBuilder builder, String prefix) {
        this.builder = builder;
        this.prefix = prefix;
    }

    /** Declares these stores; what can be dumped then. */
    Map<String, StoreDump.Kind> keep(String... stores) {
        for (String store : stores) {
            StoreDump.Kind kind = keep(store);
            if (kind == StoreDump.Kind.DUPLICATES) {
                kinds.put(store + "-this-join-store", kind);
                kinds.put(store + "-other-join-store", kind);
            } else {
                kinds.put(store, kind);
            }
        }
        return kinds;
    }

    private StoreDump.Kind keep(String store) {
        switch (store) {
            case "table" -> builder.table(prefix + "table", STRINGS, strings(store));
            case "versioned" -> {
                builder.table(
                        prefix + "versioned",
                        STRINGS,
                        Materialized.as(Stores.persistentVersionedKeyValueStore(store, HISTORY)));
                return StoreDump.Kind.VERSIONED;
            }
            case "versionedevents" -> {
                events().toTable(Materialized
                        .<String, String>as(Stores.persistentVersionedKeyValueStore(store, HISTORY))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.String()));
                return StoreDump.Kind.VERSIONED;
            }
            case "count" -> byKey().count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store));
            case "reduce" -> byKey().reduce((one, other) -> one.compareTo(other) >= 0 ? one : other, strings(store));
            case "everywhere" -> builder.globalTable(prefix + "everywhere", STRINGS, strings(store));
            case "words" -> builder.stream(prefix + "lines", STRINGS)
                    .flatMapValues(line -> List.of(line.split(" ")))
                    .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                    .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store))
                    .toStream()
                    .to(prefix + "counts", Produced.with(Serdes.String(), Serdes.Long()));
            case "plain" -> byKey().count(Materialized.as(Stores.persistentKeyValueStore(store)));
            case "tablejoin" -> left().join(right(), (one, other) -> one + "|" + other, strings(store));
            case "foreignkey", "foreignleft", "customers" -> MovedRows.byForeignKey(store, left(), right(), strings(store));
            case "groupsum" -> MovedRows.sum(store, left());
            case "limited" -> MovedRows.limited(left()).to(prefix + "java-" + store, WRITTEN);
            case "streamjoin" -> events()
                    .join(left(), (one, other) -> one + "|" + other, Joined.with(
                            Serdes.String(), Serdes.String(), Serdes.String()))
                    .toTable(strings(store));
            case "processed" -> {
                builder.addStateStore(Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore("numbers"), Serdes.String(), Serdes.Long()));
                events().processValues(Numbering::new, "numbers").toTable(strings(store));
            }
            case "groupcount" -> left().groupBy(
                            (key, value) -> KeyValue.pair(value.isEmpty() ? null : end(value, 3), value),
                            Grouped.with("by-end", Serdes.String(), Serdes.String()))
                    .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(store));
            case "foreign" -> left().leftJoin(
                    builder.table(prefix + "table", STRINGS),
                    value -> value,
                    (one, other) -> one + "|" + other,
                    TableJoined.as(store),
                    strings(store));
            case "cogroup" -> cogrouped().aggregate(() -> "", strings(store));
            case "notedkey", "notedwindow", "notedsession" -> {
                return NotedStores.keep(store, builder, events(), left());
            }
            default -> {
                return windows(store);
            }
        }
        return StoreDump.Kind.KEY_VALUE;
    }

    /** Each event of a key with its number, once more with that alone when it is even. */
    private static final class Numbering extends ContextualFixedKeyProcessor<String, String, String> {
        @Override
        public void process(FixedKeyRecord<String, String> event) {
            if (event.key() == null) {
                return;
            }
            KeyValueStore<String, Long> numbers = context().getStateStore("numbers");
            Long before = numbers.get(event.key());
            long number = before == null ? 1 : before + 1;
            numbers.put(event.key(), number);
            context().forward(event.withValue(number + ":" + event.value()));
            if (number % 2 == 0) {
                context().forward(event.withValue("" + number));
            }
        }
    }

    private StoreDump.Kind windows(String store) {
        Supplier<Materialized<String, Long, WindowStore<Bytes, byte[]>>> counts = () -> Materialized.as(store);
        TimeWindows tumbling = TimeWindows.ofSizeAndGrace(SIZE, GRACE);
        switch (store) {
            case "tumbling" -> byKey().windowedBy(tumbling).count(counts.get());
            case "hopping" -> byKey().windowedBy(tumbling.advanceBy(ADVANCE)).count(counts.get());
            case "cowindows" -> cogrouped()
                    .windowedBy(tumbling)
                    .aggregate(() -> "", Materialized.<String, String, WindowStore<Bytes, byte[]>>as(store)
                            .withKeySerde(Serdes.String())
                            .withValueSerde(Serdes.String()));
            case "sliding" -> byKey()
                    .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(DIFFERENCE, GRACE))
                    .count(counts.get());
            case "timed", "skipped" -> builder
                    .stream(prefix + store, STRINGS.withTimestampExtractor(extractor(store)))
                    .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                    .windowedBy(tumbling)
                    .count(counts.get());
            case "plainwindow" -> byKey()
                    .windowedBy(tumbling)
                    .count(Materialized.as(Stores.persistentWindowStore(store, SIZE.plus(GRACE), SIZE, false)));
            case "session" -> {
                byKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, GRACE))
                        .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as(store));
                return StoreDump.Kind.SESSION;
            }
            case "joined", "joinedleft", "joinedouter" -> {
                MovedRows.joined(store, events(), others()).to(prefix + "java-" + store, WRITTEN);
                return StoreDump.Kind.DUPLICATES;
            }
            case "duplicates" -> {
                events().join(
                                events(),
                                (one, other) -> one,
                                JoinWindows.ofTimeDifferenceAndGrace(DIFFERENCE, GRACE),
                                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String())
                                        .withStoreName(store))
                        .foreach((key, value) -> { });
                return StoreDump.Kind.DUPLICATES;
            }
            case "outer" -> events().outerJoin(
                            builder.stream(prefix + "right", STRINGS),
                            (one, other) -> one + "|" + other,
                            JoinWindows.ofTimeDifferenceAndGrace(DIFFERENCE, GRACE),
                            StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String())
                                    .withStoreName(store))
                    .foreach((key, value) -> { });
            default -> throw new IllegalArgumentException("There is no store " + store + " to keep.");
        }
        return StoreDump.Kind.WINDOW;
    }

    /** The time that a value begins with, as in <code>1234-text</code>; else what Kafka Streams does without one. */
    private static TimestampExtractor extractor(String store) {
        TimestampExtractor invalid = store.equals("timed")
                ? new UsePartitionTimeOnInvalidTimestamp()
                : new LogAndSkipOnInvalidTimestamp();
        return (record, partitionTime) -> {
            String text = record.value() == null ? "" : record.value().toString();
            int end = text.indexOf('-');
            return end > 0 && text.chars().limit(end).allMatch(Character::isDigit)
                    ? Long.parseLong(text.substring(0, end))
                    : invalid.extract(withoutTimestamp(record), partitionTime);
        };
    }

    private static ConsumerRecord<Object, Object> withoutTimestamp(ConsumerRecord<Object, Object> record) {
        return new ConsumerRecord<>(record.topic(), record.partition(), record.offset(), record.key(), record.value());
    }

    private KStream<String, String> events() {
        if (events == null) {
            events = builder.stream(prefix + "events", STRINGS);
        }
        return events;
    }

    private KTable<String, String> left() {
        if (left == null) {
            left = builder.table(prefix + "left", STRINGS);
        }
        return left;
    }

    private KTable<String, String> right() {
        if (right == null) {
            right = builder.table(prefix + "right", STRINGS);
        }
        return right;
    }

    private KStream<String, String> others() {
        if (others == null) {
            others = builder.stream(prefix + "others", STRINGS);
        }
        return others;
    }

    private KGroupedStream<String, String> byKey() {
        return events().groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
    }

    /** Events whose value ends with an odd digit, and the others. */
    private CogroupedKStream<String, String> cogrouped() {
        Grouped<String, String> texts = Grouped.with(Serdes.String(), Serdes.String());
        return events().filter(KeptStores::isOdd)
                .groupByKey(texts)
                .<String>cogroup((key, value, all) -> end(all + "A" + value, 24))
                .cogroup(
                        events().filterNot(KeptStores::isOdd).groupByKey(texts),
                        (key, value, all) -> end(all + "B" + value, 24));
    }

    private static boolean isOdd(String key, String value) {
        return value != null && !value.isEmpty() && value.charAt(value.length() - 1) % 2 == 1;
    }

    static String end(String text, int length) {
        return text.substring(Math.max(0, text.length() - length));
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> strings(String store) {
        return Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(store)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.String());
    }
}
