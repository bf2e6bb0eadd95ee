// The live page: the list of runs, what is ticked, its curves, and what can be started and stopped.
import { draw, spark, valueText } from "./chart.js";

const HUES = 7;
const MOST_POINTS = 500; // of a curve; when it has grown beyond, the whole of it is asked for again
const MOST_IN_TIP = 12;
const $ = (id) => document.getElementById(id);
const wide = matchMedia("(min-width: 901px)"); // as in the style sheet

const runs = new Map(); // id -> summary
const rows = new Map(); // id -> elements of the list
const ticked = new Set(); // ids, in the order in which they were ticked
const curves = new Map(); // runs of a curve, as in "id-id" -> its points
const hues = new Map(); // what a colour stands for -> its number
const notices = new Map(); // text -> element
const seenJobs = new Map(); // number -> whether it was over
const trained = new Set(); // numbers of jobs that have begun to train
let jobs = []; // processes that pages have started
const session = { writable: false, page: "" };
let chosen = null; // the run in the detail panel
let statusFilter = "";
let awaited = null; // the job that the form has started
let chart = { at: () => null };
let fetching = false, stale = false, begun = false, legend = "";

// ---- talking to the server ----

async function ask(path, body) {
  const request = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body),
    headers: { "content-type": "application/json", "x-undrift-page": session.page },
  };
  const answer = await fetch(path, request);
  if (!answer.ok) throw new Error((await answer.text()) || `error ${answer.status}`);
  return answer.json();
}
function listen() {
  const events = new EventSource("/api/events");
  events.onopen = () => showConnection("Live", false);
  events.onmessage = (event) => receive(JSON.parse(event.data));
  events.onerror = () => showConnection(events.readyState === EventSource.CLOSED ? "Not connected: load the page again" : "Connection lost, trying again", true);
}
function showConnection(text, lost) {
  $("connection").textContent = text;
  $("connection").className = lost ? "lost" : "";
}
function receive(changes) {
  if (changes.all) {
    const there = new Set(changes.runs.map((run) => run.id));
    for (const id of [...runs.keys()]) if (!there.has(id)) forget(id);
  }
  for (const id of changes.gone) forget(id);
  for (const run of changes.runs) {
    runs.set(run.id, run);
    showRow(run);
  }
  for (const text of changes.unreadable) notice(`A folder cannot be read: ${text}`);
  if (!begun) begin();
  const before = jobs;
  jobs = changes.jobs;
  for (const job of jobs) if (job.over || runs.get(job.run)?.held) trained.add(job.number);
  for (const id of new Set([...before, ...jobs].map((job) => job.run))) if (runs.has(id)) showRow(runs.get(id));
  followJobs();
  showCounts();
  if (chosen && [...changes.runs.map((run) => run.id), ...jobs.map((job) => job.run)].includes(chosen)) showDetail();
  showColumns();
  updateCurves();
}
function forget(id) {
  runs.delete(id);
  ticked.delete(id);
  rows.get(id)?.row.remove();
  rows.delete(id);
  if (chosen === id) choose(null);
}
/** What is ticked at first: what was before the page was loaded again, or what trains, or a few. */
function begin() {
  begun = true;
  const before = JSON.parse(sessionStorage.getItem("ticked") || "[]").filter((id) => runs.has(id));
  const usable = [...runs.values()].filter((run) => run.status !== "broken");
  const training = usable.filter((run) => run.status === "running").map((run) => run.id);
  const first = before.length ? before : training.length ? training : usable.map((run) => run.id);
  for (const id of first.slice(0, before.length || 8)) tick(id, true);
}

// ---- the list ----

function showRow(run) {
  let parts = rows.get(run.id);
  if (!parts) {
    parts = makeRow(run.id);
    rows.set(run.id, parts);
    $("runs").append(parts.row);
  }
  parts.label.replaceChildren(run.label, ...(run.seed === null ? [] : [element("span", "seed", ` · seed ${run.seed}`)]));
  parts.what.title = [run.label, run.name, run.reason, ...run.missing].filter(Boolean).join("\n");
  const about = [run.data, run.partition, run.model, rateText(run)].filter(Boolean).join(" · ");
  parts.about.replaceChildren(statusOf(run), ` · ${run.status === "broken" ? run.reason : about || run.name}`);
  parts.box.setAttribute("aria-label", `Compare ${run.label}, ${run.name}`);
  const best = run.accuracy !== null ? valueText(run.accuracy, true) : run.loss !== null ? numberText(run.loss) : "";
  parts.figure.replaceChildren(best || "–", element("small", "", run.loading ? "reading …" : `${run.rounds}${run.total === null ? "" : ` / ${run.total}`}`));
  const bar = element("progress");
  bar.max = Math.max(1, run.total ?? run.rounds);
  bar.value = run.rounds;
  bar.setAttribute("aria-label", "Rounds done");
  parts.picture.replaceChildren(spark(run.spark), bar);
  parts.row.hidden = !matches(run);
}
/** Whether a process was started for a run that does not train yet. */
function isStarting(run) {
  return jobs.some((job) => job.run === run.id && !job.over && !job.stopping && !trained.has(job.number));
}
function statusOf(run) {
  if (!run.held && isStarting(run)) return element("span", "status starting", "starting");
  return element("span", `status ${run.status}`, run.status === "running" && run.reason ? run.reason : run.status);
}
function makeRow(id) {
  const row = element("li", "run"), box = element("input"), what = element("button", "what");
  const label = element("span", "label"), about = element("span", "about"), picture = element("div"), figure = element("div", "figure");
  box.type = "checkbox";
  what.type = "button";
  what.append(label, about);
  row.append(box, what, picture, figure);
  row.dataset.run = id;
  box.addEventListener("click", (event) => event.stopPropagation());
  box.addEventListener("change", () => tick(id, box.checked));
  row.addEventListener("click", () => {
    choose(id);
    if (!wide.matches) $("detail").scrollIntoView({ block: "nearest" }); // it is above the list there
  });
  return { row, box, what, label, about, picture, figure };
}
function rateText(run) {
  return run.lr === null ? "" : `lr ${numberText(run.lr, 4)}`;
}
function matches(run) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [run.label, run.name, run.data, run.partition, run.model, rateText(run), run.status, `seed ${run.seed}`].join(" ").toLowerCase();
  return (!statusFilter || run.status === statusFilter) && words.every((word) => text.includes(word));
}
function filter() {
  for (const run of runs.values()) rows.get(run.id).row.hidden = !matches(run);
  showCounts();
}
function showCounts() {
  const counts = new Map();
  for (const run of runs.values()) counts.set(run.status, (counts.get(run.status) || 0) + 1);
  if (statusFilter && !counts.has(statusFilter)) statusFilter = "";
  const order = ["starting", "running", "stopped", "finished", "diverged", "broken"].filter((status) => counts.has(status));
  const chips = [["", `All ${runs.size}`], ...order.map((status) => [status, `${counts.get(status)} ${status}`])];
  $("statuses").replaceChildren(...(runs.size ? chips : []).map(([status, text]) => {
    const chip = element("button", "", text);
    chip.type = "button";
    chip.setAttribute("aria-pressed", String(status === statusFilter));
    chip.addEventListener("click", () => { statusFilter = status; filter(); });
    return chip;
  }));
  const visible = [...runs.values()].some(matches);
  $("empty").hidden = visible;
  $("empty").textContent = runs.size ? "No run matches." : "There are no runs in this folder yet. They appear here as soon as they start.";
}
function tick(id, on) {
  if (on) ticked.add(id); else ticked.delete(id);
  if (rows.has(id)) rows.get(id).box.checked = on;
  sessionStorage.setItem("ticked", JSON.stringify([...ticked]));
  const query = new URLSearchParams([...ticked].map((each) => ["run", each]));
  if (ticked.size) $("report").href = `/report?${query}`; else $("report").removeAttribute("href");
  updateCurves();
}

// ---- curves ----

/** What is drawn: a curve for every ticked run, or one for all seeds of what is otherwise equal. Failed runs stay alone. */
function wantedCurves() {
  const groups = new Map();
  for (const id of ticked) {
    const run = runs.get(id);
    if (!run) continue;
    const key = $("grouped").checked && !run.failed ? run.group : id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  }
  for (const key of [...hues.keys()]) if (!groups.has(key)) hues.delete(key);
  return [...groups].map(([key, members]) => {
    if (!hues.has(key)) {
      let number = 0;
      const taken = new Set(hues.values());
      while (taken.has(number)) number++;
      hues.set(key, number);
    }
    return { key, members, ids: members.map((run) => run.id).join("-"), stamp: JSON.stringify(members.map((run) => run.stamp)) };
  });
}
/** Names that tell curves apart: by label and seed, then by what else differs, at last by folder. */
function labelled(wanted) {
  const label = ({ members }) => members.length > 1 ? `${members[0].label} · ${members.length} seeds` : `${members[0].label}${members[0].seed === null ? "" : ` · seed ${members[0].seed}`}`;
  let names = wanted.map(label);
  for (const part of [(run) => run.data, (run) => run.partition, (run) => run.model, rateText, (run) => run.name]) {
    const count = new Map();
    for (const name of names) count.set(name, (count.get(name) || 0) + 1);
    const values = new Map();
    wanted.forEach(({ members }, i) => values.set(names[i], (values.get(names[i]) || new Set()).add(part(members[0]))));
    names = names.map((name, i) => (count.get(name) > 1 && values.get(name).size > 1 ? `${name} · ${part(wanted[i].members[0])}` : name));
  }
  return names;
}
async function updateCurves() {
  if (fetching) { stale = true; return; }
  fetching = true;
  try {
    do {
      stale = false;
      const column = $("column").value || "accuracy";
      const wanted = wantedCurves();
      const missing = wanted.filter(({ ids, stamp }) => curves.get(ids)?.column !== column || curves.get(ids).seen !== stamp);
      for (const ids of [...curves.keys()]) if (!wanted.some((each) => each.ids === ids)) curves.delete(ids);
      if (!missing.length) { drawChart(); break; }
      const query = new URLSearchParams({ column });
      for (const { ids } of missing) {
        const held = curves.get(ids);
        query.append("curve", held?.column === column && held.round.length <= MOST_POINTS ? `${ids}~${held.stamp}` : ids);
      }
      const answer = await ask(`/api/curves?${query}`);
      for (const points of answer.curves) keepPoints(points, column);
      for (const { ids, stamp } of missing) if (curves.has(ids)) curves.get(ids).seen = stamp;
      drawChart();
    } while (stale);
  } catch (error) {
    showConnection(error.message, true);
  } finally {
    fetching = false;
  }
}
function keepPoints(points, column) {
  const held = curves.get(points.curve);
  if (points.reset || !held || held.column !== column) {
    curves.set(points.curve, { ...points, column, y: points.y || [], traffic: points.traffic || [], elapsed: points.elapsed || [] });
    return;
  }
  held.stamp = points.stamp;
  for (const name of ["round", "traffic", "elapsed", "y", "low", "high"]) if (points[name] && held[name]) held[name].push(...points[name]);
}
function columnsOfTicked() {
  const found = new Map();
  for (const id of ticked.size ? ticked : runs.keys()) for (const column of runs.get(id)?.columns || []) found.set(column.name, column);
  return [...found.values()].sort((a, b) => b.percent - a.percent);
}
function showColumns() {
  const select = $("column"), before = select.value;
  const columns = columnsOfTicked();
  const names = columns.map((column) => column.name).join();
  if (select.dataset.names === names) return;
  select.dataset.names = names;
  select.replaceChildren(...columns.map((column) => new Option(column.title, column.name)));
  if (columns.some((column) => column.name === before)) select.value = before;
}
function drawChart() {
  showColumns();
  const wanted = wantedCurves(), names = labelled(wanted);
  const column = columnsOfTicked().find((each) => each.name === $("column").value);
  const lines = wanted.flatMap(({ key, members, ids }, i) => {
    const points = curves.get(ids);
    if (!points || points.column !== column?.name) return [];
    const hue = hues.get(key);
    return [{ ...points, label: names[i], colour: `var(--c${hue % HUES})`, dashed: Math.floor(hue / HUES) % 2 === 1, failed: members[0].failed }];
  });
  const axis = document.querySelector("#axis input:checked").value;
  const title = column?.title || "Accuracy";
  chart = draw($("chart"), lines, { title, percent: Boolean(column?.percent), axis });
  if (!lines.some((line) => line.y.length)) {
    const hint = ticked.size ? "Nothing to draw yet: curves appear with the first round." : "Tick runs to compare their curves.";
    $("chart").append(element("p", "hint", hint));
  }
  showLegend(lines);
  const notes = [];
  if (lines.some((line) => line.low)) notes.push("Lines are means over seeds, bands reach from the lowest to the highest seed.");
  if (lines.some((line) => line.failed)) notes.push("Dotted: runs that diverged, or whose loss exploded.");
  $("note").textContent = notes.join(" ");
}
function showLegend(lines) {
  const now = JSON.stringify(lines.map(({ label, colour, dashed, failed }) => [label, colour, dashed, failed]));
  if (now === legend) return;
  legend = now;
  $("legend").replaceChildren(...lines.map((line) => {
    const item = element("li"), name = element("span", "", line.label + (line.failed ? " (failed)" : ""));
    name.title = line.label;
    item.append(swatch(line), name);
    return item;
  }));
}
function swatch(line) {
  const made = element("i", line.dashed ? "swatch dashed" : "swatch");
  made.style.borderTopColor = line.colour;
  return made;
}
function pointAt(event) {
  const box = $("chart").getBoundingClientRect();
  const found = chart.at(event === null ? null : event.clientX - box.left);
  $("chart").querySelector(".tip")?.remove();
  if (!found) return;
  const column = columnsOfTicked().find((each) => each.name === $("column").value);
  const tip = element("div", "tip");
  tip.append(element("b", "", found.head));
  for (const { curve, y, low, high } of found.found.slice(0, MOST_IN_TIP)) {
    const line = element("div"), band = low === undefined ? "" : ` (${valueText(low, column?.percent)} – ${valueText(high, column?.percent)})`;
    line.append(swatch(curve), element("span", "", curve.label), element("span", "value", valueText(y, column?.percent) + band));
    tip.append(line);
  }
  if (found.found.length > MOST_IN_TIP) tip.append(element("span", "soft", `and ${found.found.length - MOST_IN_TIP} more`));
  $("chart").append(tip);
  const left = found.place + tip.offsetWidth + 16 < box.width ? found.place + 12 : Math.max(0, found.place - tip.offsetWidth - 12);
  tip.style.left = `${left}px`;
  tip.style.top = "12px";
}

// ---- one run ----

function choose(id) {
  rows.get(chosen)?.row.classList.remove("chosen");
  chosen = id;
  rows.get(id)?.row.classList.add("chosen");
  $("detail").replaceChildren();
  $("detail").hidden = id === null;
  if (id === null) return;
  showDetail();
  ask(`/api/run/${id}`).then((found) => { if (chosen === id) showConfig(found); }, (error) => notice(error.message));
}
function showDetail() {
  const run = runs.get(chosen);
  if (!run) return;
  const home = $("detail"), head = element("div", "head"), facts = element("p", "soft");
  head.append(element("h2", "", run.label), statusOf(run));
  const figures = [
    run.seed === null ? "" : `seed ${run.seed}`, rateText(run), run.data, run.partition, run.model,
    `${run.rounds}${run.total === null ? "" : ` of ${run.total}`} rounds`, run.accuracy === null ? "" : `accuracy ${valueText(run.accuracy, true)}`,
  ];
  facts.textContent = figures.filter(Boolean).join(" · ");
  const wrong = element("ul");
  for (const text of [run.status === "running" ? "" : run.reason, ...run.missing].filter(Boolean)) wrong.append(element("li", "", text));
  const kept = home.querySelector(".config"), typed = home.querySelector(".buttons input")?.value;
  home.replaceChildren(head, facts, ...(wrong.children.length ? [wrong] : []), buttonsFor(run, typed), ...(kept ? [kept] : []));
}
function buttonsFor(run, typed) {
  const row = element("div", "buttons"), said = element("p", "error");
  said.setAttribute("role", "alert");
  const act = (button, work) => button.addEventListener("click", async () => {
    button.disabled = true;
    said.textContent = "";
    try { await work(); } catch (error) { said.textContent = error.message; button.disabled = false; }
  });
  if (run.held) {
    const stop = element("button", "", run.together > 1 ? `Stop (${run.together} runs)` : "Stop");
    stop.type = "button";
    stop.disabled = !session.writable || Boolean(run.refusal) || run.reason.startsWith("stopping");
    act(stop, () => ask("/api/stop", { run: run.id }));
    row.append(stop);
    if (run.refusal) row.append(element("span", "soft", run.refusal));
    else if (run.together > 1) row.append(element("span", "soft", "One process trains them; all are saved."));
  } else if (run.total !== null) {
    const resume = element("button", "", "Resume"), label = element("label", "", "to round"), rounds = element("input");
    resume.type = "button";
    resume.disabled = !session.writable || isStarting(run);
    rounds.inputMode = "numeric";
    rounds.value = typed ?? run.total;
    label.append(rounds);
    act(resume, () => {
      if (!/^\d{1,9}$/.test(rounds.value.trim())) throw new Error(`rounds must be a whole number, got ${rounds.value}`);
      const wanted = Number(rounds.value);
      return ask("/api/resume", { run: run.id, rounds: wanted === run.total ? null : wanted });
    });
    row.append(resume, label);
  }
  if (!session.writable) row.append(element("span", "soft", "Read only: open the address that undrift ui printed."));
  row.append(said);
  return row;
}
function showConfig(found) {
  const part = element("details", "config"), list = element("dl");
  part.open = $("detail").querySelector(".config")?.open ?? wide.matches;
  for (const [key, value] of Object.entries(found.config)) list.append(element("dt", "", key), element("dd", "", value));
  part.append(element("summary", "", "Configuration"), element("p", "soft path", found.folder), list);
  $("detail").querySelector(".config")?.remove();
  $("detail").append(part);
}

// ---- starting ----

function fillForm(offered) {
  const options = (names, first) => [new Option(first, ""), ...Object.keys(names).map((name) => new Option(name, name))];
  $("form").elements.data.replaceChildren(...options(offered.datasets, "digits (default)").filter((option) => option.value !== "digits"));
  $("form").elements.model.replaceChildren(...options(offered.models, "the data set’s own"));
  for (const [list, names] of [["algorithms", offered.algorithms], ["partitions", offered.partitions]]) {
    $(list).replaceChildren(...Object.entries(names).map(([name, about]) => {
      const option = new Option(about, name);
      option.label = about;
      return option;
    }));
  }
}
async function start(event) {
  event.preventDefault();
  const button = $("form").querySelector("[type=submit]");
  button.disabled = true;
  $("form-error").textContent = "";
  try {
    awaited = (await ask("/api/start", Object.fromEntries(new FormData($("form"))))).job;
    button.textContent = "Starting …";
  } catch (error) {
    formEnds(error.message);
  }
}
function formEnds(error) {
  awaited = null;
  const button = $("form").querySelector("[type=submit]");
  button.textContent = "Start";
  button.disabled = false;
  $("form-error").textContent = error;
  if (!error) $("form-dialog").close();
}
/** Jobs that were started from a page: their runs are ticked when they appear, and errors are shown. */
function followJobs() {
  for (const job of jobs) {
    const mine = job.number === awaited;
    if (mine && job.over && job.error && !runs.has(job.run)) formEnds(job.error);
    else if (job.over && job.error && seenJobs.get(job.number) !== true) notice(`${job.name}: ${job.error}`);
    if (mine && runs.has(job.run)) {
      tick(job.run, true);
      choose(job.run);
      formEnds("");
    } else if (mine && job.over) {
      formEnds(job.error || "It ended before its first round.");
    }
    seenJobs.set(job.number, job.over);
  }
}
function notice(text) {
  if (notices.has(text)) return;
  const line = element("p"), close = element("button", "", "Dismiss");
  close.type = "button";
  close.addEventListener("click", () => { line.remove(); notices.delete(text); });
  line.append(element("span", "", text), close);
  notices.set(text, line);
  $("notices").append(line);
}

// ---- beginning ----

async function main() {
  const offered = await ask("/api/session");
  Object.assign(session, { writable: offered.writable, page: offered.page });
  $("folder").textContent = offered.folder;
  $("folder").title = offered.folder;
  document.title = `undrift · ${offered.folder}`;
  $("new").disabled = !session.writable;
  $("new").title = session.writable ? "" : "Read only: open the address that undrift ui printed.";
  fillForm(offered);
  listen();
}
$("search").addEventListener("input", filter);
$("tick-all").addEventListener("click", () => { for (const run of runs.values()) if (matches(run)) tick(run.id, true); });
$("tick-none").addEventListener("click", () => { for (const id of [...ticked]) tick(id, false); });
$("column").addEventListener("change", updateCurves);
$("grouped").addEventListener("change", updateCurves);
$("axis").addEventListener("change", drawChart);
$("chart").addEventListener("pointermove", pointAt);
$("chart").addEventListener("pointerdown", pointAt);
$("chart").addEventListener("pointerleave", () => pointAt(null));
$("new").addEventListener("click", () => $("form-dialog").showModal());
$("form-close").addEventListener("click", () => $("form-dialog").close());
$("form").addEventListener("submit", start);
new ResizeObserver(drawChart).observe($("chart"));
main().catch((error) => showConnection(error.message, true));
