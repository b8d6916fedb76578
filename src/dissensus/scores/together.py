"""Many scores in one pass: of a tensor, and of a file that need not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from dissensus.outputs import Predictions, check_outputs, check_weights
from dissensus.scores.functions import CORES, check_room_for_orthogonality, view_of
from dissensus.scores.named import NamedScore, parse
from dissensus.specs import check_name, split_spec

__all__ = ["score_all", "score_file"]

#: Numbers a chunk of :func:`score_all` holds: few enough for a cache, enough to be worth the calls.
_CHUNK = 1 << 20

#: Numbers that :func:`score_file` reads at once: 32 MiB of float32.
_READ = 1 << 23


def score_all(
    logits: Tensor, names: Iterable[str] | None = None, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Many scores at once, ``{name: [batch]}``: all that suit a classifier unless ``names`` says.

    Names may hold a temperature, as in ``"bma:temperature=2"``. Works through the batch in pieces
    that fit a processor's cache and shares the softmax among all scores of one temperature, so that
    it needs little time and next to no memory beyond the logits.

    >>> sorted(score_all(torch.zeros(2, 4, 3), ["pds", "entropy"]))
    ['entropy', 'pds']
    """
    check_outputs(logits, name="logits", finite=False)
    members, batch, classes = logits.shape
    check_weights(weights, members)
    chosen = _chosen(names, members, classes)
    step = max(1, _CHUNK // (members * classes))
    # Filled in place: small results kept among large pieces that are freed would hold their memory.
    scores = {name: logits.new_empty(batch) for name in chosen}
    for start in range(0, batch, step):
        part = logits[:, start : start + step]
        for temperature in sorted({score.temperature for score in chosen.values()}):
            view = view_of(part if temperature == 1 else part / temperature, weights)
            for name, score in chosen.items():
                if score.temperature == temperature:
                    found = CORES[score.name](view)
                    scores[name][start : start + step] = score.factor * found
    return scores


def score_file(
    path: str | Path,
    names: Iterable[str] | None = None,
    weights: Tensor | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Tensor]:
    """:func:`score_all` of a file of :class:`~dissensus.outputs.Predictions`, in one pass over it.

    A safetensors file is read some examples at a time, so that memory does not grow with it; an
    ``.npz`` is read whole. Half precision is scored in float32. ``progress`` is called with the
    number of examples done and their total.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "test.safetensors"
    >>> Predictions(torch.zeros(3, 7, 2)).save(file)
    >>> score_file(file, ["bma"])["bma"].shape
    torch.Size([7])
    """
    chosen = None if names is None else list(names)
    pieces: dict[str, list[Tensor]] = {}
    done = 0
    for part, total in _parts(Path(path)):
        part = part.float() if part.element_size() < 4 else part
        for name, values in score_all(part, chosen, weights).items():
            pieces.setdefault(name, []).append(values)
        done += part.shape[1]
        if progress is not None:
            progress(done, total)
    return {name: torch.cat(values) for name, values in pieces.items()}


def _parts(path: Path) -> Iterator[tuple[Tensor, int]]:
    """Outputs ``[members, some, classes]`` one after the other, and how many examples there are."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        outputs = Predictions.load(path).outputs
        yield outputs, outputs.shape[1]
        return
    if not path.is_file():
        raise ValueError(f"no predictions at {path}: there is no such file")
    start, total = 0, 1
    while start < total:
        try:
            # Opened anew for each part: pages of a file that stays open stay in memory.
            with safe_open(path, framework="pt") as file:
                outputs = file.get_slice("outputs")
                members, total, classes = outputs.get_shape()
                step = max(1, _READ // max(1, members * classes))
                part: Tensor = outputs[:, start : start + step]
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"{path} is not a predictions file that can be read: it must hold 'outputs' "
                f"[members, batch, outputs] ({error})"
            ) from error
        yield part, total
        start += step


def _chosen(names: Iterable[str] | None, members: int, classes: int) -> dict[str, NamedScore]:
    if names is None:
        few = members <= classes - 1
        return {name: NamedScore(name) for name in CORES if few or name != "ensemble_diversity"}
    chosen: dict[str, NamedScore] = {}
    for name in names:
        check_name(split_spec(name)[0], CORES, "score for classifiers")
        chosen[name] = parse(name)
    if any(score.name == "ensemble_diversity" for score in chosen.values()):
        check_room_for_orthogonality(members, classes)
    return chosen
