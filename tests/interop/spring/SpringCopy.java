import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.config.TopicBuilder;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.transaction.KafkaTransactionManager;

/**
 * Copy a topic to another with a listener of Spring Kafka, in transactions of its container.
 *
 * <p>The listener fails once, so one transaction is rolled back. The topic {@code notes} is made by Spring's admin.
 */
@Configuration
@EnableKafka
public class SpringCopy {
    static final AtomicBoolean FAILED = new AtomicBoolean();
    static String bootstrap;
    static String failsAt;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        failsAt = arguments[1];
        new AnnotationConfigApplicationContext(SpringCopy.class).registerShutdownHook();
        System.out.println("the context is there");
        new CountDownLatch(1).await();
    }

    @Bean
    KafkaAdmin admin() {
        KafkaAdmin admin = new KafkaAdmin(Map.of("bootstrap.servers", bootstrap));
        admin.setFatalIfBrokerNotAvailable(true);
        admin.setModifyTopicConfigs(true);
        return admin;
    }

    @Bean
    NewTopic notes() {
        return TopicBuilder.name("notes").partitions(3).compact().build();
    }

    @Bean
    ProducerFactory<String, String> producers() {
        DefaultKafkaProducerFactory<String, String> factory = new DefaultKafkaProducerFactory<>(
            Map.of("bootstrap.servers", bootstrap, "transaction.timeout.ms", 20_000),
            new StringSerializer(), new StringSerializer());
        factory.setTransactionIdPrefix("spring-");
        return factory;
    }

    @Bean
    KafkaTransactionManager<String, String> transactions() {
        return new KafkaTransactionManager<>(producers());
    }

    @Bean
    KafkaTemplate<String, String> template() {
        return new KafkaTemplate<>(producers());
    }

    @Bean
    ConsumerFactory<String, String> consumers() {
        return new DefaultKafkaConsumerFactory<>(
            Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest",
                "isolation.level", "read_committed", "session.timeout.ms", 10_000),
            new StringDeserializer(), new StringDeserializer());
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
        ConcurrentKafkaListenerContainerFactory<String, String> factory =
            new ConcurrentKafkaListenerContainerFactory<>();
        factory.setConsumerFactory(consumers());
        factory.setConcurrency(2);
        factory.setBatchListener(false);
        factory.getContainerProperties().setKafkaAwareTransactionManager(transactions());
        return factory;
    }

    @KafkaListener(topics = "questions", groupId = "spring")
    void answer(ConsumerRecord<String, String> question) {
        template().send("answers", question.key(), question.value());
        if (question.value().equals(failsAt) && FAILED.compareAndSet(false, true)) {
            System.out.println("the listener fails");
            throw new IllegalStateException("planned");
        }
    }
}
