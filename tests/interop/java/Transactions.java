import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What transactions promise, with Kafka's own Java client. Each step prints one line of JSON: what it saw. */
public class Transactions {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int PARTITIONS = 2;
    static String bootstrap;
    static String topic;
    static Admin admin;

    interface Step {
        Map<String, Object> run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        try (Admin made = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = made;
            Map<String, Step> steps = new TreeMap<>(Map.of(
                "abort", Transactions::abort, "admin", Transactions::administer, "commit", Transactions::commit,
                "fence", Transactions::fence, "many", Transactions::many, "offsets", Transactions::offsets,
                "open", Transactions::open, "timeout", Transactions::timeout));
            for (int i = 1; i < arguments.length; i++) {
                String name = arguments[i];
                topic = name + "-" + UUID.randomUUID();
                admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
                Map<String, Object> seen = new HashMap<>(steps.get(name).run());
                seen.put("step", name);
                System.out.println(JSON.writeValueAsString(seen));
            }
        }
    }

    /** Nothing of a transaction is seen before it commits, and everything after. */
    static Map<String, Object> commit() throws Exception {
        try (var producer = producer("commit")) {
            producer.initTransactions();
            producer.beginTransaction();
            sendEverywhere(producer, "a");
            var before = read("read_committed");
            var uncommitted = read("read_uncommitted");
            producer.commitTransaction();
            return Map.of("before", before, "uncommitted", uncommitted, "after", settled());
        }
    }

    /** An aborted transaction is seen by those that read uncommitted records only. */
    static Map<String, Object> abort() throws Exception {
        try (var producer = producer("abort")) {
            producer.initTransactions();
            for (String name : List.of("a", "b", "c")) {
                producer.beginTransaction();
                sendEverywhere(producer, name);
                if (name.equals("b")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            return Map.of("committed", settled(), "uncommitted", read("read_uncommitted"));
        }
    }

    /** Records behind an open transaction wait for it. */
    static Map<String, Object> open() throws Exception {
        try (var slow = producer("open-slow"); var quick = producer("open-quick")) {
            slow.initTransactions();
            quick.initTransactions();
            slow.beginTransaction();
            sendEverywhere(slow, "slow");
            quick.beginTransaction();
            sendEverywhere(quick, "quick");
            quick.commitTransaction();
            var before = read("read_committed");
            long stable = end("read_committed", 0);
            slow.commitTransaction();
            return Map.of("before", before, "stable", stable, "after", settled());
        }
    }

    /** A second producer of the same id ends what the first one left open, and the first one is done. */
    static Map<String, Object> fence() throws Exception {
        try (var first = producer("fence"); var second = producer("fence")) {
            first.initTransactions();
            first.beginTransaction();
            sendEverywhere(first, "first");
            second.initTransactions();
            second.beginTransaction();
            sendEverywhere(second, "second");
            second.commitTransaction();
            var commit = failure(first::commitTransaction);
            return Map.of("commit", commit, "committed", settled());
        }
    }

    /** Offsets move with the transaction, or not at all; a consumer waits for those that are pending. */
    static Map<String, Object> offsets() throws Exception {
        var partition = new TopicPartition(topic, 0);
        Map<String, Object> seen = new HashMap<>();
        try (var producer = producer("offsets"); var consumer = consumer("read_committed", topic + "-group")) {
            producer.initTransactions();
            producer.beginTransaction();
            sendEverywhere(producer, "a");
            producer.commitTransaction();
            consumer.subscribe(List.of(topic));
            int count = 0;
            while (count < PARTITIONS) {
                count += consumer.poll(Duration.ofMillis(100)).count();
            }
            var group = consumer.groupMetadata();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1, "aborted")), group);
            producer.abortTransaction();
            seen.put("aborted", String.valueOf(consumer.committed(java.util.Set.of(partition)).get(partition)));
            producer.beginTransaction();
            sendEverywhere(producer, "b");
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1, "done")), group);
            seen.put("pending", failure(() -> consumer.committed(java.util.Set.of(partition), Duration.ofSeconds(2))));
            seen.put("unstable", String.valueOf(admin.listConsumerGroupOffsets(group.groupId())
                .partitionsToOffsetAndMetadata().get().get(partition)));
            producer.commitTransaction();
            var committed = consumer.committed(java.util.Set.of(partition)).get(partition);
            seen.put("committed", committed.offset() + " " + committed.metadata());
            @SuppressWarnings("removal")
            var stale = new ConsumerGroupMetadata(group.groupId(), group.generationId() - 1, group.memberId(),
                group.groupInstanceId());
            producer.beginTransaction();
            seen.put("stale", failure(() -> {
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(2)), stale);
                producer.commitTransaction();
            }));
            producer.abortTransaction();
            seen.put("kept", consumer.committed(java.util.Set.of(partition)).get(partition).offset());
        }
        return seen;
    }

    /** A producer that goes silent is aborted, and what it does afterwards is refused. */
    static Map<String, Object> timeout() throws Exception {
        try (var producer = producer("timeout", Map.of("transaction.timeout.ms", 1000))) {
            producer.initTransactions();
            producer.beginTransaction();
            sendEverywhere(producer, "silent");
            while (end("read_committed", 0) == 0) {
                Thread.sleep(50);
            }
            var refused = failure(producer::commitTransaction);
            return Map.of("refused", !refused.isEmpty(), "committed", settled());
        }
    }

    /** A hundred transactions, every third aborted, to both partitions: just the others, in their order. */
    static Map<String, Object> many() throws Exception {
        try (var producer = producer("many")) {
            producer.initTransactions();
            for (int i = 0; i < 100; i++) {
                producer.beginTransaction();
                sendEverywhere(producer, String.valueOf(i));
                if (i % 3 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        return Map.of("committed", settled());
    }

    /** What an administrator sees of an open transaction, and how it is ended from outside. */
    static Map<String, Object> administer() throws Exception {
        Map<String, Object> seen = new HashMap<>();
        String id = topic + "-id";
        var first = new TopicPartition(topic, 0);
        try (var producer = producer(id)) {
            producer.initTransactions();
            producer.beginTransaction();
            sendEverywhere(producer, "a");
            seen.put("listed", String.valueOf(admin.listTransactions().all().get().stream()
                .filter(one -> one.transactionalId().equals(id)).findAny().get().state()));
            var described = admin.describeTransactions(List.of(id)).description(id).get();
            seen.put("described", described.state() + " " + described.topicPartitions().size() + " "
                + described.transactionTimeoutMs());
            ProducerState state = admin.describeProducers(List.of(first)).partitionResult(first).get()
                .activeProducers().get(0);
            seen.put("producer", List.of(state.producerId() == described.producerId(),
                state.producerEpoch() == described.producerEpoch(), state.currentTransactionStartOffset().getAsLong()));
            for (int number = 0; number < PARTITIONS; number++) {
                var partition = new TopicPartition(topic, number);
                admin.abortTransaction(new AbortTransactionSpec(partition, state.producerId(),
                    (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
            }
            seen.put("aborted", settled());
            seen.put("stable", end("read_committed", 0));
            // The producer still holds its transaction, which is empty now.
            producer.abortTransaction();
            producer.beginTransaction();
            sendEverywhere(producer, "b");
            admin.fenceProducers(List.of(id)).all().get();
            seen.put("fenced", failure(producer::commitTransaction));
            seen.put("committed", settled());
            seen.put("unknown", failure(() -> admin.describeTransactions(List.of("nobody")).all().get()));
        }
        return seen;
    }

    interface Action {
        void run() throws Exception;
    }

    /** Return the class of what an action throws, or nothing. */
    static String failure(Action action) throws Exception {
        try {
            action.run();
            return "";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    /** Send one record to each partition, and wait until all are acknowledged. */
    static void sendEverywhere(KafkaProducer<String, String> producer, String name) {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, name + partition));
        }
        producer.flush();
    }

    static KafkaProducer<String, String> producer(String id) {
        return producer(id, Map.of());
    }

    static KafkaProducer<String, String> producer(String id, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("linger.ms", 0);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String isolation, String group) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group,
            "isolation.level", isolation, "auto.offset.reset", "earliest", "enable.auto.commit", false));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Return the values of the topic, partition by partition, as far as a consumer is given any. */
    static List<String> read(String isolation) {
        List<String> values = new ArrayList<>();
        for (int number = 0; number < PARTITIONS; number++) {
            var partition = new TopicPartition(topic, number);
            try (var consumer = consumer(isolation, "reader")) {
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                while (consumer.position(partition) < end) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                        values.add(record.value());
                    }
                }
            }
        }
        return values;
    }

    /** Wait until no transaction is open, and return what is committed: markers follow the answer to a commit. */
    static List<String> settled() throws Exception {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            while (end("read_committed", partition) < end("read_uncommitted", partition)) {
                Thread.sleep(10);
            }
        }
        return read("read_committed");
    }

    /** Return where a partition ends for a consumer. */
    static long end(String isolation, int number) {
        var partition = new TopicPartition(topic, number);
        try (var consumer = consumer(isolation, "reader")) {
            consumer.assign(List.of(partition));
            return consumer.endOffsets(List.of(partition)).get(partition);
        }
    }
}
