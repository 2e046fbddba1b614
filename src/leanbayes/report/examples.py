"""Example images with the annotations of experts and the samples and maps of uncertainty of models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .column import written
from .masks import STROKES
from .parts import text

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation

CAPTION = (
    "Images chosen at random by how much the experts disagree, whatever the models say. Outlined: what each expert "
    "marked, and what each of the first samples does. The maps go from dark (0) to light: share and probability of the "
    "foreground to 1, entropy and mutual information to {top:.2f} nats."
)


def card(evaluations: Sequence[Evaluation]) -> str:
    """A card with a small table for each image: a row of the experts, and one for each model."""
    having = [e for e in evaluations if e.curves.get("examples")]
    if not having:
        return ""
    first = having[0].curves["examples"]
    by_index = [{example["index"]: example for example in e.curves["examples"]} for e in having]
    tables = [
        _table(number, example, [(e, found[example["index"]]) for e, found in zip(having, by_index, strict=True)])
        for number, example in enumerate(first)
        if all(example["index"] in found and _same(example, found[example["index"]]) for found in by_index)
    ]
    if not tables:
        return ""
    classes = len(first[0]["experts"][0]) + 1
    words = text(CAPTION.format(top=math.log(classes)))
    return (
        f"<div class=card><h3>What the experts see, and what the model does</h3>"
        f"<div class=looks>{''.join(tables)}</div><p class=meta>{words}</p></div>"
    )


def _table(number: int, example: Mapping[str, Any], rows: Sequence[tuple[Evaluation, Mapping[str, Any]]]) -> str:
    """The table of one image."""
    width, height = example["size"]
    where, name = f"look{number}", f"image {example['index']}"
    pixels = (
        f'<image id="{where}" href="data:image/png;base64,{text(example["image"])}" width="{width}" height="{height}"/>'
    )
    columns = max(len(example["experts"]), *(len(found["samples"]) for _, found in rows))
    empty, head = "<td></td>", ["", name, *map(str, range(1, columns + 1)), "mean", "entropy", "mutual information"]

    def outlined(each: Sequence[Sequence[str]], who: str) -> Iterator[str]:
        for at in range(columns):
            yield _cell(_lines(each[at], where), f"{name}, {who} {at + 1}", example) if at < len(each) else empty

    doubt = example["scores"].get("diversity.experts")
    apart = f"<small>{text(written(doubt, 'number'))} apart</small>" if doubt is not None else ""
    first = [
        f"<th scope=row>Experts{apart}</th>",
        _cell(pixels, name, example),
        *outlined(example["experts"], "expert"),
    ]
    first += [
        _map(example, key, f"{name}, {key.replace('_', ' ')} of the experts") for key in ("share", "expert_entropy")
    ]
    body = [*first, empty]
    for e, found in rows:
        score = found["scores"].get("ged.unbiased", found["scores"].get("ged.plug_in"))
        far = f"<small>GED {text(written(score, 'number'))}</small>" if score is not None else ""
        body += ["</tr><tr>", f"<th scope=row>{text(e.name)}{far}</th>", empty, *outlined(found["samples"], "sample")]
        keys = ("mean", "entropy", "mutual_information")
        body += [_map(found, key, f"{name}, {key.replace('_', ' ')} of {e.name}") for key in keys]
    top = "".join(f"<th scope=col>{text(words)}</th>" for words in head)
    return (
        f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody><tr>{''.join(body)}</tr></tbody></table></div>"
    )


def _lines(outlines: Sequence[str], where: str) -> str:
    """The image with an outline of each class in its colour."""
    paths = (
        f'<path d="{text(outline)}" stroke="{STROKES[label % len(STROKES)]}"/>'
        for label, outline in enumerate(outlines)
    )
    return f'<use href="#{where}"/>{"".join(paths)}'


def _map(found: Mapping[str, Any], key: str, words: str) -> str:
    width, height = found["size"]
    data = f"data:image/png;base64,{text(found[key])}"
    return _cell(f'<image href="{data}" width="{width}" height="{height}"/>', words, found)


def _cell(inner: str, words: str, example: Mapping[str, Any]) -> str:
    width, height = example["size"]
    return f'<td><svg role="img" aria-label="{text(words)}" viewBox="0 0 {width} {height}">{inner}</svg></td>'


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two models have examples of the same image with the same annotations."""
    return all(a[key] == b[key] for key in ("size", "image", "experts"))
