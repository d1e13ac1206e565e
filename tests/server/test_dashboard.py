"""Grafana's dashboard asks for figures that /metrics has, each in the way that its type allows."""
import json
import os
import re

from conftest import ROOT

PATH = os.path.join(ROOT, "deploy", "grafana", "tutti.json")
# Where there is a certificate, or a card (test_device.py).
ELSEWHERE = {"tutti_tls_certificate_end_seconds": "gauge", "tutti_device_busy_seconds_total": "counter",
             "tutti_device_memory_bytes": "gauge", "tutti_device_memory_used_bytes": "gauge"}


def figures(server):
    """name -> (type, labels)."""
    found = {}
    for line in server.get("/metrics", headers=server.metrics_headers).text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found[name] = (kind, set())
        elif not line.startswith("#"):
            name, labels = re.match(r"(\w+)(\{.*\})? ", line).groups()
            base = name if name in found else re.sub(r"_(bucket|sum|count)$", "", name)
            found[base][1].update(re.findall(r"(\w+)=", labels or ""))
    return found


def expressions():
    with open(PATH, encoding="utf-8") as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_every_query_names_a_figure_of_the_server(start, tmp_path):
    (tmp_path / "keys").write_text("sk-a alice\n", encoding="utf-8")
    server = start("--api-key-file", tmp_path / "keys")
    assert server.get("/health").ok
    known = {**figures(server), **{name: (kind, set()) for name, kind in ELSEWHERE.items()}}
    asked = set()
    for title, expression in expressions():
        names = re.findall(r"tutti_\w+", expression)
        assert names, title
        for name in names:
            base = name.removesuffix("_bucket")
            assert base in known, (title, name)
            kind = known[base][0]
            asked.add(base)
            is_rate = re.search(rf"(rate|increase)\({name}\{{", expression) is not None
            assert is_rate == (kind != "gauge"), (title, expression)
            assert (base != name) == (kind == "histogram"), (title, expression)
            assert ("histogram_quantile" in expression) == (kind == "histogram")
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            for label in re.split(r",\s*", labels):
                assert label in known[names[0].removesuffix("_bucket")][1], (title, label)
    not_shown = {n for n, (kind, _) in known.items() if n not in asked}
    assert not [n for n in not_shown if known[n][0] == "histogram"]


def test_panels_lie_beside_each_other():
    with open(PATH, encoding="utf-8") as file:
        dashboard = json.load(file)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) and dashboard["uid"] == "tutti"
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "instance"}
