"""The one tensor: combining it, checking it, and keeping it on disk."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from dissensus import outputs as out
from dissensus.outputs import Predictions

# ---- combining ----------------------------------------------------------------------------------


def slow_log_probs(row: list[float]) -> list[float]:
    """log softmax of one member's logits, term by term, in float64."""
    highest = max(row)
    total = sum(math.exp(value - highest) for value in row)
    return [value - highest - math.log(total) for value in row]


def slow_combined(rows: list[list[float]], how: str, weights: list[float]) -> list[float]:
    """The ensemble's log-probabilities for one example, by loops."""
    classes = range(len(rows[0]))
    if how == "score":
        return slow_log_probs(
            [sum(w * row[k] for w, row in zip(weights, rows, strict=True)) for k in classes]
        )
    by_member = [slow_log_probs(row) for row in rows]
    result = []
    for k in classes:
        terms = [math.log(w) + row[k] for w, row in zip(weights, by_member, strict=True) if w > 0]
        highest = max(terms)
        result.append(highest + math.log(sum(math.exp(term - highest) for term in terms)))
    return result


@pytest.mark.parametrize("how", ["probability", "score"])
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    members=st.integers(1, 4),
    scale=st.sampled_from([1.0, 1e-3, 30.0, 1e4]),
    weighting=st.sampled_from(["equal", "uneven", "one member off"]),
)
def test_combined_log_probs_equal_a_slow_loop(
    how: str, seed: int, members: int, scale: float, weighting: str
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (members, 2, 3))
    weights = rng.dirichlet(np.ones(members))
    if weighting == "one member off" and members > 1:
        weights[0] = 0
        weights /= weights.sum()
    given_weights = None if weighting == "equal" else torch.from_numpy(weights)
    used = [1 / members] * members if weighting == "equal" else weights.tolist()
    wanted = [slow_combined(logits[:, n].tolist(), how, used) for n in range(2)]
    got = out.combined_log_probs(torch.from_numpy(logits), how, given_weights)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    probs = out.combine(torch.from_numpy(logits), how, given_weights)
    np.testing.assert_allclose(probs, np.exp(wanted), rtol=1e-10, atol=1e-14)


def test_combinations_by_hand() -> None:
    # p = (½, ½) and (1/10, 9/10) with weights ¾ and ¼: probability (0.4, 0.6).
    # Logits (0, 0) and (0, 2 log 3): the mean is (0, ½ log 3), so q̄ = (1, √3) / (1 + √3).
    # The mean of the outputs 0 and 2 log 3 is ½ log 3.
    logits = torch.tensor([[[0.0, 0.0]], [[0.0, 2 * math.log(3)]]], dtype=torch.float64)
    weights = torch.tensor([0.75, 0.25], dtype=torch.float64)
    probability, score, mean = (out.combine(logits, how, weights)[0] for how in out.COMBINATIONS)
    assert probability.tolist() == pytest.approx([0.4, 0.6])
    assert score.tolist() == pytest.approx([1 / (1 + 3**0.5), 3**0.5 / (1 + 3**0.5)])
    assert mean.tolist() == pytest.approx([0, math.log(3) / 2])
    assert out.combine(logits)[0].tolist() == pytest.approx([0.3, 0.7])  # equal weights
    assert out.combine(logits, "score")[0].tolist() == pytest.approx([0.25, 0.75])
    assert out.combine(logits[:, :, 1:], "mean").tolist() == [[pytest.approx(math.log(3))]]


def test_one_member_is_its_own_combination() -> None:
    logits = torch.randn(1, 1, 4)
    for how in ("probability", "score"):
        torch.testing.assert_close(out.combine(logits, how), logits[0].softmax(-1))
    assert torch.equal(out.combine(logits, "mean"), logits[0])


@pytest.mark.parametrize("how", ["probability", "score"])
@pytest.mark.parametrize("weights", [None, [0.0, 1.0], [0.25, 0.75]])
def test_huge_logits_stay_finite_in_float32(how: str, weights: list[float] | None) -> None:
    rows = [[1e4, -1e4, 0.0], [-1e4, 1e4, 3.0]]
    logits = torch.tensor(rows)[:, None].requires_grad_()
    mixed = out.combined_log_probs(logits, how, None if weights is None else torch.tensor(weights))
    wanted = slow_combined(rows, how, weights or [0.5, 0.5])
    np.testing.assert_allclose(mixed[0].detach(), wanted, rtol=1e-6, atol=1e-3)
    for k in range(3):
        (gradient,) = torch.autograd.grad(mixed[0, k], logits, retain_graph=True)
        assert torch.isfinite(gradient).all()
    # The log of a mean of softmaxes, the naive form, is −∞ for the third class.
    assert torch.isinf(logits.softmax(-1).mean(0).log()).any()


def test_member_order_does_not_matter_and_agreement_changes_nothing() -> None:
    logits, weights = torch.randn(4, 3, 5).double(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    order = [2, 0, 3, 1]
    for how in out.COMBINATIONS:
        torch.testing.assert_close(
            out.combine(logits[order], how, weights[order]), out.combine(logits, how, weights)
        )
        same = logits[:1].expand(4, 3, 5)
        torch.testing.assert_close(out.combine(same, how, weights), out.combine(logits[:1], how))


@pytest.mark.parametrize("how", ["probability", "score"])
def test_gradients_and_vmap_of_combined_log_probs(how: str) -> None:
    logits, weights = torch.randn(2, 3, 2, 4).double(), torch.rand(2, 3).double()
    weights = weights / weights.sum(-1, keepdim=True)

    def mixed(values: Tensor, members: Tensor) -> Tensor:
        return out.combined_log_probs(values, how, members)

    assert torch.autograd.gradcheck(lambda x: mixed(x, weights[0]), logits[0].requires_grad_())
    looped = [mixed(*pair) for pair in zip(logits, weights, strict=True)]
    torch.testing.assert_close(vmap(mixed)(logits, weights), torch.stack(looped))


def test_majority_vote_by_hand_and_its_ties() -> None:
    labels = [
        [0, 1, 2, 2, 0],  # member 0's label for each of five examples
        [1, 1, 2, 0, 1],
        [1, 0, 0, 0, 2],
        [0, 0, 1, 2, 0],
    ]
    # Ties go to the lowest class: 0110 → 0, 1100 → 0, 2201 → 2, 2002 → 0, 0120 → 0.
    logits = torch.nn.functional.one_hot(torch.tensor(labels), 3).float()
    assert out.majority_vote(logits).tolist() == [0, 0, 2, 0, 0]
    # Weights 0.1, 0.4, 0.3, 0.2: class 1 has 0.7; 0 and 1 tie at 0.5, to 0; 2 has 0.5;
    # 0 has 0.7; 1 has 0.4 before 0 and 2 with 0.3 each.
    weights = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
    assert out.majority_vote(logits, weights).tolist() == [1, 0, 2, 0, 1]
    # A member that is undecided itself votes for its lowest class.
    assert out.majority_vote(torch.zeros(3, 2, 4)).tolist() == [0, 0]
    many = torch.stack([logits, logits.flip(-1)])
    both = torch.stack([weights, weights.flip(0)])
    looped = [out.majority_vote(*pair) for pair in zip(many, both, strict=True)]
    assert torch.equal(vmap(out.majority_vote)(many, both), torch.stack(looped))
    assert torch.equal(
        vmap(out.majority_vote)(many), torch.stack([out.majority_vote(one) for one in many])
    )


# ---- checks -------------------------------------------------------------------------------------

GOOD = torch.zeros(2, 4, 3)


@pytest.mark.parametrize(
    ("logits", "how", "weights", "message"),
    [
        (
            GOOD[0],
            "score",
            None,
            r"\[members, batch, classes\], got \(4, 3\); .*pass logits\[None\]",
        ),
        (
            GOOD[0],
            "mean",
            None,
            r"\[members, batch, outputs\], got \(4, 3\); .*pass outputs\[None\]",
        ),
        (GOOD[None], "score", None, r"\[members, batch, classes\], got \(1, 2, 4, 3\)$"),
        (GOOD.numpy(), "score", None, "got ndarray; convert it with torch.as_tensor"),
        (GOOD[:, :0], "score", None, r"at least one member, one example .*, got \(2, 0, 3\)"),
        (GOOD[:0], "mean", None, r"at least one member, one example .*, got \(0, 4, 3\)"),
        (GOOD.long(), "score", None, r"floating point, got torch.int64; .* logits.float\(\)"),
        (GOOD[..., :1], "score", None, r"at least two classes, .* torch.cat\(\[torch.zeros_like"),
        (GOOD / 0, "score", None, "must be finite, got 24 NaN or infinite of 24 values"),
        (GOOD, "average", None, "one of 'probability', 'score', 'mean', got 'average'"),
        (GOOD, "score", [0.5, 0.5], r"weights must be a tensor \[members\] = \(2,\), got list"),
        (GOOD, "score", torch.ones(2), r"sum to 1, .* a sum of 2; pass weights / weights.sum\(\)"),
        (GOOD, "score", torch.tensor([1, 0]), "weights must be floating point, got torch.int64"),
        (GOOD, "mean", torch.tensor([1.5, -0.5]), "not be negative .* a smallest of -0.5"),
        (GOOD, "mean", torch.tensor([1.0, math.nan]), "weights must be finite"),
    ],
)
def test_combine_says_what_is_wrong(
    logits: Tensor, how: str, weights: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        out.combine(logits, how, weights)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0, 1], "targets must be a torch.Tensor, got list; convert them with torch.as_tensor"),
        (torch.tensor([0, 1, 2]), r"integer targets must be \[batch\] = \(2,\), got \(3,\)"),
        (torch.tensor([0, 3]), r"labels must lie in \[0, 3\) .* from 0 to 3; renumber .* from 0"),
        (torch.tensor([-1, 2]), r"labels must lie in \[0, 3\) .* from -1 to 2"),
        (torch.tensor([True, False]), r"got torch.bool; pass targets.long\(\)"),
        (torch.tensor([0.0, 1.0]), r"= \(2, 3\), got \(2,\); .* must have an integer dtype"),
        (torch.full((2, 3), 0.5), "summing to 1 .* sums from 1.5 to 1.5"),
        (torch.tensor([[1.5, -0.5, 0.0]] * 2), "a smallest value of -0.5"),
        (torch.full((2, 3), math.inf), "soft targets must be finite"),
    ],
)
def test_check_targets_says_what_is_wrong(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        out.check_targets(targets, batch=2, classes=3)


def test_check_targets_takes_what_rounding_leaves() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out.check_targets(torch.randn(20, 1000).softmax(-1).to(dtype), batch=20, classes=1000)
    out.check_targets(torch.tensor([0, 2]), batch=2, classes=3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(4), r"\[batch, outputs\] = \(4, 1\), got \(4,\); pass targets\[:, None\]"),
        (torch.zeros(4, 2), r"\[batch, outputs\] = \(4, 1\), got \(4, 2\)$"),
        (torch.zeros(4, 1).long(), r"got torch.int64; pass targets.float\(\), or choose a class"),
        (torch.full((4, 1), math.nan), "targets must be finite, got 4 NaN"),
        (np.zeros((4, 1)), "targets must be a torch.Tensor, got ndarray"),
    ],
)
def test_check_regression_targets_says_what_is_wrong(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        out.check_regression_targets(targets, torch.zeros(2, 4, 1))


def test_log_probabilities_of_a_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="combine='mean' has no probabilities"):
        out.combined_log_probs(GOOD, "mean")


# ---- predictions on disk ------------------------------------------------------------------------


def example(dtype: torch.dtype = torch.float32) -> Predictions:
    meta = {"data": "moons", "seed": 3, "labels": ["a", "β"], "nested": {"beta": 0.5}}
    return Predictions(torch.randn(3, 4, 2).to(dtype), torch.tensor([0, 1, 1, 0]), meta)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_predictions_come_back_as_they_were(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = example(dtype)
    path = tmp_path / "new folder" / "predictions.safetensors"
    saved.save(path)
    loaded = Predictions.load(path)
    assert loaded.outputs.dtype == dtype
    assert torch.equal(loaded.outputs, saved.outputs)
    assert torch.equal(loaded.targets, saved.targets)
    assert loaded.meta == saved.meta
    assert (loaded.members, len(loaded)) == (3, 4)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_predictions_without_targets_or_with_soft_ones(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    for targets in (None, torch.randn(4, 2)):
        # neither contiguous nor a leaf; NaN is kept, for whoever wants to find it
        outputs = torch.randn(2, 4, 3, requires_grad=True).transpose(0, 2) / torch.tensor(0.0)
        Predictions(outputs, targets).save(str(path))
        loaded = Predictions.load(str(path))
        torch.testing.assert_close(loaded.outputs, outputs.detach(), equal_nan=True)
        assert (loaded.targets is None) == (targets is None)
        assert targets is None or torch.equal(loaded.targets, targets)
        assert not loaded.outputs.requires_grad


def write_example(folder: Path, kind: str) -> Path:
    saved, path = example(), folder / f"predictions.{kind.split()[0]}"
    if kind == "safetensors":
        saved.save(path)
    else:
        save = np.savez_compressed if "compressed" in kind else np.savez
        save(path, outputs=saved.outputs.numpy(), targets=saved.targets.numpy())
        assert torch.equal(Predictions.load(path).outputs, saved.outputs)
        assert torch.equal(Predictions.load(path).targets, saved.targets)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npz compressed"])
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = write_example(tmp_path, kind)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged, cut short") as caught:
            Predictions.load(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npz compressed"])
def test_a_damaged_file_is_refused_by_name_or_read(tmp_path: Path, kind: str) -> None:
    # A changed byte may be one that no checksum guards; what must not happen is another error.
    path = write_example(tmp_path, kind)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x81]) + whole[position + 1 :])
        try:
            Predictions.load(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017 (only some positions raise)


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "bin"])
def test_random_bytes_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise.{suffix}"
    for seed in range(40):
        noise = random.Random(seed)
        path.write_bytes(noise.randbytes(noise.randrange(200)))
        with pytest.raises(ValueError, match="cannot be read as") as caught:
            Predictions.load(path)
        assert str(path) in str(caught.value)


class Trap:
    """An object whose unpickling would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_an_archive_with_python_objects_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    trapped = np.array([Trap(mark)], dtype=object)
    for arrays in ({"outputs": trapped}, {"outputs": np.zeros((2, 3, 4)), "targets": trapped}):
        np.savez(tmp_path / "trap.npz", **arrays)
        with pytest.raises(
            ValueError, match=r"trap\.npz .* Python objects, which are never loaded"
        ):
            Predictions.load(tmp_path / "trap.npz")
    assert not mark.exists()


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2), "bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.safetensors is not .* 'outputs' .* got bias, wei"
    ):
        Predictions.load(tmp_path / "model.safetensors")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match=r"empty\.npz is not a predictions file: .* got nothing"):
        Predictions.load(tmp_path / "empty.npz")
    np.savez(tmp_path / "one.npz", outputs=np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"one\.npz: outputs must be .* for one model pass"):
        Predictions.load(tmp_path / "one.npz")
    np.savez(tmp_path / "words.npz", outputs=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"words\.npz must hold numbers"):
        Predictions.load(tmp_path / "words.npz")
    np.save(tmp_path / "single.npy", np.zeros((2, 4, 3)))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(ValueError, match=r"single\.npz cannot be read"):
        Predictions.load(tmp_path / "single.npz")
    header = {"format": "dissensus.predictions/1", "meta": "{"}
    save_file({"outputs": GOOD}, tmp_path / "meta.safetensors", metadata=header)
    with pytest.raises(ValueError, match=r"meta\.safetensors: its metadata cannot be read as JSON"):
        Predictions.load(tmp_path / "meta.safetensors")
    for missing in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(ValueError, match="there is no such file"):
            Predictions.load(missing)


def test_predictions_check_their_shapes() -> None:
    with pytest.raises(ValueError, match=r"outputs must be .* got \(4, 3\); for one model pass"):
        Predictions(GOOD[0])
    with pytest.raises(ValueError, match=r"with a batch of 4, got \(3,\)"):
        Predictions(GOOD, torch.zeros(3))
    with pytest.raises(ValueError, match=r"with a batch of 4, got \(4, 1, 1\)"):
        Predictions(GOOD, torch.zeros(4, 1, 1))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "predictions.safetensors"
    example().save(path)
    before = path.read_bytes()

    def half_a_file(tensors: object, part: Path, metadata: object) -> None:
        Path(part).write_bytes(before[:20])
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half_a_file)
    with pytest.raises(OSError, match="no space left"):
        example().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]  # and no half-written neighbour


@pytest.mark.parametrize("meta", [{"net": torch.nn.Linear(1, 1)}, {"loss": math.nan}, {(1, 2): 3}])
def test_meta_that_is_not_json_is_refused(tmp_path: Path, meta: dict[str, object]) -> None:
    path = tmp_path / "predictions.safetensors"
    with pytest.raises(ValueError, match="meta must be plain JSON values"):
        Predictions(GOOD, None, meta).save(path)
    assert not path.exists()


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """Whoever reads safetensors can read predictions: tensors by name, meta as JSON."""
    path = tmp_path / "predictions.safetensors"
    example().save(path)
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["outputs"]["shape"] == [3, 4, 2]
    assert header["targets"]["dtype"] == "I64"
    assert json.loads(header["__metadata__"]["meta"])["nested"] == {"beta": 0.5}
