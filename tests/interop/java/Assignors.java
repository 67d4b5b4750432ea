import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Lets Kafka's own assignors assign random groups, each of which changes a few times, and prints a line of JSON
 * for each assignment. Arguments: the first seed, and the number of groups.
 */
public class Assignors {
    private static final int ROUNDS = 4;

    private static final class Member {
        String id;
        String instance;
        Set<Uuid> topics;
        Map<Uuid, Set<Integer>> assigned = Map.of();
    }

    private final Random random;
    private final Map<Uuid, Integer> counts = new LinkedHashMap<>();
    private final TreeMap<String, Member> members = new TreeMap<>();
    private final boolean alike;
    private int made = 0;

    private Assignors(long seed) {
        random = new Random(seed);
        alike = random.nextInt(3) == 0;
    }

    public static void main(String[] arguments) {
        int first = Integer.parseInt(arguments[0]);
        for (int number = 0; number < Integer.parseInt(arguments[1]); number++) {
            new Assignors(first + number).run();
        }
    }

    private void run() {
        ConsumerGroupPartitionAssignor assignor =
            random.nextInt(4) > 0 ? new UniformAssignor() : new RangeAssignor();
        int topics = 1 + random.nextInt(5);
        for (int number = 0; number < topics; number++) {
            int partitions = 1 + random.nextInt(random.nextInt(5) == 0 ? 40 : 9);
            counts.put(new Uuid(random.nextLong(), random.nextLong()), partitions);
        }
        for (int round = 0; round < ROUNDS; round++) {
            change(round);
            assign(assignor);
        }
    }

    private void change(int round) {
        int joining = round > 0 ? random.nextInt(3) : 1 + random.nextInt(random.nextInt(6) == 0 ? 30 : 7);
        for (int number = 0; number < joining; number++) {
            Member member = new Member();
            member.id = new UUID(random.nextLong(), random.nextLong()).toString();
            member.instance = random.nextInt(4) == 0 ? "instance-" + made : null;
            member.topics = subscription();
            members.put(member.id, member);
            made++;
        }
        if (round == 0) {
            return;
        }
        for (String id : new ArrayList<>(members.keySet())) {
            if (members.size() > 1 && random.nextInt(5) == 0) {
                members.remove(id);
            } else if (random.nextInt(6) == 0) {
                members.get(id).topics = subscription();
            }
        }
        for (Map.Entry<Uuid, Integer> topic : counts.entrySet()) {
            if (random.nextInt(4) == 0) {
                topic.setValue(topic.getValue() + 1 + random.nextInt(4));
            }
        }
    }

    private Set<Uuid> subscription() {
        Set<Uuid> chosen = new LinkedHashSet<>();
        for (Uuid topic : new TreeSet<>(counts.keySet())) {
            if (alike || random.nextInt(3) > 0) {
                chosen.add(topic);
            }
        }
        return chosen;
    }

    private void assign(ConsumerGroupPartitionAssignor assignor) {
        Map<String, MemberSubscriptionAndAssignmentImpl> specified = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        List<String> before = new ArrayList<>();
        for (Member member : members.values()) {
            Map<Uuid, Set<Integer>> had = stored(member.assigned);
            had.forEach((topic, partitions) -> partitions.forEach(partition ->
                owners.computeIfAbsent(topic, key -> new HashMap<>()).put(partition, member.id)));
            specified.put(member.id, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.ofNullable(member.instance), member.topics, new Assignment(had)));
            subscriptions.add(member.topics);
            String instance = member.instance == null ? "null" : quoted(member.instance);
            before.add("[" + quoted(member.id) + "," + instance + "," + numbers(member.topics) + ","
                + json(member.assigned) + "]");
        }
        SubscriptionType type =
            subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupAssignment found = assignor.assign(
            new GroupSpecImpl(Collections.unmodifiableMap(specified), type, owners),
            new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid topic) {
                    return counts.getOrDefault(topic, -1);
                }

                @Override
                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            });
        List<String> after = new ArrayList<>();
        for (Member member : members.values()) {
            boolean has = found.members().containsKey(member.id);
            member.assigned = stored(has ? found.members().get(member.id).partitions() : Map.of());
            after.add(json(member.assigned));
        }
        List<String> topics = new ArrayList<>();
        counts.forEach((topic, count) -> topics.add("[" + quoted(hex(topic)) + "," + count + "]"));
        System.out.println("{\"assignor\":" + quoted(assignor.name())
            + ",\"homogeneous\":" + (type == SubscriptionType.HOMOGENEOUS)
            + ",\"topics\":[" + String.join(",", topics) + "],\"members\":[" + String.join(",", before)
            + "],\"assigned\":[" + String.join(",", after) + "]}");
    }

    /** Returns an assignment as the coordinator has it once it is stored. */
    private static Map<Uuid, Set<Integer>> stored(Map<Uuid, Set<Integer>> assigned) {
        Map<Uuid, Set<Integer>> copy = new HashMap<>();
        for (Uuid topic : new TreeSet<>(assigned.keySet())) {
            if (!assigned.get(topic).isEmpty()) {
                copy.put(topic, new HashSet<>(new ArrayList<>(new TreeSet<>(assigned.get(topic)))));
            }
        }
        return Collections.unmodifiableMap(copy);
    }

    /** Returns topics by their numbers in the line. */
    private String numbers(Set<Uuid> topics) {
        List<Uuid> all = new ArrayList<>(counts.keySet());
        return new TreeSet<>(topics.stream().map(all::indexOf).toList()).toString().replace(" ", "");
    }

    private String json(Map<Uuid, Set<Integer>> assigned) {
        List<String> parts = new ArrayList<>();
        int number = 0;
        for (Uuid topic : counts.keySet()) {
            if (assigned.containsKey(topic)) {
                String partitions = new TreeSet<>(assigned.get(topic)).toString().replace(" ", "");
                parts.add(quoted(String.valueOf(number)) + ":" + partitions);
            }
            number++;
        }
        return "{" + String.join(",", parts) + "}";
    }

    private static String quoted(String text) {
        return "\"" + text + "\"";
    }

    private static String hex(Uuid topic) {
        return String.format("%016x%016x", topic.getMostSignificantBits(), topic.getLeastSignificantBits());
    }
}
