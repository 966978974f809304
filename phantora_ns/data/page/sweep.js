// Fills the page of a sweep.
const GOOD = DATA.points.filter((point) => point.pace_ns !== null);
const COST = DATA.work ? `cost per million ${DATA.unit}` : "cost per step";
FORMATS.cost = (value) => digits(value);
FORMATS.amount = (value) => digits(value);

function labelOfPoint(point) {
  return DATA.varying.map((axis) => `${axis}=${point.settings[axis] === undefined ? "–" : point.settings[axis]}`).join(" ");
}
function indexOf(point) { return DATA.points.indexOf(point); }
function datum(point, field, format) { return number(`points.${indexOf(point)}.${field}`, format); }
function marksOf(point) {
  if (point.state !== "ok") return point.state;
  return point.marks.join(", ") || (point.pace_ns === null ? "it told no steps" : "");
}
// What an axis of a chart shows: [name, value of a point, format].
const AIMS = {
  time: DATA.work ? [`time for a million ${DATA.unit}`, (point) => point.pace_ns * 1e6, "time"] : ["step time", (point) => point.pace_ns, "time"],
  memory: ["peak memory in use", (point) => point.peak_bytes, "bytes"],
  gpus: ["GPUs", (point) => point.gpus, "count"],
  cost: [COST, (point) => point.cost, "cost"],
};
function axisOf(aim, format) {
  return { type: "value", scale: aim !== "gpus", name: AIMS[aim][0], nameLocation: "middle", nameGap: 46, axisLabel: { formatter: (value) => FORMATS[format](value) } };
}
// Points by two aims; those that nothing beats in every aim are large and joined where they lead in these two.
function scatter(x, y) {
  const [, ofX, formatX] = AIMS[x], [, ofY, formatY] = AIMS[y];
  const shown = GOOD.filter((point) => ofX(point) !== null && ofY(point) !== null);
  const sizes = [...new Set(shown.map((point) => point.gpus))].sort((a, b) => a - b);
  const symbols = ["circle", "rect", "triangle", "diamond", "pin", "arrow"];
  const lead = shown.slice().sort((a, b) => ofX(a) - ofX(b) || ofY(a) - ofY(b));
  let lowest = Infinity;
  const edge = lead.filter((point) => ofY(point) < lowest && ((lowest = ofY(point)), true)).map((point) => [ofX(point), ofY(point)]);
  const item = (point) => ({ value: [ofX(point), ofY(point)], point, symbolSize: point.best ? 20 : point.front ? 14 : 8,
    itemStyle: { opacity: point.front ? 1 : 0.55, borderColor: point.best ? (isDark() ? "#fff" : "#000") : "transparent", borderWidth: 2 },
    label: { show: point.best, formatter: "best", position: "top" } });
  return { legend: { top: 0 }, grid: { left: 90, right: 30, top: 40, bottom: 60 }, xAxis: { ...axisOf(x, formatX), nameGap: 32 }, yAxis: { ...axisOf(y, formatY), nameGap: 70 },
    tooltip: { confine: true, formatter: (entry) => entry.data.point ? [labelOfPoint(entry.data.point), ...[x, y].map((aim) => `${AIMS[aim][0]}: ${FORMATS[AIMS[aim][2]](AIMS[aim][1](entry.data.point))}`), `${entry.data.point.gpus} GPUs`].map((text) => text.replace(/[<>&]/g, "")).join("<br>") : "" },
    series: [...sizes.map((gpus, index) => ({ name: `${gpus} GPU${gpus === 1 ? "" : "s"}`, type: "scatter", symbol: symbols[index % symbols.length], itemStyle: { color: MIXED[index % MIXED.length] }, data: shown.filter((point) => point.gpus === gpus).map(item) })),
      { name: "none is better in both", type: "line", step: "end", symbol: "none", lineStyle: { type: "dashed", color: GREY.host }, itemStyle: { color: GREY.host }, data: edge }] };
}
function fillBest() {
  const best = DATA.points.find((point) => point.best), cheapest = DATA.points.find((point) => point.cheapest);
  if (!best) { say("best", "No point ended well and told its steps."); return; }
  for (const [title, point] of [["fastest", best], ...(cheapest && cheapest !== best ? [["cheapest", cheapest]] : [])]) {
    section("best").append(element("h3", {}, `${labelOfPoint(point)} `, element("span", { class: "soft" }, `(${title})`)), element("div", { class: "figures" },
      figure("a step", datum(point, "step_ns", "time")), ...(DATA.work ? [figure(`${DATA.unit}/s`, datum(point, "rate", "amount"))] : []), figure("peak memory", datum(point, "peak_bytes", "bytes")),
      figure("of a GPU", element("span", {}, FORMATS.share(point.peak_bytes / point.memory_bytes))), figure("GPUs", datum(point, "gpus", "count")), ...(point.cost === null ? [] : [figure(COST, datum(point, "cost", "cost"))])),
      element("pre", {}, point.command));
    if (point.low_ns !== null) section("best").append(element("p", { class: "soft" }, `80 % of real steps are expected within ${FORMATS.time(point.low_ns)} and ${FORMATS.time(point.high_ns)}.`));
  }
}
function fillPoints() {
  const cost = DATA.points.some((point) => point.cost !== null);
  const order = DATA.points.slice().sort((a, b) => (a.state !== "ok") - (b.state !== "ok") || (a.pace_ns === null) - (b.pace_ns === null) || a.pace_ns - b.pace_ns || a.number - b.number);
  const field = (heading, name, format) => [heading, "text", (point) => datum(point, name, format)];
  section("points").append(table([
    ...DATA.varying.map((axis) => [axis, null, (point) => (point.settings[axis] === undefined ? "–" : String(point.settings[axis]))]),
    field("step", "step_ns", "time"), ...(DATA.work ? [field(`${DATA.unit}/s`, "rate", "amount")] : []), field("peak memory", "peak_bytes", "bytes"),
    ["of a GPU", "text", (point) => (point.peak_bytes === null ? "–" : FORMATS.share(point.peak_bytes / point.memory_bytes))], field("GPUs", "gpus", "count"),
    ...(cost ? [field(COST, "cost", "cost")] : []), ["", null, marksOf], ["check", null, (point) => point.doubts.join("; ")], ["report", null, (point) => point.folder]], order));
}
function fillSweep() {
  const good = DATA.points.filter((point) => point.state === "ok").length;
  document.getElementById("about").append(`${DATA.points.length} of ${DATA.total} points have a result; ${good} ended well.`, DATA.work ? ` A step does ${DATA.work} ${DATA.unit}.` : "");
  fillBest();
  if (GOOD.length) {
    say("chart", "To the left and below is better. Large points are the Pareto front: no other is at least as good as they in time, memory, GPUs and cost, and better in one of these.");
    chart(section("chart"), 420, "Time against memory", () => scatter("time", "memory"));
    if (new Set(GOOD.map((point) => point.gpus)).size > 1) chart(section("chart"), 360, "Time against GPUs", () => scatter("time", "gpus"));
    if (GOOD.some((point) => point.cost !== null)) chart(section("chart"), 360, "Time against cost", () => scatter("time", "cost"));
  } else say("chart", "No point has a step time.");
  fillPoints();
  const failed = DATA.points.filter((point) => point.state !== "ok");
  if (failed.length) section("failures").append(table([["point", null, labelOfPoint], ["", null, "state"], ["why", null, "why"], ["log", null, (point) => `${point.folder}/log.txt`]], failed));
  else say("failures", "Nothing.");
  wireTools();
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  drawWhenSeen();
  if (document.documentElement.dataset.state !== "failed") document.documentElement.dataset.state = "ready";
}
fillSweep();
