// Curves as SVG, and what a pointer finds on them; with node, element, numberText and ticks of the report's drawing.js.
const AXES = { round: "Round", traffic: "Traffic, down and up", elapsed: "Time" };

export function valueText(value, percent) {
  return percent ? `${(100 * value).toFixed(1)}\u00a0%` : numberText(value);
}

/** The unit in which the largest of some bytes or seconds is a handy number. */
function unitOf(axis, largest) {
  const units = axis === "traffic" ? [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]
    : axis === "elapsed" ? [[3600, "h"], [60, "min"], [1, "s"]] : [[1, ""]];
  return units.find(([size]) => largest >= 2 * size) || units.at(-1);
}
/** Lowest and highest value on the vertical axis, and whether it is logarithmic; failed runs have no say if there are others. */
function rangeOf(curves, percent) {
  const sound = curves.filter((curve) => !curve.failed && curve.y.length);
  let low = Infinity, high = -Infinity;
  for (const curve of sound.length ? sound : curves) {
    for (const value of curve.low || curve.y) low = Math.min(low, value);
    for (const value of curve.high || curve.y) high = Math.max(high, value);
  }
  if (!(low <= high)) return { low: 0, high: 1, log: false };
  if (!percent && low > 0 && high / low > 20) return { low: low / 1.08, high: high * 1.08, log: true };
  const margin = 0.04 * (high - low) || 0.05 * Math.abs(high) || 0.05;
  return percent ? { low: Math.max(0, low - margin), high: Math.min(1, high + margin), log: false } : { low: low - margin, high: high + margin, log: false };
}
function pathOf(xs, ys) {
  let path = "";
  for (let i = 0; i < xs.length; i++) path += `${i ? "L" : "M"}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
  return path;
}

/**
 * Draws curves ({label, colour, dashed, failed, y, round, traffic, elapsed, low?, high?}) into a box; `chart` is
 * {title, percent, axis}. Returns what a pointer at a place finds.
 */
export function draw(box, curves, chart) {
  const width = Math.max(200, box.clientWidth), height = box.clientHeight;
  const shown = curves.filter((curve) => curve.y.length);
  const svg = node("svg", { width, height, role: "img", "aria-label": `${chart.title} of ${shown.length} curves` });
  const range = rangeOf(shown, chart.percent);
  const top = 8, room = height - top - 44;
  const ticks = range.log ? logTicks(range.low, range.high, Math.max(2, room / 34)) : linearTicks(range.low, range.high, Math.max(2, room / 52));
  const tickText = (tick) => (chart.percent ? `${Number((100 * tick).toPrecision(6))}\u00a0%` : numberText(tick, 6));
  const left = 14 + 7 * Math.max(2, ...ticks.map((tick) => tickText(tick).length));
  const inner = Math.max(20, width - left - 24);
  const axis = chart.axis;
  let end = axis === "round" ? 2 : 1e-9;
  for (const curve of shown) end = Math.max(end, curve[axis].at(-1));
  const start = axis === "round" ? 1 : 0;
  const [size, unit] = unitOf(axis, end);
  const toX = (value) => ((value - start) / (end - start)) * inner;
  const f = range.log ? Math.log10 : (value) => value;
  const toY = (value) => (range.log && value <= 0 ? 1e4 : Math.max(-1e4, Math.min(1e4, room - ((f(value) - f(range.low)) / (f(range.high) - f(range.low) || 1)) * room)));

  const frame = node("g", { transform: `translate(${left} ${top})` });
  svg.append(frame);
  for (const tick of ticks) {
    const y = toY(tick).toFixed(1);
    frame.append(node("line", { x2: inner, y1: y, y2: y, stroke: "var(--grid)" }));
    frame.append(node("text", { x: -8, y, dy: ".32em", "text-anchor": "end", fill: "var(--soft)" }, tickText(tick)));
  }
  frame.append(node("line", { x2: inner, y1: room, y2: room, stroke: "var(--line)" }));
  for (const tick of linearTicks(start / size, end / size, Math.max(2, inner / 90))) {
    if (axis === "round" && !Number.isInteger(tick)) continue;
    const x = toX(tick * size).toFixed(1);
    frame.append(node("line", { x1: x, x2: x, y1: room, y2: room + 4, stroke: "var(--line)" }));
    frame.append(node("text", { x, y: room + 18, "text-anchor": "middle", fill: "var(--soft)" }, numberText(tick, 6)));
  }
  frame.append(node("text", { x: inner / 2, y: room + 37, "text-anchor": "middle", fill: "var(--soft)" }, AXES[axis] + (unit ? ` (${unit})` : "")));

  const plot = node("svg", { width: inner, height: room, overflow: "hidden" }); // cuts off what leaves the frame
  const bands = node("g", {}), lines = node("g", { fill: "none", "stroke-linejoin": "round" });
  plot.append(bands, lines);
  frame.append(plot);
  for (const curve of shown) {
    const xs = curve[axis].map(toX), ys = curve.y.map(toY);
    if (curve.low) {
      const around = pathOf([...xs, ...xs.toReversed()], [...curve.high.map(toY), ...curve.low.map(toY).reverse()]);
      bands.append(node("path", { d: `${around}Z`, fill: curve.colour, "fill-opacity": 0.16 }));
    }
    const dashes = curve.failed ? "2 4" : curve.dashed ? "6 4" : "none";
    lines.append(node("path", { d: pathOf(xs, ys), stroke: curve.colour, "stroke-width": shown.length > 12 ? 1.25 : 2, "stroke-dasharray": dashes }));
    if (xs.length === 1) lines.append(node("circle", { cx: xs[0], cy: ys[0], r: 3, fill: curve.colour }));
  }
  const marks = node("g", {});
  frame.append(marks);
  box.replaceChildren(svg);

  /** The values next to a place, in pixels from the left of the box, and marks at them. */
  function at(pixel) {
    marks.replaceChildren();
    if (pixel === null || !shown.length) return null;
    const wanted = start + (Math.max(0, Math.min(inner, pixel - left)) / inner) * (end - start);
    const found = [];
    for (const curve of shown) {
      const i = nearest(curve[axis], wanted);
      // A curve that ended long before the pointer has no value there.
      if (Math.abs(toX(curve[axis][i]) - toX(wanted)) > Math.max(12, inner / 40)) continue;
      found.push({ curve, x: curve[axis][i], y: curve.y[i], low: curve.low?.[i], high: curve.high?.[i] });
    }
    if (!found.length) return null;
    const place = toX(found.reduce((best, each) => (Math.abs(each.x - wanted) < Math.abs(best.x - wanted) ? each : best)).x);
    marks.append(node("line", { x1: place, x2: place, y2: room, stroke: "var(--soft)", "stroke-opacity": 0.5 }));
    for (const each of found.slice(0, 40)) marks.append(node("circle", { cx: toX(each.x), cy: toY(each.y), r: 3.5, fill: each.curve.colour, stroke: "var(--panel)" }));
    const value = found[0].x / size;
    const head = axis === "round" ? `Round ${found[0].x}` : `${numberText(value)} ${unit}`;
    return { head, place: left + place, found: found.sort((a, b) => b.y - a.y) };
  }
  return { at };
}
/** The place in a sorted list whose value is nearest. */
function nearest(values, wanted) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - values[low] < values[high] - wanted ? low : high;
}

/** A small picture of a run. */
export function spark(values) {
  const svg = node("svg", { viewBox: "0 0 72 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (values.length > 1) {
    const low = Math.min(...values), high = Math.max(...values);
    const ys = values.map((value) => 22 - (20 * (value - low)) / (high - low || 1));
    svg.append(node("path", { d: pathOf(values.map((_, i) => (72 * i) / (values.length - 1)), ys) }));
  }
  return svg;
}
