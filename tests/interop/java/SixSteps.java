import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.HashMap;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The six steps with Kafka's own Java client. What to do is in a JSON file; what was seen is printed. */
public class SixSteps {
    static final ObjectMapper JSON = new ObjectMapper();
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    static JsonNode plan;
    static String topic;

    public static void main(String[] arguments) throws Exception {
        plan = JSON.readTree(new File(arguments[0]));
        topic = plan.get("topic").asText();
        // Kafka asks nobody for a token who is not named here too.
        JsonNode tokens = plan.path("settings").path("sasl.oauthbearer.token.endpoint.url");
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", tokens.asText());
        try (Admin admin = Admin.create(settings(Map.of()))) {
            for (JsonNode step : plan.get("steps")) {
                switch (step.asText()) {
                    case "create" -> create(admin);
                    case "produce" -> produce();
                    case "idempotent" -> idempotent();
                    case "consume" -> consume();
                    case "group" -> group();
                    case "admin" -> admin(admin);
                    case "lasting" -> lasting();
                    default -> throw new IllegalArgumentException(step.asText());
                }
            }
        }
    }

    /** Print what a step saw, and wait until that was looked at. */
    static void say(String step, Map<String, ?> seen) throws IOException {
        Map<String, Object> line = new HashMap<>(seen);
        line.put("step", step);
        System.out.println(JSON.writeValueAsString(line));
        INPUT.readLine();
    }

    static Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("bootstrap.servers", plan.get("bootstrap").asText());
        plan.path("settings").properties().forEach(each -> all.put(each.getKey(), each.getValue().asText()));
        return all;
    }

    static void create(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, plan.get("partitions").asInt(), (short) 1))).all().get();
        var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        say("create", Map.of("partitions", described.partitions().size()));
    }

    static void produce() throws Exception {
        List<List<Long>> offsets = new ArrayList<>();
        for (JsonNode part : plan.get("produce")) {
            offsets.add(send(part.get("records"), Map.of(
                "acks", "all", "enable.idempotence", false,
                "compression.type", part.get("compression").asText())));
        }
        say("produce", Map.of("offsets", offsets));
    }

    static void idempotent() throws Exception {
        say("idempotent", Map.of("offsets", send(plan.get("idempotent"), Map.of("enable.idempotence", true))));
    }

    static List<Long> send(JsonNode records, Map<String, Object> more) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer())) {
            for (JsonNode record : records) {
                var out = new ProducerRecord<>(
                    topic, record.get("partition").asInt(), record.get("timestamp").asLong(),
                    record.get("key").textValue(), record.get("value").textValue());
                for (JsonNode header : record.get("headers")) {
                    String value = header.get(1).textValue();
                    out.headers().add(
                        header.get(0).asText(), value == null ? null : value.getBytes(StandardCharsets.UTF_8));
                }
                sent.add(producer.send(out));
            }
            for (var each : sent) {
                offsets.add(each.get().offset());
            }
        }
        return offsets;
    }

    static KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> all = settings(more);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    static void consume() throws Exception {
        JsonNode wanted = plan.get("consume");
        List<TopicPartition> all = IntStream.range(0, plan.get("partitions").asInt())
            .mapToObj(partition -> new TopicPartition(topic, partition)).toList();
        Map<String, Object> seen = new HashMap<>();
        try (var consumer = consumer(Map.of())) {
            consumer.assign(all);
            seen.put("earliest", take(consumer, wanted.get("count").asInt()));

            TopicPartition one = all.get(wanted.get("partition").asInt());
            consumer.assign(List.of(one));
            consumer.seek(one, wanted.get("offset").asLong());
            seen.put("offset", take(consumer, wanted.get("offset_count").asInt()));

            consumer.assign(all);
            Map<TopicPartition, Long> times = all.stream()
                .collect(Collectors.toMap(each -> each, each -> wanted.get("time").asLong()));
            consumer.offsetsForTimes(times).forEach((each, found) -> consumer.seek(each, found.offset()));
            seen.put("time", take(consumer, wanted.get("time_count").asInt()));
        }
        say("consume", seen);
    }

    static List<Map<String, Object>> take(KafkaConsumer<String, String> consumer, int count) {
        List<Map<String, Object>> records = new ArrayList<>();
        while (records.size() < count) {
            consumer.poll(Duration.ofMillis(100)).forEach(record -> records.add(described(record)));
        }
        return records;
    }

    static Map<String, Object> described(ConsumerRecord<String, String> record) {
        List<String[]> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(new String[] {
                header.key(),
                header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8)});
        }
        Map<String, Object> out = new HashMap<>();
        out.put("partition", record.partition());
        out.put("offset", record.offset());
        out.put("key", record.key());
        out.put("value", record.value());
        out.put("headers", headers);
        out.put("timestamp", record.timestamp());
        return out;
    }

    static void group() throws Exception {
        Map<String, Object> more = Map.of("group.id", plan.get("group").asText());
        try (var first = consumer(more); var second = consumer(more)) {
            var members = List.of(first, second);
            members.forEach(member -> member.subscribe(List.of(plan.get("group_topic").asText())));
            while (first.assignment().isEmpty() || second.assignment().isEmpty()) {
                members.forEach(member -> member.poll(Duration.ofMillis(50)));
            }
            say("group", Map.of("assigned", members.stream().map(member -> member.assignment().stream()
                .map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new))).toList()));
            // The second round comes after the broker was restarted.
            for (JsonNode count : plan.get("group_counts")) {
                List<List<Map<String, Object>>> seen = List.of(new ArrayList<>(), new ArrayList<>());
                while (seen.get(0).size() + seen.get(1).size() < count.asInt()) {
                    for (int i = 0; i < 2; i++) {
                        var into = seen.get(i);
                        var records = members.get(i).poll(Duration.ofMillis(50));
                        try {
                            members.get(i).commitSync();
                            records.forEach(record -> into.add(described(record)));
                        } catch (CommitFailedException thrownOut) {
                            // It was no member any more, and will be given these records again.
                        }
                    }
                }
                say("group", Map.of("records", seen));
            }
        }
    }

    /** Send and read in a group until a producer and a consumer have authenticated again so many times. */
    static void lasting() throws Exception {
        int times = plan.get("reauthentications").asInt();
        List<String> sent = new ArrayList<>();
        List<String> read = new ArrayList<>();
        Map<String, Object> seen = new HashMap<>();
        try (var producer = new KafkaProducer<>(settings(Map.of()), new StringSerializer(), new StringSerializer());
             var consumer = consumer(Map.of("group.id", plan.get("group").asText()))) {
            consumer.subscribe(List.of(topic));
            while (read.size() < sent.size()
                || total(producer.metrics(), "successful-reauthentication-total") < times
                || total(consumer.metrics(), "successful-reauthentication-total") < times) {
                String value = "value " + sent.size();
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                sent.add(value);
                consumer.poll(Duration.ofMillis(10)).forEach(record -> read.add(record.value()));
                consumer.commitSync();
            }
            for (var metrics : List.of(producer.metrics(), consumer.metrics())) {
                for (String name : List.of("connection-close-total", "failed-reauthentication-total")) {
                    seen.merge(name, total(metrics, name), (one, other) -> (double) one + (double) other);
                }
            }
        }
        seen.putAll(Map.of("sent", sent, "read", read));
        say("lasting", seen);
    }

    /** Return a metric of the client itself, not of one of its connections. */
    static double total(Map<MetricName, ? extends Metric> metrics, String name) {
        return metrics.values().stream()
            .filter(each -> each.metricName().name().equals(name) && !each.metricName().tags().containsKey("node-id"))
            .mapToDouble(each -> (double) each.metricValue()).sum();
    }

    static void admin(Admin admin) throws Exception {
        JsonNode change = plan.get("config");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var before = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        var entry = new ConfigEntry(change.get("name").asText(), change.get("value").asText());
        var set = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        var after = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        say("admin", Map.of("before", before.get(entry.name()).value(), "after", after.get(entry.name()).value()));
        admin.deleteTopics(List.of(topic)).all().get();
        say("admin", Map.of("topics", admin.listTopics().names().get()));
    }
}
