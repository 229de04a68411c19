// The dashboard in a real browser: it shows the endpoints, its numbers move under load, it asks nobody else for anything.
import assert from "node:assert";
import { existsSync } from "node:fs";
import test from "node:test";
import OpenAI from "openai";
import { chromium } from "playwright-core";

const path = ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
const client = new OpenAI({ baseURL: process.env.POINTSMAN + "/v1", apiKey: "unused", maxRetries: 0 });
const shots = [
  { name: "desktop", viewport: { width: 1280, height: 800 }, colorScheme: "light" },
  { name: "phone", viewport: { width: 390, height: 844 }, colorScheme: "light" },
  { name: "dark", viewport: { width: 1280, height: 800 }, colorScheme: "dark" },
];

test("the dashboard is live", { skip: path ? false : "chromium is not installed" }, async () => {
  const browser = await chromium.launch({ executablePath: path, args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"] });
  try {
    for (const { name, ...context } of shots) {
      const page = await (await browser.newContext(context)).newPage();
      const errors = [], foreign = [];
      page.on("pageerror", (e) => errors.push(String(e)));
      page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
      page.on("request", (r) => r.url().startsWith(process.env.ADMIN) || r.url().startsWith("data:") || foreign.push(r.url()));
      await page.goto(process.env.ADMIN + "/", { waitUntil: "domcontentloaded" });
      await page.waitForFunction(() => /ready/i.test(document.body.innerText), null, { timeout: 60000 });
      const before = await page.innerText("body");
      const load = Array.from({ length: 12 }, (_, i) =>
        client.chat.completions.create({ model: "tiny", messages: [{ role: "user", content: `${name} ${i} ` + "all aboard ".repeat(20) }], max_tokens: 300 }));
      await page.waitForFunction((was) => document.body.innerText !== was, before, { timeout: 60000 });
      await Promise.all(load);
      await page.screenshot({ path: `${process.env.OUT}/dashboard-${name}.png`, fullPage: true });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wide <= 1, `${name}: the page scrolls sideways by ${wide} px`);
      assert.deepEqual(errors, [], name);
      assert.deepEqual(foreign, [], name);
    }
  } finally {
    await browser.close();
  }
});
