"""Named scores: one at a temperature, as in ``"bma:temperature=2"``, and many in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dissensus.outputs import (
    KEY_HINT,
    Predictions,
    array_names,
    check_outputs,
    check_weights,
    stored_space,
    to_logits,
)
from dissensus.scores.functions import (
    SCORES,
    SCORES_OF_LOGITS,
    Logits,
    check_room_for_orthogonality,
    check_scale,
)
from dissensus.tools.files import verify_safetensors
from dissensus.tools.guards import check_shape, guarded
from dissensus.tools.specs import check_name, check_number, join_spec, read_settings, split_spec

#: Scores of classifiers; the variance is for regression.
_CLASSIFIER_SCORES = [name for name in SCORES if name != "variance"]

#: Numbers a chunk of :func:`score_all` holds: few enough for a cache, enough to be worth the calls.
_CHUNK = 1 << 20

#: Numbers that :func:`score_file` reads at once: 32 MiB of float32.
_READ = 1 << 23

#: Scores whose order a temperature shared by all members cannot change.
_WITHOUT_TEMPERATURE = frozenset({"max_logit", "unique", "disagreement", "variance"})


@dataclass(frozen=True)
class NamedScore:
    """A score of ``SCORES`` of the logits divided by a temperature; ``str`` gives its name back.

    The energy is ``−T log Σ_c exp(f_c / T)``, multiplied by T as its definition says.
    """

    name: str
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, SCORES, "score")
        check_number("temperature", self.temperature, above=0)
        if self.temperature != 1 and self.name in _WITHOUT_TEMPERATURE:
            raise ValueError(f"a temperature changes nothing about {self.name}; leave it out")

    def __call__(
        self,
        logits: Tensor | Logits,
        weights: Tensor | None = None,
        space: str = "logits",
    ) -> Tensor:
        """The score of each example, ``[batch]``."""
        score = SCORES[self.name]
        if isinstance(logits, Logits):
            return self.factor * score(logits.at(self.temperature))
        if self.name == "variance":
            return score(logits, weights)
        check_scale(self.name, space)
        logits = to_logits(logits, space)
        if self.temperature == 1:
            return score(logits, weights)
        return self.factor * score(logits / self.temperature, weights)

    @property
    def factor(self) -> float:
        """What the score of the divided logits is multiplied by."""
        return self.temperature if self.name == "energy" else 1.0

    def __str__(self) -> str:
        settings = {} if self.temperature == 1 else {"temperature": float(self.temperature)}
        return join_spec(self.name, settings)


@guarded
def parse(text: str) -> NamedScore:
    """The score that ``text`` names.

    >>> parse("energy:temperature=10")(torch.zeros(3, 2, 4))         # −10 log 4
    tensor([-13.8629, -13.8629])
    >>> str(parse("bma"))
    'bma'
    """
    name, settings = split_spec(text)
    check_name(name, SCORES, "score")
    return NamedScore(name, **read_settings(name, settings, NamedScore, ["temperature"]))


@guarded
def at_temperature(
    score: str | Callable[..., Tensor], temperature: Tensor | float
) -> Callable[..., Tensor]:
    """``score`` of ``logits_j / T_j``: one temperature, or one for each member ``[members]``.

    Takes what :func:`dissensus.calibration.fit_temperature` finds. A named score at one temperature
    comes back as a :class:`NamedScore`, which a ``Detector`` can save.

    >>> tempered = at_temperature("bma", torch.tensor(4.0))
    >>> str(tempered)
    'bma:temperature=4'
    """
    temperature = torch.as_tensor(temperature, dtype=torch.float64)
    if isinstance(score, str):
        score = parse(score)
    if isinstance(score, NamedScore) and temperature.ndim == 0:
        return NamedScore(score.name, score.temperature * float(temperature))
    if temperature.ndim > 1 or not bool((temperature > 0).all()):
        got = temperature.tolist()
        raise ValueError(f"temperature must be a scalar or [members], and above 0, got {got}")
    function = score

    def tempered(logits: Tensor, weights: Tensor | None = None) -> Tensor:
        if temperature.ndim:
            check_shape(temperature, name="temperature", members=logits.shape[0])
        logits = to_logits(logits)
        scale = temperature.to(logits).reshape(-1, 1, 1)
        return (
            function(logits / scale, weights) if weights is not None else function(logits / scale)
        )

    return tempered


# ---- many at once -------------------------------------------------------------------------------


@guarded
def score_all(
    logits: Tensor,
    names: Iterable[str] | None = None,
    weights: Tensor | None = None,
    space: str = "logits",
) -> dict[str, Tensor]:
    """Many scores at once, ``{name: [batch]}``: all that suit a classifier unless ``names`` says.

    Names may hold a temperature, as in ``"bma:temperature=2"``. Works through the batch in pieces
    that fit a processor's cache and shares the softmax among all scores of one temperature, so that
    it needs little time and next to no memory beyond the logits. ``space="probs"`` takes
    probabilities, which have no energy and no largest logit.

    >>> sorted(score_all(torch.zeros(2, 4, 3), ["pds", "entropy"]))
    ['entropy', 'pds']
    """
    check_outputs(logits, name="logits", finite=False)
    members, batch, classes = logits.shape
    check_weights(weights, members)
    chosen = _select(names, members, classes, space)
    step = max(1, _CHUNK // (members * classes))
    # Filled in place: small results kept among large pieces that are freed would hold their memory.
    kind = torch.promote_types(logits.dtype, torch.float32) if space != "logits" else logits.dtype
    scores = {name: logits.new_empty(batch, dtype=kind) for name in chosen}
    for start in range(0, batch, step):
        part = to_logits(logits[:, start : start + step], space)
        batch_part = Logits(part, weights)
        for name, score in chosen.items():
            scores[name][start : start + step] = score(batch_part)
    return scores


def score_file(
    path: str | Path,
    names: Iterable[str] | None = None,
    weights: Tensor | None = None,
    *,
    keys: Mapping[str, str] | None = None,
    space: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Tensor]:
    """:func:`score_all` of a file of :class:`~dissensus.outputs.Predictions`, in one pass over it.

    A safetensors file is read some examples at a time, so that memory does not grow with it; an
    ``.npz`` is read whole. Half precision is scored in float32. ``keys={"outputs": "logits"}`` is
    for a file that calls its outputs otherwise; ``space="probs"`` for one that holds probabilities
    and does not say so. ``progress`` is called with the number of examples done and their total.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "test.safetensors"
    >>> Predictions(torch.zeros(3, 7, 2)).save(file)
    >>> score_file(file, ["bma"])["bma"].shape
    torch.Size([7])
    """
    chosen = None if names is None else list(names)
    space = stored_space(path) if space is None else space
    pieces: dict[str, list[Tensor]] = {}
    done = 0
    for part, total in _read_parts(Path(path), keys):
        part = part.float() if part.element_size() < 4 else part
        for name, values in score_all(part, chosen, weights, space).items():
            pieces.setdefault(name, []).append(values)
        done += part.shape[1]
        if progress is not None:
            progress(done, total)
    return {name: torch.cat(values) for name, values in pieces.items()}


def _read_parts(path: Path, keys: Mapping[str, str] | None = None) -> Iterator[tuple[Tensor, int]]:
    """Outputs ``[members, some, classes]`` one after the other, and how many examples there are."""
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        outputs = Predictions.load(path, keys).outputs
        yield outputs, outputs.shape[1]
        return
    if not path.is_file():
        raise ValueError(f"no predictions at {path}: there is no such file")
    start, total, name = 0, 1, array_names(keys)["outputs"]
    while start < total:
        try:
            # Opened anew for each part: pages of a file that stays open stay in memory.
            with safe_open(path, framework="pt") as file:
                outputs = file.get_slice(name)
                members, total, classes = outputs.get_shape()
                step = max(1, _READ // max(1, members * classes))
                part: Tensor = outputs[:, start : start + step]
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"{path} must hold {name!r} [members, batch, outputs] ({error}); {KEY_HINT}"
            ) from error
        if start == 0:
            verify_safetensors(path)
        yield part, total
        start += step


def _select(
    names: Iterable[str] | None, members: int, classes: int, space: str
) -> dict[str, NamedScore]:
    if names is None:
        few = members <= classes - 1
        return {
            name: NamedScore(name)
            for name in _CLASSIFIER_SCORES
            if (few or name != "ensemble_diversity")
            and (space == "logits" or name not in SCORES_OF_LOGITS)
        }
    chosen: dict[str, NamedScore] = {}
    for name in names:
        check_name(split_spec(name)[0], _CLASSIFIER_SCORES, "score for classifiers")
        chosen[name] = parse(name)
        check_scale(chosen[name].name, space)
    if any(score.name == "ensemble_diversity" for score in chosen.values()):
        check_room_for_orthogonality(members, classes)
    return chosen
