"""ONNX graphs: a traced program as an ONNX model, and onnxruntime to run it."""

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


def onnx_model(
    program: ExportedProgram, outputs: Sequence[str], metadata: Mapping[str, Any]
) -> Any:
    """The ``ModelProto`` with names and metadata, and nothing about the machine that made it."""
    import onnx

    try:
        with _quiet():
            exported = torch.onnx.export(
                _without_cholesky(program), dynamo=True, verbose=False, external_data=False
            )
    except Exception as error:  # of torch's exporter and of onnxscript, of no common kind
        raise ValueError(
            f"the graph cannot be written in ONNX; use pt2. torch says: {_first_line(error)}"
        ) from error
    assert exported is not None
    model = exported.model_proto
    _set_names(model.graph, outputs)
    for graph in _graphs(model.graph):
        for item in (*graph.node, *_values(graph)):  # stack traces, with names of files
            item.doc_string = ""
            del item.metadata_props[:]
    props = {key: v if isinstance(v, str) else json.dumps(v) for key, v in metadata.items()}
    onnx.helper.set_model_props(model, props)
    return model


def onnx_runner(content: bytes) -> Callable[[Tensor], dict[str, Tensor]]:
    """The model as a function from ``x`` to outputs by name, by onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors; they come as exceptions
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime's own kinds
        raise ValueError(
            f"onnxruntime cannot run the graph; use float32, or pt2. It says: {_first_line(error)}"
        ) from error
    names = [output.name for output in session.get_outputs()]

    def run(x: Tensor) -> dict[str, Tensor]:
        arrays = session.run(None, {"x": x.numpy()})
        return {name: torch.from_numpy(v) for name, v in zip(names, arrays, strict=True)}

    return run


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without messages of torch's exporter about packages that are not needed here."""
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


def _set_names(graph: Any, outputs: Sequence[str]) -> None:
    """Call the input x, the outputs as they are asked for, and the size of the batch batch.

    Values inside get a prefix, as torch may have given one of them the name of an output;
    each output is a value of its own, as the exporter may have merged two that are equal.
    """
    import onnx

    graph.name = "dissensus"
    (entry,) = graph.input
    batch, own = entry.type.tensor_type.shape.dim[0].dim_param, entry.name
    for each in _graphs(graph):
        _rename(each, lambda name: "x" if name == own else f"v_{name}" if name else name)
    for output, name in zip(graph.output, outputs, strict=True):
        graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
        output.name = name
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{re.escape(batch)}\b", "batch", dim.dim_param)


def _graphs(graph: Any) -> Iterator[Any]:
    """``graph`` and the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _graphs(inner)


def _values(graph: Any) -> list[Any]:
    return [*graph.input, *graph.output, *graph.value_info, *graph.initializer]


def _rename(graph: Any, change: Callable[[str], str]) -> None:
    """Give every value of ``graph`` another name."""
    for value in _values(graph):
        value.name = change(value.name)
    for node in graph.node:
        node.input[:] = [change(name) for name in node.input]
        node.output[:] = [change(name) for name in node.output]


# ---- operations that ONNX lacks -----------------------------------------------------------------


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
