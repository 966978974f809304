// Fills the page of a comparison.
const LETTERS = DATA.runs.map((run) => run.letter);

function changeOf(first, value, kind) {
  if (first === null || value === null || first === undefined || value === undefined) return "–";
  if (first === value) return "=";
  const difference = `${value > first ? "+" : "−"}${FORMATS[kind](Math.abs(value - first))}`;
  return first ? `${difference} (${value > first ? "+" : "−"}${(100 * Math.abs(value - first) / Math.abs(first)).toFixed(1)} %)` : difference;
}
function columns(label, kindOf) {
  const values = DATA.runs.map((run, index) => [run.letter, "text", (row, at) => cell(row.values[index], kindOf(row), at, index)]);
  const changes = DATA.runs.slice(1).map((run, index) => [DATA.runs.length > 2 ? `${run.letter} − A` : "change", "text", (row) => changeOf(row.values[0], row.values[index + 1], kindOf(row))]);
  return [["", null, label], ...values, ...changes];
}
function cell(value, kind) {
  if (value === null || value === undefined) return "–";
  return element("span", { "data-value": value, title: value }, FORMATS[kind](value));
}
function groupedBars(rows, labels) {
  return { tooltip: tooltip("time"), legend: { top: 0 }, grid: { left: 230, right: 30, top: 30, bottom: 28 }, xAxis: AXIS_TIME,
    yAxis: { type: "category", inverse: true, data: labels, axisLabel: { interval: 0 } },
    series: DATA.runs.map((run, index) => ({ name: `${run.letter} ${run.name}`, type: "bar", itemStyle: { color: MIXED[index % MIXED.length] }, data: rows.map((row) => row.values[index]) })) };
}
function fillComparison() {
  document.getElementById("about").append(...DATA.runs.flatMap((run) => [`${run.letter}: ${run.name}`, run.band ? ` (80 % of real steps expected within ${FORMATS.time(run.band[0])} and ${FORMATS.time(run.band[1])})` : "", element("br")]));
  section("metrics").append(table(columns((row) => row.label, (row) => row.kind), DATA.metrics));
  if (DATA.step_parts.length) {
    const rows = DATA.step_parts.slice(0, 16), bars = DATA.runs.map((run, index) => ({ name: `${run.letter} ${run.name}`, parts: DATA.step_parts.reduce((parts, row) => {
      (parts[row.group] = parts[row.group] || {})[row.kind] = Math.max(0, row.values[index]);
      return parts;
    }, {}) }));
    say("parts", "Means of a step. Parts by kind add up to the step when all files are pages (--html); reports have three parts.");
    chart(section("parts"), 340, "Where the step goes in each run", () => stacked(bars));
    chart(section("parts"), 60 + 16 * rows.length * DATA.runs.length, "The parts that changed most", () => groupedBars(rows, rows.map((row) => labelOf(row.group, row.kind))));
    section("parts").append(table(columns((row) => labelOf(row.group, row.kind), () => "time"), DATA.step_parts));
  } else say("parts", "Not every file has steps.");
  if (DATA.kernels.length) {
    say("kernels", "GPU time by class of kernel, over the whole run, mean of ranks.");
    chart(section("kernels"), 60 + 16 * DATA.kernels.length * DATA.runs.length, "GPU time by class of kernel", () => groupedBars(DATA.kernels, DATA.kernels.map((row) => labelOf("compute", row.kind))));
    section("kernels").append(table(columns((row) => labelOf("compute", row.kind), () => "time"), DATA.kernels));
  } else say("kernels", "Not every report has GPU time by class of kernel.");
  if (DATA.setup.length) section("setup").append(table([["", null, "field"], ...LETTERS.map((letter, index) => [letter, null, (row) => (row.values[index] === null ? "–" : String(row.values[index]))])], DATA.setup));
  else say("setup", "Nothing.");
  wireTools();
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  drawWhenSeen();
  if (document.documentElement.dataset.state !== "failed") document.documentElement.dataset.state = "ready";
}
fillComparison();
