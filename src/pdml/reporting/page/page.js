// Draws the panels of a report: curves as SVG, heat maps on a canvas, and the legend that switches curves on and off.
// The data are in <script id="data">; all their texts enter the page as text, never as markup.
(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  // Viridis at every tenth: even steps of brightness, and readable without red-green vision.
  const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151",
    "#bddf26", "#fde725"];
  const DECADES = 4; // range of a heat map's colours, in powers of ten below its largest value
  const PRINT_WIDTH = 320; // of half a page of A4, in CSS pixels

  const data = JSON.parse(document.getElementById("data").textContent);
  const methods = new Map(data.methods.map((method) => [method.name, method]));
  const panels = new Map(data.panels.map((panel) => [panel.id, panel]));
  const state = { hidden: new Set(), paper: true, printing: false };
  let names = 0; // of clip paths and gradients: their ids must be unique in the page

  // Elements and numbers.

  function add(parent, tag, attributes = {}, text = null) {
    const inSvg = tag === "svg" || parent.namespaceURI === SVG;
    const node = inSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  }

  const look = (name) => methods.get(name) ?? { name, label: name, color: "#555555", dash: "" };
  const minus = (text) => text.replaceAll("-", "−");
  // 3120, but 12 500: grouped by narrow spaces, since a comma separates the two ends of an interval.
  const grouped = (value) => {
    const text = String(value);
    return Math.abs(value) < 1e4 ? text : text.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  };
  const plain = (value, digits) => String(Number(value.toPrecision(digits)));

  function tickText(value) {
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) return minus(value.toExponential().replace("+", ""));
    if (size >= 1e6) return minus(`${plain(value / 1e6, 6)}M`);
    if (size >= 1e3) return minus(`${plain(value / 1e3, 6)}k`);
    return minus(plain(value, 6));
  }

  function valueText(value) {
    const size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) return minus(value.toExponential(2).replace("+", ""));
    if (size >= 1e3) return minus(grouped(Math.round(value)));
    return minus(plain(value, size >= 1 ? 4 : 3));
  }

  // The numbers k * step with step 1, 2 or 5 times a power of ten, about `count` of them from low to high.
  function evenTicks(low, high, count) {
    const rough = (high - low) / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find((factor) => factor * power >= rough * 0.999) ?? 10);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
      ticks.push(Number((k * step).toPrecision(12)));
    }
    return ticks;
  }

  function logTicks(low, high, count) {
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    const stride = Math.max(1, Math.ceil((last - first) / Math.max(count, 1)));
    const factors = 3 * Math.log10(high / low) <= 1.2 * count ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first; power <= last; power += stride) {
      for (const factor of factors) ticks.push(Number(`${factor}e${power}`));
    }
    const inside = ticks.filter((tick) => tick >= low * 0.9999 && tick <= high * 1.0001);
    return inside.length > 1 ? inside : evenTicks(low, high, count).filter((tick) => tick > 0);
  }

  // Maps low..high to the pixels from..to.
  function scale(low, high, from, to, log = false) {
    const place = log ? Math.log10 : (value) => value;
    const [start, end] = [place(low), place(high)];
    const map = (value) => from + ((place(value) - start) / (end - start)) * (to - from);
    map.invert = (pixel) => {
      const at = start + ((pixel - from) / (to - from)) * (end - start);
      return log ? 10 ** at : at;
    };
    map.ticks = (count) => (log ? logTicks : evenTicks)(low, high, count);
    return map;
  }

  function extent(values) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return [low, high];
  }

  // The range of an axis: a margin around the values, starting at zero where zero is near.
  function range(values, log = false, air = 0.05) {
    let [low, high] = extent(values);
    if (log) {
      const factor = low === high ? 2 : (high / low) ** air;
      return [low / factor, high * factor];
    }
    if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
    const pad = (high - low) * air;
    if (low >= 0 && low < high * 0.3) return [0, high + pad];
    if (high <= 0 && high > low * 0.3) return [low - pad, 0];
    return [low - pad, high + pad];
  }

  // The stretches of neighbouring indices for which `good` holds.
  function runs(count, good) {
    const found = [];
    for (let i = 0; i < count; i++) {
      if (!good(i)) continue;
      if (i > 0 && good(i - 1)) found.at(-1).push(i);
      else found.push([i]);
    }
    return found;
  }

  const path = (points) => `M${points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join("L")}`;

  function nearest(xs, x) {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  }

  // What curves and heat maps share: the sheet to draw on, axes, the tooltip.

  function sheet(plot, panel, width, height) {
    const label = `${panel.y ?? "value"} over ${panel.x ?? "steps"}`;
    return add(plot, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  }

  function nothing(plot, panel, width, text) {
    const height = Math.round(width * 0.4);
    const svg = sheet(plot, panel, width, height);
    const frame = { x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 6, class: "grid", fill: "#f5f7f9" };
    add(svg, "rect", frame);
    const middle = { x: width / 2, y: height / 2, dy: "0.32em", "text-anchor": "middle", class: "empty" };
    add(svg, "text", middle, text);
    return () => null;
  }

  // Draws ticks, grid and the names of both axes. The caller gives `yTicks`: the left margin depends on their width.
  function axes(svg, panel, box, x, y, yTicks, grid) {
    for (const tick of yTicks) {
      const at = y(tick);
      if (grid) add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at });
      const place = { x: box.left - 7, y: at, dy: "0.34em", "text-anchor": "end" };
      add(svg, "text", { class: "tick-y", "data-value": tick, ...place }, tickText(tick));
    }
    for (const tick of x.ticks((box.right - box.left) / 72)) {
      const at = x(tick);
      if (grid) add(svg, "line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom });
      add(svg, "line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 });
      const place = { x: at, y: box.bottom + 17, "text-anchor": "middle" };
      add(svg, "text", { class: "tick-x", "data-value": tick, ...place }, tickText(tick));
    }
    add(svg, "path", { class: "axis", d: `M${box.left},${box.top}V${box.bottom}H${box.right}` });
    const [middle, centre] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    add(svg, "text", { class: "name", x: middle, y: box.bottom + 36, "text-anchor": "middle" }, panel.x);
    const turned = { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${centre}) rotate(-90)` };
    add(svg, "text", { class: "name", ...turned }, panel.y);
  }

  const leftMargin = (yTicks) => 28 + 6.6 * Math.max(0, ...yTicks.map((tick) => tickText(tick).length));

  function swatch(parent, { color, dash = "" }, hollow = false) {
    const svg = add(parent, "svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" });
    const line = { x1: 1, x2: 21, y1: 5, y2: 5, stroke: color };
    if (hollow) {
      add(svg, "line", { ...line, "stroke-width": 1.1 });
      add(svg, "circle", { cx: 11, cy: 5, r: 3.4, fill: "#fff", stroke: color, "stroke-width": 1.4 });
    } else {
      add(svg, "line", { ...line, "stroke-width": 3, "stroke-dasharray": dash });
    }
  }

  function fillTip(tip, { at, rows }) {
    tip.replaceChildren();
    add(tip, "div", { class: "at" }, at);
    const table = add(tip, "table");
    for (const row of rows) {
      const line = add(table, "tr");
      if (row.color) swatch(add(line, "td"), row, row.hollow);
      add(line, "td", {}, row.label);
      add(line, "td", { class: "value" }, row.value);
      for (const text of row.more ?? []) add(line, "td", { class: "more" }, text);
    }
  }

  // A small tooltip is placed beside the point, at `across` and `down` pixels of the plot. It goes below or above the
  // plot where it would cover the curves, and for a finger, which hides what is under it.
  function placeTip(plot, tip, [across, down], isTouch) {
    const frame = plot.getBoundingClientRect();
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    let left = across < frame.width / 2 ? across + 14 : across - 14 - width;
    let top = Math.max(down - height / 2, 8);
    if (isTouch || height > 0.4 * frame.height || width > 0.45 * frame.width) {
      const covered = Math.max(document.getElementById("legend")?.getBoundingClientRect().bottom ?? 0, 0);
      const fitsOver = frame.top - height - 4 > covered;
      const fitsUnder = frame.bottom + height + 4 < window.innerHeight;
      const isOver = isTouch ? fitsOver : fitsOver && !fitsUnder;
      [left, top] = [across - width / 2, isOver ? -height - 4 : frame.height + 4];
    }
    const room = document.documentElement.clientWidth - width - 6;
    tip.style.left = `${Math.max(6, Math.min(frame.left + left, room)) - frame.left}px`;
    tip.style.top = `${top}px`;
  }

  // Curves.

  const isShown = ({ method }) => !state.hidden.has(method);

  // The lines that are shown now: published ones have `half_bin`, ours have `seeds`.
  function visible(panel) {
    const rank = [...methods.keys()];
    const ours = (panel.series ?? []).filter(isShown);
    const paper = state.paper ? (panel.reference ?? []).filter(isShown) : [];
    const order = (lines) => lines.sort((a, b) => rank.indexOf(a.method) - rank.indexOf(b.method));
    const usable = (value) => typeof value === "number" && (!panel.log || value > 0);
    const holds = ({ mean }) => mean.some(usable);
    return { ours: order(ours.filter(holds)), paper: order(paper.filter(holds)), usable };
  }

  const hasBand = (line, i) => line.low != null && line.high != null && (line.seeds?.[i] ?? 2) > 1;

  // The means set the height; bands add at most half of it on either side, since with few seeds they are very wide.
  function ranges(panel, { ours, paper, usable }) {
    const [xs, ys, ends] = [[], [], []];
    for (const line of [...ours, ...paper]) {
      line.x.forEach((x, i) => {
        if (!usable(line.mean[i])) return;
        xs.push(Math.max(x - (line.half_bin ?? 0), Math.min(x, 0)), x + (line.half_bin ?? 0));
        ys.push(line.mean[i]);
        if (hasBand(line, i)) ends.push(...[line.low[i], line.high[i]].filter(usable));
      });
    }
    const [to, from] = panel.log ? [Math.log, Math.exp] : [(value) => value, (value) => value];
    const [low, high] = extent(ys).map(to);
    const room = Math.max((high - low) / 2, panel.log ? 0.35 : Math.max(Math.abs(low), Math.abs(high)) * 0.05);
    const within = (value) => from(Math.min(Math.max(to(value), low - room), high + room));
    return [range(xs, false, 0.015), range([...ys, ...ends.map(within)], panel.log)];
  }

  function drawOurs(layers, panel, line, x, y, usable) {
    const { color, dash } = look(line.method);
    const mark = { "data-method": line.method, "data-panel": panel.id };
    const bottom = y.range[0];
    const low = (i) => y(usable(line.low[i]) ? line.low[i] : bottom);
    const banded = (i) => usable(line.mean[i]) && hasBand(line, i) && line.low[i] !== null && usable(line.high[i]);
    for (const run of runs(line.x.length, banded)) {
      const upper = run.map((i) => [x(line.x[i]), y(line.high[i])]);
      const lower = run.map((i) => [x(line.x[i]), low(i)]).reverse();
      const d = path([...upper, ...lower]);
      if (run.length > 1) add(layers.bands, "path", { class: "band", d: `${d}Z`, fill: color, ...mark });
      else add(layers.bands, "path", { class: "bar", d, stroke: color, ...mark });
    }
    const pieces = runs(line.x.length, (i) => usable(line.mean[i]));
    const points = pieces.map((run) => run.map((i) => [x(line.x[i]), y(line.mean[i])]));
    const d = points.map(path).join("");
    add(layers.lines, "path", { class: "mean", d, stroke: color, "stroke-dasharray": dash || "none", ...mark });
    for (const [[cx, cy]] of points.filter((piece) => piece.length === 1)) { // a single point has no line
      add(layers.lines, "circle", { class: "lone", cx, cy, r: 3, fill: color, ...mark });
    }
  }

  function drawPaper(layers, panel, line, x, y, usable) {
    const { color } = look(line.method);
    const group = add(layers.paper, "g", {
      class: "reference", stroke: color, "data-method": line.method, "data-panel": panel.id,
    });
    const known = line.x.map((_, i) => i).filter((i) => usable(line.mean[i]));
    add(group, "path", { class: "join", d: path(known.map((i) => [x(line.x[i]), y(line.mean[i])])) });
    for (const i of known) {
      const [cx, cy] = [x(line.x[i]), y(line.mean[i])];
      if (line.half_bin) {
        const [from, to] = [x(line.x[i] - line.half_bin), x(line.x[i] + line.half_bin)];
        add(group, "path", { class: "whisker", d: path([[from, cy], [to, cy]]) });
      }
      if (hasBand(line, i) && usable(line.low[i]) && usable(line.high[i])) {
        add(group, "path", { class: "whisker", d: path([[cx, y(line.low[i])], [cx, y(line.high[i])]]) });
      }
    }
    for (const i of known) add(group, "circle", { class: "marker", cx: x(line.x[i]), cy: y(line.mean[i]), r: 3.2 });
  }

  // One row of the tooltip: the point of a line that is nearest to x, if the line reaches x at all.
  function row(line, x, usable) {
    const i = nearest(line.x, x);
    const off = Math.abs(line.x[i] - x);
    const [first, last] = extent(line.x);
    const isPaper = line.seeds === undefined;
    if (isPaper ? off > (line.half_bin ?? 0) : x < first || x > last) return null;
    const { label, color, dash } = look(line.method);
    const known = usable(line.mean[i]);
    const between = known && hasBand(line, i) && line.low[i] !== null && line.high[i] !== null;
    const more = [between ? `[${valueText(line.low[i])}, ${valueText(line.high[i])}]` : ""];
    more.push(isPaper || !known ? "" : line.seeds[i] === 1 ? "1 seed" : `${line.seeds[i]} seeds`);
    if (off > 0) more.push(`at ${tickText(line.x[i])}`);
    const value = known ? valueText(line.mean[i]) : "no value";
    return { i, known, color, dash, hollow: isPaper, label: line.label ?? label, value, more };
  }

  function drawCurves(panel, plot, width) {
    const now = visible(panel);
    const { ours, paper, usable } = now;
    if (ours.length + paper.length === 0) {
      const all = [...(panel.series ?? []), ...(panel.reference ?? [])];
      const some = all.some(({ mean }) => mean.some(usable));
      return nothing(plot, panel, width, some ? "all curves are switched off" : "no data");
    }
    const height = Math.round(Math.min(Math.max(width * 0.62, 215), 380));
    const box = { top: 10, right: width - 10, bottom: height - 44 };
    const [xRange, yRange] = ranges(panel, now);
    const y = scale(...yRange, box.bottom, box.top, panel.log);
    y.range = yRange;
    const yTicks = y.ticks((box.bottom - box.top) / 34);
    box.left = leftMargin(yTicks);
    const x = scale(...xRange, box.left, box.right);

    const svg = sheet(plot, panel, width, height);
    axes(svg, panel, box, x, y, yTicks, true);
    const clip = `clip-${names++}`;
    const size = { x: box.left, y: box.top - 4, width: box.right - box.left + 4, height: box.bottom - box.top + 8 };
    add(add(svg, "clipPath", { id: clip }), "rect", size);
    const inside = add(svg, "g", { "clip-path": `url(#${clip})` });
    const layers = { bands: add(inside, "g"), paper: add(inside, "g"), lines: add(inside, "g") };
    for (const line of [...ours].reverse()) drawOurs(layers, panel, line, x, y, usable); // the first method on top
    for (const line of [...paper].reverse()) drawPaper(layers, panel, line, x, y, usable);

    const marks = add(svg, "g");
    const xs = [...new Set((ours.length > 0 ? ours : paper).flatMap((line) => line.x))];
    return (pixel) => {
      marks.replaceChildren();
      if (pixel === null) return null;
      const at = xs[nearest(xs, x.invert(pixel))];
      add(marks, "line", { class: "guide", x1: x(at), x2: x(at), y1: box.top, y2: box.bottom });
      const rows = [];
      for (const line of [...ours, ...paper]) {
        const found = row(line, at, usable);
        if (found === null) continue;
        rows.push(found);
        if (!found.known || found.hollow) continue;
        const place = { cx: x(line.x[found.i]), cy: y(line.mean[found.i]) };
        add(marks, "circle", { class: "dot", ...place, r: 4, fill: found.color });
      }
      return { at: `${panel.x}: ${grouped(at)}`, rows, point: [x(at), 0] };
    };
  }

  // Heat maps.

  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

  function ramp(share) {
    const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
    const i = Math.min(Math.floor(at), VIRIDIS.length - 2);
    const [from, to] = [rgb(VIRIDIS[i]), rgb(VIRIDIS[i + 1])];
    return from.map((part, k) => Math.round(part + (at - i) * (to[k] - part)));
  }
  const RAMP = Array.from({ length: 256 }, (_, i) => ramp(i / 255));

  // For each of `size` pixels, the first and last cell whose middle is in it, or else the cell that it is in.
  function cellsOfPixels(edges, size) {
    const last = edges.length - 2;
    const middle = (cell) => (edges[cell] + edges[cell + 1]) / 2;
    let at = 0;
    return Array.from({ length: size }, (_, pixel) => {
      while (at < last && edges[at + 1] <= pixel + 0.5) at++;
      let [from, to] = [at, at];
      while (from > 0 && middle(from - 1) >= pixel) from--;
      while (to < last && middle(to + 1) < pixel + 1) to++;
      return [from, to];
    });
  }

  // A pixel shared by several cells shows their mean; cells larger than pixels have sharp edges.
  function paint(canvas, panel, share, starts, [width, height]) {
    [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const [first, end] = [starts[0], starts.at(-1)];
    const across = cellsOfPixels(starts.map((x) => ((x - first) / (end - first)) * width), width);
    const up = cellsOfPixels(Array.from({ length: panel.rows + 1 }, (_, i) => (i / panel.rows) * height), height);
    for (let px = 0; px < width; px++) {
      for (let py = 0; py < height; py++) {
        let [sum, count] = [0, 0];
        for (let j = across[px][0]; j <= across[px][1]; j++) {
          for (let i = up[py][0]; i <= up[py][1]; i++) {
            const value = panel.columns[j][i];
            if (typeof value === "number") [sum, count] = [sum + value, count + 1];
          }
        }
        if (count > 0) {
          const color = RAMP[Math.round(255 * Math.min(Math.max(share(sum / count), 0), 1))];
          const at = 4 * ((height - 1 - py) * width + px);
          for (let part = 0; part < 3; part++) image.data[at + part] = color[part];
          image.data[at + 3] = 255;
        }
      }
    }
    context.putImageData(image, 0, 0);
  }

  function colourBar(svg, panel, box, [floor, top], cut) {
    const id = `ramp-${names++}`;
    const gradient = add(svg, "linearGradient", { id });
    VIRIDIS.forEach((color, i) => add(gradient, "stop", { offset: i / (VIRIDIS.length - 1), "stop-color": color }));
    const length = Math.min(240, (box.right - box.left) * 0.55);
    const x = scale(floor, top, box.right - length, box.right, true);
    add(svg, "rect", { x: box.right - length, y: 4, width: length, height: 9, rx: 1, fill: `url(#${id})` });
    const label = { class: "name", x: box.right - length - 10, y: 9, dy: "0.34em", "text-anchor": "end" };
    add(svg, "text", label, panel.value);
    for (const tick of logTicks(floor, top, length / 40)) {
      add(svg, "line", { class: "axis", x1: x(tick), x2: x(tick), y1: 13, y2: 17 });
      const text = cut && tick <= floor * 1.0001 ? `≤${tickText(tick)}` : tickText(tick);
      add(svg, "text", { class: "tick-value", "data-value": tick, x: x(tick), y: 28, "text-anchor": "middle" }, text);
    }
  }

  function drawHeat(panel, plot, width, pixelRatio) {
    const values = (panel.columns ?? []).flat().filter((value) => typeof value === "number");
    if (values.length === 0) return nothing(plot, panel, width, "no data");
    const [smallest, largest] = extent(values.filter((value) => value > 0));
    const top = largest > 0 ? largest : 1;
    const lowest = 10 ** (Math.ceil(Math.log10(top)) - DECADES);
    const floor = Math.min(Math.max(smallest > 0 && smallest < Infinity ? smallest : 0, lowest), top / 2);
    const share = (value) => (value > 0 ? Math.log(value / floor) / Math.log(top / floor) : 0);

    const height = Math.round(Math.min(Math.max(width * 0.66, 250), 460));
    const box = { top: 42, right: width - 12, bottom: height - 44 };
    const y = scale(-0.5, panel.rows - 0.5, box.bottom, box.top);
    const yTicks = y.ticks((box.bottom - box.top) / 34).filter(Number.isInteger);
    box.left = leftMargin(yTicks);
    // A column extends from its step to the next; the last is as wide as the one before it.
    const starts = panel.xs.slice();
    starts.push(starts.at(-1) + (starts.length > 1 ? starts.at(-1) - starts.at(-2) : starts[0] || 1));
    const x = scale(starts[0], starts.at(-1), box.left, box.right);

    const canvas = add(plot, "canvas", { "data-panel": panel.id });
    const area = [box.right - box.left, box.bottom - box.top];
    paint(canvas, panel, share, starts, area.map((pixels) => Math.max(1, Math.round(pixels * pixelRatio))));
    const parts = { left: box.left / width, top: box.top / height, width: area[0] / width, height: area[1] / height };
    for (const [side, part] of Object.entries(parts)) canvas.style[side] = `${100 * part}%`;
    const svg = sheet(plot, panel, width, height);
    axes(svg, panel, box, x, y, yTicks, false);
    colourBar(svg, panel, box, [floor, top], values.some((value) => value < floor));

    const marks = add(svg, "g");
    return (px, py) => {
      marks.replaceChildren();
      if (px === null) return null;
      const step = x.invert(Math.min(Math.max(px, box.left), box.right));
      const column = Math.max(0, starts.findLastIndex((start, j) => j < panel.xs.length && start <= step));
      const policy = Math.min(Math.max(Math.round(y.invert(py)), 0), panel.rows - 1);
      const value = panel.columns[column][policy];
      const [from, to] = [x(starts[column]), x(starts[column + 1])];
      const cell = { x: from, y: y(policy + 0.5), width: to - from, height: y(policy - 0.5) - y(policy + 0.5) };
      add(marks, "rect", { class: "cell", ...cell });
      const known = typeof value === "number";
      const rows = [
        { label: "policy", value: String(policy) },
        { label: panel.value, value: known ? valueText(value) : "none yet" },
      ];
      return { at: `${panel.x}: ${grouped(panel.xs[column])}`, rows, point: [(from + to) / 2, y(policy)] };
    };
  }

  // Panels: draw, draw again, follow the pointer.

  function install(figure) {
    const panel = panels.get(figure.dataset.panel) ?? { id: figure.dataset.panel, kind: "curves" };
    const plot = document.createElement("div");
    plot.className = "plot";
    figure.insertBefore(plot, figure.querySelector(":scope > figcaption"));
    const tip = document.createElement("div");
    tip.className = "tip";
    let drawnWidth = 0;
    let probe = () => null;

    function hide() {
      tip.hidden = true;
      probe(null);
    }
    function draw(width = Math.round(plot.clientWidth), pixelRatio = window.devicePixelRatio || 1) {
      if (width < 1) return; // inside a closed <details>; the observer below calls again when it opens
      drawnWidth = width;
      plot.replaceChildren();
      probe = (panel.kind === "heat" ? drawHeat : drawCurves)(panel, plot, width, pixelRatio);
      tip.hidden = true;
      plot.append(tip);
    }
    function follow(event) {
      const frame = plot.getBoundingClientRect();
      const zoom = drawnWidth / frame.width;
      const found = probe((event.clientX - frame.left) * zoom, (event.clientY - frame.top) * zoom);
      if (found === null || found.rows.length === 0) hide();
      else {
        fillTip(tip, found);
        tip.hidden = false;
        placeTip(plot, tip, found.point.map((pixels) => pixels / zoom), event.pointerType === "touch");
      }
    }
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointercancel", hide);
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") hide(); // after a touch the tooltip stays until something else is touched
    });
    document.addEventListener("pointerdown", (event) => {
      if (!plot.contains(event.target)) hide();
    });
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (!state.printing && Math.round(plot.clientWidth) !== drawnWidth) draw();
    })).observe(plot);
    draw();
    const printed = () => draw(PRINT_WIDTH * (figure.classList.contains("wide") ? 2 : 1), 3);
    return { kind: panel.kind, draw: () => draw(), print: () => plot.clientWidth > 0 && printed() };
  }

  // The legend, and its state in the address.

  function readHash() {
    const hash = location.hash.slice(1);
    if (hash !== "" && !/^(hide|paper)=/.test(hash)) return; // a link to a heading does not change the curves
    const fields = new URLSearchParams(hash);
    state.hidden = new Set(fields.getAll("hide").filter((name) => methods.has(name)));
    state.paper = fields.get("paper") !== "off";
  }

  function writeHash() {
    const fields = new URLSearchParams([...state.hidden].map((name) => ["hide", name]));
    if (!state.paper) fields.set("paper", "off");
    const text = fields.toString();
    try {
      history.replaceState(null, "", text === "" ? location.href.split("#")[0] : `#${text}`);
    } catch {
      // A viewer that embeds the page may forbid this; then only the link is lost.
    }
  }

  function installLegend(legend, refresh) {
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", "Curves to show");
    const buttons = [];
    function button(attributes, isOn, flip) {
      const node = add(legend, "button", { type: "button", ...attributes });
      node.addEventListener("click", () => {
        flip();
        writeHash();
        refresh();
      });
      buttons.push(() => node.setAttribute("aria-pressed", String(isOn())));
      return node;
    }
    for (const method of methods.values()) {
      const isOn = () => !state.hidden.has(method.name);
      const flip = () => (isOn() ? state.hidden.add(method.name) : state.hidden.delete(method.name));
      const node = button({ "data-method": method.name }, isOn, flip);
      swatch(node, method);
      add(node, "span", {}, method.label);
    }
    if (data.panels.some((panel) => (panel.reference ?? []).length > 0)) {
      const flip = () => { state.paper = !state.paper; };
      const node = button({ class: "paper", "data-toggle": "paper" }, () => state.paper, flip);
      swatch(node, { color: "#49535e" }, true);
      add(node, "span", {}, "paper");
    }
    return () => buttons.forEach((press) => press());
  }

  readHash();
  const drawn = [...document.querySelectorAll("figure.panel[data-panel]")].map(install);
  let pressButtons = () => {};
  function refresh() {
    pressButtons();
    for (const panel of drawn) if (panel.kind !== "heat") panel.draw();
  }
  const legend = document.getElementById("legend");
  if (legend !== null) pressButtons = installLegend(legend, refresh);
  pressButtons();
  window.addEventListener("hashchange", () => {
    readHash();
    refresh();
  });
  window.addEventListener("beforeprint", () => {
    state.printing = true;
    drawn.forEach((panel) => panel.print());
  });
  window.addEventListener("afterprint", () => {
    state.printing = false;
    drawn.forEach((panel) => panel.draw());
  });
})();
