// Fills the page.
// Kinds get their colours in order of their time, so that the largest differ most.
function chooseColours() {
  const sums = { compute: {}, exposed: {} };
  DATA.steps.forEach((step) => Object.keys(sums).forEach((group) => Object.entries(step[group]).forEach(([kind, ns]) => { sums[group][kind] = (sums[group][kind] || 0) + ns; })));
  Object.entries(sums).forEach(([group, kinds]) => Object.entries(kinds).sort((a, b) => b[1] - a[1]).forEach(([kind]) => styleOf(group, kind)));
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
  wireTools();
  drawWhenSeen(); // the timeline comes when it is unpacked, and nothing waits for it
  fillTimeline(await unpack());
  drawWhenSeen();
  if (document.documentElement.dataset.state !== "failed") document.documentElement.dataset.state = "ready";
}
main().catch(fail);
