"""The page in a real browser, headless: it asks nobody for anything, fits a phone, knows the dark, and prints."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest

from leanbayes.report.html import page
from tests.report.examples import NASTY, many, regression, rich

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


def browse(folder, *arguments):
    """What a browser prints about a page; whatever it would fetch from a network fails, and is logged."""
    calm = ("--disable-background-networking", "--no-first-run", "--disable-extensions", "--virtual-time-budget=2000")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *calm]
    command += [f"--user-data-dir={folder}/profile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    evaluations = {
        "one": [rich(rows=500)],
        "several": many(3),
        "nasty": [rich(NASTY, rows=300), rich(NASTY + "2", rows=300)],
        "regression": [regression("a"), regression("b", 0.2)],
        "twelve": many(12),
    }
    for name, found in evaluations.items():
        (folder / f"{name}.html").write_text(page(found), encoding="utf-8")
    return folder


MEASURE = """
<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="f" style="border:0; width:{width}px; height:4000px" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
  document.getElementById("f").onload = function () {{
    var d = this.contentDocument, w = this.contentWindow, out = [];
    d.querySelectorAll("main *").forEach(function (e) {{
      var box = e.getBoundingClientRect();
      if (box.right > {width} + 1 && !e.closest(".scroll, svg")) out.push(e.tagName + "." + e.className);
    }});
    var found = {{width: d.documentElement.scrollWidth, out: out.slice(0, 5), svgs: d.querySelectorAll("svg").length,
      fetched: w.performance.getEntriesByType("resource").map(function (r) {{ return r.name; }}),
      small: Array.from(d.querySelectorAll("p, dd, td, th, figcaption, small")).filter(function (e) {{
        return parseFloat(w.getComputedStyle(e).fontSize) < 10; }}).length}};
    document.getElementById("found").textContent = JSON.stringify(found);
  }};
</script>
"""


# Boxes of all words, those of a figure too: two that share more than a pixel or two would be read as one.
LAYOUT = r"""
<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="f" style="border:0; width:{width}px; height:4000px" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
  document.getElementById("f").onload = function () {{
    var d = this.contentDocument, w = this.contentWindow, words = [], overlaps = [], areas = [];
    d.querySelectorAll("details").forEach(function (e) {{ e.open = true; }});
    d.querySelectorAll("svg [id*='-axes_'] > [id*='-patch_']:first-child").forEach(function (e) {{
      var box = e.getBoundingClientRect();
      if (box.width) areas.push({{title: e.closest("svg").getAttribute("aria-label"), height: box.height}});
    }});
    var walker = d.createTreeWalker(d.querySelector("main"), NodeFilter.SHOW_TEXT), node;
    while (node = walker.nextNode()) {{
      if (!node.data.trim() || node.parentElement.closest("title, desc, style")) continue;
      var range = d.createRange();
      range.selectNodeContents(node);
      for (var box of range.getClientRects()) {{
        if (box.width > 1 && box.height > 1) words.push({{text: node.data.trim(), box: box}});
      }}
    }}
    words.sort(function (a, b) {{ return a.box.top - b.box.top; }});
    words.forEach(function (a, i) {{
      for (var j = i + 1; j < words.length && words[j].box.top < a.box.bottom; j++) {{
        var b = words[j];
        var wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        var high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (wide > 1 && high > 0.3 * Math.min(a.box.height, b.box.height)) overlaps.push(a.text + " | " + b.text);
      }}
    }});
    var broken = [];  // words of headings that go on in the next line
    d.querySelectorAll(".models thead th").forEach(function (e) {{
      for (var m of e.firstChild.data.matchAll(/[^\s-]{{1,12}}(?=[\s-]|$)/g)) {{
        var word = d.createRange();
        word.setStart(e.firstChild, m.index);
        word.setEnd(e.firstChild, m.index + m[0].length);
        if (word.getClientRects().length > 1) broken.push(m[0]);
      }}
    }});
    var uneven = Array.from(d.querySelectorAll(".grid > *")).filter(function (e) {{
      return w.getComputedStyle(e).marginTop != "0px"; }}).length;
    var found = {{areas: areas, words: words.length, overlaps: overlaps.slice(0, 10), broken: broken, uneven: uneven}};
    document.getElementById("found").textContent = JSON.stringify(found);
  }};
</script>
"""


def measured(folder, name, width, script=MEASURE):
    """What a script finds in the page, at a width of the window."""
    text = (folder / f"{name}.html").read_text(encoding="utf-8")
    frame = folder / f"{name}-{width}-frame.html"
    frame.write_text(script.format(width=width, page=escape(text)), encoding="utf-8")
    dom = browse(folder, "--window-size=1400,4100", "--dump-dom", frame.as_uri())
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("name", ["one", "several", "twelve", "nasty", "regression"])
def test_plots_have_room_and_no_words_overlap(pages, name, width):
    found = measured(pages, name, width, LAYOUT)
    assert len(found["areas"]) >= 2
    assert [area for area in found["areas"] if area["height"] < 150] == []
    assert found["words"] > 50
    assert found["overlaps"] == []
    assert found["broken"] == []
    assert found["uneven"] == 0


def test_the_check_of_the_layout_sees_squeezed_plots_and_words_on_words(tmp_path):
    plot = '<svg aria-label="p"><g id="f1-axes_1"><g id="f1-patch_2"><path d="M 0 0 L 9 0 L 9 30 Z"/></g></g></svg>'
    (tmp_path / "bad.html").write_text(f"<main>{plot}<p>one</p><p style='margin-top:-2.2em'>two</p></main>")
    found = measured(tmp_path, "bad", 390, LAYOUT)
    assert [area["height"] for area in found["areas"]] == [30]
    assert found["overlaps"] == ["two | one"]


@pytest.mark.parametrize("name", ["one", "several", "twelve", "nasty", "regression"])
def test_it_fits_a_phone_and_fetches_nothing(pages, name):
    found = measured(pages, name, 390)
    assert found["fetched"] == []
    assert found["width"] <= 390
    assert found["out"] == []
    assert found["small"] == 0
    assert found["svgs"] >= 1


def test_dark_is_dark_and_light_is_light(pages):
    image = pytest.importorskip("PIL.Image")
    brightness = {}
    for mode, flags in {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}.items():
        target = pages / f"{mode}.png"
        shot = (f"--screenshot={target}", "--window-size=1000,1200", (pages / "one.html").as_uri())
        browse(pages, *flags, *shot)
        with image.open(target) as picture:
            assert picture.size == (1000, 1200)
            pixels = picture.convert("L").resize((50, 60)).tobytes()
            brightness[mode] = sum(pixels) / len(pixels)
    assert brightness["light"] > 200
    assert brightness["dark"] < 60


def test_it_prints_on_a_few_pages(pages):
    target = pages / "page.pdf"
    browse(pages, f"--print-to-pdf={target}", "--no-pdf-header-footer", (pages / "one.html").as_uri())
    data = Path(target).read_bytes()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 10
