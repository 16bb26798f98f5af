// Draws the charts of a report with uPlot: one cursor and one zoom through all that show time, light or dark.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("charts").textContent);
  const [begin, step, count] = data.time;
  const end = data.span[1], isShort = end - data.span[0] <= 300;
  const moments = Array.from({ length: count }, (_, at) => begin + at * step);
  const dark = matchMedia("(prefers-color-scheme:dark)");
  const palettes = {
    light: { ink: "#1d2126", line: "#d9dee3", soft: "#8a939c",
      colours: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B78A00", "#56B4E9", "#777777"] },
    dark: { ink: "#c9d0d6", line: "#39414a", soft: "#717b85",
      colours: ["#4CA8E0", "#F08A45", "#2FC79B", "#E3A3C8", "#E3B84A", "#8CCBF2", "#A0A0A0"] },
  };
  // Distances of marks on an axis of time, in seconds, and on one of rounds, which have no halves.
  const seconds = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
    432000, 864000, 2592000, 7776000, 31536000];
  const wholes = Array.from({ length: 45 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));
  const shown = new Map();
  let palette = dark.matches ? palettes.dark : palettes.light;
  let isPrinted = false, zoom = null;

  const number = (value, digits = 3) => {
    if (value == null) return "–";
    const size = Math.abs(value), rounded = +value.toPrecision(size >= 1000 ? Math.max(6, digits) : digits);
    return size >= 1e6 || (size > 0 && size < 1e-3) ? rounded.toExponential() : String(rounded);
  };
  const days = end - begin > 172800;
  const clock = (t, increment) => {
    const text = new Date(t * 1000).toISOString();
    return days && increment >= 43200 ? text.slice(5, 10) : text.slice(11, increment < 60 ? 19 : 16);
  };
  const moment = (t) => isShort ? `${number(t - data.span[0])} s`
    : new Date(t * 1000).toISOString().slice(days ? 5 : 11, 19).replace("T", " ");

  function hatched(ctx) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = palette.soft;
    pen.beginPath();
    pen.moveTo(-2, 10); pen.lineTo(10, -2); pen.moveTo(-2, 2); pen.lineTo(2, -2); pen.moveTo(6, 10); pen.lineTo(10, 6);
    pen.stroke();
    return ctx.createPattern(tile, "repeat");
  }

  function gaps(u) {
    const { ctx, bbox } = u, place = (t) => u.valToPos(t, "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = hatched(ctx);
    for (const [from, until] of data.gaps) ctx.fillRect(place(from), bbox.top, place(until) - place(from), bbox.height);
    ctx.restore();
  }

  function limits(u, chart) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = palette.ink;
    ctx.setLineDash([2, 4]);
    for (const [label, value] of chart.limits) {
      const y = u.valToPos(value, "y", true);
      if (y < bbox.top) continue;
      ctx.beginPath();
      ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.textAlign = "right";
      ctx.fillText(`${label} ${number(value)}`, bbox.left + bbox.width - 4, y + 12 * devicePixelRatio);
    }
    ctx.restore();
  }

  // Why samples are missing under the cursor.
  const reason = (t) => data.gaps.find(([from, until]) => from <= t && t <= until)?.[2];

  function stacked(lines) {
    const sums = [];
    let below = null;
    for (const line of lines) {
      below = line.values.map((value, at) => value == null && !(below && below[at] != null) ? null
        : (value || 0) + (below ? below[at] || 0 : 0));
      sums.push(below);
    }
    return sums;
  }

  // Points that no line shows.
  function lonely(values) {
    const found = values.map((_, at) => at)
      .filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);
    return found.length ? found : null;
  }

  function drawn(figure) {
    const chart = data.charts[figure.dataset.at], place = figure.querySelector(".plot"), overSteps = chart.x != null;
    const x = chart.x || moments, values = chart.lines.map((line) => line.values);
    const rows = chart.stack ? stacked(chart.lines) : values;
    const series = [{ label: "" }];
    const bands = [], table = [x];
    chart.lines.forEach((line, at) => {
      const colour = palette.colours[at % palette.colours.length];
      const few = values[at].filter((value) => value != null).length <= 30;
      series.push({ label: line.label, stroke: colour, width: 1.25, fill: chart.stack ? `${colour}99` : undefined,
        points: { show: few, size: 4, filter: () => few ? null : lonely(rows[at]) }, value: (_, _value, _series, i) => i == null ? "–" : number(values[at][i]) });
      table.push(rows[at]);
      if (chart.stack && at) bands.push({ series: [at + 1, at] });
    });
    chart.lines.forEach((line, at) => {
      if (!line.low) return;
      const colour = palette.colours[at % palette.colours.length], first = series.length;
      for (const edge of [line.high, line.low]) {
        series.push({ label: "", stroke: "transparent", points: { show: false } });
        table.push(edge);
      }
      bands.push({ series: [first, first + 1], fill: `${colour}33` });
    });
    const axis = { stroke: palette.ink, grid: { stroke: palette.line, width: 1 }, ticks: { stroke: palette.line, size: 4 },
      font: "11px system-ui,sans-serif" };
    const tall = Math.max(...chart.limits.map(([, value]) => value));
    const now = figure.querySelector(".now");
    const options = {
      width: isPrinted ? 320 : Math.max(200, place.clientWidth), height: 180, series, bands,
      padding: [null, 26, null, null],
      legend: { live: !isPrinted },
      cursor: { drag: { x: true, y: false }, points: { size: 6 }, y: false,
        sync: { key: overSteps ? "step" : "time", scales: ["x", null] } },
      scales: { x: { time: !overSteps && !isShort, range: overSteps ? undefined : (_, low, high) => zoom || [data.span[0], end] },
        y: { range: (_, low, high) => {
          const top = Math.max(high ?? 0, tall), bottom = chart.floats || low < 0 ? low ?? 0 : 0;
          const margin = (top - bottom) * 0.06 || Math.abs(top) * 0.1 || 1;
          return [bottom === 0 ? 0 : bottom - margin, top + margin];
        } } },
      axes: [{ ...axis, size: 28, space: 60,
        incrs: overSteps ? (x.every(Number.isInteger) ? wholes : undefined) : isShort ? undefined : seconds, values: overSteps ? undefined
        : (_, ticks, _axis, _space, increment) => ticks.map((t) => isShort ? moment(t) : clock(t, increment)),
        splits: isShort && !overSteps ? (u, _axis, low, high, increment) => {
          const first = Math.ceil((low - data.span[0]) / increment) * increment, found = [];
          for (let t = first; data.span[0] + t <= high + 1e-9; t += increment) found.push(data.span[0] + t);
          return found;
        } : undefined },
      { ...axis, size: (_, marks) => Math.max(58, ...(marks || []).map((mark) => 13 + 6.5 * mark.length)),
        values: (_, ticks) => ticks.map((tick) => number(tick, 12)) }],
      tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
      hooks: {
        drawAxes: overSteps ? [] : [gaps],
        draw: [(u) => limits(u, chart)],
        // The moment stands above the chart, and values in the legend, only while there is a cursor.
        setCursor: [(u) => {
          const at = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
          figure.classList.toggle("read", at != null);
          now.textContent = at == null ? "" : overSteps ? `step ${x[u.cursor.idx] ?? "–"}`
            : [moment(at), reason(at)].filter(Boolean).join(" · ");
        }],
        setSelect: overSteps ? [] : [(u) => {
          if (u.select.width > 4) zoomed([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        }],
        ready: [(u) => {
          // In print the legend has no row for the x axis.
          u.root.querySelectorAll(".u-series").forEach((row, at) => {
            const line = at + (isPrinted ? 1 : 0);
            if (line === 0 || line > chart.lines.length) row.remove();
          });
          if (!overSteps) u.over.addEventListener("dblclick", () => zoomed(null));
        }],
      },
    };
    place.textContent = "";
    shown.get(figure)?.destroy();
    shown.set(figure, new uPlot(options, table, place));
  }

  function zoomed(range) {
    zoom = range;
    for (const [figure, u] of shown) {
      if (data.charts[figure.dataset.at].x == null) u.setScale("x", { min: (zoom || data.span)[0], max: (zoom || data.span)[1] });
    }
  }

  function all() {
    for (const figure of document.querySelectorAll("figure[data-at]")) {
      if (!figure.closest("details:not([open])")) drawn(figure);
      else if (shown.has(figure)) { shown.get(figure).destroy(); shown.delete(figure); }
    }
    document.documentElement.dataset.charts = String(shown.size);
  }

  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => {
    if (part.open) part.querySelectorAll("figure[data-at]").forEach((figure) => {
      if (!shown.has(figure) && !figure.closest("details:not([open])")) drawn(figure);
    });
  }));
  dark.addEventListener("change", () => { palette = dark.matches ? palettes.dark : palettes.light; all(); });
  addEventListener("beforeprint", () => { isPrinted = true; palette = palettes.light; all(); });
  addEventListener("afterprint", () => { isPrinted = false; palette = dark.matches ? palettes.dark : palettes.light; all(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width && !isPrinted) { width = innerWidth; all(); } });
  all();
})();
