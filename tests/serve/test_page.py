"""The page in a real browser, headless: an image is dropped, and its prediction is seen."""

import base64
import json
import re
import shlex
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from leanbayes.serve.config import Settings
from tests.serve.helpers import image_predictor, number_predictor, package, running
from tests.serve.test_bodies import image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.extra

# A page of the same origin that does what a person does, and writes down what it sees.
DRIVER = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="f" style="border:0; width:390px; height:1100px" src="/"></iframe><pre id="found"></pre>
<script>
const wait = (what) => new Promise((done) => { const t = setInterval(() => { const v = what();
  if (v) { clearInterval(t); done(v); } }, 20); });
document.getElementById("f").onload = async function () {
  const d = this.contentDocument, w = this.contentWindow;
  await wait(() => d.querySelector("#drop:not([hidden]), #typed:not([hidden])"));
  if (d.querySelector("#drop").hidden) d.querySelector("#ask").click();
  else {
    const bytes = Uint8Array.from(atob("IMAGE"), (c) => c.charCodeAt(0));
    const data = new w.DataTransfer();
    data.items.add(new w.File([bytes], "seven.png", {type: "image/png"}));
    const how = {dataTransfer: data, bubbles: true, cancelable: true};
    d.querySelector("#drop").dispatchEvent(new w.DragEvent("drop", how));
  }
  await wait(() => d.querySelector("#verdict"));
  const wide = [];
  for (const e of d.querySelectorAll("main *"))
    if (e.getBoundingClientRect().right > 391) wide.push(e.tagName + e.id);
  const text = (s) => Array.from(d.querySelectorAll(s)).map((e) => e.textContent);
  document.getElementById("found").textContent = JSON.stringify({verdict: text("#verdict")[0], rows: text(".row .name"),
    numbers: text(".row .number"), dots: text(".dot").length, spreads: text(".spread").length,
    heads: text("h2"), wide: wide, width: d.documentElement.scrollWidth, words: d.querySelector("main").innerText,
    asked: w.performance.getEntriesByType("resource").map((r) => new URL(r.name).pathname)});
};
</script>"""


@pytest.fixture
def browse(tmp_path):
    """browse(predictor, **settings): what the driver sees."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    package("starlette")
    from leanbayes.serve.app import make_app

    def browse(predictor, **settings):
        inner = make_app(predictor, Settings(**settings))
        driver = DRIVER.replace("IMAGE", base64.b64encode(image((6, 6), "L", colour=90)).decode()).encode()

        async def app(scope, receive, send):
            if scope["type"] != "http" or scope["path"] != "/driver":
                return await inner(scope, receive, send)
            headers = [(b"content-type", b"text/html")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            return await send({"type": "http.response.body", "body": driver})

        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        command += ["--disable-background-networking", "--virtual-time-budget=20000", f"--user-data-dir={tmp_path}"]
        with running(app) as port:
            command += ["--dump-dom", f"http://127.0.0.1:{port}/driver"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', done, re.DOTALL)[1]))

    return browse


def test_a_dropped_image_shows_probabilities_and_doubt(browse):
    found = browse(image_predictor(classes=("ant", "bee", "cat", "a very long name of a class <b>")), samples=8)
    assert re.fullmatch(r"(ant|bee|cat|a very .* <b>), \d+ %", found["verdict"])
    assert sorted(found["rows"][:4]) == ["a very long name of a class <b>", "ant", "bee", "cat"]
    assert found["dots"] == 4 * 8
    assert found["spreads"] == 4
    assert sum(float(number.split()[0]) for number in found["numbers"][:4]) == pytest.approx(100, abs=2)
    assert "mutual information" in found["words"]
    assert found["wide"] == []
    assert found["width"] <= 390
    assert set(found["asked"]) == {"/model", "/predict"}  # and nothing from anywhere else


def test_an_abstention_says_why_and_small_numbers_fit(browse):
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.tensor([13.0, 0.0, 0.0, 0.0])  # an entropy of 0.0001
    found = browse(image_predictor(model), min_confidence=1.0)
    assert found["verdict"] == "No answer"
    assert "is below 1" in found["words"]
    assert found["numbers"][-1] == "0.000"
    assert found["wide"] == []


def test_numbers_are_typed_and_shown_with_their_interval(browse):
    found = browse(number_predictor(scale=(100.0, 10.0)), samples=5)
    assert 0 < float(found["verdict"]) < 200
    assert found["heads"] == ["95 % interval"]
    assert found["dots"] == 5
    assert found["wide"] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_commands_of_the_documentation_are_answered(tmp_path):
    package("starlette")
    from leanbayes.serve.app import make_app

    text = (Path(__file__).parents[2] / "docs" / "deploy" / "serve.md").read_text(encoding="utf-8")
    lines = re.findall(r"^curl .*$", text, re.MULTILINE)
    assert len(lines) == 3
    (tmp_path / "seven.png").write_bytes(image((6, 6), "L", colour=90))
    np.save(tmp_path / "images.npy", np.zeros((2, 1, 6, 6), np.float32))
    for predictor, commands in ((image_predictor(), lines[:2]), (number_predictor(), lines[2:])):
        with running(make_app(predictor, Settings())) as port:
            for line in commands:
                command = shlex.split(line.replace(":8000", f":{port}"))
                done = subprocess.run([*command, "-s"], cwd=tmp_path, capture_output=True, check=True, timeout=120)
                assert json.loads(done.stdout)["predictions"]
