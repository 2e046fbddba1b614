"""A cascade as one ONNX graph: the rows that a stage is unsure of go on to the next, the others stay."""

from __future__ import annotations

from typing import Any

import numpy as np

STAGE = "stage"
"""The output that says which stage answered."""


def cascaded(graphs: list[Any], stages: list[int], score: str, thresholds: list[float]) -> Any:
    """One model of several, all with the same inputs and outputs, among these ``probs``.

    A stage takes the rows whose score at the stage before is above its threshold (`Cascade.unsureness`), and its
    answers replace theirs; where there are none, it does not run.

    graphs: an ONNX model a stage. stages: what each of them is called in the output "stage". thresholds: of all but the
    last.
    """
    import onnx
    from onnx import compose, helper

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
        return helper.make_node(kind, inputs, [output], **attributes)

    def constant(name: str, value: Any) -> Any:
        return node("Constant", [], name, value=onnx.numpy_helper.from_array(np.asarray(value)))

    first = graphs[0].graph
    inputs, outputs = [value.name for value in first.input], [value.name for value in first.output]
    kinds = {value.name: value.type.tensor_type.elem_type for value in first.output} | {STAGE: onnx.TensorProto.INT64}

    def stage(k: int, given: dict[str, str]) -> tuple[list[Any], list[Any]]:
        """The nodes and weights that answer rows from stage k on; the answers are called "k.NAME.answer".

        given: the name of the rows of each input.
        """
        name = lambda what: f"{k}.{what}"  # noqa: E731
        own = compose.add_prefix_graph(graphs[k].graph, f"{k}/")
        nodes = [node("Identity", [rows], f"{k}/{what}") for what, rows in given.items()] + list(own.node)
        nodes += [node("Identity", [f"{k}/{what}"], name(what)) for what in outputs]
        weights = list(own.initializer)
        nodes += [
            node("Shape", [name("entropy")], name("rows")),
            node("ConstantOfShape", [name("rows")], name(STAGE), value=helper.make_tensor("", 7, [1], [stages[k]])),
        ]
        if k + 1 == len(graphs):
            nodes += [node("Identity", [name(what)], name(f"{what}.answer")) for what in kinds]
            return nodes, weights
        nodes += [
            *_score(score, k, node, constant),
            constant(name("threshold"), np.float32(thresholds[k])),
            node("Greater", [name("score"), name("threshold")], name("unsure")),
            node("Cast", [name("unsure")], name("ones"), to=7),
            node("ReduceMax", [name("ones")], name("most"), keepdims=0),
            node("Cast", [name("most")], name("any"), to=9),
        ]
        inner = [
            node("NonZero", [name("unsure")], name("index.row")),
            constant(name("index.axis"), np.array([0], dtype=np.int64)),
            node("Squeeze", [name("index.row"), name("index.axis")], name("index")),
            node("Transpose", [name("index.row")], name("index.column"), perm=[1, 0]),
            *(node("Gather", [f"{k}/{what}", name("index")], name(f"{what}.unsure"), axis=0) for what in inputs),
        ]
        more, further = stage(k + 1, {what: name(f"{what}.unsure") for what in inputs})
        inner += more
        inner += [
            node("ScatterND", [name(what), name("index.column"), f"{k + 1}.{what}.answer"], name(f"{what}.scattered"))
            for what in kinds
        ]
        stay = [node("Identity", [name(what)], name(f"{what}.kept")) for what in kinds]
        nodes.append(
            helper.make_node(
                "If",
                [name("any")],
                [name(f"{what}.answer") for what in kinds],
                then_branch=helper.make_graph(inner, f"stage {k + 1}", [], described(k, "scattered"), further),
                else_branch=helper.make_graph(stay, f"only stage {k}", [], described(k, "kept")),
            )
        )
        return nodes, weights

    def described(k: int, suffix: str) -> list[Any]:
        return [helper.make_tensor_value_info(f"{k}.{what}.{suffix}", kind, None) for what, kind in kinds.items()]

    nodes, weights = stage(0, {what: what for what in inputs})
    nodes += [node("Identity", [f"0.{what}.answer"], what) for what in kinds]
    answered = helper.make_tensor_value_info(STAGE, onnx.TensorProto.INT64, ["batch"])
    whole = helper.make_graph(nodes, "cascade", list(first.input), [*first.output, answered], weights)
    made = helper.make_model(whole, opset_imports=graphs[0].opset_import, ir_version=graphs[0].ir_version)
    made.functions.extend({(f.domain, f.name): f for graph in graphs for f in graph.functions}.values())
    return made


def _score(score: str, k: int, node: Any, constant: Any) -> list[Any]:
    """How unsure stage k is of every row, as "k.score"."""
    if score in ("entropy", "mutual_information"):
        return [node("Identity", [f"{k}.{score}"], f"{k}.score")]
    two = score == "margin"
    start = [
        constant(f"{k}.best.count", np.array([2 if two else 1], dtype=np.int64)),
        _topk(k),
        constant(f"{k}.signs", np.array([[1], [-1]] if two else [[1]], dtype=np.float32)),
        node("MatMul", [f"{k}.best", f"{k}.signs"], f"{k}.lead.column"),
        constant(f"{k}.lead.axis", np.array([1], dtype=np.int64)),
        node("Squeeze", [f"{k}.lead.column", f"{k}.lead.axis"], f"{k}.lead"),
        constant(f"{k}.one", np.float32(1)),
    ]
    return [*start, node("Sub", [f"{k}.one", f"{k}.lead"], f"{k}.score")]


def _topk(k: int) -> Any:
    from onnx import helper

    return helper.make_node("TopK", [f"{k}.probs", f"{k}.best.count"], [f"{k}.best", f"{k}.best.index"], axis=1)
