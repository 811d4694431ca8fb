#!/usr/bin/env python3
"""usage: deploy/grafana/lint.py DASHBOARD.json ...

Looks at dashboards for what makes them fail on somebody else's Grafana or mislead: prints one line per breach and exits
1 if there is any. Standard library only.
"""

import json
import re
import sys

VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
# A metric with its labels, the range behind it and the function before it.
SELECTOR = re.compile(r"(?:(\w+)\s*\(\s*)?\b([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}(?:\[([^\]]*)\])?")
OF_COUNTERS = {"rate", "increase", "resets"}
COUNTER = re.compile(r"_(total|sum|count|bucket)$")
# Differences of counters that count the same things at two ends: their value is what is under way.
UNDER_WAY = {"grpc_server_started_total", "grpc_server_handled_total"}
BUILT_IN = {"__rate_interval", "__range", "__interval"}
MAX_PANELS = 40


def _variables(dashboard):
    return {variable["name"] for variable in dashboard.get("templating", {}).get("list", [])}


def _is_counter(metric):
    return ":" not in metric and COUNTER.search(metric) is not None


def _expression_problems(expr, defined):
    for match in VARIABLE.finditer(expr):
        name = match.group(1) or match.group(2)
        if name not in defined | BUILT_IN:
            yield f"uses ${name}, which is not defined"
    selectors = SELECTOR.findall(expr)
    if not selectors:
        yield "picks no series"
    for function, metric, labels, window in selectors:
        if 'run="$run"' not in labels:
            yield f'{metric} is not limited to run="$run"'
        if window and window not in ("$__rate_interval", "$__range"):
            yield f"{metric} has the fixed window {window}: use $__rate_interval"
        if _is_counter(metric) and function not in OF_COUNTERS and metric not in UNDER_WAY:
            yield f"counter {metric} is under no rate() or increase()"
        if window and function in OF_COUNTERS and not _is_counter(metric):
            yield f"{metric} is no counter, but under {function}()"


def _target_problems(panel, defined):
    references = [target.get("refId") for target in panel["targets"]]
    if len(set(references)) != len(references):
        yield "two targets have one refId"
    for target in panel["targets"]:
        if target.get("datasource", {}).get("uid") != "${datasource}":
            yield f"target {target.get('refId')} names a data source of its own"
        if panel["type"] == "timeseries" and not target.get("legendFormat"):
            yield f"target {target.get('refId')} has no legend"
        for problem in _expression_problems(target.get("expr", ""), defined):
            yield f"target {target.get('refId')}: {problem}"


def _panel_problems(panel, defined):
    if not panel.get("title"):
        yield "has no title"
    if panel["type"] == "row":
        return
    if not panel.get("description"):
        yield "has no description"
    if panel.get("datasource", {}).get("uid") != "${datasource}":
        yield "does not use the variable $datasource"
    if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
        yield "has no unit"
    if not panel.get("targets"):
        yield "shows nothing"
        return
    yield from _target_problems(panel, defined)


def _cells(panel):
    grid = panel["gridPos"]
    return {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}


def _layout_problems(panels):
    taken = {}
    for panel in panels:
        grid = panel["gridPos"]
        if grid["x"] + grid["w"] > 24:
            yield f"panel {panel.get('title')!r} is wider than the page"
        for cell in _cells(panel):
            if cell in taken:
                yield f"panel {panel.get('title')!r} lies over {taken[cell]!r}"
                break
            taken[cell] = panel.get("title")


def _variable_problems(dashboard):
    variables = dashboard.get("templating", {}).get("list", [])
    if not any(variable["type"] == "datasource" and variable["name"] == "datasource" for variable in variables):
        yield "has no variable $datasource"
    for variable in variables:
        if not variable.get("label") or not variable.get("description"):
            yield f"variable {variable['name']} has no label or description"
        if variable["type"] == "query" and variable.get("datasource", {}).get("uid") != "${datasource}":
            yield f"variable {variable['name']} does not use $datasource"


def problems(dashboard):
    """Every breach of one dashboard, as a line."""
    for key in ("uid", "title", "description", "schemaVersion", "refresh"):
        if not dashboard.get(key):
            yield f"has no {key}"
    if "id" in dashboard:
        yield "has an id, which belongs to the Grafana that it comes from"
    if "__inputs" in dashboard:
        yield "has __inputs: it asks for a data source when it is provisioned"
    yield from _variable_problems(dashboard)
    panels = dashboard.get("panels", [])
    if len(panels) > MAX_PANELS:
        yield f"has {len(panels)} panels; {MAX_PANELS} is the most"
    ids = [panel.get("id") for panel in panels]
    if len(set(ids)) != len(ids) or None in ids:
        yield "has panels without an id of their own"
    titles = [panel.get("title") for panel in panels if panel["type"] != "row"]
    for title in sorted({title for title in titles if titles.count(title) > 1}, key=str):
        yield f"has two panels called {title!r}"
    yield from _layout_problems(panels)
    defined = _variables(dashboard)
    for panel in panels:
        for problem in _panel_problems(panel, defined):
            yield f"panel {panel.get('title')!r}: {problem}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for problem in problems(json.load(file)):
                print(f"{path}: {problem}")
                found += 1
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
