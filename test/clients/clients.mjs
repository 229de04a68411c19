// The official OpenAI client for Node against the gateway.
import assert from "node:assert";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.POINTSMAN + "/v1", apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello to the railway." }];

test("chat", async () => {
  const answer = await client.chat.completions.create({ model: "tiny", messages, max_tokens: 8 });
  assert.ok(["stop", "length"].includes(answer.choices[0].finish_reason));
});

test("stream", async () => {
  const stream = await client.chat.completions.create({ model: "tiny", messages, max_tokens: 8, stream: true, stream_options: { include_usage: true } });
  let last, finish;
  for await (const part of stream) {
    last = part;
    finish = part.choices[0]?.finish_reason ?? finish;
  }
  assert.ok(finish);
  assert.ok(last.usage.completion_tokens <= 8);
});

test("responses", async () => {
  const answer = await client.responses.create({ model: "tiny", input: "Say hello.", max_output_tokens: 8 });
  assert.ok(["completed", "incomplete"].includes(answer.status));
});

test("embeddings and models", async () => {
  const answer = await client.embeddings.create({ model: "tiny", input: "one", encoding_format: "float" });
  assert.ok(answer.data[0].embedding.length > 0);
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes("tiny"));
});

test("an aborted stream is no error for the next request", async () => {
  const stream = await client.chat.completions.create({ model: "tiny", messages, max_tokens: 1000, stream: true });
  for await (const _ of stream) break;
  const answer = await client.chat.completions.create({ model: "tiny", messages, max_tokens: 2 });
  assert.ok(answer.id);
});

test("unknown model", async () => {
  await assert.rejects(client.chat.completions.create({ model: "tinny", messages }), (e) => e.status === 404 && /tiny/.test(e.message));
});
