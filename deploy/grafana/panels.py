"""Panels and dashboards of Grafana as plain values: what generate.py builds with. Standard library only.

A target is (expression, legend). In an expression, SEL stands for the labels that pick the run; put it alone or before
further matchers: up{SEL}, grpc_server_handled_total{SEL, grpc_code="OK"}.
"""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RUN = 'namespace=~"$namespace", run="$run"'
WIDTH = 24


def _target(expression, legend, index, kind, instant):
    target = {
        "datasource": DATASOURCE,
        "expr": " ".join(expression.replace("SEL", RUN).split()),
        "legendFormat": legend,
        "refId": chr(ord("A") + index),
        "format": kind,
        "range": not instant,
        "instant": instant,
        "editorMode": "code",
    }
    return target


def _panel(kind, title, description, unit, targets, width, height, defaults=None, options=None, overrides=None,
           form="time_series", instant=False):
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit, **(defaults or {})}, "overrides": overrides or []},
        "options": options or {},
        "targets": [_target(expr, legend, i, form, instant) for i, (expr, legend) in enumerate(targets)],
    }


def lines(title, description, unit, targets, width=12, height=8, stack=False, step=False, bars=False, low=None,
          high=None, overrides=None):
    """Lines over time; stacked areas, steps or bars on request. `low` and `high` bound the axis."""
    custom = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "stepAfter" if step else "linear",
        "lineWidth": 1,
        "fillOpacity": 60 if bars else 30 if stack else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }
    defaults = {"custom": custom}
    if low is not None:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, description, unit, targets, width, height, defaults, options, overrides)


def number(title, description, unit, expression, width=4, height=4, thresholds=((None, "green"),), decimals=None):
    """One figure, the newest. `thresholds`: (from, colour) in ascending order, the first from None."""
    defaults = {
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in thresholds]},
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    }
    return _panel("stat", title, description, unit, [(expression, "")], width, height, defaults, options)


def heatmap(title, description, unit, expression, width=12, height=6):
    """How often which value, over time: `expression` gives cumulative buckets with a label le."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "exponent": 0.5, "fill": "dark-orange"},
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "yAxis": {"unit": unit, "axisPlacement": "left", "reverse": False},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"show": True, "yHistogram": True},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }
    return _panel("heatmap", title, description, unit, [(expression, "{{le}}")], width, height, options=options,
                  form="heatmap")


def table(title, description, unit, expression, columns, width=24, height=7, decimals=0):
    """The newest sample of each series; `columns` renames labels, in this order, and leaves all others out."""
    panel = _panel("table", title, description, unit, [(expression, "")], width, height, {"decimals": decimals},
                   {"showHeader": True}, form="table", instant=True)
    panel["transformations"] = [{
        "id": "organize",
        "options": {
            "renameByName": dict(columns),
            "indexByName": {name: index for index, (name, _) in enumerate(columns)},
            "includeByName": {name: True for name, _ in columns},
        },
    }]
    return panel


def row(title):
    """A line across the dashboard that names what follows."""
    return {"type": "row", "title": title, "gridPos": {"w": WIDTH, "h": 1}, "collapsed": False, "panels": []}


def _place(panels):
    """Left to right, top to bottom; a line is as high as its highest panel."""
    x = y = height = 0
    for index, panel in enumerate(panels):
        grid = panel["gridPos"]
        if x + grid["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        panel["gridPos"] = {"x": x, "y": y, "w": grid["w"], "h": grid["h"]}
        panel["id"] = index + 1
        x, height = x + grid["w"], max(height, grid["h"])
    return panels


def _query_variable(name, label, query, description, include_all=False):
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": description,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "includeAll": include_all,
        "multi": include_all,
        "allValue": ".*" if include_all else None,
        "current": {"text": ["All"], "value": ["$__all"]} if include_all else {},
        "options": [],
        "hide": 0,
    }


def dashboard(uid, title, description, panels, per_rollouter=False):
    """A dashboard of one run; with `per_rollouter` rollouters can be picked too, as $rollouter."""
    variables = [
        {
            "type": "datasource",
            "name": "datasource",
            "label": "Data source",
            "description": "The Prometheus that scrapes the run",
            "query": "prometheus",
            "refresh": 1,
            "current": {},
            "options": [],
            "hide": 0,
        },
        _query_variable("namespace", "Namespace", "label_values(syncopate_build_info, namespace)",
                        "Empty outside Kubernetes", include_all=True),
        _query_variable("run", "Run", 'label_values(syncopate_build_info{namespace=~"$namespace"}, run)',
                        "The run that is shown"),
    ]
    if per_rollouter:
        variables.append(
            _query_variable("rollouter", "Rollouter",
                            f'label_values(syncopate_build_info{{{RUN}, component="rollouter"}}, instance)',
                            "The rollouters that are shown", include_all=True))
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["syncopate"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 38,
        "version": 1,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{
            "type": "dashboards",
            "title": "Syncopate",
            "tags": ["syncopate"],
            "asDropdown": True,
            "includeVars": True,
            "keepTime": True,
        }],
        "annotations": {"list": []},
        "templating": {"list": variables},
        "panels": _place(panels),
    }
