"use strict";
const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const TIP = document.getElementById("tip");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const show = (value) => value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
  ? value.toExponential(1) : String(+value.toPrecision(4));

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) key in node && key !== "role" ? node[key] = value : node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(parent, tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

/** The tooltip, kept inside the window, beside a place and never under the pointer. */
function tip(x, y, ...children) {
  TIP.replaceChildren(...children);
  TIP.hidden = false;
  const box = TIP.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
  TIP.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
  TIP.style.top = `${Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8))}px`;
}
const untip = () => { TIP.hidden = true; };
addEventListener("scroll", untip, { passive: true });

/** A number beside an axis, with as many digits as tell it from its neighbours. */
function label(value, marks) {
  const step = marks.length > 1 ? Math.abs(marks[1] - marks[0]) : 0;
  const digits = step && value ? Math.ceil(Math.log10(Math.abs(value) / step)) + 1 : 4;
  return digits <= 4 ? show(value) : String(+value.toPrecision(Math.min(digits, 12)));
}

/** Round numbers that cover [low, high], about n of them. */
function ticks(low, high, n) {
  const raw = (high - low) / Math.max(1, n), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) || raw;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9) && found.length < 50; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

const LONG = 40;

/** What a line's heights are scaled to: of a long run not the first eighth, whose rise or fall would flatten the rest. */
function settled(line) {
  const last = line.epochs[line.epochs.length - 1];
  const late = last < LONG ? line.values : line.values.filter((_, i) => line.epochs[i] >= last / 8);
  return late.some((v) => v !== null) ? late : line.values;
}

function chart(host) {
  const spec = PAGE.charts[+host.dataset.chart];
  const known = (v) => v !== null;
  const long = spec.lines.some((l) => l.epochs[l.epochs.length - 1] >= LONG);
  const values = spec.lines.flatMap(settled).concat(long ? [] : spec.marks.map((m) => m.value)).filter(known);
  const epochs = [...new Set(spec.lines.flatMap((l) => l.epochs))].sort((a, b) => a - b);
  let at = -1, lit = null;

  function paint() {
    const width = host.clientWidth, height = host.clientHeight;
    host.replaceChildren();
    if (width < 40) return;
    const svg = draw(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": `${spec.summary}. Arrow keys read the values.` });
    if (!values.length) { draw(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "void" }, "nothing was measured"); return; }
    let low = Math.min(...values), high = Math.max(...values);
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    if (low >= 0 && low <= high - low) low = 0; else low -= pad;
    high += pad;
    const first = epochs[0], last = Math.max(epochs[epochs.length - 1], first);
    const marks = ticks(low, high, height / 46);
    const left = 10 + 7 * Math.max(...marks.map((t) => label(t, marks).length)), right = width - 10, top = 8, bottom = height - 24;
    const X = (e) => last === first ? (left + right) / 2 : left + (e - first) / (last - first) * (right - left);
    const Y = (v) => bottom - (v - low) / (high - low) * (bottom - top);
    for (const t of marks) {
      draw(svg, "line", { x1: left, x2: right, y1: Y(t), y2: Y(t), class: "grid" });
      draw(svg, "text", { x: left - 7, y: Y(t) + 4, "text-anchor": "end" }, label(t, marks));
    }
    draw(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
    const whole = last === first ? [first] : [...new Set(ticks(first, last, width / 80).filter(Number.isInteger))];
    whole.forEach((e) => draw(svg, "text", { x: X(e), y: height - 7, "text-anchor": "middle" }, e));
    const clip = `plot${host.dataset.chart}`;
    draw(draw(svg, "clipPath", { id: clip }), "rect", { x: left - 4, y: top - 4, width: right - left + 8, height: bottom - top + 8 });
    const within = (v) => v >= low && v <= high;
    for (const mark of spec.marks.filter((m) => within(m.value))) {
      draw(svg, "line", { x1: left, x2: right, y1: Y(mark.value), y2: Y(mark.value), class: "ref", stroke: `var(--c${mark.run % 8})` });
    }
    const named = () => {  // where it hides the least of the curves
      if (!spec.marks.length) return;
      const mark = spec.marks[0], inside = within(mark.value), below = mark.value < low;
      const y = inside ? Y(mark.value) : below ? bottom : top;
      const label = inside ? mark.label : `${mark.label} ${show(mark.value)}${spec.unit} ${below ? "↓" : "↑"}`, half = label.length * 3;
      const spots = [[right, -6], [right, 14], [left + 2, -6], [left + 2, 14]].filter(([, dy]) => y + dy > top + 4 && y + dy < bottom);
      const dots = spec.lines.flatMap((l) => l.values.map((v, i) => v === null ? null : [X(l.epochs[i]), Y(v)])).filter(Boolean);
      const hidden = ([x, dy]) => { const middle = x === right ? x - half : x + half; return dots.filter((d) => Math.abs(d[0] - middle) < half + 6 && Math.abs(d[1] - y - dy + 4) < 11).length; };
      const [x, dy] = spots.sort((a, b) => hidden(a) - hidden(b))[0] || [right, -6];
      draw(svg, "text", { x, y: y + dy, "text-anchor": x === right ? "end" : "start", class: "name" }, label);
    };
    for (const line of spec.lines) {
      let path = "", pen = false;
      const stroke = `var(--c${line.run % 8})`;
      line.values.forEach((v, i) => {
        if (v === null) { pen = false; return; }
        path += `${pen ? "L" : "M"}${X(line.epochs[i]).toFixed(1)} ${Y(v).toFixed(1)}`;
        pen = true;
      });
      draw(svg, "path", { d: path, class: "curve", stroke, "stroke-dasharray": PAGE.dashes[line.run], "clip-path": `url(#${clip})` });
      const end = line.values.findLastIndex(known);
      if (end >= 0 && within(line.values[end])) draw(svg, "circle", { cx: X(line.epochs[end]), cy: Y(line.values[end]), r: 3.5, fill: stroke });
    }
    named();
    const cross = draw(svg, "line", { y1: top, y2: bottom, class: "cross", visibility: "hidden" });
    const dots = spec.lines.map((l) => draw(svg, "circle", { r: 4, fill: `var(--c${l.run % 8})`, stroke: "var(--surface)", "stroke-width": 1.5, visibility: "hidden" }));

    lit = (index) => {
      at = Math.max(0, Math.min(epochs.length - 1, index));
      const epoch = epochs[at], x = X(epoch), rows = [make("div", { className: "what" }, `epoch ${epoch}`)];
      cross.setAttribute("x1", x); cross.setAttribute("x2", x); cross.setAttribute("visibility", "visible");
      spec.lines.forEach((line, n) => {
        const i = line.epochs.indexOf(epoch), v = i < 0 ? null : line.values[i];
        dots[n].setAttribute("visibility", v === null || !within(v) ? "hidden" : "visible");
        if (v !== null) { dots[n].setAttribute("cx", x); dots[n].setAttribute("cy", Y(v)); }
        rows.push(make("div", { className: `r${line.run % 8}` }, make("span", { className: "swatch" }), PAGE.runs[line.run], make("b", {}, v === null ? "–" : show(v) + spec.unit)));
      });
      const box = svg.getBoundingClientRect();
      tip(box.left + x, box.top + height / 2, ...rows);
    };
    const out = () => { untip(); for (const n of [cross, ...dots]) n.setAttribute("visibility", "hidden"); };
    const seek = (event) => {
      const x = event.clientX - svg.getBoundingClientRect().left;
      let best = 0;
      epochs.forEach((e, i) => { if (Math.abs(X(e) - x) < Math.abs(X(epochs[best]) - x)) best = i; });
      lit(best);
    };
    svg.addEventListener("pointermove", seek);
    svg.addEventListener("pointerdown", seek);
    svg.addEventListener("pointerleave", out);
    svg.addEventListener("blur", out);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") out();
      if (step) { event.preventDefault(); lit((at < 0 ? epochs.length - 1 : at) + step); }
    });
  }
  new ResizeObserver(paint).observe(host);
}
document.querySelectorAll("[data-chart]").forEach(chart);

/* the section being read, in the bar */
if ("IntersectionObserver" in window) {
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-45% 0px -50% 0px" });
  links.forEach((_, id) => { const node = document.getElementById(id); if (node) watch.observe(node); });
}
/* tabs that show one panel of several */
document.querySelectorAll("[data-tabs]").forEach((bar) => {
  const buttons = [...bar.querySelectorAll("button")];
  buttons.forEach((button) => button.addEventListener("click", () => {
    buttons.forEach((b) => {
      b.setAttribute("aria-pressed", String(b === button));
      document.getElementById(b.dataset.shows).hidden = b !== button;
    });
  }));
});
