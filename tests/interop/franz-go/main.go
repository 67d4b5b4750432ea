// The six steps with franz-go. What to do is in a JSON file; what was seen is printed.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type record struct {
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp int64        `json:"timestamp"`
}

var plan struct {
	Bootstrap  string   `json:"bootstrap"`
	Login      *login   `json:"login"`
	Steps      []string `json:"steps"`
	Topic      string   `json:"topic"`
	Partitions int32    `json:"partitions"`
	Produce    []struct {
		Compression string   `json:"compression"`
		Records     []record `json:"records"`
	} `json:"produce"`
	Idempotent []record `json:"idempotent"`
	Consume    struct {
		Count       int   `json:"count"`
		Partition   int32 `json:"partition"`
		Offset      int64 `json:"offset"`
		OffsetCount int   `json:"offset_count"`
		Time        int64 `json:"time"`
		TimeCount   int   `json:"time_count"`
	} `json:"consume"`
	Group       string `json:"group"`
	GroupTopic  string `json:"group_topic"`
	GroupCounts []int  `json:"group_counts"`
	Config      struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"config"`
}

var (
	ctx   = context.Background()
	input = bufio.NewReader(os.Stdin)
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

// say prints what a step saw, and waits until that was looked at.
func say(step string, seen map[string]any) {
	seen["step"] = step
	fmt.Println(string(must(json.Marshal(seen))))
	must(input.ReadString('\n'))
}

func client(options ...kgo.Opt) *kgo.Client {
	if plan.Login != nil {
		options = append(options, plan.Login.options()...)
	}
	return must(kgo.NewClient(append(options, kgo.SeedBrokers(plan.Bootstrap))...))
}

// What the client trusts, and as whom it connects.
type login struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
}

func (l *login) options() []kgo.Opt {
	settings := &tls.Config{RootCAs: x509.NewCertPool()}
	settings.RootCAs.AppendCertsFromPEM(must(os.ReadFile(l.CA)))
	if l.Certificate != "" {
		settings.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(l.Certificate, l.Key))}
	}
	options := []kgo.Opt{kgo.DialTLSConfig(settings)}
	password := scram.Auth{User: l.User, Pass: l.Password}
	switch l.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: l.User, Pass: l.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(password.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(password.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: l.Token}.AsMechanism()))
	}
	return options
}

func main() {
	if err := json.Unmarshal(must(os.ReadFile(os.Args[1])), &plan); err != nil {
		log.Panic(err)
	}
	connection := client()
	defer connection.Close()
	admin := kadm.NewClient(connection)
	steps := map[string]func(){
		"create":     func() { create(admin) },
		"produce":    produce,
		"idempotent": idempotent,
		"consume":    consume,
		"group":      group,
		"admin":      func() { administer(admin) },
	}
	for _, step := range plan.Steps {
		steps[step]()
	}
}

func create(admin *kadm.Client) {
	must(admin.CreateTopic(ctx, plan.Partitions, 1, nil, plan.Topic))
	topics := must(admin.ListTopics(ctx, plan.Topic))
	say("create", map[string]any{"partitions": len(topics[plan.Topic].Partitions)})
}

func produce() {
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	offsets := [][]int64{}
	for _, part := range plan.Produce {
		codec := kgo.ProducerBatchCompression(codecs[part.Compression])
		offsets = append(offsets, send(part.Records, codec, kgo.DisableIdempotentWrite()))
	}
	say("produce", map[string]any{"offsets": offsets})
}

func idempotent() {
	say("idempotent", map[string]any{"offsets": send(plan.Idempotent)})
}

func data(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

func send(records []record, options ...kgo.Opt) []int64 {
	options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	producer := client(options...)
	defer producer.Close()
	out := []*kgo.Record{}
	for _, each := range records {
		headers := []kgo.RecordHeader{}
		for _, header := range each.Headers {
			headers = append(headers, kgo.RecordHeader{Key: *header[0], Value: data(header[1])})
		}
		one := &kgo.Record{
			Topic: plan.Topic, Partition: each.Partition, Key: data(each.Key), Value: data(each.Value), Headers: headers,
		}
		one.Timestamp = time.UnixMilli(each.Timestamp)
		out = append(out, one)
	}
	if err := producer.ProduceSync(ctx, out...).FirstErr(); err != nil {
		log.Panic(err)
	}
	offsets := []int64{}
	for _, one := range out {
		offsets = append(offsets, one.Offset)
	}
	return offsets
}

func described(one *kgo.Record) record {
	headers := [][2]*string{}
	for _, header := range one.Headers {
		name := header.Key
		headers = append(headers, [2]*string{&name, text(header.Value)})
	}
	return record{one.Partition, one.Offset, text(one.Key), text(one.Value), headers, one.Timestamp.UnixMilli()}
}

func read(count int, starts map[int32]kgo.Offset) []record {
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{plan.Topic: starts}))
	defer consumer.Close()
	records := []record{}
	for len(records) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Panic(err)
		}
		fetches.EachRecord(func(one *kgo.Record) { records = append(records, described(one)) })
	}
	return records
}

func consume() {
	earliest, since := map[int32]kgo.Offset{}, map[int32]kgo.Offset{}
	for partition := range plan.Partitions {
		earliest[partition] = kgo.NewOffset().AtStart()
		since[partition] = kgo.NewOffset().AfterMilli(plan.Consume.Time)
	}
	offset := map[int32]kgo.Offset{plan.Consume.Partition: kgo.NewOffset().At(plan.Consume.Offset)}
	say("consume", map[string]any{
		"earliest": read(plan.Consume.Count, earliest),
		"offset":   read(plan.Consume.OffsetCount, offset),
		"time":     read(plan.Consume.TimeCount, since),
	})
}

// A member of the group: what it is assigned, and what it read and committed.
type member struct {
	number   int
	lock     sync.Mutex
	assigned map[int32]bool
}

func (m *member) change(changed chan<- int, assigned bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		m.lock.Lock()
		for _, partition := range partitions[plan.GroupTopic] {
			m.assigned[partition] = assigned
		}
		m.lock.Unlock()
		changed <- m.number
	}
}

func (m *member) partitions() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	held := []int32{}
	for partition, assigned := range m.assigned {
		if assigned {
			held = append(held, partition)
		}
	}
	sort.Slice(held, func(i, j int) bool { return held[i] < held[j] })
	return held
}

type shared struct {
	member  int
	records []*kgo.Record
}

func (m *member) run(consumer *kgo.Client, out chan<- shared) {
	for {
		fetches := consumer.PollFetches(ctx)
		if fetches.IsClientClosed() {
			return
		}
		// What cannot be committed is no longer this member's, and will be given out again.
		if records := fetches.Records(); len(records) > 0 && consumer.CommitRecords(ctx, records...) == nil {
			out <- shared{m.number, records}
		}
		consumer.AllowRebalance()
	}
}

func group() {
	changed, out := make(chan int, 100), make(chan shared, 100)
	members := []*member{{number: 0, assigned: map[int32]bool{}}, {number: 1, assigned: map[int32]bool{}}}
	for _, each := range members {
		consumer := client(
			kgo.ConsumerGroup(plan.Group), kgo.ConsumeTopics(plan.GroupTopic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(),
			kgo.OnPartitionsAssigned(each.change(changed, true)),
			kgo.OnPartitionsRevoked(each.change(changed, false)), kgo.OnPartitionsLost(each.change(changed, false)),
		)
		defer consumer.CloseAllowingRebalance()
		go each.run(consumer, out)
	}
	first, second := []int32{}, []int32{}
	for len(first) == 0 || len(second) == 0 || int32(len(first)+len(second)) < plan.Partitions {
		<-changed
		first, second = members[0].partitions(), members[1].partitions()
	}
	say("group", map[string]any{"assigned": [][]int32{first, second}})
	// The second round comes after the broker was restarted.
	for _, count := range plan.GroupCounts {
		seen := [][]record{{}, {}}
		for len(seen[0])+len(seen[1]) < count {
			part := <-out
			for _, one := range part.records {
				seen[part.member] = append(seen[part.member], described(one))
			}
		}
		say("group", map[string]any{"records": seen})
	}
}

func setting(admin *kadm.Client) string {
	described := must(must(admin.DescribeTopicConfigs(ctx, plan.Topic)).On(plan.Topic, nil))
	for _, one := range described.Configs {
		if one.Key == plan.Config.Name {
			return one.MaybeValue()
		}
	}
	return ""
}

func administer(admin *kadm.Client) {
	before := setting(admin)
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: plan.Config.Name, Value: &plan.Config.Value}}
	altered := must(must(admin.AlterTopicConfigs(ctx, change, plan.Topic)).On(plan.Topic, nil))
	must(altered, altered.Err)
	say("admin", map[string]any{"before": before, "after": setting(admin)})
	must(admin.DeleteTopic(ctx, plan.Topic))
	say("admin", map[string]any{"topics": must(admin.ListTopics(ctx)).Names()})
}
