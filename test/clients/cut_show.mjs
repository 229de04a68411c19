// What the official clients for Node show of answers that break: cut_show.mjs URL RUN CASE... prints one JSON object.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, run, ...cases] = process.argv.slice(2);
const oai = new OpenAI({ baseURL: url + "/v1", apiKey: "unused" });
const ant = new Anthropic({ baseURL: url, apiKey: "unused" });

function ask(name) {
  const [api, how, kind] = name;
  const text = `case=${kind} run=${run}.js.${name.join(".")}`;
  const stream = how === "stream" ? { stream: true } : {};
  const messages = [{ role: "user", content: text }];
  switch (api) {
    case "chat":
      return oai.chat.completions.create({ model: "m", messages, ...stream });
    case "completions":
      return oai.completions.create({ model: "m", prompt: text, ...stream });
    case "responses":
      return oai.responses.create({ model: "m", input: text, ...stream });
  }
  return ant.messages.create({ model: "m", max_tokens: 64, messages, ...stream });
}

async function show(name) {
  let last;
  try {
    const answer = await ask(name);
    if (name[1] === "stream") for await (const event of answer) last = event;
  } catch (e) {
    return "raises " + e.constructor.name;
  }
  if (["error", "response.failed"].includes(last?.type)) return "ends with an event `" + last.type + "`";
  return "looks complete";
}

const shown = {};
await Promise.all(
  cases.flatMap((kind) => ["chat", "completions", "responses", "messages"].flatMap((api) => ["stream", "piece"].map((how) => [api, how, kind])))
    .map(async (name) => { shown[name.join(".")] = await show(name); }));
console.log(JSON.stringify(shown));
