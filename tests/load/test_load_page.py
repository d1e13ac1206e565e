"""bench/load-page: the page made from a report of tutti load, and the plots in it (bench/plot.py)."""
import importlib.machinery
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "bench", "load-page")
REPORT = os.path.join(ROOT, "tests", "fixtures", "load", "report.json")  # tools/fixtures/load_report.py

sys.path.insert(0, os.path.dirname(TOOL))
import plot  # noqa: E402


def load_page():
    """The script as a module."""
    spec = importlib.util.spec_from_loader("load_page", importlib.machinery.SourceFileLoader("load_page", TOOL))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*args, check=0):
    done = subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == check, done.stderr
    return done


def report():
    with open(REPORT, encoding="utf-8") as file:
        return json.load(file)


def assert_stands_for_itself(text):
    """Five plots, all well-formed; no script, and nothing that a browser would fetch."""
    seen = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append(tag)
            for name, value in attrs:
                assert not name.startswith("on") and name not in ("src", "href", "srcset"), (tag, name)
                assert "url(" not in value and "nan" not in value and "inf" not in value, (tag, name, value)

    Reader().feed(text)
    assert seen.count("figure") == seen.count("svg") == 5
    assert not {"script", "link", "img", "iframe", "object"} & set(seen)
    assert "default-src 'none'" in text and "@import" not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(svg)


# ---- the page -------------------------------------------------------------------------------------------------------


def test_a_report_becomes_a_page(tmp_path):
    run(REPORT, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text == run(REPORT).stdout
    assert_stands_for_itself(text)
    said = report()
    assert f"<tr><th>complete answers<td>8<td>{said['requests_per_s']:.2f}\n<tr><th>failed<td>4<td>\n" in text
    assert f"<tr><th>output tokens<td>40<td>{said['tokens']['output_per_s']:.1f}\n" in text
    assert "<tr><th>answers within the targets<td>8<td>" in text and "Target: a time to first token of at most 100 ms." in text
    assert '<tr><th>rejected<td>4<td class="text">HTTP 400: {&quot;error&quot;: ' in text and "<th>timeout" not in text
    s = said["itl_ms"]
    cells = "".join(f"<td>{s[key]:.1f}" for key in ("mean", "p50", "p90", "p99", "max"))
    assert f"<tr><th>inter-token latency{cells}<td>32\n" in text
    assert "model a &lt;b&gt; &amp; c. Open loop: 20 requests/s, Poisson arrivals" in text


def test_texts_from_outside_stay_texts():
    changed = report()
    evil = "</h1><script>alert('&')</script>"
    changed["settings"]["model"] = changed["settings"]["url"] = changed["failures"]["rejected"]["first"] = evil
    text = load_page().page(changed)
    assert_stands_for_itself(text)
    assert text.count("&lt;/h1&gt;&lt;script&gt;") == 4


def test_a_run_without_requests_has_a_page():
    empty = report()
    empty.update(records=[], requests=0, complete=0, total_s=0, goodput=None, requests_per_s=None)
    empty["pieces"]["counts"] = []
    empty["percentiles_ms"] = {key: [] for key in empty["percentiles_ms"]}
    empty["tokens"].update(prompt=None, output_per_s=None)
    for summary in (empty["ttft_ms"], empty["itl_ms"], empty["time_per_token_ms"], empty["latency_ms"], empty["tool"]["late_ms"]):
        summary.update({key: None for key in summary}, count=0)
    for what in empty["failures"].values():
        what["count"] = 0
    text = load_page().page(empty)
    assert_stands_for_itself(text)
    assert text.count("no data") == 2  # the distributions, and the time to first token
    assert "<tr><th>whole answer<td>–<td>–<td>–<td>–<td>–<td>0\n" in text and "<h2>Failures" not in text


def test_files_that_are_no_report_are_named(tmp_path):
    def said(content):
        path = tmp_path / "x.json"
        path.write_text(content)
        done = run(path, check=1)
        assert done.stdout == "" and f"load-page: {path}: " in done.stderr
        return done.stderr

    plain = {key: value for key, value in report().items() if key not in ("records", "pieces", "percentiles_ms")}
    assert 'it has no "records"; run tutti load with --json and --details' in said(json.dumps(plain))
    assert "it is not a report of tutti load" in said("[]")
    assert "it is not a report of tutti load" in said("{}")
    assert "Expecting value" in said("<html>")
    broken = report()
    del broken["records"][3]["arrival"]
    assert "a field is missing or has a wrong type: KeyError: 'arrival'" in said(json.dumps(broken))
    assert "No such file" in run(tmp_path / "none", check=1).stderr
    assert "bench/load-page report.json" in run(check=1).stderr


# ---- the run over time ----------------------------------------------------------------------------------------------


def record(arrival, late_ms, ttft_ms, latency_ms, outcome="complete"):
    return {"arrival": arrival, "late_ms": late_ms, "ttft_ms": ttft_ms, "latency_ms": latency_ms, "outcome": outcome}


def test_columns_hold_the_times_that_they_cover():
    course, width = load_page().columns({
        "total_s": 1, "pieces": {"tick_s": 0.1, "counts": [1, 0, 0, 4, 0, 0, 0, 0, 0, 2]},
        "records": [record(0, 50, 150, 250), record(0, 0, 50, 100), record(0.9, 0, None, 100, "cut"),
                    record(0.95, None, None, None, "unfinished")]})
    assert width == pytest.approx(0.1) and {len(values) for values in course.values()} == {10}
    assert course["pieces"] == pytest.approx([10, 0, 0, 40, 0, 0, 0, 0, 0, 20])
    assert course["open"] == pytest.approx([1.5, 1, 0.5, 0, 0, 0, 0, 0, 0, 1])
    assert course["waiting"] == pytest.approx([0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0.5])
    assert course["arrived"] == pytest.approx([20, 0, 0, 0, 0, 0, 0, 0, 0, 20])
    assert course["failed"] == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0, 0, 20])
    assert course["ttft_p50"] == [pytest.approx(100)] + 9 * [None] and course["ttft_p99"][0] == pytest.approx(149)


def test_long_runs_have_wider_columns_not_more_of_them():
    n = 604800 * 10
    course, width = load_page().columns({"total_s": 604800, "records": [],
                                         "pieces": {"tick_s": 0.1, "counts": [0] * (n - 1) + [7]}})
    assert len(course["pieces"]) == 180 and width == pytest.approx(3360)
    assert course["pieces"][-1] == pytest.approx(7 / 3360)


# ---- plots ----------------------------------------------------------------------------------------------------------


def paths(svg):
    return [p.get("d") for p in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path") if p.get("fill") == "none"]


def test_a_line_goes_through_its_points():
    """The drawing goes from 64 to 544, and upwards from 272 to 40."""
    svg = plot.svg("a < b", "x", "y & z", [('"line"', [(0, 0), (5, 100), (10, 50)], None)], top=100)
    assert paths(svg) == ["M64.0 272.0h0L304.0 40.0L544.0 156.0"]
    assert "a &lt; b" in svg and "y &amp; z" in svg and "&quot;line&quot;" in svg and ">10</text>" in svg


@pytest.mark.parametrize("base, xs", [(10, (1, 10, 100)), (2, (4, 16, 64))])
def test_a_logarithmic_axis_gives_equal_ratios_equal_distances(base, xs):
    svg = plot.svg("", "", "", [("", list(zip(xs, (0, 50, 100))), None)], base=base, top=100)
    assert paths(svg) == ["M64.0 272.0h0L304.0 156.0L544.0 40.0"]
    assert all(f">{x}</text>" in svg for x in xs)


def test_points_that_are_no_numbers_are_gaps():
    points = [(0, 1), (1, math.nan), (2, 1), (3, 1), (4, math.inf), (5, None)]
    line, = paths(plot.svg("", "", "", [("", points, plot.DASHES[1])]))
    assert line.count("M") == line.count("h0") == 2 and line.count("L") == 1


@pytest.mark.parametrize("base", [None, 10])
@pytest.mark.parametrize("points", [[], [(0, 0)], [(0, 0), (0, 0)], [(1e-300, 1e300), (1e300, 1e-300)], [(math.nan, math.nan)],
                                    [(5, 5), (5, 5)], [(1e9, 1e12), (1e9 + 1, 1e12)]])
def test_plots_of_any_range_are_finite_and_small(points, base):
    svg = plot.svg("", "", "", [("", points, None)], base=base)
    ElementTree.fromstring(svg)
    assert len(svg) < 100000 and "nan" not in svg and "inf" not in svg
