"use strict";
// What the pages share: figures are fetched from time to time, and put where the page says they belong.
const page = (() => {
  const KEEP = 150;
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
  const rate = (n) => (n < 1000 ? digits(n) : number(n.toFixed(0)));
  const formats = {
    text: String, id: String, state: String, level: String, link: String,
    word: (text) => text.replaceAll("_", " "),
    number, seconds,
    rate,
    change: (n) => {
      const text = rate(Math.abs(n));
      return text === "0" ? text : (n < 0 ? "-" : "+") + text;
    },
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

  // A URL of another scheme could run a script.
  const isWeb = (text) => {
    try {
      return ["http:", "https:"].includes(new URL(text).protocol);
    } catch {
      return false;
    }
  };
  const link = (text) => { const a = make("a", text); a.href = text; return a; };

  function rows(table, list) {
    const heads = [...table.tHead.rows[0].cells];
    const made = list.map((item) => {
      const row = make("tr");
      for (const { dataset: { v, f } } of heads) {
        const text = show(item[v], f);
        const cell = make("td");
        cell.append(f === "link" && isWeb(text) ? link(text) : text);
        cell.className = f;
        if (f === "state" || f === "level") cell.dataset.state = item[v];
        row.append(cell);
      }
      return row;
    });
    table.tBodies[0].replaceChildren(...made);
  }

  // New figures wherever the page has one, and tables.
  function figures(now) {
    for (const element of document.querySelectorAll("[data-v]:not(th)")) {
      put(element, show(at(now, element.dataset.v), element.dataset.f));
    }
    for (const table of document.querySelectorAll("[data-rows]")) rows(table, at(now, table.dataset.rows));
  }

  function header(state, word, title, reasons) {
    $("state").dataset.state = state;
    put($("state"), word);
    document.title = title;
    $("reasons").replaceChildren(...reasons.map(([part, reason]) => {
      const item = make("li");
      if (part === "") item.append(reason);
      else item.append(make("b", part), ` ${reason}`);
      return item;
    }));
  }

  const past = []; // statuses of the last minutes, the latest last

  function remember(now) {
    past.push(now);
    if (past.length > KEEP) past.shift();
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

  // Fetches for ever; what it gets is for `update`.
  function poll(path, pause, update) {
    let answered;
    const ask = async () => {
      try {
        if (document.hidden) return;
        const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const now = await answer.json();
        update(now);
        answered = now.time_ms;
        put($("live"), "");
        document.body.classList.remove("stale");
      } catch {
        put($("live"), answered === undefined ? "no answer" : `no answer since ${formats.time(answered)} UTC`);
        document.body.classList.add("stale");
      } finally {
        setTimeout(ask, pause);
      }
    };
    ask();
  }

  return { SVG, $, put, show, number, seconds, formats, figures, header, past, remember, sparks, poll };
})();
