import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Write the numbers below a count to a topic with Flink's exactly-once sink, in a job that fails once. */
public class FlinkSink {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        long count = Long.parseLong(arguments[2]);
        double perSecond = Double.parseDouble(arguments[3]);
        String naming = arguments[4];
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "500 ms");
        settings.setString("execution.checkpointing.dir", arguments[5]);
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);
        GeneratorFunction<Long, Long> same = number -> number;
        var numbers = new DataGeneratorSource<>(same, count, RateLimiterStrategy.perSecond(perSecond), Types.LONG);
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(naming))
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder().setTopic(topic)
                .setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(numbers, WatermarkStrategy.noWatermarks(), "numbers")
            .map(new FailOnce(count / 4)).returns(Types.STRING).sinkTo(sink);
        environment.execute();
        System.out.println("the job is done");
    }

    /** Turn numbers into text, and throw at one of them, the first time it comes. */
    static class FailOnce implements MapFunction<Long, String> {
        // The tasks of all attempts run in this process.
        static final AtomicBoolean FAILED = new AtomicBoolean();
        final long at;

        FailOnce(long at) {
            this.at = at;
        }

        @Override
        public String map(Long number) {
            if (number == at && FAILED.compareAndSet(false, true)) {
                System.out.println("the job fails");
                throw new IllegalStateException("planned");
            }
            return number.toString();
        }
    }
}
