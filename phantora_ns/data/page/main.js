// Fills the page. Errors are shown in it and marked on the document, where tests look for them.
function fail(error) {
  const place = document.getElementById("failed");
  place.hidden = false;
  place.append(`This page could not be drawn: ${error && error.stack ? error.stack : error}`);
  document.documentElement.dataset.state = "failed";
}
addEventListener("error", (event) => fail(event.error || event.message));
addEventListener("unhandledrejection", (event) => fail(event.reason));

// Kinds get their colours in order of their time, so that the largest differ most.
function chooseColours() {
  const sums = { compute: {}, exposed: {} };
  DATA.steps.forEach((step) => Object.keys(sums).forEach((group) => Object.entries(step[group]).forEach(([kind, ns]) => { sums[group][kind] = (sums[group][kind] || 0) + ns; })));
  Object.entries(sums).forEach(([group, kinds]) => Object.entries(kinds).sort((a, b) => b[1] - a[1]).forEach(([kind]) => styleOf(group, kind)));
}
function wireTools() {
  document.getElementById("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; drawAll(); });
  document.getElementById("print").addEventListener("click", () => print());
  let before = null;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; drawAll(); });
  addEventListener("afterprint", () => { document.documentElement.dataset.theme = before; drawAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => { document.documentElement.dataset.theme = event.matches ? "dark" : "light"; drawAll(); });
}
async function main() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  chooseColours();
  fillAbout();
  fillAnswers();
  fillFit();
  fillSpeed();
  fillWhere();
  fillWaits();
  fillLinks();
  fillKernels();
  fillAdvice();
  fillReport();
  fillTimeline(await unpack());
  wireTools();
  drawWhenSeen();
  if (document.documentElement.dataset.state !== "failed") document.documentElement.dataset.state = "ready";
}
main().catch(fail);
