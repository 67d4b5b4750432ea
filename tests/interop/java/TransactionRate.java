import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions one after the other with Kafka's own producer: BOOTSTRAP TOPIC ID PRODUCERS RECORDS TRANSACTIONS
 * SECONDS KEPT.
 *
 * <p>Each of PRODUCERS does its share of TRANSACTIONS of RECORDS records of 100 bytes each, and stops after SECONDS.
 * One of KEPT transactions is committed, the others are aborted. Prints how many there were, and the seconds.
 */
public class TransactionRate {
    static final int WARM_UP = 20;

    public static void main(String[] arguments) throws Exception {
        int producers = Integer.parseInt(arguments[3]);
        int records = Integer.parseInt(arguments[4]);
        int share = Integer.parseInt(arguments[5]) / producers;
        long nanoseconds = (long) (Double.parseDouble(arguments[6]) * 1e9);
        int kept = Integer.parseInt(arguments[7]);
        List<KafkaProducer<byte[], byte[]>> all = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", arguments[0],
                "transactional.id", arguments[2] + "-" + number, "linger.ms", 0, "compression.type", "none"));
            var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            producer.initTransactions();
            if (kept == 1) {
                // Java is slow before it has compiled what it runs.
                run(producer, arguments[1], records, Math.min(WARM_UP, share), Long.MAX_VALUE, kept);
            }
            all.add(producer);
        }
        var threads = Executors.newFixedThreadPool(producers);
        long started = System.nanoTime();
        List<Callable<Integer>> work = new ArrayList<>();
        all.forEach(one -> work.add(() -> run(one, arguments[1], records, share, started + nanoseconds, kept)));
        int done = 0;
        for (Future<Integer> each : threads.invokeAll(work)) {
            done += each.get();
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        threads.shutdown();
        all.forEach(KafkaProducer::close);
        System.out.println(done + " " + seconds);
    }

    static int run(KafkaProducer<byte[], byte[]> producer, String topic, int records, int transactions, long until,
            int kept) {
        byte[] value = new byte[100];
        int done = 0;
        while (done < transactions && System.nanoTime() < until) {
            producer.beginTransaction();
            for (int record = 0; record < records; record++) {
                producer.send(new ProducerRecord<>(topic, 0, null, value));
            }
            if (done % kept == 0) {
                producer.commitTransaction();
            } else {
                // What was not sent yet would otherwise be dropped.
                producer.flush();
                producer.abortTransaction();
            }
            done++;
        }
        return done;
    }
}
