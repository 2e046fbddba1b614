"""Tables, figures and the page: what they say, what they must never do."""

import dataclasses
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
from leanbayes.report import columns, figure, plots, scatter
from leanbayes.report.html import page
from leanbayes.report.summary import summary
from tests.report.examples import NASTY, classification, many, regression, rich


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
        "twelve": page([dataclasses.replace(e, curves={}, history=[]) for e in many(12)]),
        "bare": page([Evaluation("bare", "classification", 1, {"accuracy": 1.0, "ece": math.nan})]),
    }


@pytest.mark.parametrize("kind", ["one", "several", "twelve", "rich", "rich several", "regression", "nasty", "bare"])
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
        plots.reliability_overlay([e]),
        scatter.quality_and_cost([e, classification("b")], 4.6),
        plots.coverage({"a": r.curves["coverage"]}),
        scatter.quality_and_cost([r, regression("b")], 11.0),
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


def test_a_summary_says_what_is_noise_and_what_is_calibrated():
    a = Evaluation("a", "classification", 100, {"accuracy": 0.90, "confidence": 0.9, "ece": 0.01, "nll": 0.3})
    b = Evaluation("b", "classification", 100, {"accuracy": 0.91, "confidence": 0.5, "ece": 0.41, "nll": 0.9})
    both = " ".join(summary([a, b]))
    assert "within sampling noise" in both
    assert "The best NLL is 0.3000 (a), the worst 0.9000 (b); the best ECE is 0.0100 (a)." in both
    assert "can be trusted" in " ".join(summary([a]))
    assert "under-confident" in " ".join(summary([b]))
    assert "too narrow" in " ".join(summary([regression(scale=0.2)]))


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_a_summary_has_at_most_five_sentences_and_the_scores_of_the_table(count):
    found = many(count)
    said = summary(found)
    assert len(said) <= 5
    shown = {c.text(e) for c in columns.quality(found, full=False) for e in found if c.key.startswith("ood.")}
    assert shown & set(re.findall(r"AUROC (0\.\d{3})", " ".join(said)))
    assert set(re.findall(r"AUROC (0\.\d{3})", " ".join(said))) <= shown


def test_a_summary_makes_no_claim_from_the_noise_of_a_clock():
    def model(name, seconds):
        return Evaluation(name, "classification", 100, {"accuracy": 0.9}, cost={"predict_seconds": seconds})

    assert "equally long" in summary([model("a", 1.0), model("b", 2.6)])[-1]
    assert "b take about 30 times as long as those of a" in summary([model("a", 1.0), model("b", 31.0)])[-1]


def test_models_are_rows_and_twelve_of_them_look_different(pages):
    head, *rows = re.findall(
        r"<tr>(.*?)</tr>", pages["twelve"].partition("<table class=models>")[2].partition("</table>")[0]
    )
    assert [re.findall("scope=row>(.*?)</th>", row) for row in rows] == [
        [e.name.replace(" %", "&nbsp;%")] for e in many(12)
    ]
    assert len(re.findall("scope=col ", head)) == len(columns.quality(many(12), full=False))
    looks = {(s["color"], s["marker"], str(s["linestyle"])) for s in map(figure.style, range(12))}
    assert len(looks) == len({look[1] for look in looks}) == 12


def test_times_of_different_batches_are_not_compared():
    a, b = (dataclasses.replace(rich(rows=20), settings={"latency": {"batch": size}}) for size in (64, 16))
    assert "latency_batch" in {c.key for c in columns.cost([a])}
    assert "latency_batch" not in {c.key for c in columns.cost([a, b])}


def test_the_caption_speaks_of_a_front_only_where_one_is_drawn():
    cheapest_is_best = many(2)
    dear = dataclasses.replace(cheapest_is_best[0], cost=cheapest_is_best[0].cost | {"predict_seconds": 1.0})
    assert "Pareto front" not in page(cheapest_is_best)
    assert "Pareto front" in page([dear, cheapest_is_best[1]])


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
