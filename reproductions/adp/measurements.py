"""Measurements of an ensemble: errors, attacks, transfer, detection, diversity, features.

Every function returns plain JSON values. Attacks keep a string of 1 and 0 that says which images
stayed right, so that contenders can be compared on the same images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.detection import MemberFeatures
from dissensus.diversity import log_ensemble_diversity
from dissensus.ensemble import Ensemble
from dissensus.outputs import combined_log_probs
from dissensus.robustness import Outcome, attack, curve_over_eps, detect, parse, transfer
from dissensus.training import predict

#: Edges of the histograms of log diversity; three members that agree are at −26.5.
EDGES = np.linspace(-30.0, 0.0, 61)
#: False positive rates at which ROC curves are kept.
GRID = np.linspace(0.0, 1.0, 41)


def errors(ens: Ensemble, part: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Error rates of the ensemble and of each member (Table 1), and how they think of the label."""
    logits, labels = predict(ens, part).outputs, part[1]
    right = combined_log_probs(logits, ens.combine).argmax(-1) == labels
    own = (logits.argmax(-1) == labels).double().mean(1)
    probs = logits.double().softmax(-1).mean(0).gather(1, labels[:, None])
    return {
        "examples": len(labels),
        "error": 1 - float(right.double().mean()),
        "member_errors": (1 - own).tolist(),
        "label_probability": float(probs.mean()),
    }


# ---- attacks ------------------------------------------------------------------------------------


def bits(values: Tensor) -> str:
    """``"101"`` for a bool tensor; short in a record, and one can count it by eye."""
    return "".join("1" if value else "0" for value in values.tolist())


def attack_each(ens: Ensemble, x: Tensor, y: Tensor, specs: Iterable[str]) -> dict[str, Any]:
    """Each attack by itself: which images stay right, and how far the broken ones were moved."""
    results = {}
    for spec in specs:
        outcome = attack(ens, x, y, spec, progress=False)
        results[spec] = {
            "right": bits(~outcome.broken),
            "l2": outcome.distortion("l2"),
            "zero_gradients": outcome.zero_share,
            "nan_gradients": int(outcome.nan_gradients.sum()),
        }
    return results


def strong_attacks(eps: float, settings: Mapping[str, Any]) -> list[str]:
    """The standard protocol, AutoAttack first, as the rest meets only what it leaves.

    PGD on cross-entropy and on the margin, with three step sizes; members weighed anew at each
    step; Square.
    """
    queries, walk = settings["queries"], f"eps={eps},steps={settings['steps']}"
    pgd = f"pgd:{walk},restarts={settings['restarts']}"
    return [
        f"autoattack:eps={eps},steps={settings['autoattack_steps']},queries={queries}",
        pgd,
        f"{pgd},step=0.25",
        f"{pgd},loss=margin,step=0.1",
        f"reweighted:{walk},restarts={settings['restarts']}",
        f"square:eps={eps},queries={queries}",
    ]


def worst_case(
    ens: Ensemble, x: Tensor, y: Tensor, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """For each ε, from small to large, the images that none of the strong attacks breaks.

    An image that broke is not attacked again, also not at a larger ε: its change lies in that ball
    too. ``autoattack`` are the images that AutoAttack alone leaves, ``left`` how many are right
    after each attack of the list.
    """
    logits = predict(ens, (x, y)).outputs
    right = combined_log_probs(logits, ens.combine).argmax(-1) == y
    results = []
    for eps in sorted(settings["eps"]):
        left: dict[str, int] = {}
        first, zero, nan = right, 0.0, 0
        for spec in strong_attacks(eps, settings):
            rows = right.nonzero().squeeze(1)
            if len(rows):
                broken, outcome = _broken(ens, x[rows], y[rows], spec)
                right = right.clone()
                right[rows] = ~broken
                zero, nan = max(zero, outcome.zero_share), nan + int(outcome.nan_gradients.sum())
            first = first if left else right
            left[spec] = int(right.sum())
        results.append(
            {
                "eps": eps,
                "autoattack": bits(first),
                "right": bits(right),
                "left": left,
                "largest_zero_share": zero,
                "nan_gradients": nan,
            }
        )
    return results


def _broken(ens: Ensemble, x: Tensor, y: Tensor, spec: str) -> tuple[Tensor, Outcome]:
    """Whether any restart breaks an image; restarts are made side by side, as copies of it.

    An example's random start follows from its place, so that copies start at different points.
    """
    single = parse(spec)
    copies = getattr(single, "restarts", 1)
    if copies > 1:
        single = replace(single, restarts=1)  # type: ignore[call-arg]
    many = x.repeat(copies, *[1] * (x.ndim - 1)), y.repeat(copies)
    outcome = attack(ens, *many, single, progress=False)
    return outcome.broken.view(copies, -1).any(0), outcome


def accuracy_at_half(ens: Ensemble, x: Tensor, y: Tensor, steps: int) -> float:
    """Accuracy at ε = 0.5, where any image can be made grey: above 0 the attack is at fault."""
    outcome = attack(ens, x, y, f"pgd:eps=0.5,steps={steps},loss=margin", progress=False)
    return outcome.accuracy.value


def accuracy_over_eps(
    ens: Ensemble, x: Tensor, y: Tensor, values: list[float]
) -> dict[str, list[float]]:
    """Accuracy against ε under the paper's PGD, and under 40 steps that can cross the ball."""
    kinds = {
        "weak": "pgd:eps=0.1,steps=10,step=0.1,early=false",
        "strong": "pgd:eps=0.1,steps=40,loss=margin",
    }
    curves = {name: curve_over_eps(ens, x, y, spec, values) for name, spec in kinds.items()}
    return {name: list(curve.accuracy) for name, curve in curves.items()}


# ---- transfer and detection ---------------------------------------------------------------------


def transfer_matrices(
    ens: Ensemble, x: Tensor, y: Tensor, settings: Mapping[str, Any]
) -> dict[str, list[list[float]]]:
    """Matrices among members by attack and mode (Figure 3): the paper's ten steps, and more."""
    eps, more = settings["eps"], settings["steps"]
    kinds = {
        "pgd": f"pgd:eps={eps},steps=10,step=0.1",
        "mim": f"mim:eps={eps},steps=10,step=0.1",
        f"pgd-{more}": f"pgd:eps={eps},steps={more}",
    }
    matrices = {}
    for name, spec in kinds.items():
        for mode in ("untargeted", "targeted"):
            matrix = transfer(ens, x, y, spec, mode == "targeted", progress=False)
            matrices[f"{name} {mode}"] = matrix.tolist()
    return matrices


def detection(
    ens: Ensemble, x: Tensor, y: Tensor, settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Figure 4: AUROC of all scores, the ROC curve of ensemble diversity, and both in disguise."""
    eps = settings["eps"]
    specs = {
        "fgsm": f"fgsm:eps={eps}",
        "bim": f"bim:eps={eps},steps=10,step=0.1",
        "mim": f"mim:eps={eps},steps=10,step=0.1",
        "pgd": f"pgd:eps={eps},steps=10,step=0.1",
    }
    results: dict[str, dict[str, Any]] = {}
    for name, spec in specs.items():
        # The disguised attack shares nothing with these but its ε, so that one run is enough.
        hidden = ("ensemble_diversity",) if name == "pgd" else ()
        outcome = detect(ens, x, y, spec, adaptive=hidden, bootstrap=100, progress=False)
        aurocs = {score: one.auroc for score, one in outcome.plain.items()}
        curve = outcome.curves["ensemble_diversity"]
        results[name] = _detection(outcome.adversarial, outcome.clean, aurocs, curve)
        if hidden:
            results["disguised"] = _detection(
                outcome.adaptive_adversarial["ensemble_diversity"],
                outcome.clean,
                {"ensemble_diversity": outcome.adaptive["ensemble_diversity"].auroc},
                outcome.adaptive_curves["ensemble_diversity"],
            )
    return results


def _detection(fooled: int, examples: int, aurocs: Mapping[str, Any], curve: Any) -> dict[str, Any]:
    interval = aurocs["ensemble_diversity"]
    return {
        "fooled": fooled,
        "examples": examples,
        "auroc": {score: auroc.value for score, auroc in aurocs.items()},
        "interval": [interval.low, interval.high],
        "roc": _on_grid(curve),
    }


def _on_grid(curve: Any) -> list[float]:
    """The highest true positive rate at each false positive rate of :data:`GRID`."""
    false, true = curve.false_positive_rate.numpy(), curve.true_positive_rate.numpy()
    places = np.searchsorted(false, GRID, side="right") - 1
    return [round(float(value), 4) for value in true[places]]


# ---- diversity and features ---------------------------------------------------------------------


def diversity_histogram(ens: Ensemble, part: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Log ensemble diversity on test data with the true label (Figure 5): counts and quantiles."""
    logits = predict(ens, part).outputs
    values = log_ensemble_diversity(logits, part[1]).double().numpy().clip(EDGES[0], 0.0)
    counts, _ = np.histogram(values, EDGES)
    quarters = np.quantile(values, [0.25, 0.5, 0.75])
    return {"counts": counts.tolist(), "quartiles": quarters.tolist()}


def hidden_features(ens: Ensemble, x: Tensor, batch_size: int = 256) -> Tensor:
    """The inputs of each member's last linear layer, ``[members, batch, features]``."""
    read = MemberFeatures(ens)
    features = torch.cat([read(part).cpu() for part in x.split(batch_size)])
    return features.reshape(len(x), ens.members, -1).transpose(0, 1)


def similarity(features: Tensor) -> float:
    """Mean linear CKA over pairs of members, 0 to 1 (Kornblith et al. 2019, Eq. 5).

    ``‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖)`` in Frobenius norms, of centred features: it does not change when a
    network's features are rotated, as those of networks trained apart are.

    >>> x = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0))
    >>> round(similarity(torch.cat([x, 2 * x.flip(-1)])), 6)
    1.0
    """
    centred = (features - features.mean(1, keepdim=True)).double()
    members = len(centred)
    similarities = []
    for i in range(members):
        for j in range(i + 1, members):
            cross = float((centred[i].T @ centred[j]).norm() ** 2)
            own = [float((one.T @ one).norm()) for one in (centred[i], centred[j])]
            similarities.append(cross / (own[0] * own[1]) if min(own) > 0 else 0.0)
    return float(np.mean(similarities))


def tsne(features: Tensor, labels: Tensor, seed: int) -> dict[str, Any]:
    """t-SNE of each member's features by itself (Figure 2), to two digits."""
    from sklearn.manifold import TSNE

    count = features.shape[1]
    perplexity = min(30.0, (count - 1) / 3)
    flat = [
        TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(one.numpy())
        for one in features
    ]
    points = [np.round(one.astype(float), 1).tolist() for one in flat]
    return {"points": points, "labels": labels.tolist()}
