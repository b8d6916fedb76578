"use strict";
/* Plots drawn by Plotly. A plot is {alt, panels} as `plot_json` of dissensus/show/plot.py writes it:
   the fields of Panel and Matrix by their names; what is absent is false, empty or none. */
const Plots = (() => {
  const hidden = new Set();            // numbers of methods that are switched off
  const coarse = matchMedia("(pointer: coarse)").matches;

  // Markers by style, so that lines differ in more than their colour.
  const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"];
  const DASHES = { solid: "solid", dashed: "dash", dotted: "dot" };
  // Dashes by style. Later lines lie on earlier ones and cover less of them, so that five equal
  // curves are all seen; from the sixth on patterns repeat in kind.
  const LINES = ["solid", "14px,7px", "9px,9px", "5px,10px", "2px,7px", "14px,4px,3px,4px", "7px,4px,3px,4px,3px,4px", "20px,6px"];

  // Plotly reads some tags in text; text from files has none.
  const safe = (text) => (text || "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // ---- colours, resolved by the style sheet ----------------------------------------------------

  function palette(light) {
    const probe = document.createElement("span");
    if (light) probe.className = "always-light";
    document.body.append(probe);
    const numbers = [0, 1, 2, 3, 4, 5, 6, 7];            // of methods and of members
    const names = ["paper", "ink", "muted", "rule", "grid", "accent", "link", ...numbers.map((n) => `m${n}`), ...numbers.map((n) => `k${n}`)];
    const colors = Object.fromEntries(names.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }));
    probe.remove();
    return colors;
  }

  const colorOf = (colors, style) => colors[typeof style === "number" ? `m${style % 8}` : style];
  const faint = (color) => color.replace("rgb(", "rgba(").replace(")", ", 0.16)");

  // ---- traces ----------------------------------------------------------------------------------

  function seriesTraces(series, panel, colors, named) {
    const color = colorOf(colors, series.style), numbered = typeof series.style === "number";
    const off = numbered && hidden.has(series.style), name = safe(series.name);
    const x = series.x.map((one) => (typeof one === "string" ? safe(one) : one));
    const common = { name, legendgroup: name, x, type: "scatter", showlegend: named, visible: !off || (named && "legendonly") };
    const trace = { ...common, y: series.y, hovertemplate: hover(series, panel), text: (series.hover || []).map(safe) };
    const number = series.marker ?? (numbered ? series.style : 0);
    // Later markers are smaller, so that those below them are seen.
    const size = series.size ?? (numbered ? 11 - (series.style % 5) : 7);
    const marker = { color, size, symbol: series.symbol ?? MARKERS[number % MARKERS.length] };
    const dash = numbered && series.dash === "solid" ? LINES[series.style % LINES.length] : DASHES[series.dash];
    const line = { color, width: series.width ?? 2, dash };
    if (series.kind === "bars") return [{ ...trace, type: "bar", marker: { color }, ...intervals(series, colors.ink) }];
    if (series.kind === "points") return [{ ...trace, mode: "markers", marker, ...intervals(series, color) }];
    if (series.kind === "steps") {
      const fill = series.fill ? { fill: "tozeroy", fillcolor: faint(color) } : {};
      return [{ ...trace, y: [...series.y, 0], mode: "lines", line: { ...line, shape: "hv" }, ...fill }];
    }
    const marked = series.markers && (x.length <= 30 || series.size);
    const drawn = { ...trace, mode: marked ? "lines+markers" : "lines", line, ...(marked && { marker }) };
    if (!series.low) return [drawn];
    const edges = { x: [...x, ...[...x].reverse()], y: [...series.high, ...[...series.low].reverse()] };
    const quiet = { hoverinfo: "skip", showlegend: false, visible: !off, mode: "lines", line: { width: 0, color } };
    return [{ ...common, ...edges, ...quiet, fill: "toself", fillcolor: faint(color) }, drawn];
  }

  function hover(series, panel) {
    const lines = ["%{fullData.name}", `${safe(panel.x) || "at"}: %{x${panel.x_percent ? ":.1%" : ""}}`];
    lines.push(`${safe(panel.y)}: %{y:${panel.y_percent ? ".1%" : ".4g"}}`, ...(series.hover ? ["%{text}"] : []));
    return `${lines.join("<br>")}<extra></extra>`;
  }

  function intervals(series, color) {
    if (!series.low) return {};
    const array = series.high.map((high, place) => high - series.y[place]);
    const arrayminus = series.low.map((low, place) => series.y[place] - low);
    return { error_y: { type: "data", symmetric: false, array, arrayminus, color, thickness: 1.5, width: 4 } };
  }

  function heatmap(matrix, colors, side) {
    const z = matrix.values, rows = z.length, columns = z[0].length;
    const scale = (matrix.diverging ? ["link", "paper", "accent"] : ["paper", "accent"]).map((name) => colors[name]);
    const legible = Math.max(rows, columns) <= 6 && side / columns >= 30;
    return {
      type: "heatmap", z, x: z[0].map((_, place) => String(place)), y: z.map((_, place) => String(place)),
      zmin: matrix.low, zmax: matrix.high, showscale: false, xgap: 1, ygap: 1,
      colorscale: scale.map((color, place) => [place / (scale.length - 1), color]),
      hovertemplate: `${safe(matrix.y || matrix.x)} %{y}, ${safe(matrix.x)} %{x}: %{z:.3f}<extra></extra>`,
      text: z.map((row) => row.map((value) => (value === null ? "" : value.toFixed(2)))), texttemplate: legible ? "%{text}" : "",
    };
  }

  // ---- axes ------------------------------------------------------------------------------------

  // Plotly wants the exponents of a logarithmic axis
  const axisOf = (range, percent, log) => ({
    ...(percent && { tickformat: ".0%" }),
    ...(range && { range: log ? range.map(Math.log10) : range }),
    ...(log && { type: "log" }),
  });

  function axesOf(panel) {
    if (panel.kind === "Matrix") {
      const quiet = { showgrid: false, zeroline: false, type: "category" };
      return { x: { title: { text: safe(panel.x) }, ...quiet }, y: { ...quiet, autorange: "reversed" }, label: panel.y ? `rows: ${panel.y}` : "" };
    }
    const names = isNamed(panel) ? { type: "category" } : { zeroline: false };
    const y = { ...axisOf(panel.y_range, panel.y_percent, panel.y_log), ...(panel.from_zero && { rangemode: "tozero" }) };
    const x = { title: { text: safe(panel.x) }, ...names, ...axisOf(panel.x_range, panel.x_percent, panel.x_log) };
    return { x, y, label: panel.y };
  }

  const isNamed = (panel) => Boolean(panel.series) && panel.series.some((series) => series.x.some((one) => typeof one === "string"));
  const isSquare = (panel) => panel.square || panel.kind === "Matrix";

  function place(layout, panel, number, domains, colors, wide, tilted) {
    const { x, y, label } = axesOf(panel);
    const line = { gridcolor: colors.grid, linecolor: colors.rule, zerolinecolor: colors.rule, tickcolor: colors.rule };
    const quiet = { ...line, ticks: "", automargin: false, tickfont: { color: colors.muted, size: 12 }, fixedrange: coarse };
    const title = { ...x.title, standoff: 6, font: { size: 12.5, color: colors.muted } };
    layout[`xaxis${number}`] = { ...quiet, nticks: Math.max(3, Math.floor(wide / 60)), ...x, title, domain: domains.x, anchor: `y${number}`, showgrid: false, showline: true };
    layout[`yaxis${number}`] = { ...quiet, nticks: 6, ...y, domain: domains.y, anchor: `x${number}` };
    if (tilted && x.type === "category") layout[`xaxis${number}`].tickangle = wide < 420 ? 40 : 0;
    const text = [panel.title && `<b>${safe(panel.title)}</b>`, label !== panel.title && safe(label)].filter(Boolean).join("   ");
    if (text) layout.annotations.push({ text, xref: "paper", yref: "paper", x: domains.x[0], y: domains.y[1], xanchor: "left", yanchor: "bottom", yshift: 6, xshift: -4, showarrow: false, font: { size: 13, color: colors.ink } });
    for (const [axis, at, words] of panel.rules || []) {
      const other = axis === "y" ? "x" : "y";
      const shape = { type: "line", line: { color: colors.muted, width: 1, dash: "dot" } };
      shape[`${axis}ref`] = `${axis}${number}`;
      shape[`${other}ref`] = `${other}${number} domain`;
      shape[`${axis}0`] = shape[`${axis}1`] = at;
      shape[`${other}0`] = 0;
      shape[`${other}1`] = 1;
      layout.shapes.push(shape);
      if (words) layout.annotations.push({ text: safe(words), xref: `x${number} domain`, yref: `y${number}`, x: 1, y: panel.y_log ? Math.log10(at) : at, xanchor: "right", yanchor: "bottom", showarrow: false, font: { size: 11.5, color: colors.muted } });
    }
  }

  // ---- where panels stand ----------------------------------------------------------------------

  // legend is the height that the legend was measured to need; without it, it is estimated
  function compose(view, width, colors, legend) {
    const panels = view.panels.filter((panel) => panel.style == null || !hidden.has(panel.style));
    const square = panels.some(isSquare), narrow = width < 500;
    const least = square ? (narrow && panels.length > 2 ? 112 : 165) : panels.length > 2 ? 230 : 300;
    const tilted = panels.some((panel) => isNamed(panel) && panel.series.some((series) => series.x.some((one) => String(one).length > 3)));
    const GAP = { x: square && narrow ? 40 : 62, y: tilted && narrow ? 112 : 78 };
    const margin = { l: narrow ? 44 : 54, r: 14, t: 34, b: tilted && narrow ? 84 : 50 };
    const inner = Math.max(120, width - margin.l - margin.r);
    const most = Math.max(1, Math.min(panels.length, Math.floor((inner + GAP.x) / (least + GAP.x)), square ? 5 : 4));
    const rows = Math.max(1, Math.ceil(panels.length / most));
    const columns = Math.max(1, Math.ceil(panels.length / rows));
    const each = (inner - (columns - 1) * GAP.x) / columns;
    const wide = square ? Math.min(each, panels.length > 2 ? 260 : 360) : each;
    const tall = square ? wide : columns === 1 && panels.length === 1 ? Math.min(360, Math.max(240, inner * 0.5)) : 230;
    const height = rows * tall + (rows - 1) * GAP.y;
    const layout = {
      width, paper_bgcolor: colors.paper, plot_bgcolor: colors.paper,
      font: { family: "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif", size: 13, color: colors.ink },
      hoverlabel: { bgcolor: colors.paper, bordercolor: colors.muted, font: { color: colors.ink, size: 13 }, align: "left" },
      hovermode: "closest", dragmode: coarse ? false : "zoom", bargap: 0.45,
      legend: { orientation: "h", xref: "container", yref: "container", x: 0.005, y: 0, xanchor: "left", yanchor: "bottom", font: { size: 13 }, tracegroupgap: 0 },
      annotations: [], shapes: [],
    };
    const traces = [], seen = new Set();
    panels.forEach((panel, index) => {
      const column = index % columns, row = Math.floor(index / columns), number = index ? String(index + 1) : "";
      const x = (column * (each + GAP.x)) / inner, top = 1 - (row * (tall + GAP.y)) / height;
      const domains = { x: [x, Math.min(1, x + wide / inner)], y: [Math.max(0, top - tall / height), top] };
      place(layout, panel, number, domains, colors, wide, tilted);
      const own = panel.kind === "Matrix" ? [heatmap(panel, colors, wide)] : panel.series.flatMap((series) => {
        const named = Boolean(series.legend) && !seen.has(series.name);
        seen.add(series.name);
        return seriesTraces(series, panel, colors, named);
      });
      traces.push(...own.map((trace) => ({ ...trace, xaxis: `x${number}`, yaxis: `y${number}` })));
    });
    layout.showlegend = traces.filter((trace) => trace.showlegend).length > 1;
    const reserved = layout.showlegend ? legend || legendLines(traces, inner) * 21 + 8 : 0;
    margin.b += reserved;
    return { traces, layout: { ...layout, height: height + margin.t + margin.b, margin }, reserved };
  }

  function legendLines(traces, width) {
    const sizes = traces.filter((trace) => trace.showlegend).map((trace) => 50 + 7.4 * trace.name.length);
    if (sizes.reduce((sum, size) => sum + size, 0) <= width) return 1;
    return Math.ceil(sizes.length / Math.max(1, Math.floor(width / Math.max(...sizes))));   // in columns
  }

  return { hidden, palette, compose };
})();
