// OpenAI's client for JavaScript: chat, stream, abort and tools. SERVER is the address of the server.
import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

const { SERVER, STORY, MODEL, TOOLS, OPENING } = process.env;
const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0 });
const body = {
  model: MODEL,
  messages: [{ role: "user", content: OPENING }],
  temperature: 0,
  max_completion_tokens: 24,
};

test("a chat continues the story as the library does", async () => {
  const reply = await client.chat.completions.create(body);
  assert.equal(reply.choices[0].message.content, STORY);
  assert.equal(reply.choices[0].finish_reason, "length");
  assert.equal(reply.usage.completion_tokens, 24);
});

test("a stream has the bytes of the whole reply", async () => {
  const stream = await client.chat.completions.create({
    ...body,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, STORY);
  assert.equal(usage.completion_tokens, 24);
});

test("the streaming helper collects the reply", async () => {
  const stream = client.chat.completions.stream({ ...body, stop: "." });
  assert.equal(await stream.finalContent(), STORY.split(".")[0]);
});

async function metric(name) {
  const text = await (await fetch(`${SERVER}/metrics`)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(name) && !line.startsWith("#"));
  assert.ok(lines.length > 0, `no metric ${name}`);
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function nothingRuns() {
  for (let turn = 0; turn < 250; turn++) {
    if ((await metric("girih_requests_running")) + (await metric("girih_requests_waiting")) === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail("requests still run");
}

test("an aborted stream cancels its request", async () => {
  const long = { model: MODEL, prompt: Array(9).fill(OPENING), temperature: 1, n: 8, max_tokens: 480 };
  const stream = await client.completions.create({ ...long, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    break; // ends the iteration, which aborts the request
  }
  await nothingRuns();
  const abort = new AbortController();
  const whole = client.completions.create(long, { signal: abort.signal });
  setTimeout(() => abort.abort(), 100);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await nothingRuns();
});

test("a named tool is called", async () => {
  const parameters = {
    type: "object",
    properties: { day: { enum: ["today", "tomorrow"] } },
    required: ["day"],
    additionalProperties: false,
  };
  const reply = await client.chat.completions.create({
    ...body,
    model: TOOLS,
    max_completion_tokens: 100,
    tools: [{ type: "function", function: { name: "weather", parameters } }],
    tool_choice: { type: "function", function: { name: "weather" } },
  });
  const [call] = reply.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  assert.ok(["today", "tomorrow"].includes(JSON.parse(call.function.arguments).day));
});

test("errors have their class, code and parameter", async () => {
  await assert.rejects(client.chat.completions.create({ ...body, temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...body, model: "gpt-99" }), OpenAI.NotFoundError);
});
