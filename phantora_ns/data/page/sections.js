// The sections of the page but the timeline.
function fillAbout() {
  document.getElementById("about").append(
    element("code", {}, DATA.command), element("br"),
    `Simulated on ${DATA.cluster.name}${DATA.cluster.description ? ` (${DATA.cluster.description})` : ""}, ${DATA.cluster.gpu}: `,
    number("report.world_size", "count"), DATA.report.world_size === 1 ? " GPU on " : " GPUs on ", number("report.nodes", "count"), DATA.report.nodes === 1 ? " node. " : " nodes. ",
    DATA.report.software ? `torch ${DATA.report.software.torch}, NCCL ${DATA.report.software.nccl}. ` : "",
    DATA.cluster.faults.length ? `Faults: ${DATA.cluster.faults.join(", ")}. ` : "",
    "Simulated ", number("report.simulated_ns", "time"), " in ", number("report.wall_s", "seconds"), ".");
}
function fillAnswers() {
  const place = section("answers");
  DATA.answers.forEach((one) => place.append(element("div", { class: `card ${one.level}` },
    element("h3", {}, one.question), element("div", { class: "big" }, one.answer), element("p", {}, one.detail))));
}

function fillFit() {
  const place = section("fit"), ranks = DATA.report.ranks, capacity = DATA.cluster.gpu_memory_bytes;
  const kinds = [["peak_allocated_bytes", "allocated by PyTorch", MIXED[0]], ["peak_reserved_bytes", "reserved by PyTorch", MIXED[1]], ["peak_driver_bytes", "in use on the GPU", MIXED[2]]];
  const held = ranks.filter((rank) => kinds.some(([key]) => rank[key]));
  if (!held.length) return say("fit", "No rank reported the memory that it used.");
  place.append(element("div", { class: "figures" }, figure("memory of a GPU", number("cluster.gpu_memory_bytes", "bytes")),
    ...kinds.map(([key, label]) => {
      const most = ranks.reduce((best, rank, index) => ((rank[key] || 0) > (ranks[best][key] || 0) ? index : best), 0);
      return figure(`peak ${label} (rank ${ranks[most].rank ?? "–"})`, number(`report.ranks.${most}.${key}`, "bytes"));
    })));
  fillMemoryOverTime(place);
  fillHeld(place);
  const shown = held.slice(0, 64);
  chart(place, 60 + 24 * Math.min(shown.length, 40), "Peak memory of each rank against the GPU's memory", () => ({
    tooltip: tooltip("bytes"), legend: { top: 0 }, grid: { left: 70, right: 90, top: 30, bottom: 28 },
    xAxis: { type: "value", max: capacity, interval: GIB * Math.max(1, 2 ** Math.round(Math.log2(capacity / GIB / 8))), axisLabel: { formatter: (n) => `${(n / GIB).toFixed(0)} GiB` } },
    yAxis: { type: "category", inverse: true, data: shown.map((rank) => (rank.rank === null ? "no rank" : `rank ${rank.rank}`)) },
    series: kinds.map(([key, label, color]) => ({ name: label, type: "bar", barGap: "0%", itemStyle: { color }, data: shown.map((rank) => rank[key] || 0) })),
  }));
  if (held.length > shown.length) say("fit", `The chart shows ${shown.length} of ${held.length} ranks; the table all.`);
  place.append(folded("Table: peak memory of each rank", () => table(
    [["rank", null, (rank) => rank.rank ?? "none"], ["node", null, "node"], ["GPU", null, "device"], ["allocated", "bytes", "peak_allocated_bytes"], ["reserved", "bytes", "peak_reserved_bytes"],
      ["in use", "bytes", "peak_driver_bytes"], ["of the GPU", "share", (rank) => (rank.peak_driver_bytes === null ? null : rank.peak_driver_bytes / capacity)], ["pinned host memory", "bytes", "peak_pinned_bytes"]], ranks)));
}
function fillMemoryOverTime(place) {
  const memory = DATA.memory;
  if (!memory) return;
  const peak = memory.peak, step = peak.step === null ? "" : ` in step ${peak.step}`;
  place.append(element("h3", {}, `Memory over time, rank ${memory.rank}`), element("p", {}, "The traced steps had their peak, ", number("memory.peak.bytes", "bytes"),
    ` allocated,${step} in ${peak.operator}: `, number("memory.peak.held_bytes", "bytes"), peak.step === null ? " before, the rest since." : " were there when the step began, the rest came in it."));
  const most = Math.max(peak.bytes, ...memory.points.map((point) => point[2]), 1), mark = 2 ** Math.round(Math.log2(most / 5));
  const lines = [["allocated by PyTorch", 1, MIXED[0]], ["reserved by PyTorch", 2, MIXED[1]]];
  chart(place, 260, "Memory of PyTorch over time", () => ({
    tooltip: { ...tooltip("bytes"), axisPointer: { type: "line" } }, legend: { top: 0 }, grid: { left: 70, right: 70, top: 30, bottom: 30 },
    xAxis: AXIS_TIME, yAxis: { type: "value", interval: mark, max: mark * Math.ceil(most / mark), axisLabel: { formatter: (n) => FORMATS.bytes(n).replace(/\.0+ /, " ") } },
    dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false }],
    series: lines.map(([name, at, color]) => ({ name, type: "line", step: "end", showSymbol: false, lineStyle: { width: 1.5, type: at === 2 ? "dashed" : "solid" }, itemStyle: { color }, areaStyle: at === 1 ? { opacity: 0.15 } : undefined,
      data: memory.points.map((point) => [point[0], point[at]]),
      markPoint: at === 1 ? { symbol: "pin", symbolSize: 26, data: [{ coord: [peak.at_ns, peak.bytes] }], label: { show: false } } : undefined })),
  }));
  const size = [["bytes", "count", (row) => row[1]], ["", "text", (row) => `${row[1] < 0 ? "−" : ""}${FORMATS.bytes(Math.abs(row[1]))}`], ["of the peak", "share", (row) => row[1] / peak.bytes]];
  const phases = peak.phases && (() => table([["what held the peak", null, (row) => row[0]], ...size], peak.phases,
    "Net of what was given back. Activations that are freed count against the phase that frees them."));
  if (phases) place.append(DATA.held ? folded("Table: what held the peak, by phase", phases) : phases());
  const rows = [[peak.step === null ? "before" : `there when step ${peak.step} began`, peak.held_bytes], ...peak.added];
  place.append(folded("Table: what held the peak, by operator", () => table([["", null, (row) => row[0]], ...size], rows,
    "Operators added this much net since the step began; what was given back counts for the operator at whose begin or end it was missing.")));
}
function fillHeld(place) {
  const held = DATA.held, whole = DATA.report.memory_held;
  if (whole && whole.rank === null) return say("fit", "What modules held is not known: nothing was seen of the ranks that were watched. A leader is not watched.");
  if (!held) return say("fit", whole ? "What modules held is not known: the allocator had blocks that were not seen." : "With --memory-modules the page also says which modules of the model held the peak.");
  const size = [["bytes", "count", (row) => row[row.length - 1]], ["", "bytes", (row) => row[row.length - 1]], ["of the peak", "share", (row) => row[row.length - 1] / whole.peak_bytes]];
  place.append(element("h3", {}, `What held the highest peak, rank ${whole.rank}`), element("p", {}, number("report.memory_held.peak_bytes", "bytes"), " were allocated by PyTorch in the whole run at most."),
    table([["kind", null, (row) => row[0]], ...size], held.kinds),
    table([["kind", null, (row) => row[0]], ["made or owned by", null, (row) => row[1] || "not known"], ["modules", "count", (row) => row[2]], ...size], held.layers, "Modules that differ only in a number are one row."));
}

function fillSpeed() {
  const place = section("speed");
  const figures = [];
  const from = DATA.report.step ? "report.step" : "step", step = at(from);
  if (step) figures.push(figure(`mean step of rank ${step.rank}`, number(`${from}.mean_ns`, "time")));
  if (step && step.band) {
    figures.push(figure("band: most real runs are expected here", number(`${from}.band.low_ns`, "time"), " – ", number(`${from}.band.high_ns`, "time"), " (", number(`${from}.band.coverage`, "share"), ")"));
  }
  if (step && step.work) figures.push(figure(`${step.work.unit} per second`, number(`${from}.work.per_s`, "amount"), ", ", number(`${from}.work.per_gpu_s`, "amount"), " a GPU"));
  if (step) figures.push(figure("shortest to longest", number(`${from}.least_ns`, "time"), " – ", number(`${from}.most_ns`, "time")));
  const arithmetic = DATA.report.arithmetic;
  if (arithmetic && arithmetic.hfu !== null) figures.push(figure("HFU: products and attention against the GPU's peak", number("report.arithmetic.hfu", "share")));
  const modelled = arithmetic && typeof arithmetic.model_flop === "number";
  if (modelled && arithmetic.mfu !== null) figures.push(figure("MFU: what the model needs against the GPU's peak", number("report.arithmetic.mfu", "share")));
  figures.push(figure("simulated time in all", number("report.simulated_ns", "time")));
  place.append(element("div", { class: "figures" }, ...figures));
  if (step && step.no_band) say("speed", `The step has no band: ${step.no_band}.`);
  if (step && step.band) fillBand(place, step);
  if (arithmetic && arithmetic.no_hfu) say("speed", `HFU is not known: ${arithmetic.no_hfu}.`);
  if (modelled && arithmetic.no_mfu) say("speed", `MFU is not known: ${arithmetic.no_mfu}.`);
  if (arithmetic && arithmetic.hfu !== null) say("speed", `HFU counts the products that were done, recomputed ones too. ${arithmetic.uncounted.launches ? `Not counted are ${arithmetic.uncounted.launches} launches a step that multiply, or may, with ${FORMATS.share(arithmetic.uncounted.time_share)} of GPU time: ${arithmetic.uncounted.kernels.join(", ")}. ` : ""}${step && step.work ? "" : "With --work the page has tokens/s."}`);
  const ranks = [...new Set(DATA.steps.map((step) => step.rank))];
  const numbers = [...new Set(DATA.steps.map((step) => step.number))].filter((n) => n !== null);
  if (numbers.length < 2) return;
  const shown = ranks.slice(0, 8);
  const length = (rank, n) => { const step = DATA.steps.find((one) => one.rank === rank && one.number === n); return step ? step.end_ns - step.start_ns : null; };
  chart(place, 240, "Time of each step", () => ({
    tooltip: { ...tooltip("time"), axisPointer: { type: "line" } }, legend: { top: 0, type: "scroll" }, grid: { left: 70, right: 16, top: 34, bottom: 40 },
    xAxis: { type: "category", data: numbers, name: "step", nameLocation: "middle", nameGap: 24 }, yAxis: { ...AXIS_TIME, min: 0 },
    series: shown.map((rank, index) => ({ name: `rank ${rank}`, type: "line", symbol: ["circle", "rect", "triangle", "diamond"][index % 4], symbolSize: 7,
      itemStyle: { color: MIXED[index] }, data: numbers.map((n) => length(rank, n)) })),
  }));
  place.append(folded("Table: time of each step", () => table([["step", null, (n) => String(n)], ...ranks.slice(0, 32).map((rank) => [`rank ${rank}`, "time", (n) => length(rank, n)])], numbers)));
}

function fillBand(place, step) {
  const terms = { kernels: "times of kernels that were not recorded", gpu: "how fast the chip is", communication: "communication", host: "the host" };
  const rows = Object.keys(terms).filter((name) => step.band[name] !== undefined).sort((a, b) => step.band[b] - step.band[a]);
  place.append(folded("Table: what makes the band as wide as it is", () => table([["because of", null, (name) => terms[name]], ["standard deviation, of the step", "share", (name) => step.band[name]]], rows)));
}
function partsOf(steps) {
  const sum = { compute: {}, exposed: {}, idle: {} };
  steps.forEach((step) => Object.entries(sum).forEach(([group, kinds]) =>
    Object.entries(step[group]).forEach(([kind, ns]) => { kinds[kind] = (kinds[kind] || 0) + ns / steps.length; })));
  return sum;
}
function countedSteps() {
  const counted = DATA.steps.filter((step) => DATA.counted_steps.includes(step.number));
  return counted.length ? counted : DATA.steps;
}
function barsBy(view) {
  if (view === "ranks") {
    const counted = countedSteps();
    return [...new Set(counted.map((step) => step.rank))].map((rank) => ({ name: `rank ${rank}`, parts: partsOf(counted.filter((step) => step.rank === rank)) }));
  }
  return DATA.steps.filter((step) => step.rank === view).map((step) => ({ name: step.number === null ? "all" : `step ${step.number}`, parts: partsOf([step]) }));
}
function fillWhere() {
  const place = section("where");
  if (!DATA.steps.length) return say("where", "No rank was traced.");
  say("where", "Every nanosecond of a step has one owner: the kernel that computes, else the communication that is then exposed, else nothing. Striped: exposed communication. Dotted: idle.");
  const ranks = [...new Set(DATA.steps.map((step) => step.rank))];
  let view = "ranks";
  const select = element("select", { id: "view", onchange: () => { view = select.value === "ranks" ? "ranks" : Number(select.value); draw(held); if (details.children.length > 1) details.lastChild.replaceWith(parts()); } },
    element("option", { value: "ranks" }, "each rank, mean of its counted steps"), ...ranks.map((rank) => element("option", { value: rank }, `each step of rank ${rank}`)));
  place.append(element("div", { class: "controls" }, element("label", { for: "view" }, "Show "), select));
  const held = chart(place, 380, "Where the step goes", () => stacked(barsBy(view)));
  const details = folded("Table: where the step goes", parts);
  place.append(details);
  function parts() {
    const bars = barsBy(view), keys = [];
    bars.forEach((bar) => Object.entries(bar.parts).forEach(([group, kinds]) => Object.keys(kinds).forEach((kind) => {
      if (!keys.some(([g, k]) => g === group && k === kind)) keys.push([group, kind]);
    })));
    const order = ["compute", "exposed", "idle"];
    keys.sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
    return table([["part", null, ([group, kind]) => labelOf(group, kind)],
      ...bars.slice(0, 32).map((bar) => [bar.name, "time", ([group, kind]) => Math.round(bar.parts[group][kind] || 0)])], keys);
  }
}

function fillWaits() {
  const waits = DATA.waits;
  if (!waits || waits.ranks.length < 2 || !waits.collectives) return say("waits", "Nothing to compare: fewer than two traced ranks communicated with each other.");
  section("waits").append(element("p", {}, waits.straggler === null
    ? "No rank stands out: ranks wait for each other about as long."
    : `The straggler is rank ${waits.straggler}: the others waited longest for it.`));
  say("waits", "A collective starts when its last member has reached it. Each cell: how long the rank of its row waited, in the counted steps, for the rank of its column to come.");
  const many = waits.ranks.length;
  if (many <= 64) {
    const cells = waits.waited_ns.flatMap((row, i) => row.map((ns, j) => [j, i, ns]));
    const names = waits.ranks.map((rank) => `rank ${rank}`);
    chart(section("waits"), 120 + 26 * Math.min(many, 24), "Waiting of each rank for each other rank", () => ({
      tooltip: { confine: true, formatter: (p) => `${names[p.value[1]]} waited ${FORMATS.time(p.value[2])} for ${names[p.value[0]]}` },
      grid: { left: 80, right: 20, top: 60, bottom: 20 },
      xAxis: { type: "category", data: names, position: "top", name: "came last", nameLocation: "middle", nameGap: 26, axisLabel: { interval: "auto" } }, yAxis: { type: "category", data: names, inverse: true },
      visualMap: { min: 0, max: Math.max(1, ...cells.map((cell) => cell[2])), show: false, inRange: { color: isDark() ? ["#1e2127", "#88ccee", "#f0e442"] : ["#ffffff", "#88ccee", "#332288"] } },
      series: [{ type: "heatmap", data: cells, label: { show: many <= 12, formatter: (p) => (p.value[2] ? FORMATS.time(p.value[2]) : "") }, itemStyle: { borderColor: isDark() ? "#363b45" : "#d5d9e0", borderWidth: 1 } }],
    }));
  }
  const comm = new Map(DATA.report.ranks.map((rank) => [rank.rank, rank]));
  section("waits").append(table([["rank", null, (rank) => String(rank)], ["came last", "count", (_, i) => waits.last[i]], ["others waited for it", "time", (_, i) => waits.caused_ns[i]],
    ["it waited for others", "time", (_, i) => waits.waited_ns[i].reduce((a, b) => a + b, 0)], ["waited in the whole run (report)", "time", (rank) => (comm.get(rank) || {}).comm_wait_ns],
    ["communication in the whole run (report)", "time", (rank) => (comm.get(rank) || {}).comm_ns]], waits.ranks));
}

function fillLinks() {
  const links = DATA.links;
  if (!links || !links.links.length) return say("links", "No communication crossed a link in the counted steps, or none was traced.");
  say("links", "What crossed each link in the counted steps, against what it could have carried. The chart shows the busiest link of each kind; bytes of a transfer are spread evenly over its time.");
  const width = (links.window[1] - links.window[0]) / links.bins, shown = links.classes.slice(0, 6);
  chart(section("links"), 260, "Utilisation of the busiest link of each kind over time", () => ({
    tooltip: { ...tooltip("share"), axisPointer: { type: "line" } }, legend: { top: 0, type: "scroll" }, grid: { left: 60, right: 16, top: 34, bottom: 28 },
    xAxis: { ...AXIS_TIME, min: links.window[0], max: links.window[1] }, yAxis: { type: "value", min: 0, axisLabel: { formatter: (x) => `${(100 * x).toFixed(0)} %` } },
    series: shown.map((one, index) => ({ name: one.class, type: "line", step: "middle", showSymbol: false, itemStyle: { color: MIXED[index] },
      lineStyle: { width: 1.5, type: ["solid", "dashed", "dotted"][index % 3] }, data: one.over_time.map((x, bin) => [links.window[0] + (bin + 0.5) * width, x]) })),
  }));
  section("links").append(table([["kind of link", null, "class"], ["links", "count", "links"], ["mean utilisation", "share", "mean"], ["busiest", "share", "most"], ["which", null, "busiest"]], links.classes),
    element("h3", {}, "Busiest flows"),
    table([["operation", null, "operation"], ["bytes of a rank's buffer", "bytes", "count_bytes"], ["ranks", "count", "members"], ["group", null, "group"], ["times", "count", "transfers"], ["mean time", "time", "mean_ns"],
      ["algorithm", null, "algorithm"], ["busiest link", null, "busiest_link"], ["at", "rate", "link_bytes_per_ns"], ["of its capacity", "share", "link_share"]], links.flows),
    folded(`Table: the ${links.links.length} busiest of ${links.links_in_all} links`, () => table([["link", null, "link"], ["bytes", "bytes", "bytes"], ["capacity", "rate", "bytes_per_ns"], ["utilisation", "share", "utilisation"]], links.links)));
}

const SOURCES = { exact: "recorded", launch: "recorded, other scalars", law: "fitted law", gemm: "model of products", attention: "model of attention", roofline: "roofline", copy: "model of copies", guess: "guess" };
function fillKernels() {
  const place = section("kernels"), shares = Object.entries(DATA.report.kernel_time_share).sort((a, b) => b[1] - a[1]);
  if (shares.length) {
    place.append(element("p", {}, "GPU time by where kernel times come from: ", ...shares.flatMap(([name, _], index) => [index ? ", " : "", `${name} (${SOURCES[name] || name}) `, number(`report.kernel_time_share.${name}`, "share")]), "."));
  }
  if (!DATA.kernels.length) return;
  const top = DATA.kernels.slice(0, 15);
  chart(place, 40 + 24 * top.length, "Kernels that take the most time", () => ({
    tooltip: tooltip("time"), grid: { left: 330, right: 30, top: 6, bottom: 28 }, xAxis: AXIS_TIME,
    yAxis: { type: "category", inverse: true, data: top.map((row) => (row.name.length > 48 ? `${row.name.slice(0, 47)}…` : row.name)), axisLabel: { interval: 0, fontSize: 11 } },
    series: [{ name: "GPU time", type: "bar", data: top.map((row) => ({ value: row.gpu_ns, itemStyle: { ...styleOf("compute", row.kind), decal: row.source === "guess" ? DOTS : undefined } })) }],
  }));
  place.append(table([["kernel", null, "name"], ["launched by", null, "operator"], ["kind", null, (row) => labelOf("compute", row.kind)], ["source", null, (row) => (row.source ? `${row.source} (${SOURCES[row.source]})` : "–")], ["launches", "count", "count"],
    ["GPU time", "time", "gpu_ns"], ["mean", "time", (row) => Math.round(row.gpu_ns / row.count)], ["share", "share", "share"]], DATA.kernels, "All traced ranks and steps together."));
}

function fillAdvice() {
  const place = section("advice");
  DATA.notes.forEach((note) => say("advice", note));
  if (!DATA.advice.length) return place.append(element("p", {}, "Nothing to warn of."));
  place.append(table([["", null, (one) => element("span", { class: `kind ${one.kind.split(" ").pop() === "supported" ? "unsupported" : one.kind}` }, one.kind)], ["what", null, "what"], ["times", "count", "count"], ["what to do", null, "cure"]], DATA.advice));
}
function fillReport() {
  say("report", "The report, as --report writes it (docs/report.md). Every number above says where it comes from when the pointer rests on it.");
  section("report").append(folded("JSON", () => element("pre", { tabindex: "0" }, JSON.stringify(DATA.report, null, 1))));
}
