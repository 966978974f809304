// The timeline: rows of hosts and streams, to zoom and pan with the mouse or the keyboard.
// Rule: a redraw costs by the pixels that it fills. Spans narrower than a pixel are drawn together, in
// the colour of the longest of them.
const ROW = 17, RANKS_AT_ONCE = 8;

async function unpack() {
  const text = document.getElementById("packed").textContent;
  if (!text) return null;
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const found = JSON.parse(await new Response(stream).text());
  found.names = found.names.map((name) => { const cut = name.indexOf("|"); return { kind: name.slice(0, cut), text: name.slice(cut + 1) }; });
  found.rows.forEach((row) => {
    const count = row.gaps.length, starts = new Float64Array(count);
    let now = 0;
    for (let i = 0; i < count; i++) { starts[i] = now + row.gaps[i]; now = starts[i] + row.lengths[i]; }
    row.starts = starts;
    row.end = count ? starts[count - 1] + row.lengths[count - 1] : 0;
    row.longest = row.lengths.reduce((a, b) => Math.max(a, b), 0);
  });
  return found;
}
function colourOf(name) {
  if (HOST[name.kind]) return HOST[name.kind];
  if (name.kind === "communication") return styleOf("exposed", name.text).color;
  return styleOf("compute", name.kind).color;
}
// The index of the first span of `row` that begins at or after `ns`.
function firstFrom(row, ns) {
  let low = 0, high = row.starts.length;
  while (low < high) { const middle = (low + high) >> 1; if (row.starts[middle] < ns) low = middle + 1; else high = middle; }
  return low;
}
// Rectangles by colour between two times: {colour: path}. `x` maps ns to pixels.
function paths(row, names, begin, end, x, top, height) {
  const found = {};
  const add = (from, to, kind) => {
    const colour = colourOf(names[kind]);
    (found[colour] = found[colour] || []).push(`M${from.toFixed(1)} ${top}H${Math.max(to, from + 0.7).toFixed(1)}V${top + height}H${from.toFixed(1)}Z`);
  };
  let from = null, to = 0, best = 0, kind = 0;
  for (let i = firstFrom(row, begin - row.longest); i < row.starts.length && row.starts[i] <= end; i++) {
    const start = row.starts[i], length = row.lengths[i];
    if (start + length < begin) continue;
    const a = x(Math.max(start, begin)), b = x(Math.min(start + length, end));
    if (b - a >= 1.5) {
      if (from !== null) { add(from, to, kind); from = null; }
      add(a, b, row.kinds[i]);
    } else if (from !== null && a - to < 1 && a - from < 3) {
      to = Math.max(to, b);
      if (length > best) { best = length; kind = row.kinds[i]; }
    } else {
      if (from !== null) add(from, to, kind);
      from = a; to = b; best = length; kind = row.kinds[i];
    }
  }
  if (from !== null) add(from, to, kind);
  return found;
}
function spanAt(row, ns, slack) {
  let found = -1;
  for (let i = firstFrom(row, ns - row.longest - slack); i < row.starts.length && row.starts[i] <= ns + slack; i++) {
    if (row.starts[i] + row.lengths[i] + slack >= ns) found = i;
  }
  return found;
}

function fillTimeline(packed) {
  const place = section("timeline");
  if (!packed || !packed.rows.length) return say("timeline", "No rank was traced.");
  const ranks = [...new Set(packed.rows.map((row) => row.rank))];
  const begin = Math.min(...packed.rows.map((row) => row.starts[0])), end = Math.max(...packed.rows.map((row) => row.end));
  say("timeline", "Wheel or pinch to zoom, drag to pan. With the keyboard: Tab to the chart, left and right to pan, + and - to zoom, up and down to choose a row, n and p for its next and previous span, Home for everything.");
  const pages = [];
  for (let i = 0; i < ranks.length; i += RANKS_AT_ONCE) pages.push(ranks.slice(i, i + RANKS_AT_ONCE));
  let page = 0, rows = [], view = typicalStep(), chosen = null;
  const steps = element("select", { "aria-label": "Step", onchange: () => { const s = packed.steps[Number(steps.value)]; move(...(s ? [s.start_ns, s.end_ns] : [begin, end])); } },
    element("option", { value: "" }, "everything"), ...packed.steps.map((step, index) => element("option", { value: index, selected: step.start_ns === view[0] }, step.number === null ? "the whole trace" : `step ${step.number}`)));
  const select = element("select", { "aria-label": "Ranks", onchange: () => { page = Number(select.value); rebuild(); } },
    ...pages.map((list, index) => element("option", { value: index }, list.length > 1 ? `ranks ${list[0]} to ${list[list.length - 1]}` : `rank ${list[0]}`)));
  const hosts = element("input", { type: "checkbox", id: "hosts", checked: true, onchange: () => rebuild() });
  place.append(element("div", { class: "controls" }, element("label", {}, "Go to ", steps), element("label", {}, "Show ", select), element("label", {}, hosts, " hosts")));
  const status = element("p", { class: "soft", role: "status", "aria-live": "polite" }, "Point at a span to see what it is.");
  const held = chart(place, 400, "Timeline of hosts and streams", options, "canvas");
  held.place.tabIndex = 0;
  held.place.setAttribute("role", "application");
  place.append(status, legend());
  held.ready = listen;
  held.place.addEventListener("keydown", key);

  function typicalStep() {
    const counted = packed.steps.filter((step) => DATA.counted_steps.includes(step.number));
    const step = counted[counted.length >> 1];
    return step ? [step.start_ns, step.end_ns] : [begin, end];
  }
  function rebuild() {
    rows = packed.rows.filter((row) => pages[page].includes(row.rank) && (hosts.checked || !row.row.startsWith("host")));
    chosen = null;
    held.place.style.height = `${rows.length * ROW + 96}px`;
    if (held.drawn) draw(held);
  }
  function options() {
    const line = isDark() ? "#5a6170" : "#9aa3b2";
    return {
      grid: { left: 190, right: 28, top: 26, bottom: 66 },
      xAxis: { ...AXIS_TIME, min: begin, max: end, axisLabel: { formatter: (ns) => label(ns), hideOverlap: true } },
      yAxis: { type: "category", inverse: true, data: rows.map((row) => `rank ${row.rank}  ${row.row}`), axisLabel: { interval: 0, fontSize: 11 }, axisTick: { show: false }, splitLine: { show: false } },
      dataZoom: [{ type: "inside", filterMode: "none", startValue: view[0], endValue: view[1], minValueSpan: 200 },
        { type: "slider", filterMode: "none", startValue: view[0], endValue: view[1], bottom: 8, height: 22, labelFormatter: (ns) => label(ns), showDataShadow: false }],
      series: [{ type: "custom", clip: true, silent: true, encode: { x: [0, 1], y: 2 }, data: rows.map((row, index) => [begin, end, index]), renderItem,
        markLine: { silent: true, symbol: "none", lineStyle: { color: line, type: "dashed" }, label: { formatter: (p) => p.name, color: line, position: "start", rotate: 0 },
          data: packed.steps.map((step) => ({ name: step.number === null ? "" : `step ${step.number}`, xAxis: step.start_ns })) } }],
    };
  }
  function label(ns) {
    const wide = view[1] - view[0];
    return wide < 2e6 ? `${((ns - begin) / 1e3).toFixed(1)} µs` : wide < 2e9 ? `${((ns - begin) / 1e6).toFixed(1)} ms` : `${((ns - begin) / 1e9).toFixed(2)} s`;
  }
  function renderItem(params, api) {
    const index = api.value(2), row = rows[index], area = params.coordSys;
    if (!row) return null;
    const zero = api.coord([begin, index]), scale = (api.coord([begin + 1e6, index])[0] - zero[0]) / 1e6;
    const x = (ns) => zero[0] + (ns - begin) * scale, height = row.row.startsWith("host") ? ROW * 0.5 : ROW * 0.78;
    const from = begin + (area.x - zero[0]) / scale, to = begin + (area.x + area.width - zero[0]) / scale;
    const found = paths(row, packed.names, from, to, x, zero[1] - height / 2, height);
    const children = Object.entries(found).map(([fill, list]) => ({ type: "path", shape: { pathData: list.join("") }, style: { fill } }));
    if (chosen && chosen.row === row) {
      const a = x(row.starts[chosen.index]), b = x(row.starts[chosen.index] + row.lengths[chosen.index]);
      children.push({ type: "rect", shape: { x: a - 1, y: zero[1] - ROW / 2, width: Math.max(b - a, 1) + 2, height: ROW }, style: { fill: "none", stroke: isDark() ? "#fff" : "#000", lineWidth: 2 } });
    }
    return { type: "group", children };
  }
  function listen(drawn) {
    drawn.on("datazoom", () => { const zoom = drawn.getOption().dataZoom[0]; view = [zoom.startValue, zoom.endValue]; });
    drawn.getZr().on("mousemove", (event) => {
      const point = [event.offsetX, event.offsetY];
      if (!drawn.containPixel("grid", point)) return;
      const [ns, index] = drawn.convertFromPixel("grid", point), row = rows[Math.round(index)];
      if (row) describe(row, spanAt(row, ns, (view[1] - view[0]) / 800));
    });
  }
  function describe(row, index) {
    if (index < 0) return;
    const name = packed.names[row.kinds[index]];
    status.textContent = `rank ${row.rank}, ${row.row}: ${name.text} (${labelOf("compute", name.kind)}), ${FORMATS.time(row.lengths[index])}, from ${FORMATS.time(row.starts[index])}`;
  }
  function move(from, to) {
    const wide = Math.min(Math.max(to - from, 200), end - begin);
    from = Math.min(Math.max(from, begin), end - wide);
    view = [from, from + wide];
    if (held.drawn) held.drawn.dispatchAction({ type: "dataZoom", startValue: view[0], endValue: view[1] });
  }
  function choose(row, index) {
    if (!row || index < 0 || index >= row.starts.length) return;
    chosen = { row, index };
    describe(row, index);
    const start = row.starts[index], wide = view[1] - view[0];
    if (start < view[0] || start > view[1]) move(start - wide / 2, start + wide / 2);
    held.drawn.setOption({ series: [{ data: rows.map((_, i) => [begin, end, i]) }] });
  }
  function key(event) {
    const wide = view[1] - view[0], middle = (view[0] + view[1]) / 2;
    const row = chosen ? chosen.row : rows[0], place = rows.indexOf(row), near = chosen ? row.starts[chosen.index] : middle;
    const beside = (step) => { const next = rows[Math.min(Math.max(place + step, 0), rows.length - 1)]; choose(next, Math.min(firstFrom(next, near), next.starts.length - 1)); };
    const actions = {
      ArrowLeft: () => move(view[0] - wide / 5, view[1] - wide / 5), ArrowRight: () => move(view[0] + wide / 5, view[1] + wide / 5),
      "+": () => move(middle - wide / 4, middle + wide / 4), "=": () => move(middle - wide / 4, middle + wide / 4), "-": () => move(middle - wide, middle + wide),
      Home: () => move(begin, end), ArrowUp: () => beside(-1), ArrowDown: () => beside(1),
      n: () => choose(row, chosen ? chosen.index + 1 : firstFrom(row, view[0])), p: () => choose(row, chosen ? chosen.index - 1 : firstFrom(row, view[0])),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
  function legend() {
    const names = new Map();
    packed.names.forEach((name) => names.set(name.kind === "communication" ? name.text : labelOf("compute", name.kind), colourOf(name)));
      return element("p", { class: "soft legend" }, ...[...names].map(([text, colour]) => element("span", {}, element("i", { "aria-hidden": "true", style: `background:${colour}` }), text)));
  }
  rebuild();
}
