"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const hidden = new Set();            // numbers of methods that are switched off
  const chosen = new Map();            // the choices that lead to the view of each plot
  const coarse = matchMedia("(pointer: coarse)").matches;

  // ---- colours: tokens of the figures, resolved by the style sheet ----------------------------

  const SCALES = { sequential: ["paper", "accent"], diverging: ["link", "paper", "accent"] };

  function palette(light) {
    const probe = document.createElement("span");
    if (light) probe.className = "always-light";
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const names = ["paper", "ink", "muted", "rule", "grid", "accent", "link"];
    const colors = Object.fromEntries(names.map((name) => [name, read(name)]));
    for (let number = 0; number < 8; number += 1) {
      colors[number] = read(`m${number}`);            // methods
      colors[`k${number}`] = read(`k${number}`);      // members
    }
    probe.remove();
    return colors;
  }

  function paint(value, colors) {
    if (Array.isArray(value)) return value.map((item) => paint(item, colors));
    if (value === null || typeof value !== "object") return value;
    const painted = {};
    const token = (item) => typeof item === "string" && item[0] === "@";
    for (const [key, item] of Object.entries(value)) {
      if (key === "colorscale" && token(item)) painted[key] = scale(item, colors);
      else if (/color$/.test(key) && Array.isArray(item)) painted[key] = item.map((one) => color(one, colors));
      else if (/color$/.test(key) && token(item)) painted[key] = color(item, colors);
      else painted[key] = paint(item, colors);
    }
    return painted;
  }

  function color(token, colors) {
    const faint = token.endsWith("~");
    const name = faint ? token.slice(1, -1) : token.slice(1);
    const solid = /^\d+$/.test(name) ? colors[Number(name) % 8] : colors[name];
    return faint ? solid.replace("rgb(", "rgba(").replace(")", ", 0.16)") : solid;
  }

  function scale(token, colors) {
    const stops = SCALES[token.slice(1)];
    return stops.map((name, place) => [place / (stops.length - 1), colors[name]]);
  }

  // ---- where panels stand -----------------------------------------------------------------------

  // legend is the height that the legend was measured to need; without it, it is estimated
  function compose(view, width, colors, legend) {
    const own = view.panels.map((panel, place) => ({ ...panel, place }));
    const panels = own.filter((panel) => panel.style == null || !hidden.has(panel.style));
    const traces = view.traces.filter((trace) => panels.some((panel) => axis("x", panel.place) === trace.xaxis));
    const square = panels.some((panel) => panel.square), narrow = width < 500;
    const least = square ? (narrow && panels.length > 2 ? 112 : 165) : panels.length > 2 ? 230 : 300;
    const named = traces.some((trace) => trace.x.some((one) => String(one).length > 3 && typeof one === "string") && !square);
    const GAP = { x: square && narrow ? 40 : 62, y: named && narrow ? 112 : 78 };   // names are tilted there
    const margin = { l: narrow ? 44 : 54, r: 14, t: 34, b: named && narrow ? 84 : 50 };
    const inner = Math.max(120, width - margin.l - margin.r);
    const most = Math.max(1, Math.min(panels.length, Math.floor((inner + GAP.x) / (least + GAP.x)), square ? 5 : 4));
    const rows = Math.max(1, Math.ceil(panels.length / most));
    const columns = Math.max(1, Math.ceil(panels.length / rows));
    const each = (inner - (columns - 1) * GAP.x) / columns;
    const wide = square ? Math.min(each, panels.length > 2 ? 260 : 360) : each;
    const tall = square ? wide : columns === 1 && panels.length === 1 ? Math.min(360, Math.max(240, inner * 0.5)) : 230;
    const height = rows * tall + (rows - 1) * GAP.y;
    const reserved = view.legend ? legend || legendLines(traces, inner) * 21 + 8 : 0;
    margin.b += reserved;
    const layout = {
      width, height: height + margin.t + margin.b, margin,
      paper_bgcolor: colors.paper, plot_bgcolor: colors.paper,
      font: { family: "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif", size: 13, color: colors.ink },
      hoverlabel: { bgcolor: colors.paper, bordercolor: colors.muted, font: { color: colors.ink, size: 13 }, align: "left" },
      hovermode: "closest", dragmode: coarse ? false : "zoom", bargap: 0.45,
      showlegend: Boolean(view.legend),
      legend: { orientation: "h", xref: "container", yref: "container", x: 0.005, y: 0, xanchor: "left", yanchor: "bottom", font: { size: 13 }, tracegroupgap: 0 },
      annotations: [], shapes: [],
    };
    panels.forEach((panel, index) => {
      const column = index % columns, row = Math.floor(index / columns);
      const x = (column * (each + GAP.x)) / inner, top = 1 - (row * (tall + GAP.y)) / height;
      const domains = { x: [x, Math.min(1, x + wide / inner)], y: [Math.max(0, top - tall / height), top] };
      place(layout, panel, domains, colors, wide, named);
    });
    const cells = (trace) => (trace.texttemplate && wide / trace.x.length < 30 ? { ...trace, texttemplate: "" } : trace);
    return { traces: paint(traces, colors).map(visibility).map(cells), layout, reserved };
  }

  function place(layout, panel, domains, colors, wide, named) {
    const number = panel.place ? String(panel.place + 1) : "";
    const line = { gridcolor: colors.grid, linecolor: colors.rule, zerolinecolor: colors.rule, tickcolor: colors.rule };
    const quiet = { ...line, ticks: "", automargin: false, tickfont: { color: colors.muted, size: 12 }, fixedrange: coarse };
    const title = { ...(panel.x.title || {}), standoff: 6, font: { size: 12.5, color: colors.muted } };
    layout[`xaxis${number}`] = { ...quiet, nticks: Math.max(3, Math.floor(wide / 60)), ...panel.x, title, domain: domains.x, anchor: `y${number}`, showgrid: false, showline: true };
    layout[`yaxis${number}`] = { ...quiet, nticks: 6, ...panel.y, domain: domains.y, anchor: `x${number}` };
    if (named && panel.x.type === "category") layout[`xaxis${number}`].tickangle = wide < 420 ? 40 : 0;
    const unlike = panel.label !== panel.title ? panel.label : "";
    const text = [panel.title && `<b>${panel.title}</b>`, unlike].filter(Boolean).join("   ");
    if (text) layout.annotations.push({ text, xref: "paper", yref: "paper", x: domains.x[0], y: domains.y[1], xanchor: "left", yanchor: "bottom", yshift: 6, xshift: -4, showarrow: false, font: { size: 13, color: colors.ink } });
    for (const rule of panel.rules || []) {
      const across = rule.axis === "y";
      const [own, other] = across ? ["y", "x"] : ["x", "y"];
      const shape = { type: "line", line: { color: colors.muted, width: 1, dash: "dot" } };
      shape[`${own}ref`] = `${own}${number}`;
      shape[`${other}ref`] = `${other}${number} domain`;
      shape[`${own}0`] = shape[`${own}1`] = rule.at;
      shape[`${other}0`] = 0;
      shape[`${other}1`] = 1;
      layout.shapes.push(shape);
      if (rule.text) layout.annotations.push({ text: rule.text, xref: `x${number} domain`, yref: `y${number}`, x: 1, y: panel.y.type === "log" ? Math.log10(rule.at) : rule.at, xanchor: "right", yanchor: "bottom", showarrow: false, font: { size: 11.5, color: colors.muted } });
    }
  }

  const axis = (letter, place) => letter + (place ? place + 1 : "");

  function legendLines(traces, width) {
    const sizes = traces.filter((trace) => trace.showlegend).map((trace) => 50 + 7.4 * trace.name.length);
    if (sizes.reduce((sum, size) => sum + size, 0) <= width) return 1;
    return Math.ceil(sizes.length / Math.max(1, Math.floor(width / Math.max(...sizes))));   // in columns
  }

  function visibility(trace) {
    const off = trace.meta && hidden.has(trace.meta.style);
    return off ? { ...trace, visible: trace.showlegend ? "legendonly" : false } : trace;
  }

  // ---- drawing ----------------------------------------------------------------------------------

  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: "reset" };
  const canvas = (name) => document.getElementById(`plot-${name}`);
  const views = new Map();             // functions that return the current view of a plot, by name

  async function draw(name) {
    const div = canvas(name);
    const show = async (legend) => {
      const { traces, layout, reserved } = compose(views.get(name)(), div.clientWidth, palette(false), legend);
      await Plotly.react(div, traces, layout, CONFIG);
      return reserved;
    };
    div.style.minHeight = "0";
    const reserved = await show();
    const legend = div.querySelector(".legend .bg");
    const needed = legend ? Math.ceil(legend.getBoundingClientRect().height) + 6 : 0;
    if (Math.abs(needed - reserved) > 6) await show(needed);
  }

  const drawAll = () => Promise.all([...views.keys()].map(draw));

  function chosenView(plot) {
    const wanted = chosen.get(plot.name) || plot.views[0].choice;
    const whole = plot.views.find((view) => view.choice.every((word, place) => word === wanted[place]));
    return whole || plot.views.find((view) => view.choice[0] === wanted[0]) || plot.views[0];
  }

  for (const plot of data.plots) {
    views.set(plot.name, () => chosenView(plot));
    for (const select of document.querySelectorAll(`select[data-plot="${plot.name}"]`)) {
      select.addEventListener("change", () => {
        const selects = [...document.querySelectorAll(`select[data-plot="${plot.name}"]`)];
        chosen.set(plot.name, selects.map((one) => one.value));
        const view = chosenView(plot);
        selects.forEach((one, number) => { one.value = view.choice[number]; });
        chosen.set(plot.name, view.choice);
        if (view.alt) document.getElementById(`alt-${plot.name}`).textContent = view.alt;
        draw(plot.name);
      });
    }
  }

  // ---- the collusion explorer -------------------------------------------------------------------

  const explorer = document.getElementById("explorer");
  if (explorer) {
    const part = (name) => document.getElementById(`explorer-${name}`);
    const slider = part("beta"), sources = part("source"), outputs = part("output"), mode = part("mode");
    const current = () => data.explorers[sources ? Number(sources.value) : 0];
    const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

    function refill() {
      const set = current();
      slider.max = String(set.stops.length - 1);
      slider.value = slider.max;
      outputs.replaceChildren(...set.outputs.map((text, number) => new Option(text, String(number))));
      outputs.value = String(set.start);
      outputs.closest("label").hidden = set.outputs.length < 2;
      document.getElementById("alt-explorer").textContent = set.alt;
      updateReadout();
    }

    // [stops][members][points], the points in the order of the ensemble's output at the first stop
    function values() {
      const set = current(), output = Number(outputs.value);
      const all = set.stops.map((stop) => stop.values.map((member) => member.map((row) => row[output])));
      const together = (members, point) => mean(members.map((member) => member[point]));
      const order = all[0][0].map((_, point) => point).sort((a, b) => together(all[0], a) - together(all[0], b));
      return all.map((members) => {
        const sorted = members.map((member) => order.map((point) => member[point]));
        const middle = sorted[0].map((_, point) => together(sorted, point));
        return { members: sorted, middle, order };
      });
    }

    function view() {
      const set = current(), all = values(), { members, middle, order } = all[Number(slider.value)];
      const around = mode.value === "around";
      const curves = (one) => one.members.map((member) => member.map((value, point) => value - (around ? one.middle[point] : 0)));
      const wide = [all.flatMap((one) => curves(one).flat()), all.flatMap((one) => offsets(one))].map(reach);
      const x = middle.map((_, point) => point + 1);
      const traces = curves({ members, middle }).map((y, member) => ({
        type: "scatter", mode: "lines+markers", name: `member ${member}`, legendgroup: `member ${member}`, x, y, xaxis: "x", yaxis: "y", showlegend: true,
        line: { color: `@k${member % 8}`, width: 1.3, dash: ["solid", "dash", "dot"][Math.floor(member / 8) % 3] }, marker: { color: `@k${member % 8}`, size: 5, symbol: SYMBOLS[member % SYMBOLS.length] }, hovertemplate: "%{fullData.name}, point %{x}: %{y:.3g}<extra></extra>",
      }));
      const flat = middle.map((value) => (around ? 0 : value));
      traces.push({ type: "scatter", mode: "lines", name: "ensemble", legendgroup: "ensemble", x, y: flat, xaxis: "x", yaxis: "y", showlegend: true, line: { color: "@ink", width: 3.2 }, hovertemplate: "ensemble, point %{x}: %{y:.3g}<extra></extra>" });
      if (set.regression) {
        const output = Number(outputs.value);
        const truth = order.map((point, place) => set.targets[point][output] - (around ? middle[place] : 0));
        traces.push({ type: "scatter", mode: "markers", name: "truth", legendgroup: "truth", x, y: truth, xaxis: "x", yaxis: "y", showlegend: true, marker: { color: "@muted", symbol: "x-thin-open", size: 8 }, hovertemplate: "truth, point %{x}: %{y:.3g}<extra></extra>" });
      }
      traces.push({ type: "bar", name: "offset", x: members.map((_, member) => String(member)), y: offsets({ members, middle }), xaxis: "x2", yaxis: "y2", showlegend: false, marker: { color: members.map((_, member) => `@k${member % 8}`) }, hovertemplate: "member %{x}: %{y:+.3g}<extra></extra>" });
      const panels = [
        { title: `β = ${set.stops[Number(slider.value)].beta}`, label: set.outputs[Number(outputs.value)] + (around ? ", minus the ensemble’s" : ""), x: { title: { text: "held-out points" }, range: [0, x.length + 1] }, y: { range: wide[0] }, rules: [] },
        { title: "Constant offsets", label: "mean over points", x: { title: { text: "member" }, type: "category" }, y: { range: wide[1] }, rules: [] },
      ];
      return { choice: [], legend: true, traces, panels };
    }

    const offsets = ({ members, middle }) => members.map((member) => mean(member.map((value, point) => value - middle[point])));

    function reach(numbers) {
      const low = Math.min(...numbers), high = Math.max(...numbers), room = 0.06 * (high - low) || 1;
      return [low - room, high + room];
    }

    function updateReadout() {
      const stop = current().stops[Number(slider.value)];
      part("value").textContent = `β = ${stop.beta}`;
      slider.setAttribute("aria-valuetext", `beta ${stop.beta}`);
      for (const item of explorer.querySelectorAll("[data-text]")) {
        const text = stop.texts[item.dataset.text];
        item.textContent = text === undefined ? "–" : text;
        item.title = stop.keys[item.dataset.text] || "";
        item.parentElement.hidden = !current().stops.some((one) => one.texts[item.dataset.text] !== undefined);
      }
    }

    views.set("explorer", view);
    slider.addEventListener("input", () => { updateReadout(); draw("explorer"); });
    for (const one of [outputs, mode]) one.addEventListener("change", () => draw("explorer"));
    if (sources) sources.addEventListener("change", () => { refill(); draw("explorer"); });
    refill();
  }

  // ---- downloads: always on white paper ---------------------------------------------------------

  async function save(name, format) {
    const { traces, layout } = compose(views.get(name)(), Math.max(560, canvas(name).clientWidth), palette(true));
    const paper = { ...layout, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" };
    const url = await Plotly.toImage({ data: traces, layout: paper }, { format, width: layout.width, height: layout.height, scale: format === "png" ? 2 : 1 });
    const link = document.createElement("a");
    link.download = `dissensus-${name}.${format}`;
    link.href = format === "svg" ? URL.createObjectURL(new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" })) : url;
    link.click();
    if (format === "svg") setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  for (const button of document.querySelectorAll("button[data-save]")) {
    button.addEventListener("click", () => save(button.dataset.plot, button.dataset.save));
  }

  // ---- methods on and off, theme ----------------------------------------------------------------

  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const number = Number(chip.dataset.method), on = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!on));
      if (on) hidden.add(number); else hidden.delete(number);
      for (const row of document.querySelectorAll(`tr[data-method="${number}"]`)) row.classList.toggle("off", on);
      drawAll();
    });
  }

  const theme = document.getElementById("theme");
  const night = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : night.matches);
  function labelTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.setAttribute("aria-label", isDark() ? "Switch to light" : "Switch to dark");
  }
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; labelTheme(); drawAll(); });
  night.addEventListener("change", () => { labelTheme(); drawAll(); });
  labelTheme();

  // ---- tables -----------------------------------------------------------------------------------

  function sortBy(header) {
    const table = header.closest("table"), body = table.tBodies[0], column = header.cellIndex;
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value;
    const order = (a, b) => {
      const left = key(a), right = key(b);
      if (left === "" || right === "") return (left === "") - (right === "");
      const number = Number(left) - Number(right);
      const before = Number.isNaN(number) ? left.localeCompare(right) : number;
      return down ? -before : before;
    };
    body.append(...[...body.rows].sort(order));
  }
  for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button.closest("th")));

  // ---- where a number comes from ----------------------------------------------------------------

  const trace = document.getElementById("trace");
  function showTrace(link) {
    const words = document.createElement("span");
    words.textContent = link.title;
    const open = document.createElement("a");
    open.href = link.getAttribute("href");
    open.textContent = "Open the record";
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => { trace.hidden = true; link.focus(); });
    const right = document.createElement("span");
    right.append(open, " ", close);
    trace.replaceChildren(words, right);
    trace.hidden = false;
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.num");
    if (link) { event.preventDefault(); showTrace(link); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") trace.hidden = true; });

  // ---- go ---------------------------------------------------------------------------------------

  let width = root.clientWidth, waiting = 0;
  addEventListener("resize", () => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  drawAll().then(() => { root.dataset.ready = "true"; });
})();
