// Draws what /api/events says, once a second. Nothing here decides anything; every number comes from the gateway.

const $ = (id) => document.getElementById(id);
const POINTS = 180;

// ---- words: what the page's labels and states mean, shown as tooltips and in the legend ----

const STATES = {
  unknown: "Nothing was heard of it yet. It counts as average, never as a favourite.",
  warming: "It answered, but no request has succeeded yet. Its share grows as it proves itself.",
  ready: "In use.",
  ejected: "Requests to it failed. It gets none until a probe or a single trial request succeeds.",
  draining: "It refuses new work and finishes what it has.",
  asleep: "Its engine released the weights; requests would hang, so it gets none.",
  gone: "It shut down or closed its port. It is used again when it answers.",
  leaving: "Removed from the configuration; it finishes what it has.",
};
const REASONS = {
  prefix: ["prefix", "The endpoint holds a prefix of the prompt, and that decided."],
  load: ["load", "Expected time alone decided: nothing was held, or it was not worth the wait."],
  all_full: ["all full", "The endpoint was full, as all were: the lowest expected time decided."],
  only_one: ["only one", "There was one endpoint to choose from."],
  other: ["other", "Any other reason."],
};
const COLUMNS = [
  ["c-name", "Endpoint", ""],
  ["c-state", "State", "What the gateway knows of the endpoint. Point at a state for its meaning."],
  ["c-run r", "Running", "Requests that the endpoint reports in execution, of the most it runs at once."],
  ["c-wait r", "Waiting", "Requests that the endpoint reports in its own queue. One or more makes it full for ordinary prompts."],
  ["c-own r", "In flight", "Requests that this gateway sent there and that have not ended."],
  ["c-foreign r", "Foreign", "Requests at the endpoint that did not come through this gateway. They are counted when picking."],
  ["c-trend", "Load, 3 min", "Requests at the endpoint during the last three minutes."],
  ["kv-cell", "KV memory", "Solid: share of KV blocks that the endpoint reports in use. Mark: the projection, with what was sent since and what decoding will add."],
  ["c-held r", "Held prefixes", "Prompt tokens whose prefix the gateway believes to be cached there."],
  ["c-hit r", "Hit rate", "Prefix cache hits since the engine started. Computed: one minus computed by prompt tokens, the honest rate for hybrid models."],
  ["c-age r", "Report", "Age of its last good report. Old reports are not believed."],
];
const TERMS = {
  wait: "wait", work: "prefill", busy: "load", stall: "stalls others", step: "slower steps", penalty: "asked to pause",
  return: "return bonus", requests: "requests there", request: "this request",
};

const SKIPPED = { health: "not usable", excluded: "tried before" };

// ---- small tools ----

const h = (tag, attrs = {}, ...children) => {
  const svg = ["svg", "path", "line"].includes(tag);
  const el = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) if (v !== undefined && v !== null) el.setAttribute(k, v);
  el.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return el;
};
const set = (el, text) => { if (el.textContent !== text) el.textContent = text; };
const cls = (el, name) => { if (el.className !== name) el.className = name; };
const tip = (el, text) => { if (el.dataset.tip !== text) el.dataset.tip = text; return el; };
const has = (v) => v !== null && v !== undefined;

const int = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const DASH = "–";
const big = (el, text, unit) => el.replaceChildren(text === DASH ? h("span", { class: "nothing" }, text) : text, ...(unit ? [h("small", {}, unit)] : []));
const count = (v) => (!has(v) ? DASH : v < 10000 ? int.format(v) : short.format(v));
const percent = (v, digits = 0) => (has(v) ? (100 * v).toFixed(digits) + " %" : DASH);
const rate = (v) => (!has(v) ? DASH : v === 0 ? "0" : v < 10 ? v.toFixed(1) : count(v));
const span = (s) => {
  if (!has(s)) return DASH;
  if (s < 0) return "−" + span(-s);
  if (s < 1e-3) return (1e6 * s).toFixed(s < 1e-5 ? 1 : 0) + " µs";
  if (s < 0.9995) return (1e3 * s).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 2 : 1) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
};
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

// ---- sparkline: one series with an area, optionally a second line; value under the pointer in the tooltip ----

class Spark {
  constructor(label, format, { second, most } = {}) {
    this.most = most; // fixed top of the scale
    this.format = format;
    this.label = label;
    this.second = second;
    this.a = []; this.b = [];
    this.area = h("path", { class: "area" });
    this.line = h("path", { class: "line" });
    this.line2 = h("path", { class: "second" });
    this.cursor = h("line", { class: "cursor", y1: 0, y2: 40 });
    this.el = h("svg", { class: "spark", viewBox: "0 0 180 40", preserveAspectRatio: "none", role: "img" }, this.area, this.line2, this.line, this.cursor);
    this.el.addEventListener("pointermove", (e) => this.hover(e));
    this.el.addEventListener("pointerleave", hideTip);
  }
  push(a, b) {
    for (const [series, v] of [[this.a, a], [this.b, b]]) { series.push(v ?? null); if (series.length > POINTS) series.shift(); }
  }
  fill(a = [], b = []) { this.a = a.slice(-POINTS); this.b = b.slice(-POINTS); }
  highest() { return Math.max(1e-9, ...this.a.map((v) => v ?? 0), ...(this.second ? this.b.map((v) => v ?? 0) : [])); }
  draw(most = this.most ?? this.highest()) {
    const top = 1.12 * most;
    const trace = (series) => {
      let d = "", area = "", start = null;
      const x = (i) => (i + POINTS - series.length) * (180 / (POINTS - 1));
      const y = (v) => (39 - (v / top) * 37).toFixed(2);
      const close = (end) => { if (start !== null) area += `V40H${x(start).toFixed(2)}Z`; start = null; return end; };
      series.forEach((v, i) => {
        if (!has(v)) return close(i);
        const p = `${x(i).toFixed(2)} ${y(v)}`;
        d += (start === null ? "M" : "L") + p;
        area += (start === null ? "M" : "L") + p;
        if (start === null) start = i;
      });
      close();
      return [d, area];
    };
    const [d, area] = trace(this.a);
    this.line.setAttribute("d", d);
    this.area.setAttribute("d", area);
    if (this.second) this.line2.setAttribute("d", trace(this.b)[0]);
    const last = this.a.findLast(has);
    this.el.setAttribute("aria-label", `${this.label}, last three minutes: now ${this.format(last)}, highest ${this.format(Math.max(0, ...this.a.filter(has)))}`);
  }
  hover(e) {
    const box = this.el.getBoundingClientRect();
    const back = Math.round((1 - (e.clientX - box.left) / box.width) * (POINTS - 1));
    const i = this.a.length - 1 - back;
    const x = 180 - back * (180 / (POINTS - 1));
    this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x);
    if (i < 0) return hideTip();
    const second = this.second && has(this.b[i]) ? `, ${this.second} ${this.format(this.b[i])}` : "";
    showTip(`${this.format(this.a[i])}${second}\n${back === 0 ? "now" : back + " s ago"}`, { left: e.clientX, right: e.clientX, top: box.top, bottom: box.bottom });
  }
}

// ---- tooltips: pointer, keyboard and touch ----

function showTip(text, box) {
  const t = $("tip");
  set(t, text);
  t.hidden = false;
  const w = t.offsetWidth, hgt = t.offsetHeight;
  t.style.left = Math.max(8, Math.min(innerWidth - w - 8, (box.left + box.right) / 2 - w / 2)) + "px";
  t.style.top = (box.top > hgt + 12 ? box.top - hgt - 8 : box.bottom + 8) + "px";
}
function hideTip() { $("tip").hidden = true; }
function tipFor(e) {
  const el = e.target.closest?.("[data-tip]");
  if (!el || !el.dataset.tip) return;
  el.setAttribute("aria-describedby", "tip");
  showTip(el.dataset.tip, el.getBoundingClientRect());
}
for (const type of ["pointerover", "focusin", "click"]) document.addEventListener(type, tipFor);
for (const type of ["pointerout", "focusout", "scroll"]) document.addEventListener(type, (e) => e.target.closest?.("svg.spark") || hideTip(), true);
document.addEventListener("keydown", (e) => e.key === "Escape" && hideTip());

// ---- the KV bar: reported and projected, one bar with two marks ----

class KV {
  constructor() {
    this.fill = h("i", { class: "fill" });
    this.proj = h("i", { class: "proj" });
    this.tick = h("i", { class: "tick" });
    this.limit = h("i", { class: "limit" });
    this.bar = h("div", { class: "kv", role: "img" }, this.proj, this.fill, this.limit, this.tick);
    this.text = h("div", { class: "kv-text" }, (this.now = h("span")), (this.then = h("span")));
    this.el = h("div", {}, this.bar, this.text);
  }
  update(kv, projected, limit) {
    const pct = (v) => Math.max(0, Math.min(1, v ?? 0)) * 100 + "%";
    cls(this.bar, "kv" + (kv >= 0.95 ? " hot" : kv >= 0.8 ? " warm" : ""));
    this.fill.style.width = pct(kv);
    this.proj.style.width = pct(projected);
    this.tick.hidden = !has(projected);
    this.tick.style.left = pct(projected);
    this.limit.hidden = !has(limit);
    this.limit.style.left = pct(limit);
    this.now.replaceChildren(h("b", {}, percent(kv)), h("span", { class: "word" }, " reported"));
    this.then.replaceChildren(h("b", {}, percent(projected)), h("span", { class: "word" }, " projected"));
    this.bar.setAttribute("aria-label", `KV memory: ${percent(kv)} reported, ${percent(projected)} projected`);
  }
}

// ---- one endpoint: a row, and a row of details under it ----

class Row {
  constructor(name) {
    const cell = (i, ...children) => h("td", { class: COLUMNS[i][0], role: "cell", "data-label": i > 1 ? COLUMNS[i][1] : null }, ...children);
    this.button = h("button", { class: "name", type: "button", "aria-expanded": "false" }, name);
    this.sub = h("div", { class: "sub" });
    this.state = h("span", { class: "badge", tabindex: "0" });
    [this.run, this.wait, this.own, this.foreign, this.age] = [0, 0, 0, 0, 0].map(() => h("span"));
    [this.held, this.hit] = [0, 0].map(() => h("div", { class: "two" }));
    this.kv = new KV();
    this.spark = new Spark("Load of " + name, (v) => plural(v, "request"));
    this.el = h("tr", { class: "row", role: "row" }, cell(0, this.button, this.sub), cell(1, this.state), cell(2, this.run), cell(3, this.wait), cell(4, this.own),
      cell(5, this.foreign), cell(6, this.spark.el), cell(7, this.kv.el), cell(8, this.held), cell(9, this.hit), cell(10, this.age));
    this.facts = h("dl", { class: "facts" });
    this.detail = h("tr", { class: "detail", role: "row", hidden: "" }, h("td", { colspan: COLUMNS.length, role: "cell" }, this.facts));
    this.button.addEventListener("click", () => {
      this.detail.hidden = !this.detail.hidden;
      this.button.setAttribute("aria-expanded", String(!this.detail.hidden));
      this.details();
    });
  }
  update(e, p, history) {
    this.e = e; this.p = p;
    const state = e.leaving ? "leaving" : e.state;
    set(this.sub, [e.engine, e.version].filter(Boolean).join(" "));
    set(this.state, state);
    cls(this.state, "badge " + (e.leaving ? "draining" : e.state));
    tip(this.state, STATES[state] ?? state);
    set(this.run, count(e.running) + (e.max_num_seqs ? ` / ${count(e.max_num_seqs)}` : ""));
    cls(this.run, e.max_num_seqs && e.running >= e.max_num_seqs ? "hot" : e.running ? "" : "zero");
    set(this.wait, count(e.waiting)); cls(this.wait, e.waiting ? "hot" : "zero");
    set(this.own, count(e.in_flight)); cls(this.own, e.in_flight ? "" : "zero");
    set(this.foreign, count(e.foreign)); cls(this.foreign, e.foreign ? "foreign" : "zero");
    this.kv.update(e.kv_usage, e.projected_kv, p.full_at?.projected_kv);
    this.held.replaceChildren(count(e.held_bytes / (p.bytes_per_token || 4)) + " tok", h("small", {}, plural(e.held_blocks, "block")));
    this.hit.replaceChildren(percent(e.engine_hit_ratio ?? e.computed_hit_ratio), h("small", {}, has(e.computed_hit_ratio) && has(e.engine_hit_ratio) ? percent(e.computed_hit_ratio) + " computed" : "\u00a0"));
    set(this.age, span(e.report_age_seconds)); cls(this.age, e.report_stale ? "old" : "muted");
    if (history) this.spark.fill(history);
    else this.spark.push(Math.max((e.running ?? 0) + (e.waiting ?? 0), e.in_flight));
    if (!this.detail.hidden) this.details();
  }
  details() {
    const e = this.e;
    const onOff = (v) => (has(v) ? (v ? "on" : "off") : "unknown");
    const facts = [
      ["Address", e.url], ["Models", (e.models ?? []).join(", ") || DASH], ["Prefix caching", onOff(e.prefix_caching)],
      ["KV capacity", e.capacity_tokens ? count(e.capacity_tokens) + " tokens" : DASH], ["Block size", e.block_size ? plural(e.block_size, "token") : DASH],
      ["Window", e.max_model_len ? count(e.max_model_len) + " tokens" : DASH], ["Decoding", count(e.decoding)], ["Picks", count(e.picks)],
      ["Time to first token", has(e.slowness) ? `${e.slowness.toFixed(2)} × predicted` : DASH], ["Preemptions", count(e.preemptions)], ["Restarts seen", count(e.restarts)],
    ];
    if (e.report_error) facts.push(["Last report error", e.report_error]);
    this.facts.replaceChildren(...facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, String(v)))));
  }
}

// ---- one pool: tiles and its endpoints ----

const tile = (title, about, extra, ...children) => h("article", { class: "tile " + extra }, h("h3", { tabindex: "0", "data-tip": about }, title), ...children);

class Pool {
  constructor(name) {
    this.rows = new Map();
    this.head = h("div", { class: "pool-head" });
    const figure = () => ({ big: h("div", { class: "big" }), sub: h("div", { class: "sub" }) });
    this.rps = figure(); this.ttft = figure(); this.hits = figure(); this.flight = figure();
    this.rpsSpark = new Spark("Requests per second", (v) => rate(v) + " /s");
    this.ttftSpark = new Spark("Time to first token", span, { second: "p95" });
    this.hitSpark = new Spark("Prefix hit rate", (v) => percent(v), { second: "predicted", most: 1 });
    this.flightSpark = new Spark("In flight", count);
    this.stack = h("div", { class: "stack", role: "img" });
    this.keys = h("div", { class: "keys" });
    this.pick = h("div", { class: "sub" });
    const tiles = h("div", { class: "tiles" },
      tile("Requests", "Requests that ended, per second, over the last five seconds.", "", this.rps.big, this.rps.sub, this.rpsSpark.el),
      tile("Time to first token", "From a streamed request's arrival to its first token: the median of the last minute. Lines: median, and 95th percentile in amber.", "", this.ttft.big, this.ttft.sub, this.ttftSpark.el),
      tile("Prefix hits", "Share of prompt tokens found in a prefix cache in the last minute: as the endpoints reported it, and, in amber, as predicted when picking.", "", this.hits.big, this.hits.sub, this.hitSpark.el),
      tile("In flight", "Requests that were sent from here and have not ended.", "wide", this.flight.big, this.flight.sub, this.flightSpark.el),
      tile("Picks, last minute", "What decided where requests went.", "wide last", this.stack, this.keys));
    this.body = h("tbody", { role: "rowgroup" });
    this.title = h("h3", {});
    this.filter = h("input", { class: "filter", type: "search", placeholder: "Filter", "aria-label": "Filter endpoints by name or state" });
    this.filter.addEventListener("input", () => this.applyFilter());
    const table = h("table", { role: "table", "aria-label": `Endpoints of pool ${name}` },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, COLUMNS.map(([c, t, about]) => h("th", { class: c, role: "columnheader", scope: "col", "data-tip": about || null, tabindex: about ? "0" : null }, t)))), this.body);
    this.el = h("section", { class: "pool", "aria-label": `Pool ${name}` }, this.head, tiles, h("div", { class: "endpoints" }, h("header", {}, this.title, this.filter), table));
  }
  update(p) {
    const t = p.traffic, list = p.endpoints ?? [];
    this.heading(p, list);
    const sum = (f) => list.reduce((n, e) => n + (e[f] ?? 0), 0);
    big(this.rps.big, rate(t.requests_per_second), "/s");
    this.rps.sub.replaceChildren(h("b", {}, rate(t.output_tokens_per_second)), " tok/s · ", t.failed ? h("span", { class: "bad" }, `${count(t.failed)} failed`) : "0 failed");
    big(this.ttft.big, span(t.ttft_p50_seconds), "median");
    this.ttft.sub.replaceChildren(h("b", {}, span(t.ttft_p95_seconds)), " 95th percentile");
    big(this.hits.big, percent(t.actual_hit_ratio ?? t.predicted_hit_ratio), has(t.actual_hit_ratio) ? "actual" : "predicted");
    this.hits.sub.replaceChildren(...(has(t.actual_hit_ratio) ? [h("b", {}, percent(t.predicted_hit_ratio)), " predicted"] : [has(t.predicted_hit_ratio) ? "endpoints report no hits" : "no prompts yet"]));
    big(this.flight.big, count(p.in_flight));
    const q = p.queue ?? {};
    this.flight.sub.replaceChildren(...(q.max || q.waiting ? [tip(h("b", { tabindex: "0" }, `${count(q.waiting)} / ${count(q.max)}`), `Requests that wait in the gateway until an endpoint is free, of the most that may; the longest for ${span(q.oldest_seconds)}.`), " queued · "] : []),
      h("b", {}, count(sum("waiting"))), " waiting · ", h("b", {}, count(p.foreign)), " foreign",
      ...(p.peers ? [" · ", tip(h("b", { tabindex: "0" }, count(p.peers)), "Requests that other replicas of the gateway have in flight, by what they say."), " of peers"] : []));
    this.picks(t);
    const s = p.history ?? p.point ?? {};
    for (const [spark, a, b] of [[this.rpsSpark, s.requests_per_second], [this.ttftSpark, s.ttft_p50_seconds, s.ttft_p95_seconds], [this.hitSpark, s.actual_hit_ratio, s.predicted_hit_ratio], [this.flightSpark, s.in_flight]]) {
      if (p.history) spark.fill(a, b); else spark.push(a?.[0], b?.[0]);
      spark.draw();
    }
    this.endpoints(p, list);
  }
  heading(p, list) {
    const key = JSON.stringify([p.policy, p.configured_policy, p.models, p.full, list.length]);
    if (key === this.headKey) return;
    this.headKey = key;
    const models = (p.models ?? []).map((m) => m.id);
    const policy = p.policy + (p.configured_policy === "auto" ? " (auto)" : "");
    const gates = { waiting: "have requests waiting", max_num_seqs: "run all they can", projected_kv: "have no KV memory left" };
    this.head.replaceChildren(...[h("h2", {}, p.name),
      h("span", { class: "chip", tabindex: "0", "data-tip": p.policy === "prefix" ? "Picks by expected time, with the prefixes that endpoints hold." : "Picks the endpoint with the fewest requests; prefixes are ignored." }, policy),
      ...Object.entries(p.full ?? {}).filter(([, n]) => n > 0).map(([g, n]) => h("span", { class: "chip full", tabindex: "0", "data-tip": `${n} of ${list.length} endpoints ${gates[g] ?? "are full"}: skipped while full endpoints are few.` }, `${n} full: ${g}`)),
      h("span", { class: "models" }, models.slice(0, 4).join(", ") + (models.length > 4 ? ` and ${models.length - 4} more` : ""))]);
  }
  picks(t) {
    const total = Object.values(t.picks ?? {}).reduce((a, b) => a + b, 0);
    const shown = Object.entries(REASONS).filter(([r]) => r !== "other" || t.picks?.other);
    const share = (r) => (total ? (t.picks[r] ?? 0) / total : 0);
    if (!this.bars) {
      this.bars = Object.keys(REASONS).map((_, i) => h("i", { class: "b" + (i + 1) }));
      this.stack.append(...this.bars);
    }
    Object.keys(REASONS).forEach((r, i) => { this.bars[i].style.width = 100 * share(r) + "%"; });
    this.stack.setAttribute("aria-label", shown.map(([r, [word]]) => `${word} ${percent(share(r))}`).join(", "));
    this.keys.replaceChildren(...shown.map(([r, [word, about]], i) => h("span", { "data-tip": about }, h("i", { class: `sw b${i + 1}` }), word, h("b", {}, total ? percent(share(r)) : DASH))),
      h("span", { "data-tip": "Mean time that deciding took." }, h("i", { class: "sw" }), "time to pick", h("b", {}, span(t.pick_mean_seconds))));
  }
  endpoints(p, list) {
    const states = new Map();
    for (const e of list) { const s = e.leaving ? "leaving" : e.state; states.set(s, (states.get(s) ?? 0) + 1); }
    set(this.title, [plural(list.length, "endpoint"), [...states].map(([s, n]) => `${n} ${s}`).join(", ")].filter(Boolean).join(": "));
    this.filter.hidden = list.length < 9;
    const seen = new Set();
    for (const e of list) {
      const key = e.leaving ? e.name + " leaving" : e.name;
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = new Row(e.name);
        this.rows.set(key, row);
        this.body.append(row.el, row.detail);
      }
      row.update(e, p, p.endpoint_history?.[e.name]);
    }
    const most = Math.max(4, ...[...this.rows.values()].map((r) => r.spark.highest())); // one scale for all: rows compare
    for (const row of this.rows.values()) row.spark.draw(most);
    for (const [key, row] of this.rows) if (!seen.has(key)) { row.el.remove(); row.detail.remove(); this.rows.delete(key); }
    this.applyFilter();
  }
  applyFilter() {
    const words = this.filter.hidden ? "" : this.filter.value.trim().toLowerCase();
    for (const row of this.rows.values()) {
      const hide = words !== "" && !`${row.e.name} ${row.e.state} ${row.e.version ?? ""}`.toLowerCase().includes(words);
      row.el.hidden = hide;
      if (hide) row.detail.hidden = true;
    }
  }
}

// ---- notices ----

let noticeKey = "", allNotices = false;
function notices(list) {
  const key = JSON.stringify(list) + allNotices;
  if (key === noticeKey) return;
  noticeKey = key;
  const icon = { error: "!", warn: "!", info: "i" };
  const few = innerWidth < 760 ? 2 : 4;
  const shown = allNotices ? list : list.slice(0, few);
  const items = shown.map((n) => h("article", { class: "notice " + n.level, role: n.level === "error" ? "alert" : null },
    h("span", { class: "mark", "aria-hidden": "true" }, icon[n.level] ?? "i"),
    h("div", {}, h("b", {}, n.title), h("br"), h("span", { class: "where" }, [n.pool, (n.endpoints ?? []).slice(0, 6).join(", ") + ((n.endpoints ?? []).length > 6 ? ", …" : "")].filter(Boolean).join(" · "))),
    h("div", {}, n.detail ? h("p", {}, n.detail) : null, n.todo ? h("p", { class: "todo" }, n.todo) : null)));
  if (list.length > few) {
    const more = h("button", { class: "button notices-more", type: "button" }, allNotices ? "Show fewer" : `Show ${list.length - few} more`);
    more.addEventListener("click", () => { allNotices = !allNotices; notices(list); });
    items.push(more);
  }
  $("notices").replaceChildren(...items);
}

// ---- explain: the cost of a recent pick as stacked bars ----

async function explain() {
  const out = $("explain-out");
  const id = $("explain-id").value.trim();
  let x;
  if (!id && !anyPick) return out.replaceChildren(h("p", { class: "muted" }, "No pick was made yet."));
  try {
    const answer = await fetch("api/explain?id=" + encodeURIComponent(id));
    x = await answer.json();
    x.candidates ??= [];
    if (!answer.ok) return out.replaceChildren(h("p", { class: "muted" }, x.error ?? "not found"));
  } catch (err) {
    return out.replaceChildren(h("p", { class: "muted" }, "The gateway does not answer."));
  }
  // An endpoint that could not be picked has no bar: its penalty would leave none to the others.
  const compared = x.candidates.filter((e) => !SKIPPED[e.skipped] || e.chosen);
  const names = [...new Set(compared.flatMap((e) => (e.terms ?? []).filter((t) => t.seconds > 0).map((t) => t.name)))];
  const color = (name) => "b" + (1 + (names.indexOf(name) % 7));
  const top = Math.max(1e-9, ...compared.map((e) => e.terms?.reduce((n, t) => n + Math.max(0, t.seconds), 0) ?? 0));
  const rows = [...x.candidates].sort((a, b) => b.chosen - a.chosen || !!a.skipped - !!b.skipped || a.cost_seconds - b.cost_seconds).slice(0, 12);
  const gate = (g) => h("span", { class: g.applies && !g.passed ? "shut" : "" }, `${g.name} ${!g.applies ? "not applied" : (g.passed ? "ok" : "full") + ` (${g.value < 0 ? "unknown" : fine(g.value)} of ${fine(g.threshold)})`}`);
  out.replaceChildren(h("p", { class: "why" }, h("b", {}, x.id || "latest"), ` went to `, h("b", {}, x.endpoint || "no endpoint"), `, reason `, h("b", {}, (REASONS[x.reason] ?? [x.reason])[0]),
    `: ${count(x.prompt_tokens)} prompt tokens, pool ${x.pool}, model ${x.model || "not named"}.`),
  h("div", { class: "terms" }, names.map((n) => h("span", {}, h("i", { class: "sw " + color(n) }), TERMS[n] ?? n))),
  ...rows.map((e) => h("div", { class: "cost" + (e.chosen ? " chosen" : SKIPPED[e.skipped] ? " out" : "") }, h("span", { class: "who" }, e.endpoint),
    bars(x, compared.includes(e) ? e : {}, top, color), h("span", { class: "num" }, compared.includes(e) ? cost(x, e.cost_seconds) : SKIPPED[e.skipped]),
    h("div", { class: "gates" }, compared.includes(e) ? h("span", {}, `holds ${count(e.hit_tokens)} tok`) : null, credits(x, e), (e.gates ?? []).map(gate)))));
}
// credits are the terms below zero, which no bar can show.
function credits(x, e) {
  return (e.terms ?? []).filter((t) => t.seconds < 0).map((t) => h("span", {}, `${TERMS[t.name] ?? t.name} ${cost(x, t.seconds)}`));
}
function bars(x, e, top, color) {
  if (!e.terms?.length) return h("div", { class: "stack" });
  const el = h("div", { class: "stack", role: "img", "aria-label": (e.terms ?? []).map((t) => `${TERMS[t.name] ?? t.name} ${cost(x, t.seconds)}`).join(", ") });
  for (const t of (e.terms ?? []).filter((term) => term.seconds > 0)) {
    const bar = h("i", { class: color(t.name), "data-tip": `${TERMS[t.name] ?? t.name}: ${cost(x, t.seconds)}` });
    bar.style.width = Math.max(0, (100 * t.seconds) / top) + "%";
    el.append(bar);
  }
  return el;
}
const cost = (x, v) => (x.policy === "least_request" ? v.toFixed(1) + " req" : span(v)); // that policy counts requests
const fine = (v) => (Number.isInteger(v) ? count(v) : v.toFixed(2));
$("explain-form").addEventListener("submit", (e) => { e.preventDefault(); explain(); });
$("explain").addEventListener("toggle", () => $("explain").open && explain());

// ---- legend ----

function legend() {
  const example = new KV();
  example.update(0.42, 0.61, null);
  const list = (title, rows) => h("div", {}, h("h3", {}, title), h("dl", {}, rows.flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])));
  $("legend-body").append(
    list("States", Object.entries(STATES).map(([s, about]) => [h("span", { class: "badge " + (s === "leaving" ? "draining" : s) }, s), about])),
    list("Columns", [[example.bar, COLUMNS[7][2]], ...[2, 3, 4, 5, 8, 9].map((i) => [COLUMNS[i][1], COLUMNS[i][2]])]),
    list("Picks", Object.entries(REASONS).filter(([r]) => r !== "other").map(([, [word, about]], i) => [h("span", {}, h("i", { class: `sw b${i + 1}`, style: null }), " " + word), about])));
}

// ---- the stream ----

const pools = new Map();
let paused = false, lastEvent = 0, failed = false, anyPick = false;

/** What the top of the page says of the other replicas of the gateway. */
function peersLine(peers) {
  if (!peers.length) return "";
  const well = peers.filter((p) => p.state === "connected");
  const lag = well.length ? `, picks known there after ${span(Math.max(...well.map((p) => p.lag_seconds)))}` : "";
  return `${well.length} of ${peers.length} other replicas connected${lag}`;
}

function draw(v) {
  notices(v.notices ?? []);
  set($("version"), v.version ?? "");
  set($("peers"), peersLine(v.peers ?? []));
  set($("ready"), v.ready ? "ready" : "not ready");
  cls($("ready"), "badge " + (v.ready ? "ready" : "bad"));
  tip($("ready"), v.ready ? "At least one endpoint is known to be usable: /readyz says 200." : v.reason);
  set($("uptime"), `up ${span(v.uptime_seconds)}`);
  $("waiting")?.remove();
  anyPick = v.pools.some((p) => Object.values(p.picks ?? {}).some((n) => n > 0));
  for (const p of v.pools) {
    if (!pools.has(p.name)) {
      pools.set(p.name, new Pool(p.name));
      $("pools").append(pools.get(p.name).el);
    }
    pools.get(p.name).update(p);
  }
  for (const [name, pool] of pools) if (!v.pools.some((p) => p.name === name)) { pool.el.remove(); pools.delete(name); }
  // The latest pick moves on by itself, but not under the pointer of somebody who reads it.
  if ($("explain").open && !$("explain").matches(":hover") && !$("explain-id").value && Math.round(v.uptime_seconds) % 2 === 0) explain();
}

function liveness() {
  const late = Date.now() - lastEvent > 4000;
  set($("live"), paused ? "Paused" : failed || late ? (lastEvent ? "Reconnecting" : "Connecting") : "Live");
  cls($("live"), "live " + (paused ? "" : failed || late ? "off" : "on"));
  document.body.classList.toggle("stale", !paused && lastEvent > 0 && (failed || late));
}

let stream;
function connect() {
  stream = new EventSource("api/events");
  stream.onmessage = (e) => { lastEvent = Date.now(); failed = false; draw(JSON.parse(e.data)); liveness(); };
  stream.onerror = () => { // the browser tries again by itself, unless the answer was final
    failed = true; liveness();
    if (stream.readyState === EventSource.CLOSED && !paused) setTimeout(connect, 2000);
  };
}
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  set($("pause"), paused ? "Resume" : "Pause");
  if (paused) stream.close(); else connect(); // a new stream begins with the history: no gap
  liveness();
});
legend();
connect();
setInterval(liveness, 1000);
