// OpenAI's package for JavaScript: chat completions, completions and responses.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.CLIENT_FOLDER, "package.json"));
const { default: OpenAI } = require("openai");
const { zodFunction, zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");
const given = JSON.parse(process.env.CLIENT_GIVEN);
const baseURL = `${given.url}/v1`;
const client = new OpenAI({ baseURL, apiKey: given.key, maxRetries: 0 });
const chat = { model: given.model, messages: [{ role: "user", content: given.text }], ...given.sampling };
const prompt = { model: given.model, prompt: given.text, ...given.sampling };

async function check(name, call) {
  let [ok, why] = [true, ""];
  try {
    await call();
  } catch (error) {
    [ok, why] = [false, `${error.name}: ${error.message}`.slice(0, 600)];
  }
  console.log(JSON.stringify({ check: name, ok, why }));
}

const ask = async (more = {}) => (await client.chat.completions.create({ ...chat, ...more })).choices;
const text = async (more = {}) => (await ask(more))[0].message.content;

async function joined(stream) {
  let found = "";
  for await (const part of stream) found += part.choices[0]?.delta.content ?? "";
  return found;
}

function close(found, wanted) {
  assert.equal(found.length, wanted.length);
  found.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-6, `found ${found}, wanted ${wanted}`));
}

async function metric(name) {
  const response = await fetch(`${given.url}/metrics`, { headers: { Authorization: `Bearer ${given.key}` } });
  const lines = (await response.text()).split("\n").filter((line) => line.split("{")[0] === name);
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

await check("plain", async () => assert.equal(await text(), given.chat));

await check("stream", async () => {
  assert.equal(await joined(await client.chat.completions.create({ ...chat, stream: true })), given.chat);
  const final = await client.chat.completions.stream(chat).finalChatCompletion();
  assert.equal(final.choices[0].message.content, given.chat);
});

await check("stop", async () => {
  assert.equal(await text({ stop: given.stop }), given.stopped);
  const stream = await client.chat.completions.create({ ...chat, stop: [given.stop], stream: true });
  assert.equal(await joined(stream), given.stopped);
});

await check("seed", async () => {
  assert.deepEqual(await ask(), await ask());
  assert.notEqual(await text({ seed: 4 }), given.chat);
});

await check("logprobs", async () => {
  const found = (await ask({ logprobs: true, top_logprobs: 2 }))[0].logprobs.content;
  close(found.map((x) => x.logprob), given.logprobs);
});

await check("n", async () => assert.deepEqual((await ask({ n: 3 })).map((c) => c.message.content), given.choices));

await check("completion", async () => {
  const found = (await client.completions.create({ ...prompt, logprobs: 1 })).choices[0];
  assert.equal(found.text, given.completion);
  close(found.logprobs.token_logprobs, given.completion_logprobs);
});

await check("response", async () => {
  const { max_tokens, seed, temperature } = given.sampling;
  const body = { model: given.model, input: given.text, max_output_tokens: max_tokens, seed, temperature };
  assert.equal((await client.responses.create(body)).output_text, given.chat);
  let found = "";
  for await (const event of await client.responses.create({ ...body, stream: true }))
    if (event.type === "response.output_text.delta") found += event.delta;
  assert.equal(found, given.chat);
});

// Bounded, because the bundled model would not end a free text.
const Circle = z.object({ shape: z.literal("circle"), radius: z.int().min(1).max(9) });
const Square = z.object({ shape: z.literal("square"), side: z.int().min(1).max(9) });
const Order = z.object({
  customer: z.string().max(16),
  color: z.enum(["red", "blue"]),
  forms: z.array(z.discriminatedUnion("shape", [Circle, Square])).min(1).max(2),
  note: z.string().max(8).nullable(),
});
const Sum = z.object({ a: z.int().min(0).max(99), b: z.int().min(0).max(99) });
const sum = zodFunction({ name: "add", parameters: Sum, function: ({ a, b }) => `${a} + ${b} = ${a + b}` });
const named = { type: "function", function: { name: "add" } };
const task = { model: given.model, messages: [{ role: "user", content: "How much is 17 plus 25?" }], max_tokens: 300, seed: 3 };

await check("parsed", async () => {
  const body = { ...task, response_format: zodResponseFormat(Order, "order") };
  Order.parse((await client.chat.completions.parse(body)).choices[0].message.parsed);
  let [text, stream] = ["", client.chat.completions.stream(body)];
  stream.on("content.delta", ({ delta }) => (text += delta));
  assert.deepEqual((await stream.finalChatCompletion()).choices[0].message.parsed, Order.parse(JSON.parse(text)));
});

await check("tool_choice", async () => {
  for (const tool_choice of ["required", named]) {
    const body = { ...task, tools: [sum], tool_choice, parallel_tool_calls: false };
    const [call] = (await client.chat.completions.parse(body)).choices[0].message.tool_calls;
    Sum.parse(call.function.parsed_arguments);
  }
  let [pieces, stream] = ["", client.chat.completions.stream({ ...task, tools: [sum], tool_choice: named })];
  stream.on("tool_calls.function.arguments.delta", ({ arguments_delta }) => (pieces += arguments_delta));
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.equal(call.function.arguments, pieces);
  Sum.parse(JSON.parse(pieces));
});

await check("loop", async () => {
  const runner = client.chat.completions.runTools({ ...task, tools: [sum], tool_choice: named });
  assert.match(await runner.finalFunctionToolCallResult(), /^\d+ \+ \d+ = \d+$/);
  const body = { ...task, max_tokens: 20, messages: runner.messages, tools: [sum], tool_choice: "none" };
  assert.ok((await client.chat.completions.create(body)).choices[0].message.content);
});

await check("models", async () => assert.equal((await client.models.list()).data[0].id, given.model));

await check("bad_input", async () => {
  await assert.rejects(ask({ temperature: 99_999 }), (e) => e instanceof OpenAI.BadRequestError && /temperature/.test(e.message));
  await assert.rejects(ask({ nothing: 1 }), (e) => e instanceof OpenAI.BadRequestError && /nothing/.test(e.message));
  await assert.rejects(ask({ model: "other" }), (e) => e instanceof OpenAI.NotFoundError && /other/.test(e.message));
  const other = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
});

await check("disconnect", async () => {
  const before = await metric("vllm:generation_tokens_total");
  const stream = await client.chat.completions.create({ ...chat, max_tokens: given.long, ignore_eos: true, stream: true });
  let parts = 0;
  for await (const _ of stream) {
    if (++parts === 5) {
      assert.ok((await metric("vllm:num_requests_running")) >= 1, "the stream ended before the client could leave");
      break; // which aborts the request
    }
  }
  const deadline = Date.now() + 5000;
  while (await metric("vllm:num_requests_running")) {
    assert.ok(Date.now() < deadline, "the request still runs 5 s after its client left");
    await new Promise((done) => setTimeout(done, 20));
  }
  const decoded = (await metric("vllm:generation_tokens_total")) - before;
  assert.ok(decoded > 0 && decoded < given.long, `${decoded} tokens were decoded for a client that had left`);
  assert.equal(await text(), given.chat);
});
