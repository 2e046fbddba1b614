"""Tables, figures and the page: what they say, what they must never do."""

import math
import os
import re
import stat
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch

from leanbayes.errors import ArtifactError
from leanbayes.evaluation import Classification, Evaluation, compare
from leanbayes.files import write_bytes, write_text
from leanbayes.report import columns, figure, plots, summary_text
from leanbayes.report.html import page
from tests.report.examples import NASTY, classification, regression, rich


class Strict(HTMLParser):
    """Every tag that is opened is closed, ids are unique, nothing points outside the page."""

    void = {"meta", "br", "link", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.tags, self.outside = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.void:
            self.open.append(tag)
        for key, value in attributes:
            if key == "id":
                self.ids.append(value)
            if key in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.outside.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages():
    pair = [classification("a"), classification("b", 0.5, history=False)]
    return {
        "one": page([classification()]),
        "rich": page([rich()]),
        "rich several": page([rich("plain", 3.0), rich("bayesian")]),
        "several": page(pair),
        "regression": page([regression("a"), regression("b", 0.2)]),
        "nasty": page([classification(NASTY), classification(NASTY + "2")], title=NASTY),
        "bare": page([Evaluation("bare", "classification", 1, {"accuracy": 1.0, "ece": math.nan})]),
    }


@pytest.mark.parametrize("kind", ["one", "several", "rich", "rich several", "regression", "nasty", "bare"])
def test_the_page_is_whole_and_needs_nothing(pages, kind):
    parser = Strict()
    parser.feed(pages[kind])
    assert not parser.open
    assert not parser.outside
    assert len(set(parser.ids)) == len(parser.ids)
    assert not {"script", "link", "iframe", "img"} & set(parser.tags)
    assert not re.search(r"@import|url\((?!#)", pages[kind])
    assert "NaN" not in pages[kind]
    assert "prefers-color-scheme: dark" in pages[kind]
    assert "@media print" in pages[kind]
    assert 'name="viewport"' in pages[kind]


def test_strings_of_the_user_are_escaped_and_not_rewritten(pages):
    assert "<script>" not in pages["nasty"]
    assert "&lt;script&gt;" in pages["nasty"]
    assert "_#2563c9 0.123456" in pages["nasty"]
    assert len(pages["nasty"]) < 1_000_000


def test_the_page_says_how_to_get_it_again(pages):
    assert "<pre>leanbayes a</pre>" in pages["several"]
    assert "<pre>leanbayes b</pre>" in pages["several"]
    assert "torch 2" in pages["several"]
    assert "leanbayes.evaluate(model, loader)" in pages["regression"]
    assert "a note on a" in pages["several"]


def test_figures_are_valid_svg_with_themed_colours():
    e, r = classification(), regression()
    figures = [
        plots.reliability(e.curves["reliability"]),
        plots.confidence(e.curves["confidence"]),
        plots.ood_histograms([e.curves["ood"][0] | {"set": NASTY}], [0.9]),
        plots.training(e.history),
        plots.comparison([e, classification("b")]),
        plots.reliability_overlay([e]),
        plots.quality_and_cost([e, classification("b")]),
        plots.coverage({"a": r.curves["coverage"]}),
        plots.comparison([r, regression("b")]),
    ]
    for text in figures:
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert "var(--series-1, " in text
        assert "<text" in text
        assert not re.search(r"(?<!, )#2563c9", text)
        assert "background" not in text


def test_figures_of_next_to_nothing():
    one = Classification(min_count=0)
    one.update(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    plots.reliability(one.curves()["reliability"])
    plots.confidence(one.curves()["confidence"])
    plots.training([{"epoch": 0, "loss": math.nan}])
    plots.training([{"epoch": 0, "loss": 1.0, "nll": 1.0, "kl": 0.0}])


@pytest.mark.parametrize("which", [1, 2], ids=["light", "dark"])
def test_colours_can_be_told_from_their_background(which):
    def luminance(hexa):
        channels = [int(hexa[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    at = 0 if which == 1 else 2
    ground = luminance(figure.SURFACE[at])
    for entry, least in [*((s, 3.0) for s in figure.SERIES), (figure.INK, 7.0), (figure.MUTED, 4.5)]:
        pair = sorted((luminance(entry[at]), ground))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, entry


def test_the_table_marks_the_best_in_the_right_direction():
    a, b = regression("a"), regression("b", 0.2)
    text = str(compare([a, b]))
    rows = {line.split()[0]: line for line in text.splitlines() if line[:2] in ("a ", "b ")}
    assert rows["a"].count("*") == 2  # log density, coverage; RMSE is the same
    assert "*" not in rows["b"]
    assert "200 test data" in text
    nominal = next(c for c in columns.quality([a, b]) if c.key == "coverage.0.9")
    assert columns.best(nominal, [a, b]) == {0}


def test_a_table_of_one_explains_itself():
    text = str(classification("net"))
    assert "ECE" in text
    assert "how often it is right" in text
    assert "a note on net" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.5, "percent", "50.00 %"),
        (0.0, "amount", "0"),
        (999_999, "amount", "1 M"),
        (2_500_000_000, "bytes", "2.5 GB"),
        (3661, "seconds", "1 h 1 min"),
        (2e-8, "seconds", "0.02 µs"),
        (123456.789, "number", "123,456.79"),
    ],
)
def test_numbers_are_written_with_sense(value, kind, text):
    assert columns.written(value, kind) == text


def test_words_about_noise_and_calibration():
    a = Evaluation("a", "classification", 100, {"accuracy": 0.90, "confidence": 0.9, "ece": 0.01, "nll": 0.3})
    b = Evaluation("b", "classification", 100, {"accuracy": 0.91, "confidence": 0.5, "ece": 0.41, "nll": 0.9})
    both = " ".join(summary_text.summary([a, b]))
    assert "within sampling noise" in both
    assert "a gives the truth the most credit" in both
    assert "taken at its word" in " ".join(summary_text.summary([a]))
    assert "under-confident" in " ".join(summary_text.summary([b]))
    assert "too narrow" in " ".join(summary_text.summary([regression(scale=0.2)]))


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    first, second = (Evaluation(name, "classification", 9, {"accuracy": 0.5}) for name in "ab")
    target = first.save_html(tmp_path / "report.html")
    before = target.read_text()
    assert before.startswith("<!DOCTYPE html>")

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(ArtifactError, match="No space left"):
        second.save_html(target)
    assert target.read_text() == before
    assert os.listdir(tmp_path) == ["report.html"]


def test_files(tmp_path):
    with pytest.raises(ArtifactError, match="mkdir"):
        write_text(tmp_path / "no" / "file", "x")
    with pytest.raises(ArtifactError, match="file name"):
        write_bytes(tmp_path, b"x")
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    assert write_text(link, "né") == link
    assert target.read_text(encoding="utf-8") == "né"
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
