import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Count the words of a topic with Kafka Streams: every count goes to the topic {@code counts}, those of each minute
 * to {@code minutes}.
 *
 * <p>The internal topics are made by Streams: two to repartition, and the changelogs of a key-value store and of a
 * window store. No replication factor is set, so the broker's default applies.
 */
public class Words {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, arguments[2]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "words");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        if (arguments[2].equals("classic")) {
            settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 10_000);
        }

        StreamsBuilder builder = new StreamsBuilder();
        var words = builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")));
        words.groupBy((key, word) -> word, Grouped.as("by-word"))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counted"))
            .toStream().mapValues(count -> Long.toString(count))
            .to("counts", Produced.with(Serdes.String(), Serdes.String()));
        words.map((key, word) -> KeyValue.pair(word, word))
            .repartition(Repartitioned.<String, String>as("four").withNumberOfPartitions(4))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofDays(1)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("minutes"))
            .toStream((word, count) -> word.key() + "@" + word.window().start())
            .mapValues(count -> Long.toString(count))
            .to("minutes", Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setStateListener((now, before) -> System.out.println(before + " -> " + now));
        streams.setUncaughtExceptionHandler(error -> {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            System.out.println("failed: " + cause);
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        failed.await();
        Runtime.getRuntime().halt(1);
    }
}
