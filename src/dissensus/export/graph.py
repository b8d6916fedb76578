"""Graphs of ensembles in one file, for use where Dissensus is not installed: pt2 and ONNX."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from dissensus.detection import Detector
from dissensus.ensemble import Ensemble
from dissensus.export.module import ExportModule, example_for, make_detectors, metadata
from dissensus.export.onnx_graph import onnx_model, onnx_runner
from dissensus.runs.data import DataSummary
from dissensus.tools.files import replace_atomically, write_bytes

#: Before it torch's exporter of traced graphs was experimental, and is not known to work here.
_OLDEST = (2, 6)

#: Protocol buffers hold no more, and an ONNX file is one.
_LARGEST = 2**31 - 2**20


def to_pt2(
    ens: Ensemble,
    example: Tensor | None,
    path: str | Path,
    *,
    score: str | Sequence[str] | None = None,
    detector: Detector | None = None,
    summary: DataSummary | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Write ``ens`` as one ``torch.export`` file and return the metadata that is in it.

    ``torch.export.load(path).module()(x)`` is a dict: ``probs`` ``[batch, classes]`` (``mean`` for
    a regression), ``members`` ``[members, batch, outputs]``, ``score_NAME`` ``[batch]`` for every
    ``score`` (by default ``detection.default_score``), and ``is_ood`` where a fitted
    ``detector`` is given; of a tuned detector, scores are those of its tuned members, whose outputs
    are ``tuned``. The batch may have any size from 1. Weights of members count in the
    prediction and not in scores, as in ``dissensus predict`` and ``Detector``.

    ``example`` is a batch ``[batch, …]`` that gives the shape and type of one input. With the
    ``summary`` of a run's data the file takes inputs in the units of its source and gives a
    regression's outputs in those of its target; ``example`` may be None then. ``name`` is kept in
    the metadata, which are the extra file ``dissensus.json``.

    The format is torch's own. **To load such a file is to load a program**: torch may unpickle what
    is in it, so load your own, or those of people whose programs you would run. Dissensus writes
    such files and never loads one; ``.onnx`` and :func:`save_folder` hold no code.

    >>> import tempfile
    >>> ens = Ensemble(lambda: torch.nn.Linear(4, 3), members=2)
    >>> file = Path(tempfile.mkdtemp()) / "ens.pt2"
    >>> list(to_pt2(ens, torch.zeros(1, 4), file, score="entropy")["outputs"])
    ['probs', 'members', 'score_entropy']
    >>> torch.export.load(file).module()(torch.zeros(5, 4))["members"].shape
    torch.Size([2, 5, 3])
    """
    module, rows, description = _prepare(ens, example, score, detector, summary, name)
    program = _trace(module, rows)
    _check_equal(module, rows, program.module(), "the traced graph")
    extra = {"dissensus.json": json.dumps(description, indent=1)}

    def write(part: Path) -> None:
        with part.open("wb") as file:
            torch.export.save(program, file, extra_files=extra)

    replace_atomically(path, write)
    return description


def to_onnx(
    ens: Ensemble,
    example: Tensor | None,
    path: str | Path,
    *,
    score: str | Sequence[str] | None = None,
    detector: Detector | None = None,
    summary: DataSummary | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Write ``ens`` as one ONNX file and return the metadata that is in it.

    Arguments and outputs are those of :func:`to_pt2`; the input is called ``x``, and the metadata
    are the file's ``metadata_props``, lists and dicts as JSON. The file is written only if
    onnxruntime gives the outputs of the ensemble. Needs the extra ``export``.
    """
    _check_installed()
    module, rows, description = _prepare(ens, example, score, detector, summary, name)
    size = sum(t.numel() * t.element_size() for t in module.state_dict().values())
    if size > _LARGEST:
        raise ValueError(f"an ONNX file holds 2 GiB, the weights are {size / 2**30:.1f}; use pt2")
    model = onnx_model(_trace(module, rows), list(description["outputs"]), description)
    content = model.SerializeToString()
    _check_equal(module, rows, onnx_runner(content), "the ONNX graph in onnxruntime")
    write_bytes(path, content)
    return description


def _prepare(
    ens: Ensemble,
    example: Tensor | None,
    score: str | Sequence[str] | None,
    detector: Detector | None,
    summary: DataSummary | None,
    name: str,
) -> tuple[ExportModule, Tensor, dict[str, Any]]:
    """The module to trace, a batch to trace it with, and its metadata."""
    if example is None:
        if summary is None:
            raise ValueError("pass an example, a batch [batch, …], or the summary of a run's data")
        example = example_for(summary)
    if not isinstance(example, Tensor) or example.ndim == 0 or len(example) == 0:
        got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"example must be a tensor [batch, …] of one row or more, got {got}")
    example = example.detach().cpu()
    scores = make_detectors(ens, score, detector)
    module = ExportModule(ens, scores, detector=detector, summary=summary)
    return module, example, metadata(module, example, summary, detector, name)


def _check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}: pip install 'dissensus[export]'; pt2 needs no more"
        )
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST:
        raise ValueError(f"ONNX needs torch 2.6 or newer, this is {torch.__version__}; use pt2")


# ---- tracing ------------------------------------------------------------------------------------


def _trace(module: ExportModule, example: Tensor) -> ExportedProgram:
    """The graph of ``module`` for batches of any size; ``example`` gives shape and type of a row.

    An error says what in a network stands in the way.
    """
    rows = _at_least_three(example)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # A recurrent layer lists its weights a second time; the graph takes them as they are.
            warnings.filterwarnings(
                "ignore", r"The tensor attributes? .*_flat_weights", UserWarning
            )
            program = torch.export.export(
                module,
                (torch.zeros_like(rows),),  # they are kept in a pt2: nobody's data
                dynamic_shapes={"x": {0: Dim("batch")}},
                strict=False,
            )
    except Exception as error:  # tracing runs the network's own code, which may raise anything
        raise ValueError(_explain(module, rows, error)) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    return program


def _check_equal(
    module: ExportModule, example: Tensor, run: Callable[[Tensor], dict[str, Tensor]], what: str
) -> None:
    """Raise unless ``run`` gives the prediction and the members, also tuned, of ``module``."""
    with torch.no_grad():
        for rows in (_at_least_three(example), example[:1]):
            expected, got = module(rows), run(rows)
            for name in [n for n in expected if n in ("probs", "mean", "members", "tuned")]:
                size = float(expected[name].abs().max())
                if not torch.allclose(expected[name], got[name], rtol=1e-3, atol=1e-4 * size):
                    off = float((expected[name] - got[name]).abs().max())
                    raise ValueError(f"{what} is off by {off:.3g} in {name}; nothing was written")


def _at_least_three(example: Tensor) -> Tensor:
    """Three rows or more: torch takes a batch of 1 for one that is always 1."""
    return example if len(example) > 2 else example[:1].expand(3, *example.shape[1:]).clone()


def _explain(module: ExportModule, rows: Tensor, error: Exception) -> str:
    text = " ".join(str(error).split())
    kind = module.network.kind()
    try:
        with torch.no_grad():
            module(rows)
    except Exception:
        return f"{kind} cannot take inputs of shape {tuple(rows.shape)}, {rows.dtype}: {text[:300]}"
    if "specialized it to be a constant" in text or "marked batch as dynamic" in text:
        return (
            f"{kind} fixes the number of rows; write its shapes with x.shape[0], flatten(1) or -1, "
            "or share it as a folder (save_folder, --format hub)"
        )
    return (
        f"torch.export cannot trace {kind}: a graph holds no branching on values, .item() or "
        "NumPy; write it with torch.where, or share it as a folder (save_folder, --format hub). "
        f"torch says: {type(error).__name__}: {text[:300]}"
    )
