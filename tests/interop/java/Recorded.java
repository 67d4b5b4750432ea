import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional writer, and a processor that makes each committed record into another one exactly once. What
 * they do is recorded as tests/support/history/operations.py describes. They go on until the input ends.
 *
 * Arguments: address, file of the history, topic to write to, topic of the processor, partitions of each. A line
 * of the output names the worker that has committed a transaction.
 */
public class Recorded {
    static final String COMMITTED = "read_committed";
    static final String GROUP = "java processors";
    static String bootstrap;
    static String input;
    static String output;
    static int partitions;
    static History history;
    static volatile boolean stopping;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        input = arguments[2];
        output = arguments[3];
        partitions = Integer.parseInt(arguments[4]);
        try (History opened = new History(Path.of(arguments[1]))) {
            history = opened;
            List<Worker> workers = List.of(new Writer("java writer"), new Processor("java processor"));
            workers.forEach(Thread::start);
            while (System.in.read() >= 0) { }
            stopping = true;
            for (Worker worker : workers) {
                worker.join();
            }
        }
    }

    /** The file of the history. The order of its lines is that of the calls. */
    static class History implements AutoCloseable {
        static final ObjectMapper JSON = new ObjectMapper();
        final BufferedWriter file;

        History(Path path) throws IOException {
            file = Files.newBufferedWriter(path);
        }

        synchronized void note(String client, int number, String phase, String what, Object data) {
            try {
                List<Object> event = Arrays.asList(System.nanoTime(), client, number, phase, what, data);
                file.write(JSON.writeValueAsString(event));
                file.newLine();
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        }

        @Override
        public synchronized void close() throws IOException {
            file.close();
        }
    }

    /** One client of the history. */
    static class Client {
        final String name;
        int next;

        Client(String name) {
            this.name = name;
        }

        Operation invoke(String what, Object data) {
            history.note(name, next, "invoke", what, data);
            return new Operation(this, next++, what);
        }

        int event(String what, Object data) {
            history.note(name, next, "ok", what, data);
            return next++;
        }
    }

    record Operation(Client client, int number, String what) {
        void ok(Object data) {
            history.note(client.name, number, "ok", what, data);
        }

        void unknown(Exception error) {
            history.note(client.name, number, "unknown", what, error.toString());
        }
    }

    /** Does one transaction after the other. A producer that cannot go on is followed by another of its id. */
    abstract static class Worker extends Thread {
        final String id;
        Client client;
        KafkaProducer<String, String> producer;

        Worker(String id) {
            this.id = id;
        }

        /** Do what belongs to the transaction of this number; return whether to commit it. */
        abstract boolean work(int transaction) throws Exception;

        /** Begin, or begin again after a transaction that did not count. */
        void prepare() { }

        /** Return whether there is something to do. */
        boolean hasWork() {
            return true;
        }

        @Override
        public void run() {
            try {
                for (int generation = 0; !stopping; generation++) {
                    client = new Client(id + "#" + generation);
                    be();
                }
            } catch (Throwable error) {
                client.event("problem", error.toString());
            }
        }

        /** Be one producer until it fails. */
        void be() throws Exception {
            Operation taking = client.invoke("init", id);
            producer = new KafkaProducer<>(Map.of(
                "bootstrap.servers", bootstrap, "transactional.id", id, "reconnect.backoff.max.ms", 100,
                "retry.backoff.max.ms", 100, "max.block.ms", 20_000, "delivery.timeout.ms", 20_000,
                "request.timeout.ms", 10_000), new StringSerializer(), new StringSerializer());
            try {
                try {
                    producer.initTransactions();
                } catch (KafkaException error) {
                    taking.unknown(error);
                    return;
                }
                taking.ok(null);
                prepare();
                while (!stopping) {
                    if (hasWork() && !transact()) {
                        return;
                    }
                }
            } finally {
                producer.close(Duration.ZERO);
            }
        }

        /** Do one transaction; return whether the producer can go on. */
        boolean transact() throws Exception {
            int transaction = client.event("begin", id);
            Operation ending = null;
            try {
                producer.beginTransaction();
                if (work(transaction)) {
                    ending = client.invoke("commit", transaction);
                    producer.commitTransaction();
                    ending.ok(null);
                    System.out.println(id);
                    return true;
                }
            } catch (KafkaException | ExecutionException error) {
                if (ending != null) {
                    ending.unknown(error);
                }
            }
            ending = client.invoke("abort", transaction);
            try {
                producer.abortTransaction();
            } catch (KafkaException | IllegalStateException error) {
                ending.unknown(error);
                return false;
            }
            ending.ok(null);
            prepare();
            return true;
        }

        /** Send records, each in its partition, and wait for their offsets. A source may be null. */
        void send(int transaction, String topic, List<Integer> places, List<String> values, List<String> sources)
                throws Exception {
            List<Operation> sends = new ArrayList<>();
            List<Future<RecordMetadata>> answers = new ArrayList<>();
            for (int i = 0; i < values.size(); i++) {
                Object data = Arrays.asList(topic, places.get(i), values.get(i), transaction, sources.get(i));
                sends.add(client.invoke("send", data));
                answers.add(producer.send(new ProducerRecord<>(topic, places.get(i), null, values.get(i))));
            }
            for (int i = 0; i < answers.size(); i++) {
                sends.get(i).ok(answers.get(i).get().offset());
            }
        }
    }

    /** Writes transactions of one to eight records, and aborts some of them. */
    static class Writer extends Worker {
        final Random random = new Random(26);
        int sent;

        Writer(String id) {
            super(id);
        }

        @Override
        boolean work(int transaction) throws Exception {
            List<Integer> places = new ArrayList<>();
            List<String> values = new ArrayList<>();
            List<String> sources = new ArrayList<>();
            for (int left = 1 + random.nextInt(8); left > 0; left--) {
                places.add(random.nextInt(partitions));
                values.add(id + ":" + sent++);
                sources.add(null);
            }
            send(transaction, input, places, values, sources);
            return random.nextDouble() >= 0.2;
        }
    }

    /** Makes each committed record into one of the other topic. */
    static class Processor extends Worker {
        final Client reader;
        final KafkaConsumer<String, String> consumer;
        final List<TopicPartition> places = new ArrayList<>();
        List<ConsumerRecord<String, String>> given = List.of();
        int made;

        Processor(String id) {
            super(id);
            reader = new Client(id + " reading");
            consumer = new KafkaConsumer<>(Map.of(
                "bootstrap.servers", bootstrap, "group.id", GROUP, "isolation.level", COMMITTED,
                "enable.auto.commit", false, "auto.offset.reset", "none", "max.poll.records", 20,
                "fetch.max.wait.ms", 50, "reconnect.backoff.max.ms", 100, "retry.backoff.max.ms", 100),
                new StringDeserializer(), new StringDeserializer());
            for (int i = 0; i < partitions; i++) {
                places.add(new TopicPartition(input, i));
            }
        }

        @Override
        public void run() {
            super.run();
            consumer.close();
        }

        /** Go on from the committed offsets; those of an open transaction are waited for. */
        @Override
        void prepare() {
            Operation fetching = client.invoke("fetch_offsets", List.of(GROUP, COMMITTED));
            Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(new HashSet<>(places));
            List<Object> known = new ArrayList<>();
            List<Object> positions = new ArrayList<>();
            consumer.assign(places);
            for (TopicPartition place : places) {
                long offset = found.get(place) == null ? -1 : found.get(place).offset();
                known.add(List.of(input, place.partition(), offset));
                positions.add(List.of(input, place.partition(), Math.max(offset, 0)));
                consumer.seek(place, Math.max(offset, 0));
            }
            fetching.ok(known);
            reader.invoke("assign", positions);
        }

        @Override
        boolean hasWork() {
            Operation polling = reader.invoke("poll", COMMITTED);
            given = new ArrayList<>();
            consumer.poll(Duration.ofMillis(100)).forEach(given::add);
            List<Object> read = new ArrayList<>();
            for (var each : given) {
                read.add(List.of(each.topic(), each.partition(), each.offset(), each.value(), each.timestamp()));
            }
            polling.ok(read);
            return !given.isEmpty();
        }

        @Override
        boolean work(int transaction) throws Exception {
            List<Integer> to = new ArrayList<>();
            List<String> values = new ArrayList<>();
            List<String> sources = new ArrayList<>();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (var each : given) {
                to.add(each.partition());
                values.add(each.value() + ">" + id + ":" + made++);
                sources.add(each.value());
                offsets.put(new TopicPartition(input, each.partition()), new OffsetAndMetadata(each.offset() + 1));
            }
            send(transaction, output, to, values, sources);
            List<Object> rows = new ArrayList<>();
            offsets.forEach((place, at) -> rows.add(List.of(input, place.partition(), at.offset())));
            Operation committing = client.invoke("commit_offsets", Arrays.asList(GROUP, transaction, rows));
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            committing.ok(null);
            return true;
        }
    }
}
