import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.TopicPartition;

/** One member of a group: prints what it owns and what it is given, commits that, and leaves when told to. */
public class Member {
    public static void main(String[] arguments) throws Exception {
        JsonNode told = new ObjectMapper().readTree(arguments[0]);
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", told.get("bootstrap").asText(),
            "group.id", told.get("group").asText(),
            "group.protocol", "consumer",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "metadata.max.age.ms", "1000",
            "reconnect.backoff.max.ms", "200",
            "default.api.timeout.ms", "120000",
            "key.deserializer", ByteArrayDeserializer.class.getName(),
            "value.deserializer", ByteArrayDeserializer.class.getName()));
        if (told.has("assignor")) {
            settings.put("group.remote.assignor", told.get("assignor").asText());
        }
        if (told.has("instance")) {
            settings.put("group.instance.id", told.get("instance").asText());
        }
        boolean[] leaving = {false};
        Thread ear = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException e) {
                // The same as being told.
            }
            leaving[0] = true;
        });
        ear.setDaemon(true);
        ear.start();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            if (told.has("pattern")) {
                consumer.subscribe(new SubscriptionPattern(told.get("pattern").asText()));
            } else {
                consumer.subscribe(List.of(told.get("topic").asText()));
            }
            Set<Integer> owned = null;
            while (!leaving[0]) {
                var records = consumer.poll(Duration.ofMillis(100));
                Set<Integer> now = new TreeSet<>();
                for (TopicPartition place : consumer.assignment()) {
                    now.add(place.partition());
                }
                if (!now.equals(owned)) {
                    owned = now;
                    System.out.println(line("owns", now));
                }
                if (!records.isEmpty()) {
                    StringBuilder given = new StringBuilder("records");
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        given.append(' ').append(record.partition()).append(' ').append(record.offset());
                    }
                    System.out.println(given);
                    try {
                        consumer.commitSync();
                    } catch (org.apache.kafka.common.KafkaException e) {
                        // Not committed, whatever the reason: given again, to us or to another.
                    }
                }
                System.out.flush();
            }
        }
    }

    static String line(String word, Set<Integer> numbers) {
        StringBuilder made = new StringBuilder(word);
        for (int number : numbers) {
            made.append(' ').append(number);
        }
        return made.toString();
    }
}
