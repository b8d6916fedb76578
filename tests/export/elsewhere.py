"""Another process, in which Dissensus cannot be imported: what a receiver of a file has."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]

_PROGRAM = """
import json, sys
sys.modules["dissensus"] = None          # importing it raises from here on
sys.path[:] = [p for p in sys.path if not p.endswith("src")]
jobs = json.loads(sys.argv[1])
import numpy as np

def onnx(file):
    import onnxruntime
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    (entry,) = session.get_inputs()
    told = {"shape": entry.shape, "input": entry.name, "outputs": names}
    told["meta"] = session.get_modelmeta().custom_metadata_map
    return told, lambda x: dict(zip(names, session.run(names, {"x": x}), strict=True))

def pt2(file):
    import torch
    torch.set_num_threads(1)
    extra = {"dissensus.json": ""}
    module = torch.export.load(file, extra_files=extra).module()
    return {"meta": extra["dissensus.json"]}, lambda x: {
        name: value.numpy() for name, value in module(torch.from_numpy(x)).items()
    }

for job in jobs:
    told, run = (onnx if job["file"].endswith(".onnx") else pt2)(job["file"])
    for source, target in job["runs"]:
        np.savez(target, **run(np.load(source)))
    print(json.dumps(told))
assert not any(name.startswith("dissensus.") for name in sys.modules)
"""


def run_elsewhere(
    folder: Path, jobs: list[tuple[Path, list[Any]]]
) -> list[tuple[dict[str, Any], list[Arrays]]]:
    """For each file what it says about itself, and its outputs for each of some inputs."""
    asked = []
    for number, (file, inputs) in enumerate(jobs):
        runs = []
        for size, x in enumerate(inputs):
            source, target = folder / f"{number}-{size}.npy", folder / f"{number}-{size}.npz"
            np.save(source, x)
            runs.append((str(source), str(target)))
        asked.append({"file": str(file), "runs": runs})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    found = []
    for said, job in zip(told, asked, strict=True):
        arrays = []
        for _, target in job["runs"]:
            with np.load(str(target), allow_pickle=False) as file:
                arrays.append({name: file[name] for name in file.files})
        found.append((said, arrays))
    return found
