// One member of a group: prints what it owns and what it is given, commits that, and leaves when told to.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var told struct {
	Bootstrap string `json:"bootstrap"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Pattern   string `json:"pattern"`
	Assignor  string `json:"assignor"`
	Instance  string `json:"instance"`
}

var (
	mutex sync.Mutex
	owned = map[int32]bool{}
)

func change(partitions map[string][]int32, owns bool) {
	mutex.Lock()
	defer mutex.Unlock()
	for _, each := range partitions {
		for _, partition := range each {
			if owns {
				owned[partition] = true
			} else {
				delete(owned, partition)
			}
		}
	}
	numbers := []int{}
	for partition := range owned {
		numbers = append(numbers, int(partition))
	}
	sort.Ints(numbers)
	fmt.Println(strings.Trim("owns "+strings.Trim(fmt.Sprint(numbers), "[]"), " "))
}

// balancer returns the one whose name in the client is that of the broker's assignor.
func balancer() kgo.GroupBalancer {
	if told.Assignor == "range" {
		return kgo.RangeBalancer()
	}
	return kgo.StickyBalancer()
}

func main() {
	if err := json.Unmarshal([]byte(os.Args[1]), &told); err != nil {
		log.Fatal(err)
	}
	gained := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { change(partitions, true) }
	lost := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { change(partitions, false) }
	options := []kgo.Opt{
		kgo.SeedBrokers(told.Bootstrap),
		kgo.ConsumerGroup(told.Group),
		kgo.ServerSideBalancer(),
		kgo.Balancers(balancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(gained),
		kgo.OnPartitionsRevoked(lost),
		kgo.OnPartitionsLost(lost),
	}
	if told.Pattern != "" {
		options = append(options, kgo.ConsumeTopics(told.Pattern), kgo.ConsumeRegex())
	} else {
		options = append(options, kgo.ConsumeTopics(told.Topic))
	}
	if told.Instance != "" {
		options = append(options, kgo.InstanceID(told.Instance))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		os.Stdin.Read(make([]byte, 1))
		leave()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		given := []string{"records"}
		fetches.EachRecord(func(record *kgo.Record) {
			given = append(given, fmt.Sprint(record.Partition), fmt.Sprint(record.Offset))
		})
		if len(given) > 1 {
			fmt.Println(strings.Join(given, " "))
			// Not committed, whatever the reason: given again, to us or to another.
			_ = client.CommitUncommittedOffsets(ctx)
		}
	}
	client.Close()
}
