"use strict";
(() => {
  const POLL_MS = 2000, RATE_SECONDS = 10, LATENCY_SECONDS = 60, KEEP = 150;
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const at = (value, path) => path.split(".").reduce((v, key) => v?.[key], value);

  // The same rules as in format.rs.
  const digits = (n) => (n < 100 ? n.toFixed(1) : n.toFixed(0)).replace(/\.0$/, "");
  const number = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  const scaled = (n, step, units) => {
    let unit = 0;
    while (n >= step && unit + 1 < units.length) { n /= step; unit += 1; }
    return digits(n) + units[unit];
  };
  const seconds = (s) => {
    const whole = Math.floor(s);
    if (whole < 60) return `${digits(s)}\u00a0s`;
    if (whole < 3600) return `${Math.floor(whole / 60)}\u00a0min`;
    if (whole < 86400) return `${Math.floor(whole / 3600)}\u00a0h ${Math.floor(whole / 60) % 60}\u00a0min`;
    return `${Math.floor(whole / 86400)}\u00a0d ${Math.floor(whole / 3600) % 24}\u00a0h`;
  };
  const formats = {
    text: String, id: String, state: String, level: String,
    word: (text) => text.replaceAll("_", " "),
    number, seconds,
    rate: (n) => (n < 1000 ? digits(n) : number(n.toFixed(0))),
    short: (n) => scaled(n, 1000, ["", "\u00a0k", "\u00a0M", "\u00a0G", "\u00a0T"]),
    bytes: (n) => scaled(n, 1024, ["\u00a0B", "\u00a0KiB", "\u00a0MiB", "\u00a0GiB", "\u00a0TiB"]),
    times: (n) => n.toFixed(2),
    millis: (s) => (s < 1 ? `${digits(s * 1000)}\u00a0ms` : `${digits(s)}\u00a0s`),
    time: (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " "),
  };
  const show = (value, format) => (value === null || value === undefined ? "unknown" : formats[format](value));
  // Never as HTML.
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const make = (name, text = "") => { const e = document.createElement(name); e.textContent = text; return e; };

  let past = []; // statuses of the last minutes, the latest last

  // The earliest status that is no older than this. By the worker's clock, which nobody sets.
  const since = (now, time) => past.find((s) =>
    s.uptime_seconds < now.uptime_seconds && now.uptime_seconds - s.uptime_seconds <= time + 0.5);

  function quantile(buckets, q) {
    const total = buckets.at(-1)?.[1] ?? 0;
    if (total === 0) return null;
    let lower = [0, 0];
    for (const [bound, count] of buckets) {
      if (count >= q * total) return lower[0] + ((bound - lower[0]) * (q * total - lower[1])) / (count - lower[1]);
      lower = [bound, count];
    }
    return lower[0];
  }

  // Latencies of the last minute instead of since the start, if there were requests.
  function recentLatencies(now) {
    const before = since(now, LATENCY_SECONDS);
    if (before === undefined) return;
    now.elasticsearch.requests.forEach((requests, i) => {
      const old = before.elasticsearch.requests[i].buckets;
      const recent = requests.buckets.map(([bound, count], j) => [bound, count - old[j][1]]);
      if (quantile(recent, 0.5) === null) return;
      requests.median_seconds = quantile(recent, 0.5);
      requests.p99_seconds = quantile(recent, 0.99);
    });
  }

  function rows(table, list) {
    const heads = [...table.tHead.rows[0].cells];
    const made = list.map((item) => {
      const row = make("tr");
      for (const { dataset: { v, f } } of heads) {
        const cell = make("td", show(item[v], f));
        cell.className = f;
        if (f === "state" || f === "level") cell.dataset.state = item[v];
        row.append(cell);
      }
      return row;
    });
    table.tBodies[0].replaceChildren(...made);
  }

  function rates(now) {
    const before = since(now, RATE_SECONDS);
    if (before === undefined) return;
    const time = now.uptime_seconds - before.uptime_seconds;
    put($("window"), `rates are of the last ${Math.round(time)} s`);
    for (const element of document.querySelectorAll("[data-rate]")) {
      const name = element.dataset.rate;
      put(element, formats.rate((now.counters[name] - before.counters[name]) / time));
    }
  }

  // A counter's rate, or a gauge, over the last minutes; from zero at the bottom to its highest at the top.
  function sparks() {
    if (past.length < 3) return;
    for (const place of document.querySelectorAll("[data-spark]")) {
      const path = place.dataset.spark;
      const values = past.slice(1).map((s, i) => (path.startsWith("counters.")
        ? (at(s, path) - at(past[i], path)) / (s.uptime_seconds - past[i].uptime_seconds) : at(s, path)));
      const most = Math.max(...values);
      const y = (value) => (most > 0 ? 20 - (value * 19) / most : 20).toFixed(1);
      const line = values.map((value, i) => `${((i * 100) / (values.length - 1)).toFixed(1)},${y(value)}`).join(" ");
      if (place.firstChild === null) {
        const svg = document.createElementNS(SVG, "svg");
        svg.setAttribute("viewBox", "0 0 100 20");
        svg.setAttribute("preserveAspectRatio", "none");
        svg.setAttribute("aria-hidden", "true");
        svg.append(document.createElementNS(SVG, "polygon"), document.createElementNS(SVG, "polyline"));
        place.append(svg);
      }
      place.querySelector("polyline").setAttribute("points", line);
      place.querySelector("polygon").setAttribute("points", `0,20 ${line} 100,20`);
    }
  }

  function header(now) {
    const [state, word] = now.silent_seconds !== null ? ["stopped", "not alive"]
      : now.ready ? ["running", "ready"] : ["paused", "not ready"];
    $("state").dataset.state = state;
    put($("state"), word);
    document.title = `${word} · geofold · ${now.worker.topic}`;
    const reasons = now.reasons.slice();
    if (now.silent_seconds !== null) {
      reasons.unshift({ part: "poll thread", reason: `has not polled for ${now.silent_seconds} s` });
    }
    $("reasons").replaceChildren(...reasons.map(({ part, reason }) => {
      const item = make("li");
      item.append(make("b", part), ` ${reason}`);
      return item;
    }));
    put($("live"), "");
    document.body.classList.remove("stale");
  }

  // Colours a globe and gives each geoshard its text.
  function globe(id, shards, text) {
    const uses = document.querySelectorAll(`#${id} .shards use`);
    shards.forEach((shard, i) => {
      uses[i].setAttribute("class", shard.class === null ? "none" : `q${shard.class}`);
      put(uses[i].querySelector("title"), text(shard));
    });
  }

  const withCity = ({ shard, around }) => (around === "" ? shard : `${shard}, around ${around}`);

  function map({ documents }) {
    const { shards, total, fullest, age_seconds: age, problem } = documents;
    globe("map", shards, (shard) => `${withCity(shard)}: ${show(shard.documents, "number")} documents`);
    let summary = `${shards.length} geoshards, `;
    if (total === null) {
      summary += "documents unknown";
    } else {
      summary += `${number(total)} documents`;
      if (fullest !== null) summary += ` · fullest ${fullest.shard}, ${fullest.times_mean.toFixed(1)} times the mean`;
      summary += ` · counted ${seconds(Math.floor(age))} ago`;
    }
    put($("documents"), problem === null ? summary : `${summary} · ${problem}`);
  }

  const drawn = (name, text, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = text;
    element.append(title);
    return element;
  };

  // Hours that nobody counted are gaps.
  function line(name, hours) {
    const most = Math.max(0, ...hours);
    const y = (value) => (most > 0 ? 100 - (value / most) * 98 : 100).toFixed(1);
    const points = hours.map((value, i) => (value === null ? ""
      : (hours[i - 1] ?? null) === null ? `M${i * 6} ${y(value)}h1` : `L${i * 6} ${y(value)}`));
    $(`trend-${name}`).setAttribute("d", points.join(""));
    put($(`most-${name}`), formats.rate(most));
  }

  function load({ load: { shards, largest, age_seconds: age, problem, hottest, hours } }) {
    globe("load-map", shards, (shard) => `${withCity(shard)}: ${show(shard.times_mean, "times")} times the mean, `
      + `${show(shard.writes, "rate")} writes/s, ${show(shard.queries, "rate")} searches/s`);
    $("hottest").replaceChildren(...hottest.map(({ lat, lon, place }) =>
      drawn("circle", place, { cx: ((lon + 180) * 4).toFixed(0), cy: ((90 - lat) * 4).toFixed(0), r: 9 })));
    line("writes", hours.writes);
    line("queries", hours.queries);
    const summary = largest === null || age === null ? "load unknown"
      : `largest ${largest.shard}, ${formats.times(largest.times_mean)} times the mean · counted ${seconds(Math.floor(age))} ago`;
    put($("load"), problem === null ? summary : `${summary} · ${problem}`);
  }

  function update(now) {
    // Another process answers: its counters begin again.
    if (past.length > 0 && now.uptime_seconds <= past.at(-1).uptime_seconds) past = [];
    // The globe is drawn by the server.
    if (past.length > 0 && now.map.version !== past.at(-1).map.version) location.reload();
    rates(now);
    recentLatencies(now);
    header(now);
    map(now);
    load(now);
    for (const element of document.querySelectorAll("[data-v]:not(th)")) {
      put(element, show(at(now, element.dataset.v), element.dataset.f));
    }
    for (const table of document.querySelectorAll("[data-rows]")) rows(table, at(now, table.dataset.rows));
    const { held_bytes: held, limit_bytes: limit } = now.memory;
    Object.assign($("held"), { max: Math.max(limit, 1), high: limit * 0.9, value: held });
    past.push(now);
    if (past.length > KEEP) past.shift();
    sparks();
  }

  async function poll() {
    try {
      if (document.hidden) return;
      const answer = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      update(await answer.json());
    } catch {
      put($("live"), past.length > 0 ? `no answer since ${formats.time(past.at(-1).time_ms)} UTC` : "no answer");
      document.body.classList.add("stale");
    } finally {
      setTimeout(poll, POLL_MS);
    }
  }

  poll();
})();
