/* The map: a t-SNE of the test set. Hover names a point, a click or Enter shows its nearest images. */
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}

function mark(pen, shape, x, y, r) {
  pen.beginPath();
  if (shape === "circle") pen.arc(x, y, r, 0, 7);
  else if (shape === "square") pen.rect(x - r * 0.88, y - r * 0.88, r * 1.76, r * 1.76);
  else if (shape === "triangle") { pen.moveTo(x, y - r * 1.2); pen.lineTo(x + r * 1.1, y + r * 0.8); pen.lineTo(x - r * 1.1, y + r * 0.8); pen.closePath(); }
  else if (shape === "diamond") { pen.moveTo(x, y - r * 1.3); pen.lineTo(x + r * 1.1, y); pen.lineTo(x, y + r * 1.3); pen.lineTo(x - r * 1.1, y); pen.closePath(); }
  else { const a = r * 0.4, b = r * 1.2; pen.rect(x - a, y - b, 2 * a, 2 * b); pen.rect(x - b, y - a, 2 * b, 2 * a); }
  pen.fill();
}

function atlas(host) {
  const data = PAGE.atlases[+host.dataset.atlas], sprite = PAGE.sprites[data.sprite];
  const sheet = document.getElementById(`sprite-${data.sprite}`);
  const places = unpack(data.places), near = unpack(data.near), labels = data.labels, n = labels.length;
  const k = n ? near.length / n : 0, known = labels.some((l) => l >= 0);
  const counted = new Set(labels.filter((l) => l >= 0)), several = counted.size > 1;  // of one class every neighbour would be right
  const judged = (i, j) => several && labels[i] >= 0 && labels[j] >= 0;
  const canvas = host.querySelector("canvas"), side = host.querySelector(".side"), pen = canvas.getContext("2d");
  const view = { zoom: 1, x: 0, y: 0, images: false };
  let width = 0, height = 0, over = -1, query = -1, only = null, wanted = null, palette = [];

  const reach = [0, 1].map((axis) => {  // how far the points lie from the middle
    let most = 1e-3;
    for (let i = 0; i < n; i++) most = Math.max(most, Math.abs(places[2 * i + axis] / 65535 - 0.5));
    return 2 * most;
  });
  const across = () => width < height * 1.05 && reach[0] > reach[1] * 1.3;  // a narrow window: the long side stands
  const scale = () => { const [wide, high] = across() ? [reach[1], reach[0]] : reach; return Math.min((width - 48) / wide, (height - 84) / high); };
  const middle = () => height / 2 + 18;  // the buttons lie above
  const place = (i, axis) => places[2 * i + (across() ? 1 - axis : axis)] / 65535 - 0.5;
  const X = (i) => width / 2 + (place(i, 0) * scale() + view.x) * view.zoom;
  const Y = (i) => middle() + (place(i, 1) * scale() + view.y) * view.zoom;
  const style = (label) => label < 0 ? [palette[8], "circle"] : [palette[label % 8], SHAPES[Math.floor(label / 8) % SHAPES.length]];
  const name = (i) => labels[i] >= 0 ? data.classes[labels[i]] ?? `class ${labels[i]}` : "";
  const shown = (i) => (only === null || labels[i] === only) && (wanted === null || wanted.has(i));

  function thumb(i, size) {
    const node = make("canvas", { width: size * 2, height: size * 2 });
    node.style.width = node.style.height = `${size}px`;
    const brush = node.getContext("2d");
    brush.imageSmoothingEnabled = sprite.side > 40;
    brush.drawImage(sheet, (i % sprite.columns) * sprite.side, Math.floor(i / sprite.columns) * sprite.side, sprite.side, sprite.side, 0, 0, size * 2, size * 2);
    return node;
  }

  function paint() {
    if (!width || !palette.length) return;
    const ratio = devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const r = Math.max(2.2, Math.min(4, 150 / Math.sqrt(n))) * Math.min(2, view.zoom ** 0.4);
    const chosen = new Set(query >= 0 ? near.slice(query * k, query * k + k) : []);
    const size = Math.max(10, Math.min(34, 560 / Math.sqrt(n))) * view.zoom ** 0.6;
    pen.imageSmoothingEnabled = sprite.side > size;
    for (const pass of [false, true]) {  // points that are filtered out lie underneath
      for (let i = 0; i < n; i++) {
        if (shown(i) !== pass) continue;
        const x = X(i), y = Y(i);
        if (x < -40 || y < -40 || x > width + 40 || y > height + 40) continue;
        const [fill, shape] = style(labels[i]);
        pen.globalAlpha = pass ? 0.82 : 0.1;
        pen.fillStyle = fill;
        if (view.images && pass) {
          pen.globalAlpha = 1;
          if (known) pen.fillRect(x - size / 2 - 1.5, y - size / 2 - 1.5, size + 3, size + 3);
          pen.drawImage(sheet, (i % sprite.columns) * sprite.side, Math.floor(i / sprite.columns) * sprite.side, sprite.side, sprite.side, x - size / 2, y - size / 2, size, size);
        } else mark(pen, shape, x, y, r);
      }
    }
    pen.globalAlpha = 1;
    if (query >= 0) {
      pen.lineWidth = 1;
      for (const j of chosen) {
        pen.strokeStyle = !judged(query, j) ? palette[9] : labels[j] === labels[query] ? palette[2] : palette[1];
        pen.globalAlpha = 0.75;
        pen.beginPath(); pen.moveTo(X(query), Y(query)); pen.lineTo(X(j), Y(j)); pen.stroke();
        pen.globalAlpha = 1;
        pen.beginPath(); pen.arc(X(j), Y(j), r + 2.5, 0, 7); pen.stroke();
      }
      ring(query, r + 5, 2.5);
    }
    if (over >= 0) ring(over, r + 4, 1.5);
  }
  function ring(i, r, w) { pen.strokeStyle = palette[9]; pen.lineWidth = w; pen.beginPath(); pen.arc(X(i), Y(i), r, 0, 7); pen.stroke(); }

  let due = false;
  const repaint = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; paint(); }); } };

  function find(x, y, reach) {
    let best = -1, least = reach * reach;
    for (let i = 0; i < n; i++) {
      if (!shown(i)) continue;
      const d = (X(i) - x) ** 2 + (Y(i) - y) ** 2;
      if (d < least) { least = d; best = i; }
    }
    return best;
  }
  function hover(i) {
    over = i;
    repaint();
    if (i < 0) { untip(); return; }
    const box = canvas.getBoundingClientRect();
    const words = [name(i) || (known ? "label unknown" : ""), data.captions[i] || ""].filter(Boolean);
    tip(box.left + X(i), box.top + Y(i), thumb(i, 72), ...words.map((w, at) => make("div", { className: at ? "what" : "" }, w)));
  }
  function pick(i) {
    if (i < 0) return;
    query = i;
    const list = make("ol", { className: "near", "aria-label": `The ${k} nearest images` });
    let right = 0, asked = 0;
    for (let j = 0; j < k; j++) {
      const m = near[i * k + j], told = judged(i, m), same = told && labels[m] === labels[i];
      right += same;
      asked += told;
      const what = `${j + 1}. nearest: ${name(m) || data.captions[m] || `image ${m + 1}`}${told ? same ? ", right" : ", wrong" : ""}`;
      const small = thumb(m, 64);
      small.removeAttribute("style");  // as large as its cell
      const button = make("button", { type: "button", title: what, "aria-label": what }, small);
      if (told) button.append(make("em", { "aria-hidden": "true" }, same ? "✓" : "✕"));
      button.addEventListener("click", () => { pick(m); host.querySelector(".near button")?.focus({ preventScroll: true }); });
      list.append(make("li", { className: told ? same ? "right" : "wrong" : "" }, button));
    }
    const of = asked < k ? `the ${asked} with a label among its ${k} nearest` : `its ${k} nearest`;
    const told = asked ? `${right} of ${of} share its label` : `its ${k} nearest images`;
    const about = make("p", { "aria-live": "polite" }, make("strong", {}, name(i) || "This image"), told);
    if (data.captions[i]) about.append(make("br"), data.captions[i]);
    side.querySelector(".answer").replaceChildren(make("div", { className: "query" }, thumb(i, 76), about), list);
    repaint();
  }
  function zoom(factor, x = width / 2, y = middle()) {
    const next = Math.max(1, Math.min(40, view.zoom * factor));
    view.x += (x - width / 2) * (1 / next - 1 / view.zoom);
    view.y += (y - middle()) * (1 / next - 1 / view.zoom);
    view.zoom = next;
    if (next === 1) view.x = view.y = 0;
    canvas.classList.toggle("deep", next > 1);
    hover(-1);
  }

  /* pointer: hover, click, drag to pan; two fingers to zoom */
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (e) => { fingers.set(e.pointerId, [e.offsetX, e.offsetY]); moved = 0; if (view.zoom > 1) canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    const was = fingers.get(e.pointerId), now = [e.offsetX, e.offsetY];
    if (!was) { hover(find(...now, 14)); return; }
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== e.pointerId)[1];
      zoom(Math.hypot(now[0] - other[0], now[1] - other[1]) / Math.max(1, Math.hypot(was[0] - other[0], was[1] - other[1])), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      moved = 99;
    } else {
      moved += Math.hypot(now[0] - was[0], now[1] - was[1]);
      if (view.zoom > 1) { view.x += (now[0] - was[0]) / view.zoom; view.y += (now[1] - was[1]) / view.zoom; repaint(); }
    }
    fingers.set(e.pointerId, now);
  });
  const lift = (e) => { fingers.delete(e.pointerId); };
  canvas.addEventListener("pointerup", (e) => { if (fingers.has(e.pointerId) && moved < 6) pick(find(e.offsetX, e.offsetY, e.pointerType === "touch" ? 24 : 14)); lift(e); });
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => hover(-1));
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey && document.activeElement !== canvas) return;  // the page scrolls until the map is chosen
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * (e.ctrlKey ? 0.01 : 0.0016)), e.offsetX, e.offsetY);
  }, { passive: false });

  /* keyboard: arrows walk to the nearest point that way, Enter asks for its neighbours */
  canvas.addEventListener("keydown", (e) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (way) {
      e.preventDefault();
      const from = over >= 0 ? over : query >= 0 ? query : 0;
      let best = -1, least = Infinity;
      for (let i = 0; i < n; i++) {
        const dx = X(i) - X(from), dy = Y(i) - Y(from), along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
        if (i !== from && shown(i) && along > 0 && along + 2 * across < least) { least = along + 2 * across; best = i; }
      }
      if (best >= 0) hover(best);
    } else if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(over); }
    else if (e.key === "+" || e.key === "=") zoom(1.4);
    else if (e.key === "-") zoom(1 / 1.4);
    else if (e.key === "0") zoom(0);
    else if (e.key === "Escape") hover(-1);
  });
  canvas.addEventListener("blur", () => hover(-1));
  host.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", () => {
    const what = button.dataset.do;
    if (what === "images") { view.images = !view.images; button.setAttribute("aria-pressed", String(view.images)); repaint(); }
    else zoom({ in: 1.6, out: 1 / 1.6, reset: 0 }[what]);
  }));

  /* by name: what does not match lies underneath, the first that does is shown */
  const box = host.querySelector(".find input"), told = host.querySelector(".find span");
  function seek() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = words.length ? labels.map((_, i) => `${data.captions[i] || ""} ${name(i)}`.toLowerCase()) : [];
    const found = texts.flatMap((text, i) => words.every((word) => text.includes(word)) ? [i] : []);
    wanted = words.length ? new Set(found) : null;
    told.textContent = words.length ? found.length === 1 ? "1 image" : found.length ? `${found.length} images` : `none of ${n.toLocaleString("en")}` : "";
    if (found.length && !wanted.has(query)) pick(found[0]);
    repaint();
    return found;
  }
  box?.addEventListener("input", seek);
  box?.addEventListener("keydown", (e) => {  // Enter walks through what was found
    if (e.key !== "Enter") return;
    e.preventDefault();
    const found = seek();
    if (found.length) pick(found[(found.indexOf(query) + 1) % found.length]);
  });

  /* the classes: a key of colours and shapes, and a filter */
  const keys = host.querySelector(".keys");
  const chips = [...counted].sort((a, b) => a - b).map((label) => {
    const swatch = make("canvas", { width: 24, height: 24 });
    swatch.style.width = swatch.style.height = "12px";
    const chip = make("button", { type: "button", "aria-pressed": "false" }, swatch, data.classes[label] ?? `class ${label}`);
    chip.addEventListener("click", () => {
      only = only === label ? null : label;
      chips.forEach((c) => c.chip.setAttribute("aria-pressed", String(c.label === only)));
      repaint();
    });
    keys.append(chip);
    return { label, chip, swatch };
  });
  function ink() {
    palette = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => colour(`--c${i}`)).concat(colour("--soft"), colour("--ink"));
    for (const { label, swatch } of chips) {
      const brush = swatch.getContext("2d"), [fill, shape] = style(label);
      brush.clearRect(0, 0, 24, 24);
      brush.fillStyle = fill;
      mark(brush, shape, 12, 12, 8.5);
    }
    paint();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ink);
  new ResizeObserver(() => {
    width = canvas.clientWidth; height = canvas.clientHeight;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    paint();  // at once: a new size clears the canvas
  }).observe(canvas);
  sheet.decode().catch(() => {}).then(() => { ink(); pick(data.start); });
}
document.querySelectorAll("[data-atlas]").forEach(atlas);
