// The page of a worker. See page.js.
(() => {
  const POLL_MS = 2000, RATE_SECONDS = 10, LATENCY_SECONDS = 60;
  const { SVG, $, put, show, number, seconds, formats, past } = page;

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

  function header(now) {
    const [state, word] = now.silent_seconds !== null ? ["stopped", "not alive"]
      : now.ready ? ["running", "ready"] : ["paused", "not ready"];
    const reasons = now.reasons.map(({ part, reason }) => [part, reason]);
    if (now.silent_seconds !== null) {
      reasons.unshift(["poll thread", `has not polled for ${now.silent_seconds} s`]);
    }
    page.header(state, word, `${word} · geofold · ${now.worker.topic}`, reasons);
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
    if (past.length > 0 && now.uptime_seconds <= past.at(-1).uptime_seconds) past.length = 0;
    // The globe is drawn by the server.
    if (past.length > 0 && now.map.version !== past.at(-1).map.version) location.reload();
    rates(now);
    recentLatencies(now);
    header(now);
    map(now);
    load(now);
    page.figures(now);
    const { held_bytes: held, limit_bytes: limit } = now.memory;
    Object.assign($("held"), { max: Math.max(limit, 1), high: limit * 0.9, value: held });
    page.remember(now);
    page.sparks();
  }

  page.poll("/status.json", POLL_MS, update);
})();
