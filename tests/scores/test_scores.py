"""Scores: against slow loops, by hand, their direction, their bounds, their edges."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dissensus.diversity import DETERMINANT_FLOOR
from dissensus.outputs import Predictions
from dissensus.scores import (
    SCORES,
    NamedScore,
    at_temperature,
    parse,
    pds,
    pds_sum,
    score_all,
    score_file,
    unique,
    variance,
)

CLASSIFIER_SCORES = [name for name in SCORES if name != "variance"]
EVERY = pytest.mark.parametrize("name", SCORES)


def seeded(*shape: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def slow_score(name: str, outputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each score for each example, one number at a time, in float64, from the papers' formulas."""
    members, batch, classes = outputs.shape
    result = np.empty(batch)
    present = [m for m in range(members) if weights[m] > 0]
    for n in range(batch):
        z = outputs[:, n]
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        mean = sum(weights[m] * p[m] for m in range(members))
        entropies = [-sum(q * math.log(q) for q in p[m] if q > 0) for m in range(members)]
        labels = [int(np.argmax(p[m])) for m in range(members)]
        mean_entropy = sum(weights[m] * entropies[m] for m in range(members))
        entropy = -sum(q * math.log(q) for q in mean if q > 0)
        if name in ("pds", "pds_sum"):
            total = sum(max(p[m][c] for m in present) for c in range(classes))
            result[n] = total / classes if name == "pds" else total
        elif name == "bma":
            result[n] = -max(mean)
        elif name == "max_softmax":
            centre = np.exp(sum(weights[m] * z[m] for m in range(members)))
            result[n] = -max(centre) / sum(centre)
        elif name == "entropy":
            result[n] = entropy
        elif name == "mean_entropy":
            result[n] = mean_entropy
        elif name == "mutual_information":
            result[n] = entropy - mean_entropy
        elif name == "energy":
            sums = [math.log(sum(math.exp(v) for v in z[m])) for m in range(members)]
            result[n] = -sum(weights[m] * sums[m] for m in range(members))
        elif name == "confidence":
            result[n] = -sum(weights[m] * max(p[m]) for m in range(members))
        elif name == "max_logit":
            result[n] = -sum(weights[m] * max(z[m]) for m in range(members))
        elif name == "unique":
            result[n] = len({labels[m] for m in present})
        elif name == "disagreement":
            pairs = [(m, k) for m in range(members) for k in range(members) if m != k]
            total = sum(weights[m] * weights[k] for m, k in pairs)
            apart = sum(weights[m] * weights[k] for m, k in pairs if labels[m] != labels[k])
            result[n] = apart / total if total else 0.0
        elif name == "ensemble_diversity":
            others = [np.delete(p[m], int(np.argmax(mean))) for m in present]
            unit = np.array([v / np.linalg.norm(v) for v in others])
            gram = unit @ unit.T + DETERMINANT_FLOOR * np.eye(len(unit))
            result[n] = -np.linalg.slogdet(gram)[1]
        else:
            centre = sum(weights[m] * z[m] for m in range(members))
            result[n] = sum(weights[m] * ((z[m] - centre) ** 2).sum() for m in range(members))
    return result


@EVERY
def test_score_equals_slow_loop(name: str) -> None:
    outputs = seeded(3, 17, 6)
    for weights in (None, [0.5, 0.2, 0.3], [0.0, 0.75, 0.25]):
        chosen = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        expected = slow_score(name, outputs.numpy(), np.array(weights or [1 / 3] * 3))
        np.testing.assert_allclose(SCORES[name](outputs, chosen), expected, rtol=1e-10, atol=1e-10)
    for shape in ((1, 5, 4), (3, 1, 4), (1, 1, 4)):  # one member, one example
        expected = slow_score(name, seeded(*shape).numpy(), np.full(shape[0], 1 / shape[0]))
        for dtype in (torch.float32, torch.float64):
            result = SCORES[name](seeded(*shape).to(dtype))
            assert result.shape == shape[1:2]
            assert result.dtype == dtype
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [2.0, 60.0])
def test_one_pass_gives_the_same_scores(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dissensus.scores.named_scores._CHUNK", 50
    )  # several pieces, the last one shorter
    logits = seeded(3, 17, 6, scale=scale)  # at 60 wrong-class probabilities underflow when squared
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    both = score_all(logits, weights=weights)
    assert set(both) == set(CLASSIFIER_SCORES)
    in_float32 = score_all(logits.float())
    for name in CLASSIFIER_SCORES:
        score = SCORES[name]
        torch.testing.assert_close(both[name], score(logits, weights), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(in_float32[name].double(), score(logits), rtol=2e-3, atol=2e-3)
        (alone,) = score_all(logits.float(), [name]).values()
        torch.testing.assert_close(alone, in_float32[name])


def known_and_strange() -> tuple[torch.Tensor, torch.Tensor]:
    """Four members on 200 known inputs (sure, agreeing) and 200 strange ones (unsure, apart)."""
    known = seeded(4, 200, 6, seed=1, scale=0.3)
    known[..., 0] += 6
    strange = seeded(4, 200, 6, seed=2, scale=1.5)
    return known, strange


@EVERY
def test_higher_means_more_out_of_distribution(name: str) -> None:
    known, strange = known_and_strange()
    if name == "ensemble_diversity":
        # After ADP, members are orthogonal on the wrong classes of what they know (Corollary 1),
        # and alike elsewhere: that is what the score is for.
        known = torch.full((4, 200, 6), -9.0, dtype=torch.float64)
        known[..., 0] = 3.0
        known[range(4), :, range(1, 5)] = 0.0
        strange = seeded(1, 200, 6, seed=3).expand(4, 200, 6) + seeded(4, 200, 6, seed=4, scale=0.1)
    assert SCORES[name](strange).mean() > SCORES[name](known).mean()
    higher = (SCORES[name](strange)[:, None] > SCORES[name](known)).double().mean()
    assert higher > 0.9 or name in ("unique", "disagreement")


@EVERY
def test_member_order_does_not_matter(name: str) -> None:
    outputs, order = seeded(5, 9, 7), [3, 0, 4, 1, 2]
    weights = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.4], dtype=torch.float64)
    expected = SCORES[name](outputs, weights)
    torch.testing.assert_close(SCORES[name](outputs[order], weights[order]), expected)


@pytest.mark.parametrize(
    ("name", "least"),
    [("mutual_information", 0.0), ("unique", 1.0), ("disagreement", 0.0), ("variance", 0.0)],
)
def test_identical_members_have_least_diversity(name: str, least: float) -> None:
    one = seeded(1, 9, 7).expand(5, 9, 7)
    torch.testing.assert_close(
        SCORES[name](one), torch.full((9,), least, dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert (SCORES[name](seeded(5, 9, 7)) >= least).all()


def test_identical_members_reach_the_least_pds_and_the_floor_of_the_determinant() -> None:
    one = seeded(1, 9, 7).expand(5, 9, 7)
    torch.testing.assert_close(pds_sum(one), torch.ones(9, dtype=torch.float64))
    # eigenvalues of ones + floor·I: 5 + floor once, floor four times
    floor = math.log(5 + DETERMINANT_FLOOR) + 4 * math.log(DETERMINANT_FLOOR)
    torch.testing.assert_close(
        SCORES["ensemble_diversity"](one), torch.full((9,), -floor, dtype=torch.float64)
    )


@EVERY
def test_finite_values_and_gradients_at_extreme_logits(name: str) -> None:
    signs = torch.sign(seeded(3, 16, 5)).float()
    outputs = (1e4 * signs).requires_grad_()
    result = SCORES[name](outputs)
    assert torch.isfinite(result).all()
    if name not in ("unique", "disagreement"):  # counts have no gradient
        (gradient,) = torch.autograd.grad(result.sum(), outputs)
        assert torch.isfinite(gradient).all()
    if name != "variance":
        assert torch.isfinite(score_all(outputs.detach(), [name])[name]).all()


@pytest.mark.parametrize("name", [n for n in SCORES if n not in ("unique", "disagreement")])
def test_gradients(name: str) -> None:
    outputs = seeded(3, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(SCORES[name], (outputs,))


@EVERY
def test_vmap_over_a_leading_axis_equals_the_loop(name: str) -> None:
    many = seeded(4, 3, 6, 5)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).expand(4, 3)
    expected = torch.stack([SCORES[name](outputs, weights[0]) for outputs in many])
    torch.testing.assert_close(torch.func.vmap(SCORES[name])(many, weights), expected)


@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 10_000), st.floats(0.1, 30))
def test_pds_lies_between_one_and_the_smaller_of_members_and_classes(
    members: int, classes: int, seed: int, scale: float
) -> None:
    total = classes * pds(seeded(members, 8, classes, seed=seed, scale=scale))
    assert (total >= 1 - 1e-9).all()
    assert (total <= min(members, classes) + 1e-9).all()


@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 10_000))
def test_pds_of_one_hot_members_counts_unique_predictions(
    members: int, classes: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (members, 8), generator=generator)
    logits = 1000.0 * torch.nn.functional.one_hot(labels, classes).double()
    counts = torch.tensor([len(set(column.tolist())) for column in labels.T]).double()
    torch.testing.assert_close(pds_sum(logits), counts)
    torch.testing.assert_close(unique(logits), counts)


def test_pds_of_two_members_is_one_plus_total_variation() -> None:
    logits = seeded(2, 50, 6)
    p, q = logits.softmax(-1)
    torch.testing.assert_close(pds_sum(logits), 1 + (p - q).abs().sum(-1) / 2)


def test_values_by_hand() -> None:
    # Members (½, ¼, ¼) and (¼, ¼, ½): class maxima ½, ¼, ½, so Σ = 5/4 and PDS = 5/12 (Eq. 10);
    # mean (⅜, ¼, ⅜): BMA −⅜ (Eq. 9); mean confidence ½ (Eq. 16); energy of log-probabilities 0.
    logits = torch.tensor([[[0.5, 0.25, 0.25]], [[0.25, 0.25, 0.5]]], dtype=torch.float64).log()
    assert pds(logits).item() == pytest.approx(5 / 12)
    assert SCORES["bma"](logits).item() == pytest.approx(-3 / 8)
    assert SCORES["confidence"](logits).item() == pytest.approx(-1 / 2)
    assert SCORES["energy"](logits).item() == pytest.approx(0, abs=1e-12)
    # H(½, ¼, ¼) = 1.5 log 2 for both; H(⅜, ¼, ⅜) = ¾ log(8/3) + ¼ log 4.
    ensemble = 0.75 * math.log(8 / 3) + 0.25 * math.log(4)
    assert SCORES["mean_entropy"](logits).item() == pytest.approx(1.5 * math.log(2))
    assert SCORES["entropy"](logits).item() == pytest.approx(ensemble)
    information = ensemble - 1.5 * math.log(2)
    assert SCORES["mutual_information"](logits).item() == pytest.approx(information)
    # Votes 0, 0, 1: two of the three pairs disagree.
    votes = 9 * torch.eye(3, dtype=torch.float64)[[0, 0, 1]][:, None]
    assert SCORES["disagreement"](votes).item() == pytest.approx(2 / 3)
    assert variance(torch.tensor([[[1.0, 0.0]], [[3.0, 4.0]]])).item() == pytest.approx(5.0)


@EVERY
def test_bad_input_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"for one model pass (logits|outputs)\[None\]"):
        SCORES[name](seeded(4, 5))
    with pytest.raises(ValueError, match=r"\[members, batch, \w+\], got \(3, 0, 5\)"):
        SCORES[name](seeded(3, 0, 5))
    for bad in (math.nan, math.inf, -math.inf):
        outputs = seeded(3, 4, 5)
        outputs[1, 2, 3] = bad
        with pytest.raises(ValueError, match="must be finite, got 1 NaN or infinite of 60"):
            SCORES[name](outputs)
    with pytest.raises(ValueError, match="sum to 1"):
        SCORES[name](seeded(3, 4, 5), torch.tensor([0.5, 0.2, 0.2]))


def test_bad_input_of_score_all() -> None:
    logits = seeded(3, 4, 5)
    logits[0, 3, 0] = math.nan
    with pytest.raises(ValueError, match="must be finite"):
        score_all(logits)
    with pytest.raises(ValueError, match="no score for classifiers 'pdz'; did you mean 'pds'"):
        score_all(seeded(3, 4, 5), ["pdz"])
    assert "ensemble_diversity" not in score_all(seeded(5, 4, 5))  # more members than wrong classes
    with pytest.raises(ValueError, match="at most classes − 1 = 4 members, got 5"):
        SCORES["ensemble_diversity"](seeded(5, 4, 5))
    with pytest.raises(ValueError, match="at most classes − 1 = 4 members, got 5"):
        score_all(seeded(5, 4, 5), ["ensemble_diversity"])


# ---- temperatures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n for n in CLASSIFIER_SCORES if n not in ("max_logit", "unique", "disagreement")]
)
def test_a_temperature_divides_the_logits(name: str) -> None:
    logits, weights = seeded(3, 17, 6), np.array([0.5, 0.2, 0.3])
    expected = slow_score(name, logits.numpy() / 2.5, weights) * (2.5 if name == "energy" else 1)
    tempered = parse(f"{name}:temperature=2.5")
    assert tempered == NamedScore(name, 2.5) == at_temperature(name, torch.tensor(2.5))
    found = tempered(logits, torch.from_numpy(weights))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    text = str(tempered)
    both = score_all(logits, [name, text], torch.from_numpy(weights))
    np.testing.assert_allclose(both[text], expected, rtol=1e-9, atol=1e-9)
    plain = slow_score(name, logits.numpy(), weights)
    np.testing.assert_allclose(both[name], plain, rtol=1e-9, atol=1e-9)


def test_a_temperature_for_each_member() -> None:
    logits, scale = seeded(3, 17, 6), torch.tensor([1.0, 2.0, 4.0])
    expected = pds(logits / scale[:, None, None])
    torch.testing.assert_close(at_temperature("pds", scale)(logits), expected)
    torch.testing.assert_close(at_temperature(pds, scale)(logits), expected)
    with pytest.raises(ValueError, match=r"temperature must be \[members\] = \(2,\), got \(3,\)"):
        at_temperature("pds", scale)(logits[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bmaa:temperature=2", "no score 'bmaa'; did you mean 'bma'?"),
        ("bma:temp=2", "bma has no setting 'temp'; did you mean 'temperature'?"),
        ("bma:temperature=x", "bma: temperature must be a number, got 'x'"),
        ("bma:temperature=0", "greater than 0, got 0"),
        ("bma:temperature=nan", "greater than 0, got nan"),
        ("unique:temperature=2", "changes nothing about unique"),
    ],
)
def test_a_wrong_name_is_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_scores_of_a_file_are_those_of_its_tensor(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.scores.named_scores._READ", 100)  # many parts
    logits, seen = seeded(3, 17, 6), []
    file = tmp_path / f"test{suffix}"
    if suffix == ".npz":
        np.savez(file, outputs=logits.numpy())
    else:
        Predictions(logits, torch.zeros(17, dtype=torch.long)).save(file)
    names = ["pds", "energy:temperature=3", "unique"]
    found = score_file(file, names, progress=lambda done, total: seen.append((done, total)))
    assert list(found) == names
    for name, values in score_all(logits, names).items():
        torch.testing.assert_close(found[name], values)
    assert seen[-1] == (17, 17)
    assert len(seen) == (4 if suffix == ".safetensors" else 1)


def test_a_file_that_holds_no_predictions_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(ValueError, match="there is no such file"):
        score_file(tmp_path / "none.safetensors")
    save_file({"outputs": torch.zeros(3, 2)}, tmp_path / "flat.safetensors")
    with pytest.raises(ValueError, match="must hold 'outputs'"):
        score_file(tmp_path / "flat.safetensors")
    save_file({"logits": torch.zeros(3, 2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="must hold 'outputs'"):
        score_file(tmp_path / "other.safetensors")
