import html
import json
import math
import re
from pathlib import Path

import pytest
from browser import chromium, open_page

import pdml

pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")]

PAGE = Path(pdml.__file__).parent / "reporting" / "page"
SIZES = [(1200, 900), (360, 740)]
RETURN, ERROR, WEIGHTS, EMPTY = "Hopper-v5/return", "Hopper-v5/error", "Hopper-v5/weights/pdml/0", "Hopper-v5/none"

STEPS = [1000 * (i + 1) for i in range(12)]
RISING = [250.0 + 260.5 * i for i in range(12)]
BROKEN = [40.0, 75.5, 110.0, 160.0, None, None, 290.25, 330.0, 350.0, 380.0, 410.0, 433.0]


def spread(mean, by):
    return [None if value is None else value + by for value in mean]


PDML = {"method": "pdml", "x": STEPS, "mean": RISING, "low": spread(RISING, -120), "high": spread(RISING, 130)}
PDML["seeds"] = [3] * 8 + [1] * 4
MBPO = {"method": "mbpo", "x": STEPS, "mean": BROKEN, "low": spread(BROKEN, -20), "high": spread(BROKEN, 25)}
MBPO["seeds"] = [2, 2, 2, 2, 0, 0, 2, 2, 2, 2, 2, 2]
PAPER = {"method": "pdml", "label": "paper, PDML-MBPO", "x": [4000, 8000, 12000], "mean": [1000.0, 2500.0, 4500.0]}
PAPER |= {"low": [800.0, 2300.0, 4300.0], "high": [1200.0, 2700.0, 4700.0], "half_bin": 500}
DATA = {
    "methods": [
        {"name": "pdml", "label": "PDML-MBPO", "color": "#0072B2", "dash": ""},
        {"name": "mbpo", "label": "MBPO <i>& co</i>", "color": "#D55E00", "dash": "6 3"},
    ],
    "panels": [
        {"id": RETURN, "kind": "curves", "x": "real steps after warm-up", "y": "return", "log": False}
        | {"series": [PDML, MBPO], "reference": [PAPER]},
        {
            "id": ERROR,
            "kind": "curves",
            "x": "real steps after warm-up",
            "y": "model error",
            "log": True,
            "reference": [],
        }
        | {"series": [PDML | {"mean": [10.0 ** -(i / 4) for i in range(12)], "low": None, "high": None}]},
        {"id": WEIGHTS, "kind": "heat", "x": "real steps after warm-up", "y": "policy", "value": "share of the block"}
        | {"xs": [250, 500, 750], "rows": 3, "columns": [[1.0], [0.25, 0.75], [0.0, 0.01, 0.99]]},
        {"id": EMPTY, "kind": "curves", "x": "real steps", "y": "return", "log": False, "series": [], "reference": []},
    ],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A report as Python writes it: words and tables in the html, all else drawn from the data."""
    figures = "".join(
        f'<figure class="panel" data-panel="{panel["id"]}"><h3>{panel["y"]}</h3><figcaption>Text</figcaption></figure>'
        for panel in DATA["panels"]
    )
    cells = "".join(f"<td>a wide cell, the {i}th</td>" for i in range(12))
    data = json.dumps(DATA).replace("<", "\\u003c")  # no name can end the script
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Report</title>
        <meta name="viewport" content="width=device-width, initial-scale=1">
        <style>{(PAGE / "page.css").read_text()}</style></head><body><h1>{html.escape("Report <of> runs")}</h1>
        <div id="legend"></div><h2 id="hopper">Hopper-v5</h2><a id="link" href="#hopper">Hopper</a>
        <div class="scroll"><table><tr><th>method</th>{cells}</tr></table></div><div class="panels">{figures}</div>
        <details><summary>Differences</summary><p>None.</p></details>
        <script type="application/json" id="data">{data}</script>
        <script>{(PAGE / "page.js").read_text()}</script></body></html>""")
    return path


@pytest.fixture(scope="module")
def browser(file):
    with open_page(file, *SIZES[0]) as page:
        yield page


@pytest.fixture(params=SIZES, ids=["desk", "phone"])
def page(request, browser, file):
    browser.resize(*request.param)
    browser.go(file)
    yield browser
    assert browser.errors == []  # neither on loading nor after all that a test did


def figure(panel):
    return f'figure[data-panel="{panel}"]'


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")


def axis(page, panel, which):
    """The ticks of an axis as (value, pixel), in order of the values."""
    selector = json.dumps(f"{figure(panel)} .tick-{which}")
    read = f"[...document.querySelectorAll({selector})].map((t) => [+t.dataset.value, +t.getAttribute('{which}')])"
    return sorted(page.evaluate(read))


def value_at(pixel, ticks, log=False):
    """What the axis says about a pixel: a line through its first and last tick."""
    (low, start), (high, end) = ticks[0], ticks[-1]
    if log:
        return 10 ** value_at(pixel, [(math.log10(low), start), (math.log10(high), end)])
    return low + (pixel - start) / (end - start) * (high - low)


def pieces(page, selector):
    """The connected pieces of a path, each a list of points in pixels."""
    d = page.evaluate(f"document.querySelector({json.dumps(selector)}).getAttribute('d')")
    return [
        [tuple(map(float, point)) for point in re.findall(r"([-\d.]+),([-\d.]+)", piece)] for piece in d.split("M")[1:]
    ]


def share_of(page, panel, pixel):
    """Where a pixel of the drawing is, as a share of the plot's width."""
    viewbox = page.evaluate(f"document.querySelector('{figure(panel)} .plot > svg').getAttribute('viewBox')")
    return pixel / float(viewbox.split()[2])


def tip(page, panel):
    """The rows of a tooltip, or None where none is seen."""
    return page.evaluate(f"""(() => {{
        const tip = document.querySelector('{figure(panel)} .tip');
        if (tip === null || tip.hidden || tip.offsetWidth === 0) return null;
        const rows = [...tip.querySelectorAll("tr")];
        return [[tip.querySelector(".at").textContent],
                ...rows.map((row) => [...row.cells].map((cell) => cell.textContent).filter((text) => text !== ""))];
    }})()""")


def at_step(page, panel, step):
    """The selector and the place at which a pointer is over a step."""
    pixel = value_at(step, [(pixel, tick) for tick, pixel in axis(page, panel, "x")])
    return f"{figure(panel)} .plot", share_of(page, panel, pixel), 0.4


def test_each_series_is_one_line(page):
    assert count(page, f"{figure(RETURN)} path.mean") == 2
    assert count(page, f"{figure(ERROR)} path.mean") == 1
    assert count(page, "path.mean") == 3
    assert count(page, f'path.mean[data-method="mbpo"][data-panel="{RETURN}"]') == 1
    assert count(page, "canvas") == 1


def test_the_curves_are_where_the_axes_say(page):
    x, y = axis(page, RETURN, "x"), axis(page, RETURN, "y")
    (line,) = pieces(page, f'{figure(RETURN)} path.mean[data-method="pdml"]')
    assert [value_at(point[0], x) for point in line] == pytest.approx(STEPS, abs=1)
    assert [value_at(point[1], y) for point in line] == pytest.approx(RISING, abs=1)
    (line,) = pieces(page, f"{figure(ERROR)} path.mean")
    values = [value_at(point[1], axis(page, ERROR, "y"), log=True) for point in line]
    assert values == pytest.approx(DATA["panels"][1]["series"][0]["mean"], rel=2e-3)


def test_a_curve_is_broken_where_there_is_no_value(page):
    line = pieces(page, f'{figure(RETURN)} path.mean[data-method="mbpo"]')
    assert [len(piece) for piece in line] == [4, 6]
    y = axis(page, RETURN, "y")
    assert [value_at(point[1], y) for piece in line for point in piece] == pytest.approx(
        [value for value in BROKEN if value is not None], abs=1
    )


def test_one_seed_has_no_band(page):
    (band,) = pieces(page, f'{figure(RETURN)} path.band[data-method="pdml"]')
    x, y = axis(page, RETURN, "x"), axis(page, RETURN, "y")
    assert len(band) == 2 * 8
    assert value_at(max(point[0] for point in band), x) == pytest.approx(8000, abs=1)
    assert value_at(band[0][1], y) == pytest.approx(PDML["high"][0], abs=1)


def test_a_method_is_switched_off_everywhere(page):
    before = axis(page, RETURN, "y")
    page.click('#legend [data-method="pdml"]')
    assert page.evaluate("document.querySelector('#legend [data-method=pdml]').ariaPressed") == "false"
    assert count(page, '.plot [data-method="pdml"]') == 0
    assert count(page, 'path.mean[data-method="mbpo"]') == 1
    after = axis(page, RETURN, "y")
    assert before[-1][0] >= 4000
    assert after[-1][0] <= 500
    page.click('#legend [data-method="mbpo"]')
    assert "switched off" in page.evaluate(f"document.querySelector('{figure(RETURN)} .plot').textContent")
    page.click('#legend [data-method="pdml"]')
    page.click('#legend [data-method="mbpo"]')
    assert axis(page, RETURN, "y") == before
    assert page.evaluate("location.hash") == ""


def test_the_paper_is_switched_off(page):
    assert count(page, ".reference .marker") == 3
    assert count(page, ".reference .whisker") == 6
    page.click('#legend [data-toggle="paper"]')
    assert count(page, ".reference") == 0
    assert count(page, "path.mean") == 3
    assert page.evaluate("location.hash") == "#paper=off"


def test_a_link_keeps_what_is_shown(page, file):
    page.click('#legend [data-method="mbpo"]')
    page.click('#legend [data-toggle="paper"]')
    page.go(file, page.evaluate("location.hash"))
    assert count(page, "path.mean") == 2
    assert count(page, ".reference") == 0
    assert page.evaluate("[...document.querySelectorAll('#legend button')].map((b) => b.ariaPressed)") == [
        "true",
        "false",
        "false",
    ]
    page.click("#link")  # to a heading, which says nothing about the curves
    assert page.evaluate("location.hash") == "#hopper"
    assert count(page, "path.mean") == 2


def test_the_tooltip_tells_the_numbers(page):
    page.hover(*at_step(page, RETURN, 4100))
    assert tip(page, RETURN) == [
        ["real steps after warm-up: 4000"],
        ["PDML-MBPO", "1032", "[911.5, 1162]", "3 seeds"],  # 250 + 3 * 260.5 = 1031.5
        ["MBPO <i>& co</i>", "160", "[140, 185]", "2 seeds"],
        ["paper, PDML-MBPO", "1000", "[800, 1200]"],
    ]
    page.hover(*at_step(page, RETURN, 10900))
    assert tip(page, RETURN)[1:] == [
        ["PDML-MBPO", "2855", "1 seed"],
        ["MBPO <i>& co</i>", "410", "[390, 435]", "2 seeds"],
    ]
    page.hover(*at_step(page, RETURN, 5000))
    assert tip(page, RETURN)[2] == ["MBPO <i>& co</i>", "no value"]
    page.hover("h1")
    assert tip(page, RETURN) is None


def test_a_finger_does_what_the_mouse_does(page):
    page.touch(*at_step(page, RETURN, 2000))
    assert tip(page, RETURN)[1] == ["PDML-MBPO", "510.5", "[390.5, 640.5]", "3 seeds"]
    page.touch("h1")
    assert tip(page, RETURN) is None


def test_a_heat_map_shows_its_cells(page):
    read = f"""(() => {{
        const canvas = document.querySelector('{figure(WEIGHTS)} canvas');
        const {{width, height}} = canvas;
        const image = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        const pixel = (column, row) => {{
            const at = Math.floor((2.5 - row) / 3 * height) * width + Math.floor((column + 0.5) / 3 * width);
            return [...image.slice(4 * at, 4 * at + 4)];
        }};
        return [pixel(0, 0), pixel(0, 1), pixel(1, 2), pixel(2, 0), pixel(2, 1), pixel(2, 2)];
    }})()"""
    largest, empty, also_empty, zero, low, high = page.evaluate(read)
    assert largest == [253, 231, 37, 255]
    assert empty == also_empty == [0, 0, 0, 0]
    assert zero == low == [68, 1, 84, 255]  # 0.01 is the smallest that is not 0
    assert high[:2] == pytest.approx([253, 231], abs=3)
    page.hover(f"{figure(WEIGHTS)} canvas", 0.5, 0.5)
    assert tip(page, WEIGHTS) == [["real steps after warm-up: 500"], ["policy", "1"], ["share of the block", "0.75"]]
    page.hover(f"{figure(WEIGHTS)} canvas", 0.1, 0.1)
    assert tip(page, WEIGHTS)[2] == ["share of the block", "none yet"]


def test_an_empty_panel_says_so(page):
    assert page.evaluate(f"document.querySelector('{figure(EMPTY)} .plot').textContent") == "no data"
    page.hover(f"{figure(EMPTY)} .plot")
    page.touch(f"{figure(EMPTY)} .plot")
    assert tip(page, EMPTY) is None


def test_names_are_text_and_never_markup(page):
    assert page.evaluate("document.querySelector('#legend [data-method=mbpo]').textContent") == "MBPO <i>& co</i>"
    assert count(page, "i") == 0


def test_nothing_but_wide_tables_scrolls_sideways(page, request):
    width, _ = request.node.callspec.params["page"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.touch(*at_step(page, RETURN, 12000))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "(() => { const s = document.querySelector('.scroll'); return s.scrollWidth > s.clientWidth })()"
    )


WIDTHS = f"""new Promise((done) => setTimeout(() => {{
    const plot = document.querySelector('{figure(RETURN)} .plot');
    done([plot.clientWidth, plot.firstChild.viewBox.baseVal.width]);
}}, 100))"""


def test_text_keeps_its_size_when_the_window_changes(page):
    for width in (700, 420):
        page.resize(width, 800)
        there, drawn = page.evaluate(WIDTHS)
        assert drawn == there
        assert drawn < width


def test_the_page_prints_and_comes_back(page, tmp_path):
    before = page.evaluate(WIDTHS)
    drawn = f"document.querySelector('{figure(RETURN)} .plot > svg').viewBox.baseVal.width"
    page.evaluate(f"addEventListener('beforeprint', () => {{ document.body.dataset.printed = {drawn} }})")
    page.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert page.evaluate("document.body.dataset.printed") == "320"  # half of a page of A4
    assert page.evaluate(WIDTHS) == before


def test_the_page_can_be_pictured(page, tmp_path):
    page.screenshot(tmp_path / "report.png")
    picture = (tmp_path / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000


def test_faults_of_a_page_are_seen(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("""<script>console.warn("careful")</script><script>missing()</script>
        <img src="other.png">""")
    with open_page(path, 400, 300) as page:
        found = "\n".join(page.errors)
    assert "console: ['careful']" in found
    assert "missing is not defined" in found
    assert f"request: {(tmp_path / 'other.png').as_uri()}" in found
