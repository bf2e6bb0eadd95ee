// The curves as SVG, what a pointer finds on them, and downloads, with the functions of shared/drawing.js.
const report = JSON.parse(document.getElementById("report-data").textContent);

// ---- drawing ----

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function valueText(chart, value) {
  return chart.percent ? (100 * value).toFixed(1) + "\u00a0%" : numberText(value, 3);
}

/** A scale from values to pixels: linear or logarithmic. */
function scaleOf([low, high], [from, to], log) {
  const f = log ? Math.log10 : (value) => value;
  const width = f(high) - f(low) || 1;
  return (value) => from + ((f(value) - f(low)) / width) * (to - from);
}

/** The values that the vertical axis covers. Failed runs and curves far off have no say in it if there are others. */
function rangeOf(chart, shown, failed) {
  const near = shown.filter((method) => !chart.far.includes(method));
  const means = (near.length ? near : shown).map((method) => chart.means[method]);
  let values = means.flatMap((line) => [...(line.low || line.y), ...(line.high || line.y)]);
  if (!values.length) values = failed.flatMap((line) => line.y);
  if (means.length) values.push(...chart.lines.map((line) => line.y));
  if (!values.length) return [0.1, 1];
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (chart.log && low > 0) return [low / 1.08, high * 1.08];
  const margin = 0.04 * (high - low) || 0.05 * Math.abs(high) || 0.05;
  return chart.percent ? [Math.max(0, low - margin), Math.min(1, high + margin)] : [low - margin, high + margin];
}
function pathOf(xs, ys) {
  return xs.map((x, i) => `${i ? "L" : "M"}${x.toFixed(1)} ${ys[i].toFixed(1)}`).join("");
}
function dashesOf(task, method) {
  return report.methods[task.methods[method]].dashed ? "6 4" : "none";
}
function labelOf(task, method) {
  return report.methods[task.methods[method]].label;
}
function colourOf(task, method) {
  return themeColour("--m" + task.methods[method]);
}

/** A chart as an SVG element, and where its points are. `alone`: with title and legend, to be used elsewhere. */
function render(task, chart, axis, hidden, width, height, alone) {
  const soft = themeColour("--soft"), lineColour = themeColour("--line"), grid = themeColour("--grid");
  const methods = chart.means.map((_, method) => method).filter((method) => !hidden.has(method));
  const shown = methods.filter((method) => chart.means[method].y.length);
  const failed = chart.failed.filter((line) => !hidden.has(line.method));
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-size": 12, "font-family": themeColour("--sans") });
  let top = 10;
  if (alone) {
    svg.append(node("rect", { width, height, fill: themeColour("--panel") }));
    svg.append(node("text", { x: 12, y: 22, "font-size": 14, "font-weight": 600, fill: themeColour("--ink") }, chart.title));
    let x = 12;
    top = 42;
    for (const method of methods) {
      const label = labelOf(task, method), room = 34 + 7 * label.length;
      if (x > 12 && x + room > width) { x = 12; top += 18; }
      svg.append(node("line", { x1: x, x2: x + 18, y1: top - 4, y2: top - 4, stroke: colourOf(task, method), "stroke-width": 3, "stroke-dasharray": dashesOf(task, method) }));
      svg.append(node("text", { x: x + 24, y: top, fill: themeColour("--ink") }, label));
      x += room;
    }
    top += 16;
  }
  const domain = rangeOf(chart, shown, failed);
  const log = chart.log && domain[0] > 0;
  const room = height - top - 42;
  const ticks = log ? logTicks(...domain, Math.max(2, room / 34)) : linearTicks(...domain, Math.max(2, room / 48));
  const tickText = chart.percent
    ? (tick) => `${Number((100 * tick).toPrecision(6))}\u00a0%`
    : (tick) => numberText(tick, 6);
  const left = 14 + 7 * Math.max(1, ...ticks.map((tick) => tickText(tick).length));
  const inner = { left, top, width: Math.max(10, width - left - 14), height: room };
  const xs = [...shown.map((method) => chart.means[method]), ...failed].flatMap((line) => [line[axis.key][0], line[axis.key].at(-1)]);
  const range = axis.key === "round" ? [Math.min(...xs, 1), Math.max(...xs, 2)] : [0, Math.max(...xs, 1e-9)];
  const toX = scaleOf(range, [0, inner.width], false);
  const toY = scaleOf(domain, [inner.height, 0], log);
  // What is far outside, or has no logarithm, is drawn outside as well; browsers do not draw at infinity.
  const place = (value) => (log && value <= 0 ? 1e4 : Math.max(-1e4, Math.min(1e4, toY(value))));

  const frame = node("g", { transform: `translate(${inner.left} ${inner.top})` });
  svg.append(frame);
  for (const tick of ticks) {
    const y = toY(tick).toFixed(1);
    frame.append(node("line", { x2: inner.width, y1: y, y2: y, stroke: grid }));
    frame.append(node("text", { x: -8, y, dy: ".32em", "text-anchor": "end", fill: soft }, tickText(tick)));
  }
  frame.append(node("line", { x2: inner.width, y1: inner.height, y2: inner.height, stroke: lineColour }));
  for (const tick of linearTicks(...range, Math.max(2, inner.width / 90))) {
    if (axis.key === "round" && !Number.isInteger(tick)) continue;
    const x = toX(tick).toFixed(1);
    frame.append(node("line", { x1: x, x2: x, y1: inner.height, y2: inner.height + 4, stroke: lineColour }));
    frame.append(node("text", { x, y: inner.height + 17, "text-anchor": "middle", fill: soft }, numberText(tick, 6)));
  }
  frame.append(node("text", { x: inner.width / 2, y: inner.height + 35, "text-anchor": "middle", fill: soft }, axis.title));

  // An inner SVG cuts off what leaves the frame.
  const plot = node("svg", { width: inner.width, height: inner.height, overflow: "hidden" });
  frame.append(plot);
  for (const { y: level, dashes } of chart.lines) {
    const y = place(level).toFixed(1);
    plot.append(node("line", { x2: inner.width, y1: y, y2: y, stroke: soft, "stroke-width": 1.5, "stroke-dasharray": dashes }));
  }
  const points = [];
  const bands = node("g", {}), lines = node("g", {});
  for (const method of shown) {
    const line = chart.means[method], colour = colourOf(task, method);
    const x = line[axis.key].map(toX), y = line.y.map(place);
    if (line.low) {
      const edge = pathOf([...x, ...[...x].reverse()], [...line.high.map(place), ...[...line.low].reverse().map(place)]);
      bands.append(node("path", { d: edge + "Z", fill: colour, "fill-opacity": 0.15, "data-method": method }));
    }
    const group = node("g", { "data-method": method });
    group.append(node("path", { d: pathOf(x, y), fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dashesOf(task, method) }));
    // With few points, show each of them: a bare line looks like one value per round.
    if (x.length <= 25) x.forEach((each, i) => group.append(node("circle", { cx: each.toFixed(1), cy: y[i].toFixed(1), r: 2.5, fill: colour })));
    lines.append(group);
    points.push({ method, line, x, y });
  }
  plot.append(bands, lines);
  for (const line of failed) {
    const colour = colourOf(task, line.method);
    const x = line[axis.key].map(toX);
    const y = line.y.map(place);
    plot.append(node("path", { d: pathOf(x, y), fill: "none", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": "2 3", "data-method": line.method }));
    // The cross stays on the frame where the curve has left it.
    const cross = node("path", { d: "M-4-4L4 4M-4 4L4-4", stroke: colour, "stroke-width": 2.5, "data-method": line.method,
      transform: `translate(${x.at(-1).toFixed(1)} ${Math.max(0, Math.min(inner.height, y.at(-1))).toFixed(1)})` });
    cross.append(node("title", {}, line.text));
    frame.append(cross);
  }
  return { svg, frame, inner, points };
}

// ---- a task ----

function setUp(article) {
  const task = report.tasks[Number(article.dataset.task)];
  const state = { axis: task.axes[0], hidden: new Set() };
  const places = [...article.querySelectorAll(".chart")].map((place) => ({
    place, chart: task.charts.find((chart) => chart.id === place.dataset.chart), drawn: null,
  }));

  function draw() {
    for (const each of places) {
      const { clientWidth: width, clientHeight: height } = each.place;
      if (!width) continue;
      each.drawn = render(task, each.chart, state.axis, state.hidden, width, height, false);
      each.place.replaceChildren(each.drawn.svg);
    }
  }
  function focusOn(method) {
    for (const part of article.querySelectorAll(".chart [data-method]")) {
      part.setAttribute("opacity", method === null || Number(part.dataset.method) === method ? 1 : 0.12);
    }
  }

  for (const each of places) {
    each.place.addEventListener("pointermove", (event) => point(task, state.axis, each, event));
    each.place.addEventListener("pointerleave", () => clear(each));
  }
  for (const input of article.querySelectorAll(".axes input")) {
    input.addEventListener("change", () => {
      state.axis = task.axes.find((axis) => axis.key === input.value);
      draw();
    });
  }
  for (const chip of article.querySelectorAll(".chip")) {
    const method = Number(chip.dataset.method);
    chip.addEventListener("click", () => {
      const hide = !state.hidden.has(method);
      hide ? state.hidden.add(method) : state.hidden.delete(method);
      chip.setAttribute("aria-pressed", String(!hide));
      draw();
    });
    chip.addEventListener("mouseenter", () => focusOn(state.hidden.has(method) ? null : method));
    chip.addEventListener("mouseleave", () => focusOn(null));
  }
  for (const button of article.querySelectorAll("[data-get]")) {
    button.addEventListener("click", () => {
      if (button.dataset.get === "summary") return save("summary.csv", csv(task.summary), "text/csv");
      if (button.dataset.get === "curves") return save("curves.csv", csv(curveRows(task)), "text/csv");
      const { chart } = places.find((each) => button.closest("figure").contains(each.place));
      save(`${chart.id}.svg`, figureText(task, chart, state), "image/svg+xml");
    });
  }
  new ResizeObserver(draw).observe(article);
  return draw;
}

/** What stands at a place of a chart: a line across the curves, a mark on each, and their values. */
function point(task, axis, { place, chart, drawn }, event) {
  clear({ place, drawn });
  if (!drawn || !drawn.points.length) return;
  const { inner, points, frame } = drawn;
  const across = event.clientX - place.getBoundingClientRect().left - inner.left;
  if (across < -12 || across > inner.width + 12) return;
  const nearest = (x) => x.reduce((best, value, i) => (Math.abs(value - across) < Math.abs(x[best] - across) ? i : best), 0);
  const found = points.map((each) => ({ ...each, at: nearest(each.x) }));
  const closest = found.reduce((best, each) => (Math.abs(each.x[each.at] - across) < Math.abs(best.x[best.at] - across) ? each : best));
  const x = closest.x[closest.at];
  const marks = node("g", { class: "pointed", "pointer-events": "none" });
  marks.append(node("line", { x1: x, x2: x, y2: inner.height, stroke: themeColour("--soft"), "stroke-dasharray": "2 3" }));
  const tip = element("div", "tip"), table = element("table");
  const value = closest.line[axis.key][closest.at];
  table.append(element("caption", "", axis.unit ? `${numberText(value, 3)} ${axis.unit}` : `Round ${value}`));
  for (const each of found) {
    marks.append(node("circle", { cx: each.x[each.at], cy: each.y[each.at], r: 4, fill: colourOf(task, each.method), stroke: themeColour("--panel"), "stroke-width": 1.5 }));
    const row = element("tr"), name = element("th"), swatch = element("span", "swatch");
    swatch.style.setProperty("--c", `var(--m${task.methods[each.method]})`);
    swatch.style.setProperty("--dash", report.methods[task.methods[each.method]].dashed ? "dashed" : "solid");
    name.append(swatch, labelOf(task, each.method));
    row.append(name, element("td", "", valueText(chart, each.line.y[each.at])));
    if (each.line.low) row.append(element("td", "", `${valueText(chart, each.line.low[each.at])} to ${valueText(chart, each.line.high[each.at])}`));
    table.append(row);
  }
  frame.append(marks);
  tip.append(table);
  place.append(tip);
  const free = place.clientWidth - tip.offsetWidth;
  const beside = inner.left + x + 14 <= free ? inner.left + x + 14 : inner.left + x - 14 - tip.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(free, beside))}px`;
  tip.style.top = `${inner.top + 4}px`;
}
function clear({ place }) {
  for (const part of place.querySelectorAll(".tip, .pointed")) part.remove();
}

// ---- downloads ----

function save(name, text, type) {
  const stem = document.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "undrift";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `${stem}-${name}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function csv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    // A spreadsheet would compute a text that begins like a formula.
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
/** A row per method and round: the mean over seeds of every quantity, and its lowest and highest seed. */
function curveRows(task) {
  const axes = task.axes.map((axis) => (axis.unit ? `${axis.key} (${axis.unit})` : axis.key));
  const rows = [["method", ...axes, ...task.charts.flatMap((chart) => [chart.id, `${chart.id}_low`, `${chart.id}_high`])]];
  task.methods.forEach((_, method) => {
    const found = new Map();
    task.charts.forEach((chart, place) => {
      const line = chart.means[method];
      line.round.forEach((round, i) => {
        if (!found.has(round)) found.set(round, [labelOf(task, method), ...task.axes.map((axis) => line[axis.key][i])]);
        const row = found.get(round), at = 1 + axes.length + 3 * place;
        row[at] = line.y[i];
        if (line.low) { row[at + 1] = line.low[i]; row[at + 2] = line.high[i]; }
      });
    });
    const ordered = [...found.keys()].sort((a, b) => a - b).map((round) => Array.from({ length: rows[0].length }, (_, i) => found.get(round)[i]));
    rows.push(...ordered);
  });
  return rows;
}
/** The chart as it is shown, with title and legend, on white. */
function figureText(task, chart, state) {
  const root = document.documentElement, printing = root.classList.contains("printing");
  root.classList.add("printing");
  const { svg } = render(task, chart, state.axis, state.hidden, 720, 440, true);
  root.classList.toggle("printing", printing);
  return new XMLSerializer().serializeToString(svg);
}

// ---- the page ----

const draws = [...document.querySelectorAll("[data-task]")].map(setUp);
function drawAll() {
  for (const draw of draws) draw();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
// A printed page is light and narrow, and its details cannot be expanded.
let expanded = [];
function prepare(printing) {
  document.documentElement.classList.toggle("printing", printing);
  if (printing) expanded = [...document.querySelectorAll("details:not([open])")];
  for (const details of expanded) details.open = printing;
  drawAll();
}
addEventListener("beforeprint", () => prepare(true));
addEventListener("afterprint", () => prepare(false));
drawAll();
