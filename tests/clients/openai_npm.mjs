// OpenAI's package for JavaScript: chat completions, completions and responses.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const { default: OpenAI } = createRequire(join(process.env.CLIENT_FOLDER, "package.json"))("openai");
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

await check("models", async () => assert.equal((await client.models.list()).data[0].id, given.model));

await check("bad_input", async () => {
  await assert.rejects(ask({ temperature: 9 }), (e) => e instanceof OpenAI.BadRequestError && /temperature/.test(e.message));
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
