"""A traced graph in ONNX, and what onnxruntime makes of it."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

__all__ = ["onnx_model", "onnx_runner"]


def onnx_model(program: ExportedProgram, outputs: Sequence[str], told: Mapping[str, Any]) -> Any:
    """The ``ModelProto`` with names and metadata, and nothing about the machine that made it."""
    import onnx

    with _quiet():
        made = torch.onnx.export(
            _without_cholesky(program), dynamo=True, verbose=False, external_data=False
        )
    assert made is not None
    model = made.model_proto
    _name(model.graph, outputs)
    _forget_origin(model.graph)
    props = {key: v if isinstance(v, str) else json.dumps(v) for key, v in told.items()}
    onnx.helper.set_model_props(model, props)
    return model


def onnx_runner(content: bytes) -> Callable[[Tensor], dict[str, Tensor]]:
    """The model as a function from ``x`` to outputs by name, by onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x: Tensor) -> dict[str, Tensor]:
        found = session.run(None, {"x": x.numpy()})
        return {name: torch.from_numpy(v) for name, v in zip(names, found, strict=True)}

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself: packages that are not needed here."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*LeafSpec", FutureWarning)
            yield
    finally:
        registration.setLevel(level)


# ---- names --------------------------------------------------------------------------------------


def _name(graph: Any, outputs: Sequence[str]) -> None:
    """Call the input x, the outputs as they are asked for, and the size of the batch batch.

    Values inside get a prefix, as torch may have called one of them what an output is to be called;
    each output is a value of its own, as two may have been found to be the same.
    """
    import onnx

    graph.name = "dissensus"
    (entry,) = graph.input
    batch, own = entry.type.tensor_type.shape.dim[0].dim_param, entry.name
    _rename(graph, lambda name: "x" if name == own else f"v_{name}" if name else name)
    for output, name in zip(graph.output, outputs, strict=True):
        graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
        output.name = name
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{re.escape(batch)}\b", "batch", dim.dim_param)


def _rename(graph: Any, change: Callable[[str], str]) -> None:
    """Every value of ``graph``, and of the graphs inside its nodes, by another name."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = change(value.name)
    for node in graph.node:
        node.input[:] = [change(name) for name in node.input]
        node.output[:] = [change(name) for name in node.output]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, change)


def _forget_origin(graph: Any) -> None:
    """Drop what torch notes about each value: stack traces, with names of files."""
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        item.doc_string = ""
        del item.metadata_props[:]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _forget_origin(inner)


# ---- what ONNX has no operator for --------------------------------------------------------------


def _without_cholesky(program: ExportedProgram) -> ExportedProgram:
    """``program`` with its Cholesky factors as products and roots."""
    cholesky = torch.ops.aten.linalg_cholesky_ex.default
    if not any(node.target == cholesky for node in program.graph.nodes):
        return program
    decomposed: ExportedProgram = program.run_decompositions({cholesky: _cholesky})
    return decomposed


def _cholesky(
    matrix: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """The lower factor of ``[…, n, n]``, column by column, and a code of 0: no error is looked for.

    >>> factor = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    >>> torch.equal(_cholesky(factor @ factor.T)[0], factor)
    True
    """
    columns: list[Tensor] = []
    for k in range(matrix.shape[-1]):
        column = matrix[..., k:, k]
        for number, earlier in enumerate(columns):
            below = earlier[..., k - number :]
            column = column - below * below[..., :1]
        columns.append(column / column[..., :1].sqrt())
    padded = [torch.nn.functional.pad(column, (k, 0)) for k, column in enumerate(columns)]
    return torch.stack(padded, -1), matrix.new_zeros(matrix.shape[:-2], dtype=torch.int32)
