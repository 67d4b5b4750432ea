// The six steps with kafkajs. What to do is in a JSON file; what was seen is printed.
const fs = require("fs");
const readline = require("readline");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs");
const snappy = require("kafkajs-snappy");
const lz4 = require("lz4js");
const { ZstdCodec } = require("zstd-codec");

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { ca, certificate, key, mechanism, user, password, token } = plan.login ?? {};
const pem = (path) => (path ? fs.readFileSync(path) : undefined);
const kafka = new Kafka({
  clientId: "six-steps",
  brokers: [plan.bootstrap],
  ssl: plan.login && { ca: [pem(ca)], cert: pem(certificate), key: pem(key) },
  sasl: mechanism && {
    mechanism: mechanism.toLowerCase(),
    username: user,
    password,
    oauthBearerProvider: async () => ({ value: token }),
  },
  logLevel: logLevel.WARN,
  logCreator: () => (entry) => console.error(JSON.stringify(entry)),
  // It gives up after five attempts, which is sooner than a broker restarts on a busy machine.
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: plan.retries ?? 30 },
});
const admin = kafka.admin();

// Print what a step saw, and wait until that was looked at.
async function say(step, seen) {
  console.log(JSON.stringify({ step, ...seen }));
  await input.next();
}

// lz4js says of its blocks that they depend on each other, which Kafka refuses. Here there is only one, so
// the flag can be set, and the header's checksum with it.
function lz4Frame(data) {
  const frame = Buffer.from(lz4.compress(data));
  frame[4] = 0x60;
  frame[6] = 0x73;
  return frame;
}

// kafkajs brings gzip; the rest is plugged in.
async function plugCodecs() {
  const zstd = await new Promise((resolve) => ZstdCodec.run((module) => resolve(new module.Simple())));
  CompressionCodecs[CompressionTypes.Snappy] = snappy;
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async (encoder) => lz4Frame(encoder.buffer),
    decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
  });
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
  });
}

async function create() {
  await admin.createTopics({ topics: [{ topic: plan.topic, numPartitions: plan.partitions }] });
  const { topics } = await admin.fetchTopicMetadata({ topics: [plan.topic] });
  await say("create", { partitions: topics[0].partitions.length });
}

async function send(records, compression, settings) {
  const producer = kafka.producer(settings);
  await producer.connect();
  const messages = records.map((record) => ({
    ...record,
    headers: Object.fromEntries(record.headers),
    timestamp: String(record.timestamp),
  }));
  const sent = await producer.send({ topic: plan.topic, acks: -1, compression, messages });
  await producer.disconnect();
  // It tells the first offset of each partition; the records of one follow each other.
  const next = Object.fromEntries(sent.map((part) => [part.partition, Number(part.baseOffset)]));
  return records.map((record) => next[record.partition]++);
}

async function produce() {
  const types = {
    none: CompressionTypes.None,
    gzip: CompressionTypes.GZIP,
    snappy: CompressionTypes.Snappy,
    lz4: CompressionTypes.LZ4,
    zstd: CompressionTypes.ZSTD,
  };
  const offsets = [];
  for (const part of plan.produce) {
    offsets.push(await send(part.records, types[part.compression], {}));
  }
  await say("produce", { offsets });
}

async function idempotent() {
  const numbered = await send(plan.idempotent, CompressionTypes.None, { idempotent: true });
  await say("idempotent", { offsets: numbered });
}

const text = (data) => (data === null || data === undefined ? null : data.toString());

function described(partition, message) {
  return {
    partition,
    offset: Number(message.offset),
    key: text(message.key),
    value: text(message.value),
    headers: Object.entries(message.headers).map(([name, value]) => [name, text(value)]),
    timestamp: Number(message.timestamp),
  };
}

// Return the next `count` records of partitions; all of them from the beginning unless offsets are given.
async function read(name, count, starts) {
  const consumer = kafka.consumer({ groupId: `${plan.group}-${name}` });
  await consumer.connect();
  await consumer.subscribe({ topic: plan.topic, fromBeginning: true });
  const records = [];
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ partition, message }) => {
      if (starts === undefined || partition in starts) records.push(described(partition, message));
      if (records.length === count) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
    for (const [partition, offset] of Object.entries(starts ?? {})) {
      consumer.seek({ topic: plan.topic, partition: Number(partition), offset: String(offset) });
    }
  });
  await consumer.disconnect();
  return records;
}

async function consume() {
  const wanted = plan.consume;
  const earliest = await read("earliest", wanted.count);
  const offset = await read("offset", wanted.offset_count, { [wanted.partition]: wanted.offset });
  const found = await admin.fetchTopicOffsetsByTimestamp(plan.topic, wanted.time);
  const starts = Object.fromEntries(found.map((part) => [part.partition, part.offset]));
  const time = await read("time", wanted.time_count, starts);
  await say("consume", { earliest, offset, time });
}

async function group() {
  const records = [[], []];
  const assigned = [[], []];
  let check = () => {};
  const reached = (condition) =>
    new Promise((resolve) => {
      check = () => condition() && resolve();
      check();
    });
  const members = await Promise.all(
    [0, 1].map(async (i) => {
      const member = kafka.consumer({ groupId: plan.group });
      await member.connect();
      await member.subscribe({ topic: plan.group_topic, fromBeginning: true });
      member.on(member.events.GROUP_JOIN, ({ payload }) => {
        assigned[i] = payload.memberAssignment[plan.group_topic] ?? [];
        check();
      });
      await member.run({
        autoCommit: false,
        eachMessage: async ({ topic, partition, message }) => {
          const offset = String(Number(message.offset) + 1);
          await member.commitOffsets([{ topic, partition, offset }]);
          records[i].push(described(partition, message));
          check();
        },
      });
      return member;
    }),
  );
  await reached(() => assigned[0].length > 0 && assigned[1].length > 0);
  await say("group", { assigned });
  // The second round comes after the broker was restarted.
  for (const count of plan.group_counts) {
    await reached(() => records[0].length + records[1].length >= count);
    await say("group", { records: records.map((seen) => seen.splice(0)) });
  }
  await Promise.all(members.map((member) => member.disconnect()));
}

async function administer() {
  const { name, value } = plan.config;
  const resource = { type: ConfigResourceTypes.TOPIC, name: plan.topic };
  const setting = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false });
    return resources[0].configEntries.find((entry) => entry.configName === name).configValue;
  };
  const before = await setting();
  const change = { ...resource, configEntries: [{ name, value }] };
  await admin.alterConfigs({ validateOnly: false, resources: [change] });
  await say("admin", { before, after: await setting() });
  await admin.deleteTopics({ topics: [plan.topic] });
  await say("admin", { topics: await admin.listTopics() });
}

async function main() {
  await plugCodecs();
  await admin.connect();
  const steps = { create, produce, idempotent, consume, group, admin: administer };
  for (const step of plan.steps) await steps[step]();
  await admin.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
