// The band of the step time, when the report has one (docs/report.md, `step_time`).
function bandFigures(band) {
  const figures = [];
  if (band.ns !== undefined) figures.push(figure("step time (report)", number("report.step_time.ns", "time")));
  return figures;
}
