import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copy a topic to another with Flink's source and its exactly-once sink, in a job that fails once.
 *
 * <p>It reads committed records, also of partitions that are added later, and commits its offsets for a group. Its
 * last argument, if it has four, is the checkpoint to go on from.
 */
public class FlinkCopy {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "500 ms");
        settings.setString("execution.checkpointing.dir", arguments[1]);
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        if (arguments.length > 3) {
            settings.setString("execution.state-recovery.path", arguments[3]);
        }
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics("questions")
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("isolation.level", "read_committed")
            .setProperty("partition.discovery.interval.ms", "1000")
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder().setTopic("answers")
                .setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "questions")
            .map(new FailOnce(arguments[2])).returns(Types.STRING).sinkTo(sink);
        environment.execute();
    }

    /** Pass values on, and throw at one of them, the first time it comes. */
    static class FailOnce implements MapFunction<String, String> {
        // The tasks of all attempts run in this process.
        static final AtomicBoolean FAILED = new AtomicBoolean();
        final String at;

        FailOnce(String at) {
            this.at = at;
        }

        @Override
        public String map(String value) {
            if (value.equals(at) && FAILED.compareAndSet(false, true)) {
                System.out.println("the job fails");
                throw new IllegalStateException("planned");
            }
            return value;
        }
    }
}
