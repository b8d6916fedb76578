"""Every objective once more, as slow NumPy loops in float64 written from the papers' formulas.

No torch here, and nothing shared with the package. Each function takes arrays
``outputs [members, batch, outputs]``, ``targets`` (``[batch]`` integers, or floats with one row an
example) and ``weights [members]``, and returns ``(loss, parts)`` as floats. ``held`` are the
outputs at which whatever the method treats as a constant (a stopped gradient) is computed; where
it is None that is ``outputs`` itself. Holding it fixed while ``outputs`` move is what the gradient
of a method with a stopped gradient means.
"""

import math

import numpy as np
from numpy import ndarray as Array

FLOOR = 1e-6  # added to the diagonal of ADP's Gram matrix
Result = tuple[float, dict[str, float]]


# ---- pieces -------------------------------------------------------------------------------------


def log_sum_exp(values) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def log_softmax(logits: Array) -> Array:
    return np.array([value - log_sum_exp(logits) for value in logits])


def softmax(logits: Array) -> Array:
    return np.exp(log_softmax(logits))


def distribution(target, classes: int) -> Array:
    """The label as a probability vector."""
    if np.ndim(target):
        return np.asarray(target, dtype=np.float64)
    return np.array([float(k == target) for k in range(classes)])


def cross_entropy(log_probs: Array, target, smoothing: float = 0.0) -> float:
    classes = len(log_probs)
    label = (1 - smoothing) * distribution(target, classes) + smoothing / classes
    return -sum(label[k] * log_probs[k] for k in range(classes) if label[k] > 0)


def entropy(probs: Array) -> float:
    return -sum(p * math.log(p) for p in probs if p > 0)


def mean_log_probs(logits: Array, weights: Array) -> Array:
    """``log Σ_j w_j softmax(f_j)`` of one example's logits ``[members, classes]``."""
    rows = [log_softmax(row) + math.log(w) for row, w in zip(logits, weights, strict=True) if w > 0]
    return np.array([log_sum_exp(column) for column in np.array(rows).T])


def average(values, weights: Array) -> Array:
    return sum(w * value for w, value in zip(weights, values, strict=True))


def over_batch(function, batch: int) -> float:
    return sum(function(n) for n in range(batch)) / batch


# ---- collusion ----------------------------------------------------------------------------------


def member_and_ensemble_error(
    outputs: Array, targets: Array, weights: Array, loss: str, combine: str, smoothing: float
) -> tuple[float, float]:
    """Mean ERR and ERR (Definition 4.1)."""
    members, batch, size = outputs.shape

    def one(prediction: Array, n: int) -> float:
        if loss == "mse":
            return sum((prediction[k] - targets[n][k]) ** 2 for k in range(size))
        if loss == "brier":
            label = distribution(targets[n], size)
            return sum((math.exp(prediction[k]) - label[k]) ** 2 for k in range(size))
        return cross_entropy(prediction, targets[n], smoothing)

    def own(j: int, n: int) -> Array:
        return outputs[j, n] if loss == "mse" else log_softmax(outputs[j, n])

    def combined(n: int) -> Array:
        if combine == "mean":
            return average(outputs[:, n], weights)
        if combine == "score":
            return log_softmax(average(outputs[:, n], weights))
        return mean_log_probs(outputs[:, n], weights)

    member = sum(
        weights[j] * over_batch(lambda n, j=j: one(own(j, n), n), batch) for j in range(members)
    )
    return member, over_batch(lambda n: one(combined(n), n), batch)


def augmented(
    outputs, targets, weights, *, beta, loss, combine, label_smoothing=0.0, disagreement=None,
    held=None,
) -> Result:  # fmt: skip
    """Eq. 2: ``(1 − β) mean ERR + β ERR``."""
    member, ensemble = member_and_ensemble_error(
        outputs, targets, weights, loss, combine, label_smoothing
    )
    parts = {"member_error": member, "ensemble_error": ensemble, "diversity": member - ensemble}
    return member - beta * (member - ensemble), parts


def gaussian(outputs, targets, weights, *, weighting, disagreement=None, held=None) -> Result:
    """Densities of members, each with a mean and a variance, and of their mixture."""
    members, batch, size = outputs.shape
    held = outputs if held is None else held

    def log_variance(values: Array, j: int, n: int, k: int) -> float:
        return min(log_sum_exp([values[j, n, size // 2 + k], math.log(1e-6)]), 1e5)

    def log_density(j: int, n: int, power: float = 0.0) -> float:
        total = 0.0
        for k in range(size // 2):
            own, constant = log_variance(outputs, j, n, k), log_variance(held, j, n, k)
            away = (targets[n][k] - outputs[j, n, k]) ** 2 / math.exp(min(own, 700))
            share = 1 / (1 + math.exp(-max(constant, -700)))
            total -= share**power * 0.5 * (math.log(2 * math.pi) + own + away)
        return total

    def mixture(n: int) -> float:
        known = [j for j in range(members) if weights[j] > 0]
        return -log_sum_exp([math.log(weights[j]) + log_density(j, n) for j in known])

    member = sum(
        weights[j] * over_batch(lambda n, j=j: -log_density(j, n), batch) for j in range(members)
    )
    loss = sum(
        weights[j] * over_batch(lambda n, j=j: -log_density(j, n, weighting), batch)
        for j in range(members)
    )
    ensemble = over_batch(mixture, batch)
    parts = {"member_error": member, "ensemble_error": ensemble, "diversity": member - ensemble}
    return loss, {**parts, "weighted_error": loss}


def gradient_adjusted(
    outputs, targets, weights, *, alpha, others_only, detach, disagreement=None, held=None
) -> Result:
    """Eq. 8, and Eq. 10 for ``others_only``. Weights count as M w_j members each."""
    members, batch, size = outputs.shape
    seen = outputs if held is None or not detach else held
    total = 0.0
    for n in range(batch):
        for i in range(members):
            for k in range(size):
                y = targets[n][k]
                others = sum(members * weights[j] * (seen[j, n, k] - y) for j in range(members))
                step = alpha * others / members
                if others_only:
                    step = alpha * (others - (seen[i, n, k] - y)) / (members - 1)
                total += weights[i] * (outputs[i, n, k] - (y - step)) ** 2
    member, ensemble = member_and_ensemble_error(outputs, targets, weights, "mse", "mean", 0.0)
    parts = {"member_error": member, "ensemble_error": ensemble, "diversity": member - ensemble}
    return total / batch, parts


def ncl(outputs, targets, weights, *, strength, loss, disagreement=None, held=None) -> Result:
    """``mean_j [L(f_j) + 2 λ p_j]``, ``p_j = −⟨f_j − f̄, f_j − f̄⟩`` with f̄ and the last held."""
    members, batch, size = outputs.shape
    held = outputs if held is None else held
    penalty = 0.0
    for n in range(batch):
        now, then = outputs[:, n], held[:, n]
        if loss == "brier":
            now, then = ([softmax(row) for row in rows] for rows in (now, then))
        mean = average(then, weights)
        for j in range(members):
            for k in range(size):
                penalty -= weights[j] * (now[j][k] - mean[k]) * (then[j][k] - mean[k]) / batch
    combine = "mean" if loss == "mse" else "probability"
    member, _ = member_and_ensemble_error(outputs, targets, weights, loss, combine, 0.0)
    return member + 2 * strength * penalty, {
        "member_error": member,
        "correlation_penalty": penalty,
    }


def gncl(
    outputs, targets, weights, *, strength, loss, combine, disagreement=None, held=None
) -> Result:
    """Theorem 4.5 with every c_j = 0: ``½ Σ_j w_j dᵀ H(f̄) d`` with the Hessian written out."""
    members, batch, size = outputs.shape
    total = 0.0
    for n in range(batch):
        if loss == "mse":
            points = outputs[:, n]
            hessian = 2 * np.eye(size)
        elif combine == "score":
            points = outputs[:, n]
            q = softmax(average(points, weights))
            hessian = np.diag(q) - np.outer(q, q)
        else:
            points = np.array([softmax(row) for row in outputs[:, n]])
            label = distribution(targets[n], size)
            hessian = np.diag(label / average(points, weights) ** 2)
        centre = average(points, weights)
        for j in range(members):
            away = points[j] - centre
            total += 0.5 * weights[j] * float(away @ hessian @ away) / batch
    member, _ = member_and_ensemble_error(outputs, targets, weights, loss, combine, 0.0)
    return member - strength * total, {"member_error": member, "second_order_diversity": total}


# ---- adp ----------------------------------------------------------------------------------------


def non_target_directions(logits: Array, label: int, weights: Array) -> Array:
    """Unit vectors of Eq. 3, one row a member of positive weight, without the entry ``label``.

    Multiplying a prediction by a number does not change its direction, so the exponentials of the
    wrong classes are taken relative to the largest of them.
    """
    rows = []
    for row, weight in zip(logits, weights, strict=True):
        if weight > 0:
            others = np.delete(np.asarray(row, dtype=np.float64), label)
            others = np.exp(others - others.max())
            rows.append(others / math.sqrt(sum(value**2 for value in others)))
    return np.array(rows)


def log_diversity(logits: Array, label: int, weights: Array) -> float:
    directions = non_target_directions(logits, label, weights)
    gram = directions @ directions.T + FLOOR * np.eye(len(directions))
    sign, value = np.linalg.slogdet(gram)
    assert sign > 0
    return float(value)


def adp(
    outputs, targets, weights, *, alpha, beta, temperature, disagreement=None, held=None
) -> Result:
    """Eq. 2, 3, 5 and 6 with F = softmax(z / T)."""
    members, batch, _ = outputs.shape
    logits = outputs / temperature
    ce = over_batch(
        lambda n: sum(
            members * weights[k] * cross_entropy(log_softmax(logits[k, n]), targets[n])
            for k in range(members)
        ),
        batch,
    )
    h = over_batch(lambda n: entropy(np.exp(mean_log_probs(logits[:, n], weights))), batch)
    led = over_batch(lambda n: log_diversity(logits[:, n], int(targets[n]), weights), batch)
    parts = {"cross_entropy": ce, "ensemble_entropy": h, "log_diversity": led}
    return ce - alpha * h - beta * led, parts


def jensen_shannon(logits: Array, weights: Array) -> float:
    """Eq. 9 for one example."""
    inside = average([entropy(softmax(row)) for row in logits], weights)
    return entropy(np.exp(mean_log_probs(logits, weights))) - inside


def jsd(outputs, targets, weights, *, strength, disagreement=None, held=None) -> Result:
    """Eq. 10."""
    members, batch, _ = outputs.shape
    ce, _ = member_and_ensemble_error(
        outputs, targets, weights, "cross_entropy", "probability", 0.0
    )
    divergence = over_batch(lambda n: jensen_shannon(outputs[:, n], weights), batch)
    parts = {"cross_entropy": members * ce, "jensen_shannon": divergence}
    return members * ce - strength * divergence, parts


# ---- ldr ----------------------------------------------------------------------------------------


def a2d(logits: Array, other: Array) -> float:
    """Eq. 3 for one example, in logarithms: ŷ is the class that the first predicts."""
    p, q = log_softmax(logits), log_softmax(other)
    top = int(np.argmax(p))
    not_p, not_q = log_sum_exp(np.delete(p, top)), log_sum_exp(np.delete(q, top))
    return -log_sum_exp([p[top] + not_q, q[top] + not_p])


def mutual_information(logits: Array, other: Array, shares: Array) -> float:
    """``KL(E[p ⊗ q] ‖ E[p] ⊗ E[q])`` over a batch ``[batch, classes]`` whose shares sum to 1."""
    batch, classes = logits.shape
    p, q = ([softmax(row) for row in rows] for rows in (logits, other))
    left, right = average(p, shares), average(q, shares)
    total = 0.0
    for c in range(classes):
        for d in range(classes):
            joint = sum(shares[n] * p[n][c] * q[n][d] for n in range(batch))
            if joint > 0:
                total += joint * (math.log(joint) - math.log(left[c] * right[d]))
    return total


def pair_term(name: str, logits: Array, other: Array, alpha: Array) -> float:
    """The pair term over a batch whose examples weigh α_n, both orders of the pair averaged."""
    batch = len(logits)
    if name == "divdis":
        total = float(sum(alpha))
        return total / batch * mutual_information(logits, other, alpha / total) if total else 0.0
    if name == "jsd":
        half = np.array([0.5, 0.5])
        return over_batch(
            lambda n: -alpha[n] * jensen_shannon(np.array([logits[n], other[n]]), half), batch
        )
    return over_batch(
        lambda n: alpha[n] * 0.5 * (a2d(logits[n], other[n]) + a2d(other[n], logits[n])), batch
    )


def mean_pair_term(name: str, outputs: Array, alpha: Array, weights: Array) -> float:
    """The mean over pairs m < l, each counted w_m w_l."""
    members = len(outputs)
    total = shares = 0.0
    for m in range(members):
        for k in range(m):
            share = weights[m] * weights[k]
            shares += share
            if share > 0:
                total += share * pair_term(name, outputs[m], outputs[k], alpha)
    return total / shares if shares else 0.0


def main_loss(outputs, targets, weights, smoothing=0.0) -> float:
    """Eq. 1."""
    return member_and_ensemble_error(
        outputs, targets, weights, "cross_entropy", "probability", smoothing
    )[0]


def a2d_objective(
    outputs, targets, weights, *, strength, label_smoothing=0.0, disagreement, held=None
) -> Result:
    """Eq. 1 + λ Eq. 2 with the mean over pairs."""
    ce = main_loss(outputs, targets, weights, label_smoothing)
    term = mean_pair_term("a2d", disagreement, np.ones(disagreement.shape[1]), weights)
    return ce + strength * term, {"cross_entropy": ce, "disagreement": term}


def repulsion(outputs, targets, weights, *, strength, scale, disagreement, held=None) -> Result:
    """Squared errors, and a Gaussian kernel of every pair's distance on unlabelled inputs."""
    error, _ = member_and_ensemble_error(outputs, targets, weights, "mse", "mean", 0.0)
    members, batch, size = disagreement.shape
    total = shares = 0.0
    for m in range(members):
        for k in range(m):
            share = weights[m] * weights[k]
            shares += share
            for n in range(batch):
                away = sum(
                    (disagreement[m, n, c] - disagreement[k, n, c]) ** 2 for c in range(size)
                )
                total += share * math.exp(-away / (2 * scale**2)) / batch
    term = scale**2 * total / shares if shares else 0.0
    return error + strength * term, {"member_error": error, "disagreement": term}


def divdis(
    outputs, targets, weights, *, strength, balance, prior=None, disagreement, held=None
) -> Result:
    members, batch, classes = disagreement.shape
    prior = [1 / classes] * classes if prior is None else prior
    ce = main_loss(outputs, targets, weights)
    term = mean_pair_term("divdis", disagreement, np.ones(batch), weights)
    imbalance = 0.0
    for j in range(members):
        mean = average([softmax(row) for row in disagreement[j]], np.full(batch, 1 / batch))
        for c in range(classes):
            if mean[c] > 0:
                imbalance += weights[j] * mean[c] * math.log(mean[c] / prior[c])
    parts = {"cross_entropy": ce, "mutual_information": term, "imbalance": imbalance}
    return ce + strength * term + balance * imbalance, parts


def hardness(outputs: Array, targets: Array, weights: Array) -> Array:
    """Eq. 4: CE of the averaged logits over its squared batch mean."""
    batch = outputs.shape[1]
    ce = np.array(
        [
            cross_entropy(log_softmax(average(outputs[:, n], weights)), targets[n])
            for n in range(batch)
        ]
    )
    mean = sum(ce) / batch
    return ce / mean**2 if mean > 0 else np.zeros(batch)


def ldr(
    outputs, targets, weights, *, strength, regularizer, label_smoothing=0.0, disagreement=None,
    held=None,
) -> Result:  # fmt: skip
    """Eq. 6 with the mean over pairs (Appendix A.13)."""
    ce = main_loss(outputs, targets, weights, label_smoothing)
    alpha = hardness(outputs if held is None else held, targets, weights)
    term = mean_pair_term(regularizer, outputs, alpha, weights)
    return ce + strength * term, {"cross_entropy": ce, "disagreement": term}


def sequential(
    outputs, targets, weights, *, strength, label_smoothing=0.0, disagreement, held=None
) -> Result:
    """Member k alone: ``CE_k + λ · mean_{l<k} G``; the members before it are held."""
    members, batch, _ = disagreement.shape
    ce = over_batch(
        lambda n: cross_entropy(log_softmax(outputs[-1, n]), targets[n], label_smoothing),
        outputs.shape[1],
    )
    earlier = (disagreement if held is None else held)[:-1]
    terms = [pair_term("a2d", disagreement[-1], rows, np.ones(batch)) for rows in earlier]
    term = sum(terms) / (members - 1) if terms else 0.0
    return ce + strength * term, {"cross_entropy": ce, "disagreement": term}
