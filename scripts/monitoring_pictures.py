#!/usr/bin/env python3
"""usage: scripts/monitoring_pictures.py PROMETHEUS_URL RUN FOLDER [SECONDS]

Draws the dashboards Weight sync and Run of the run named RUN as FOLDER/dashboard-*.png, from the last SECONDS (120) of a
Prometheus: the panels' own queries, in the panels' own places. Needs matplotlib.
"""

import datetime
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
from matplotlib import colors, dates, pyplot, ticker  # noqa: E402

DASHBOARDS = pathlib.Path(__file__).resolve().parents[1] / "deploy" / "grafana"
UNIT_INCHES = 0.3  # of one row of Grafana's grid
PAGE_INCHES = 15
GREY = "#52555c"


class Prometheus:
    def __init__(self, url, run, seconds):
        self.url, self.run = url.rstrip("/"), run
        self.end = time.time()
        self.start = self.end - seconds
        self.step = max(1, round(seconds / 200))

    def series(self, expression):
        """[(labels, times, values)] of the expression over the window."""
        for variable, value in {"$__rate_interval": "15s", "$__range": f"{int(self.end - self.start)}s",
                                "$run": self.run, "$namespace": ".*", "$rollouter": ".*"}.items():
            expression = expression.replace(variable, value)
        query = urllib.parse.urlencode(
            {"query": expression, "start": self.start, "end": self.end, "step": self.step})
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{query}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        return [(one["metric"], [at for at, _ in one["values"]], [float(value) for _, value in one["values"]])
                for one in result]


def spelled(value, unit):
    """A figure with its unit, as on an axis."""
    if math.isnan(value):
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return "0 s" if value == 0 else f"{value / 1e-6:.2g} µs"
    if unit in ("bytes", "Bps"):
        name = "B" if unit == "bytes" else "B/s"
        for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {prefix}{name}"
        return f"{value:.3g} {name}"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text + ("/s" if unit in ("ops", "reqps") else "")


def legend_of(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match.group(1), ""), template)


def nothing(axes, words):
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color=GREY, fontsize=8)


def draw_lines(axes, panel, prometheus):
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    drawn = []
    for target in panel["targets"]:
        for labels, at, values in prometheus.series(target["expr"]):
            when = [dates.date2num(time_of(moment)) for moment in at]
            drawn.append((legend_of(target["legendFormat"], labels), when, values))
    if custom["drawStyle"] == "bars":  # of many reasons, those that occurred
        drawn = [one for one in drawn if any(value > 0 for value in one[2])]
        if not drawn:
            nothing(axes, "none")
    drawn.sort(key=lambda one: one[0] or "")
    if custom["stacking"]["mode"] == "normal" and drawn:
        moments = sorted({moment for _, when, _ in drawn for moment in when})
        stacks = []
        for _, when, values in drawn:
            known = {moment: (0 if math.isnan(value) else value) for moment, value in zip(when, values)}
            stacks.append([known.get(moment, 0) for moment in moments])
        axes.stackplot(moments, stacks, labels=[name for name, _, _ in drawn], alpha=0.7, linewidth=0)
    else:
        style = "steps-post" if custom["lineInterpolation"] == "stepAfter" else "default"
        for name, when, values in drawn:
            axes.plot(when, values, label=name, linewidth=1.1, drawstyle=style)
    if defaults.get("max") == 1:
        axes.set_ylim(-0.02, 1.05)
    elif defaults.get("min") == 0:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9) * 1.08)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: spelled(value, defaults["unit"])))
    if drawn:
        below = -0.22 / (axes.get_position().height * axes.figure.get_figheight())
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncol=min(5, len(drawn)), fontsize=6.5,
                    frameon=False)


def draw_heatmap(axes, panel, prometheus):
    series = prometheus.series(panel["targets"][0]["expr"])
    series.sort(key=lambda one: float(one[0]["le"].replace("+Inf", "inf")))
    moments = sorted({moment for _, at, _ in series for moment in at})
    cumulative = []
    for _, at, values in series:
        known = dict(zip(at, values))
        cumulative.append([known.get(moment, math.nan) for moment in moments])
    counts = [[max(0.0, high - (low or 0)) for high, low in zip(row, before)]
              for row, before in zip(cumulative, [[0.0] * len(moments), *cumulative])]
    filled = [index for index, row in enumerate(counts) if any(count > 1e-9 for count in row)]
    if not filled:
        nothing(axes, "no samples")
        return
    first, last = max(0, filled[0] - 1), min(len(counts), filled[-1] + 2)
    shown = [[count if count > 1e-9 else math.nan for count in row] for row in counts[first:last]]
    when = [dates.date2num(time_of(moment)) for moment in moments]
    axes.pcolormesh(when, range(len(shown)), shown, cmap="YlOrRd", norm=colors.PowerNorm(0.5), shading="nearest")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    bounds = [series[index][0]["le"] for index in range(first, last)]
    axes.set_yticks(range(len(shown)), ["over" if le == "+Inf" else f"≤ {spelled(float(le), unit)}" for le in bounds])
    axes.tick_params(axis="y", labelsize=5.5)


def draw_number(axes, panel, prometheus):
    axes.set_axis_off()
    series = prometheus.series(panel["targets"][0]["expr"])
    value = series[0][2][-1] if series else math.nan
    color = next((step["color"] for step in reversed(panel["fieldConfig"]["defaults"]["thresholds"]["steps"])
                  if step["value"] is None or value >= step["value"]), "green")
    axes.text(0.5, 0.45, spelled(value, panel["fieldConfig"]["defaults"]["unit"]), ha="center", va="center", fontsize=16,
              color=color, transform=axes.transAxes)


def time_of(moment):
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)


DRAW = {"timeseries": draw_lines, "heatmap": draw_heatmap, "stat": draw_number}


def draw(dashboard, prometheus):
    """The whole dashboard as one figure."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = pyplot.figure(figsize=(PAGE_INCHES, rows * UNIT_INCHES + 0.4), dpi=100)
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        left, top = grid["x"] / 24, 1 - grid["y"] / rows
        if panel["type"] == "row":
            figure.text(0.012, top - 0.6 / rows, panel["title"], fontsize=10, fontweight="bold", va="center")
            continue
        number = panel["type"] == "stat"
        margins = (0.05, 0.2, 0.1, 0.1) if number else (1.35, 1.85 if grid["h"] > 5 else 1.5, 0.85, 0.25)
        axes = figure.add_axes((left + margins[0] / 24, top - (grid["h"] - margins[1]) / rows,
                                (grid["w"] - margins[0] - margins[3]) / 24,
                                (grid["h"] - margins[1] - margins[2]) / rows))
        axes.set_title(panel["title"], fontsize=8, loc="center" if number else "left", color=GREY)
        axes.tick_params(labelsize=6.5, colors=GREY)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        DRAW[panel["type"]](axes, panel, prometheus)
        if not number:
            axes.set_xlim(dates.date2num(time_of(prometheus.start)), dates.date2num(time_of(prometheus.end)))
            axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
            axes.xaxis.set_major_locator(ticker.MaxNLocator(6))
            if panel["type"] == "timeseries":
                axes.grid(linewidth=0.3)
    return figure


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__.strip())
    prometheus = Prometheus(sys.argv[1], sys.argv[2], int(sys.argv[4]) if len(sys.argv) == 5 else 120)
    folder = pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("weight-sync", "run"):
        figure = draw(json.loads((DASHBOARDS / f"{name}.json").read_text()), prometheus)
        figure.savefig(folder / f"dashboard-{name}.png")
        pyplot.close(figure)


if __name__ == "__main__":
    main()
