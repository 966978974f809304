// Charts: colours, patterns, themes, and the table that says the same as each chart.
// Colours are near Okabe and Ito's and Tol's. They also differ in lightness: the first ones of each list are told apart
// with colour blindness and in a print without colours. Computing is cold, communication warm and striped, idle grey
// and dotted.
const COLD = ["#0072b2", "#56b4e9", "#0b5a2a", "#332288", "#009e73", "#a5dfa8", "#44aa99", "#5b7bb5", "#88ccee"];
const WARM = ["#d55e00", "#e69f00", "#a03d90", "#f0e442", "#7d1d4e", "#ddcc77"];
const MIXED = ["#0072b2", "#e69f00", "#7d1d4e", "#009e73", "#ddcc77", "#332288", "#56b4e9", "#a03d90"]; // what is no part of a step
const OTHERS = "#7f93a8"; // what comes after the palette's end takes little time
const HOST = { operator: "#a9b2c3", waiting: "#8a6a00" }; // in rows of the timeline
const GREY = { host: "#6b6b6b", queued: "#a9a9a9", unknown: "#d0d0d0" };
const STRIPES = { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -Math.PI / 4, color: "rgba(0,0,0,0.35)" };
const DOTS = { symbol: "circle", dashArrayX: [[4, 4], [0, 4, 4, 0]], dashArrayY: [4, 0], symbolSize: 0.6, color: "rgba(255,255,255,0.6)" };
const known = { compute: [], exposed: [] };

function styleOf(group, kind) {
  if (group === "idle") return { color: GREY[kind] || GREY.host, decal: DOTS };
  if (!kind) return { color: OTHERS };
  const list = known[group], palette = group === "compute" ? COLD : WARM;
  if (!list.includes(kind)) list.push(kind);
  const color = palette[list.indexOf(kind)] || OTHERS;
  return group === "exposed" ? { color, decal: STRIPES } : { color };
}
// Whether a kind has no colour of its own; these are one series of a chart.
function shared(group, kind) { return group === "compute" && styleOf(group, kind).color === OTHERS; }
function sumOfShared(group, kinds) {
  return Object.entries(kinds).reduce((sum, [kind, ns]) => sum + (shared(group, kind) ? ns : 0), 0);
}
function labelOf(group, kind) {
  if (!kind) return "other kernels";
  const before = { exposed: "exposed ", idle: "idle: " }[group] || "";
  return (LABELS[group] || {})[kind] || before + kind; // LABELS are page/words.py's
}

const charts = [];
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
// Makes a chart of `height` pixels; `options()` is asked again when the theme changes.
function chart(parent, height, label, options, renderer = "svg") {
  const place = element("div", { class: "chart", role: "img", "aria-label": label, style: `height:${height}px` });
  parent.append(place);
  const held = { place, options, renderer, drawn: null };
  charts.push(held);
  return held;
}
function draw(held) {
  if (held.drawn) held.drawn.dispose();
  held.drawn = echarts.init(held.place, isDark() ? "dark" : null, { renderer: held.renderer });
  held.drawn.setOption({ backgroundColor: "transparent", animation: false, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily }, ...held.options() });
  if (held.ready) held.ready(held.drawn);
}
function drawAll() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  charts.forEach(draw);
}
// Only what is near the screen is drawn at once. It is not left to the observer, which says nothing before the next frame.
function drawWhenSeen() {
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    const held = charts.find((one) => one.place === entry.target);
    if (entry.isIntersecting && !held.drawn) draw(held);
  }), { rootMargin: "300px" });
  const near = ({ top, bottom }) => top < innerHeight + 300 && bottom > -300;
  charts.filter((held) => !held.drawn).forEach((held) => (near(held.place.getBoundingClientRect()) ? draw(held) : seen.observe(held.place)));
}
addEventListener("resize", () => charts.forEach((held) => held.drawn && held.drawn.resize()));

const AXIS_TIME = { type: "value", axisLabel: { formatter: (ns) => FORMATS.time(ns), hideOverlap: true } };
function tooltip(format) {
  return { trigger: "axis", axisPointer: { type: "shadow" }, confine: true, valueFormatter: (value) => (value ? FORMATS[format](value) : "–") };
}
let printing = false;
// The legend of many names, and where the chart below begins. On paper nobody turns a legend's pages.
function legendOf(names) {
  if (!printing) return { legend: { type: "scroll", top: 0 }, top: 40 };
  const lines = Math.ceil(names.reduce((sum, name) => sum + 50 + 7 * name.length, 0) / document.body.clientWidth);
  return { legend: { top: 0 }, top: 18 + 22 * lines };
}
// Stacked bars of ns. `bars`: [{name, parts: {group: {kind: ns}}}].
function stacked(bars) {
  const totals = new Map();
  bars.forEach((bar) => Object.entries(bar.parts).forEach(([group, kinds]) => Object.entries(kinds).forEach(([kind, ns]) => {
    const key = shared(group, kind) ? `${group}|` : `${group}|${kind}`;
    totals.set(key, (totals.get(key) || 0) + ns);
  })));
  const order = ["compute", "exposed", "idle"];
  const keys = [...totals.keys()].sort((a, b) => order.indexOf(a.split("|")[0]) - order.indexOf(b.split("|")[0]) || totals.get(b) - totals.get(a));
  const series = keys.map((key) => {
    const [group, kind] = key.split("|");
    return { name: labelOf(group, kind), type: "bar", stack: "step", barMaxWidth: 46, itemStyle: styleOf(group, kind),
      data: bars.map((bar) => (kind ? (bar.parts[group] || {})[kind] || 0 : sumOfShared(group, bar.parts[group] || {}))) };
  });
  const { legend, top } = legendOf(series.map((one) => one.name));
  return { tooltip: tooltip("time"), legend, grid: { left: 70, right: 16, top, bottom: 30 },
    xAxis: { type: "category", data: bars.map((bar) => bar.name) }, yAxis: AXIS_TIME, series };
}

// Errors are shown in the page and marked on the document, where tests look for them.
function fail(error) {
  const place = document.getElementById("failed");
  place.hidden = false;
  place.append(`This page could not be drawn: ${error && error.stack ? error.stack : error}`);
  document.documentElement.dataset.state = "failed";
}
addEventListener("error", (event) => fail(event.error || event.message));
addEventListener("unhandledrejection", (event) => fail(event.reason));

function wireTools() {
  document.getElementById("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; drawAll(); });
  document.getElementById("print").addEventListener("click", () => print());
  let before = null;
  addEventListener("beforeprint", () => { printing = true; before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; drawAll(); });
  addEventListener("afterprint", () => { printing = false; document.documentElement.dataset.theme = before; drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => { document.documentElement.dataset.theme = event.matches ? "dark" : "light"; drawAll(); });
}
