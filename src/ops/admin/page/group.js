// The page of the group. See page.js.
(() => {
  let last = null; // when the answer before came

  page.poll("/group/figures.json", 5000, (now) => {
    const { state, word, group, findings, answered_ms: answered } = now;
    page.header(state, word, `${word} · group ${group} · geofold`, findings.map((finding) => ["", finding]));
    page.figures(now);
    if (answered !== last) {
      // Without tables.
      page.remember(Object.fromEntries(Object.entries(now).filter(([, value]) => !(value instanceof Object))));
      page.sparks();
    }
    last = answered;
  });
})();
