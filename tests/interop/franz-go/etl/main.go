// A transactional ETL with franz-go: a member of a group copies every record to the same partition of another
// topic, with the offsets in the same transaction, until it is ended.
package main

import (
	"context"
	"errors"
	"log"
	"math/rand"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: etl BOOTSTRAP GROUP TRANSACTIONAL-ID INPUT OUTPUT")
	}
	bootstrap, group, id, input, output := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(40*time.Second),
		kgo.SessionTimeout(10*time.Second),
		kgo.DefaultProduceTopic(output),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	for ctx.Err() == nil {
		fetches := session.PollRecords(ctx, 750)
		fetches.EachError(func(topic string, partition int32, err error) {
			if !errors.Is(err, context.Canceled) {
				log.Printf("fetching %s %d: %v", topic, partition, err)
			}
		})
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			log.Fatalf("begin: %v", err)
		}
		promises := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Partition: record.Partition, Key: record.Key, Value: record.Value}
			session.Produce(context.Background(), copied, promises.Promise())
		})
		// One of three is aborted for no reason: it is read again.
		commit := promises.Err() == nil && rand.Intn(3) > 0
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(commit))
		if err != nil {
			log.Fatalf("end: %v", err)
		}
		log.Printf("%d records, committed: %v", fetches.NumRecords(), committed)
	}
}
