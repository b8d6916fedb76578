(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const chosen = new Map();            // the choices that lead to the view of each plot
  const { hidden, palette, compose } = Plots;

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
        document.getElementById(`alt-${plot.name}`).textContent = view.alt;
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
      const line = { x, kind: "line", dash: "solid", legend: true, markers: true };
      const series = curves({ members, middle }).map((y, member) => ({
        ...line, name: `member ${member}`, y, style: `k${member % 8}`, marker: member, size: 5, width: 1.3,
        dash: ["solid", "dashed", "dotted"][Math.floor(member / 8) % 3],
      }));
      series.push({ ...line, name: "ensemble", y: middle.map((value) => (around ? 0 : value)), style: "ink", width: 3.2, markers: false });
      if (set.regression) {
        const output = Number(outputs.value);
        const truth = order.map((point, place) => set.targets[point][output] - (around ? middle[place] : 0));
        series.push({ ...line, name: "truth", y: truth, style: "muted", kind: "points", symbol: "x-thin-open", size: 8 });
      }
      const bars = offsets({ members, middle }).map((offset, member) => ({ name: `member ${member}`, kind: "bars", x: [String(member)], y: [offset], style: `k${member % 8}` }));
      const label = set.outputs[Number(outputs.value)] + (around ? ", minus the ensemble’s" : "");
      const title = `β = ${set.stops[Number(slider.value)].beta}`;
      const panels = [
        { title, x: "held-out points", y: label, x_range: [0, x.length + 1], y_range: wide[0], series },
        { title: "Constant offsets", x: "member", y: "mean over points", y_range: wide[1], series: bars },
      ];
      return { choice: [], panels };
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
