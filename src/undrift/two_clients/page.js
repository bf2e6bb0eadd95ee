"use strict";
// Time is counted in local steps. A round takes `steps` of them and then `rest`, in which the server moves to the mean.
const { steps, rounds, panels: paths } = JSON.parse(document.getElementById("paths").textContent);
const rest = Math.max(2, Math.round(steps / 3)), round = steps + rest, end = rounds * round;
const controls = document.querySelector(".time");
const [button, slider, output] = ["button", "input", "output"].map(name => controls.querySelector(name));
const still = matchMedia("(prefers-reduced-motion: reduce)");
const speed = Math.max(round / 1.6, end / 30); // local steps a second: a round takes 1.6 s, everything at most half a minute

const drawn = name => document.createElementNS("http://www.w3.org/2000/svg", name);
const shape = (name, kind, parent) => {
  const element = drawn(name);
  element.setAttribute("class", kind);
  return parent.appendChild(element);
};
const text = points => points.map(point => point.join(",")).join(" ");
const between = (a, b, share) => a.map((value, axis) => +(value + share * (b[axis] - value)).toFixed(2));
const put = (circle, [x, y]) => { circle.setAttribute("cx", x); circle.setAttribute("cy", y); };

// The part of a line that has been walked after so many of its segments, the last of them perhaps in part.
function walked(line, length) {
  const whole = Math.min(Math.floor(length), line.length - 1), part = length - whole;
  const points = line.slice(0, whole + 1);
  if (part > 0 && whole < line.length - 1) points.push(between(line[whole], line[whole + 1], part));
  return points;
}

class Panel {
  constructor(figure, { server, clients, captions, diverged }) {
    Object.assign(this, { server, clients, captions, diverged });
    this.plane = figure.querySelector(".plane");
    this.caption = figure.querySelector(".distance-now");
    this.lines = [...this.plane.querySelectorAll(".local")].map(group => [...group.children]);
    this.line = this.plane.querySelector("polyline.server");
    this.place = this.plane.querySelector(".end");
    this.pulls = clients.map((_, client) => this.plane.insertBefore(shape("line", `pull c${client + 1}`, this.plane), this.place));
    this.dots = clients.map((_, client) => shape("circle", `client c${client + 1}`, this.plane));
    this.dots.forEach(dot => dot.setAttribute("r", 4));
    this.mark = shape("circle", "end", figure.querySelector(".strip"));
    this.mark.setAttribute("r", 4);
    this.strip = [...figure.querySelector(".distance").points].map(({ x, y }) => [x, y]);
  }

  show(time) {
    const last = this.server.length - 1; // rounds; fewer than those of others where this one diverged
    const done = Math.min(Math.floor(time / round), last), local = done < last ? time - done * round : 0;
    const moving = local > 0, moved = Math.max(0, (local - steps) / rest);
    this.plane.classList.toggle("moving", moving);
    this.lines.forEach((lines, client) => lines.forEach((line, number) => {
      line.style.display = number < done || (moving && number === done) ? "" : "none";
      line.classList.toggle("now", moving && number === done);
      // The first segment leads from the server's model to where the client begins, mostly the same point.
      const whole = this.clients[client][number];
      line.setAttribute("points", text(number === done ? walked(whole, 1 + Math.min(local, steps)) : whole));
    }));
    const here = moving ? between(this.server[done], this.server[done + 1], moved) : this.server[done];
    this.line.setAttribute("points", text([...this.server.slice(0, done + 1), here]));
    put(this.place, here);
    this.dots.forEach((dot, client) => {
      dot.style.display = this.pulls[client].style.display = moving ? "" : "none";
      if (!moving) return;
      const spot = walked(this.clients[client][done], 1 + Math.min(local, steps)).at(-1);
      put(dot, spot);
      const [x, y] = spot, pull = this.pulls[client];
      for (const [name, value] of Object.entries({ x1: x, y1: y, x2: here[0], y2: here[1] })) pull.setAttribute(name, value);
      pull.style.display = moved > 0 ? "" : "none";
    });
    put(this.mark, moving ? between(this.strip[done], this.strip[done + 1], moved) : this.strip[done]);
    const over = this.diverged && time > last * round || time === end;
    this.caption.textContent = over ? this.captions.at(-1) : this.captions[done];
  }
}

const panels = [...document.querySelectorAll("figure")].map((figure, number) => new Panel(figure, paths[number]));
let now = end, frame = 0, before = 0;

function moveTo(time) {
  now = Math.min(end, Math.max(0, time));
  slider.value = Math.round(now);
  const number = Math.min(rounds, Math.floor(now / round) + 1), local = now - (number - 1) * round;
  const where = now === 0 ? ["start", ""]
    : now === end ? ["end", `after ${rounds} round${rounds > 1 ? "s" : ""}`]
    : [`round ${number}`, local === 0 ? "begins" : local <= steps ? `local step ${Math.ceil(local)} of ${steps}` : "the server moves"];
  output.replaceChildren(Object.assign(document.createElement("b"), { textContent: where[0] }), where[1] && ` · ${where[1]}`);
  slider.setAttribute("aria-valuetext", where.filter(Boolean).join(", "));
  panels.forEach(panel => panel.show(now));
}

function play(on) {
  cancelAnimationFrame(frame);
  controls.classList.toggle("playing", on);
  button.setAttribute("aria-label", on ? "Pause" : "Play");
  if (!on) return moveTo(Math.round(now));
  if (now >= end) moveTo(0);
  before = performance.now();
  frame = requestAnimationFrame(advance);
}

// Where motion is not wanted, time jumps from the end of a round to that of the next.
function advance(clock) {
  const passed = (clock - before) / 1000 * speed;
  if (!still.matches) {
    moveTo(now + passed);
    before = clock;
  } else if (passed >= round) {
    moveTo((Math.floor(now / round) + 1) * round);
    before = clock;
  }
  if (now >= end) play(false); else frame = requestAnimationFrame(advance);
}

const jumps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -round, PageUp: round, Home: -end, End: end };
addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const onSlider = event.target === slider;
  if (event.key === " " && event.target !== button) play(!controls.classList.contains("playing"));
  else if (event.key in jumps && (onSlider || event.key.startsWith("ArrowL") || event.key.startsWith("ArrowR"))) {
    play(false);
    moveTo(now + jumps[event.key]);
  } else return;
  event.preventDefault();
});
button.addEventListener("click", () => play(!controls.classList.contains("playing")));
slider.addEventListener("input", () => { const time = +slider.value; play(false); moveTo(time); });
controls.addEventListener("submit", event => event.preventDefault());
slider.max = end;
controls.hidden = false;
moveTo(end);
