"""One file that gives an ensemble's outputs where Dissensus is not installed: pt2 and ONNX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.detection import Detector
from dissensus.ensemble import Ensemble
from dissensus.export.deployed import Deployed, chosen_scores, example_for
from dissensus.export.metadata import metadata
from dissensus.export.onnx_graph import onnx_model, onnx_runner
from dissensus.export.tracing import check_equal, check_example, traced
from dissensus.files import replace_atomically, write_bytes
from dissensus.runs.facts import Facts

__all__ = ["to_onnx", "to_pt2"]

#: The name of the metadata among the extra files of a pt2.
EXTRA = "dissensus.json"

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
    facts: Facts | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Write ``ens`` as one ``torch.export`` file and return the metadata that is in it.

    ``torch.export.load(path).module()(x)`` is a dict: ``probs`` ``[batch, classes]`` (``mean`` for
    a regression), ``members`` ``[members, batch, outputs]``, ``score_NAME`` ``[batch]`` for every
    ``score`` (by default pds, or variance for a regression), and ``is_ood`` where a fitted
    ``detector`` is given. The batch may have any size from 1. Weights of members count in the
    prediction and not in scores, as in ``dissensus predict`` and ``Detector``.

    ``example`` is a batch ``[batch, …]`` that says the shape and type of one input. With the
    ``facts`` of a run the file takes inputs in the units of its source and gives a regression's
    outputs in those of its target; ``example`` may be None then. ``name`` is kept in the metadata,
    which are the extra file ``dissensus.json``.

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
    deployed, rows, told = _prepared(ens, example, score, detector, facts, name)
    program = traced(deployed, rows)
    check_equal(deployed, rows, program.module(), "the traced graph")
    extra = {EXTRA: json.dumps(told, indent=1)}

    def write(part: Path) -> None:
        with part.open("wb") as file:
            torch.export.save(program, file, extra_files=extra)

    replace_atomically(path, write)
    return told


def to_onnx(
    ens: Ensemble,
    example: Tensor | None,
    path: str | Path,
    *,
    score: str | Sequence[str] | None = None,
    detector: Detector | None = None,
    facts: Facts | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Write ``ens`` as one ONNX file and return the metadata that is in it.

    Arguments and outputs are those of :func:`to_pt2`; the input is called ``x``, and the metadata
    are the file's ``metadata_props``, lists and dicts as JSON. Before it is written, what
    onnxruntime makes of it is compared with the ensemble. Needs the extra ``export``.
    """
    _check_installed()
    deployed, rows, told = _prepared(ens, example, score, detector, facts, name)
    size = sum(t.numel() * t.element_size() for t in deployed.state_dict().values())
    if size > _LARGEST:
        raise ValueError(
            f"the weights take {size / 2**30:.1f} GiB and an ONNX file holds 2 at most; export as "
            "pt2, or fewer members (ens.select)"
        )
    content = onnx_model(traced(deployed, rows), list(told["outputs"]), told).SerializeToString()
    check_equal(deployed, rows, onnx_runner(content), "the ONNX graph in onnxruntime")
    write_bytes(path, content)
    return told


def _prepared(
    ens: Ensemble,
    example: Tensor | None,
    score: str | Sequence[str] | None,
    detector: Detector | None,
    facts: Facts | None,
    name: str,
) -> tuple[Deployed, Tensor, dict[str, Any]]:
    """What to trace, a batch to trace it with, and what is said about it."""
    if example is None:
        if facts is None:
            raise ValueError("pass an example, a batch [batch, …] of inputs, or the facts of a run")
        example = example_for(facts)
    check_example(example)
    example = example.detach().cpu()
    scores = chosen_scores(ens, score, detector)
    deployed = Deployed(ens, scores, detector=detector, facts=facts)
    return deployed, example, metadata(deployed, example, facts, detector, name)


def _check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}, which is not installed: "
            "pip install 'dissensus[export]'; the format pt2 needs nothing more"
        )
    if _version(torch.__version__) < _OLDEST:
        raise ValueError(
            f"ONNX needs torch {_OLDEST[0]}.{_OLDEST[1]} or newer, this is {torch.__version__}; "
            "the format pt2 does not"
        )


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version.

    >>> _version("2.13.0+cpu")
    (2, 13)
    """
    return tuple(int(part) for part in text.split(".")[:2])
