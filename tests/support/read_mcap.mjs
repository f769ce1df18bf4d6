// Reads a file with @mcap/core, by its index and as a stream, checksums verified; prints messages by topic.
import { readFileSync } from "node:fs";
import { McapIndexedReader, McapStreamReader } from "@mcap/core";
import { decompress } from "fzstd";

const data = new Uint8Array(readFileSync(process.argv[2]));
const decompressHandlers = { zstd: (buffer, size) => decompress(buffer, new Uint8Array(Number(size))) };
const count = (counts, topic) => { counts[topic] = (counts[topic] ?? 0) + 1; };

const streamed = {};
const topics = new Map();
const stream = new McapStreamReader({ validateCrcs: true, decompressHandlers });
stream.append(data);
for (let record; (record = stream.nextRecord()); ) {
  if (record.type === "Channel") topics.set(record.id, record.topic);
  if (record.type === "Message") count(streamed, topics.get(record.channelId));
}

let indexed = null;
if (process.argv[3] === "finished") {
  indexed = {};
  const readable = {
    size: async () => BigInt(data.length),
    read: async (offset, length) => data.slice(Number(offset), Number(offset + length)),
  };
  const reader = await McapIndexedReader.Initialize({ readable, decompressHandlers });
  for await (const message of reader.readMessages({ validateCrcs: true })) {
    count(indexed, reader.channelsById.get(message.channelId).topic);
  }
}
console.log(JSON.stringify({ streamed, indexed, done: stream.done() }));
