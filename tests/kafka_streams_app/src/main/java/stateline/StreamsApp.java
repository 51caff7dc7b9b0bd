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
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * A Kafka Streams application of the stores that it is told, and what is in them over HTTP.
 *
 * <p>Arguments: port, prefix of the input topics, their number of partitions, <code>STORE[,…]</code> (see
 * {@link KeptStores}), then settings of Kafka Streams as <code>NAME=VALUE</code>.
 *
 * <p><code>GET /ready</code> is 200 when the application runs. <code>POST /dump/STORE</code>, with the keys to look for in
 * its body if the store is versioned (text, one on a line), answers a line for each row: see {@link StoreDump}.
 * <code>POST /ask/STORE</code> has an isolation level and a question in its body, with tabs between the words: see
 * {@link StoreQuestion}.
 */
public final class StreamsApp {
    private static final String DUMP = "/dump/";
    private static final String ASK = "/ask/";

    private final KafkaStreams streams;
    private final StoreDump dump;

    private StreamsApp(KafkaStreams streams, StoreDump dump) {
        this.streams = streams;
        this.dump = dump;
    }

    public static void main(String[] arguments) throws IOException {
        Properties settings = new Properties();
        for (String setting : Arrays.asList(arguments).subList(4, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        Map<String, StoreDump.Kind> kinds = new KeptStores(builder, arguments[1]).keep(arguments[3].split(","));
        // with the settings the topology can be optimised
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // who waits for it shall see that it is gone
            return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        boolean headers = "HEADERS".equals(settings.get("dsl.store.format"));
        new StreamsApp(streams, new StoreDump(streams, kinds, Integer.parseInt(arguments[2]), headers))
                .listen(Integer.parseInt(arguments[0]));
    }

    private void listen(int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.setExecutor(Executors.newSingleThreadExecutor());
        server.createContext(DUMP, this::dump);
        server.createContext(ASK, this::ask);
        server.createContext("/ready", this::ready);
        server.start();
    }

    private void ready(HttpExchange exchange) throws IOException {
        answer(exchange, streams.state() == KafkaStreams.State.RUNNING ? 200 : 503, streams.state().toString());
    }

    private void dump(HttpExchange exchange) throws IOException {
        String store = exchange.getRequestURI().getPath().substring(DUMP.length());
        List<String> keys = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8)
                .lines()
                .toList();
        String rows;
        try {
            rows = dump.rows(store, keys);
        } catch (RuntimeException notNow) { // not running, the store is moving, or there is none of that name
            answer(exchange, 503, notNow.toString());
            return;
        }
        answer(exchange, 200, rows);
    }

    private void ask(HttpExchange exchange) throws IOException {
        String store = exchange.getRequestURI().getPath().substring(ASK.length());
        String[] words = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8).split("\t");
        String found;
        try {
            String[] question = Arrays.copyOfRange(words, 1, words.length);
            found = new StoreQuestion(streams).answer(store, IsolationLevel.valueOf(words[0]), question);
        } catch (RuntimeException notNow) {
            answer(exchange, 503, notNow.toString());
            return;
        }
        answer(exchange, 200, found);
    }

    private static void answer(HttpExchange exchange, int status, String text) throws IOException {
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        try (OutputStream stream = exchange.getResponseBody()) {
            stream.write(body);
        }
    }
}
