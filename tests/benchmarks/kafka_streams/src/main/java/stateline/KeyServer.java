package stateline;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.query.Position;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.StateQueryRequest;
import org.apache.kafka.streams.query.TimestampedKeyQuery;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;

/**
 * A topic as a table of Kafka Streams (a timestamped store in RocksDB), and <code>GET /keys/KEY</code> answered from it by
 * a TimestampedKeyQuery behind the JDK's HTTP server: key, value, timestamp and Position as JSON.
 *
 * <p>Arguments: topic, its number of partitions, <code>THREADS:PORT[,…]</code>, then settings of Kafka Streams as
 * <code>NAME=VALUE</code>. Each port has its own server, with so many threads, over the same table; <code>GET /ready</code>
 * is 200 when the table can be read.
 */
public final class KeyServer {
    private static final String PREFIX = "/keys/";

    private final KafkaStreams streams;
    private final String topic;
    private final int partitions;

    private KeyServer(KafkaStreams streams, String topic, int partitions) {
        this.streams = streams;
        this.topic = topic;
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws IOException {
        String topic = arguments[0];
        Properties settings = new Properties();
        for (String setting : Arrays.asList(arguments).subList(3, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        KafkaStreams streams = streams(topic, settings);
        KeyServer server = new KeyServer(streams, topic, Integer.parseInt(arguments[1]));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        for (String pool : arguments[2].split(",")) {
            String[] parts = pool.split(":");
            server.listen(Executors.newFixedThreadPool(Integer.parseInt(parts[0])), Integer.parseInt(parts[1]));
        }
    }

    private static KafkaStreams streams(String topic, Properties settings) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(
                topic,
                Consumed.with(Serdes.String(), Serdes.String()),
                Materialized.as(Stores.persistentTimestampedKeyValueStore(topic)));
        return new KafkaStreams(builder.build(settings), settings); // with the settings the topology can be optimised
    }

    private void listen(ExecutorService threads, int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.setExecutor(threads);
        server.createContext(PREFIX, this::key);
        server.createContext("/ready", this::ready);
        server.start();
    }

    private void ready(HttpExchange exchange) throws IOException {
        boolean ready = streams.state() == KafkaStreams.State.RUNNING;
        answer(exchange, ready ? 200 : 503, "{\"ready\":" + ready + "}");
    }

    private void key(HttpExchange exchange) throws IOException {
        String key = exchange.getRequestURI().getPath().substring(PREFIX.length());
        // As Kafka's partitioner does; asking KafkaStreams for the key's metadata would cost it more.
        int partition = Utils.toPositive(Utils.murmur2(key.getBytes(StandardCharsets.UTF_8))) % partitions;
        QueryResult<ValueAndTimestamp<String>> found;
        try {
            found = streams.query(StateQueryRequest.inStore(topic)
                            .withQuery(TimestampedKeyQuery.<String, String>withKey(key))
                            .withPartitions(Set.of(partition)))
                    .getPartitionResults()
                    .get(partition);
        } catch (RuntimeException notNow) { // not running, or the store is moving
            answer(exchange, 503, failure(notNow.toString()));
            return;
        }
        if (found == null || found.isFailure()) {
            answer(exchange, 503, failure(found == null ? "the partition is not here" : found.getFailureMessage()));
        } else {
            answer(exchange, found.getResult() == null ? 404 : 200, json(key, found.getResult(), found.getPosition()));
        }
    }

    private static void answer(HttpExchange exchange, int status, String json) throws IOException {
        byte[] body = json.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, body.length);
        try (OutputStream stream = exchange.getResponseBody()) { // exchange.close() would end the connection
            stream.write(body);
        }
    }

    private static String json(String key, ValueAndTimestamp<String> found, Position position) {
        StringBuilder json = new StringBuilder(320);
        quote(json.append("{\"found\":").append(found != null).append(",\"key\":"), key).append(",\"value\":");
        if (found == null) {
            json.append("null,\"timestamp\":null");
        } else {
            quote(json, found.value()).append(",\"timestamp\":").append(found.timestamp());
        }
        return position(json.append(",\"position\":"), position).append('}').toString();
    }

    private static StringBuilder position(StringBuilder json, Position position) {
        json.append('{');
        String beforeTopic = "";
        for (String topic : position.getTopics()) {
            quote(json.append(beforeTopic), topic).append(":{");
            String beforePartition = "\"";
            for (var each : position.getPartitionPositions(topic).entrySet()) {
                json.append(beforePartition).append(each.getKey()).append("\":").append(each.getValue());
                beforePartition = ",\"";
            }
            json.append('}');
            beforeTopic = ",";
        }
        return json.append('}');
    }

    private static String failure(String why) {
        return quote(new StringBuilder("{\"detail\":"), why).append('}').toString();
    }

    private static StringBuilder quote(StringBuilder json, String text) {
        json.append('"');
        for (int i = 0; i < text.length(); i++) {
            char each = text.charAt(i);
            if (each < ' ' || each == '"' || each == '\\') {
                json.append(String.format("\\u%04x", (int) each));
            } else {
                json.append(each);
            }
        }
        return json.append('"');
    }
}
