"""Make strangers for your own kind of data, and tune a detector on them.

    python examples/own_strangers.py
    python examples/own_strangers.py --epochs 40 --members 10

Members learn to distinguish sine, square and triangle waves, each a noisy signal [1, 64]. Signals
that drop out, spike or change midway are unknown. Dissensus has strangers for images and for rows
of numbers. For signals, a short function makes them: it shuffles pieces of the signals of a batch.

A copy of the members learns to disagree on these strangers; the ensemble and its predictions do
not change. Whether that helps depends on the data, so compare it with a distance of features. Here
the copy detects signals that change, but misses some dropouts that the members detect.
"""

import argparse
import math

import torch
from torch import Generator, Tensor, nn

import dissensus as ds

LENGTH, PIECES = 64, 8


def strangers(x: Tensor, generator: Generator) -> Tensor:
    """Signals [batch, 1, length] whose pieces come from random signals and places of the batch."""
    pieces = x.reshape(-1, LENGTH // PIECES)
    drawn = torch.randint(len(pieces), (len(x) * PIECES,), generator=generator)
    return pieces[drawn].reshape(x.shape)


def waves(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sine, square and triangle waves of random frequency and phase, with noise."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(rows) % 3
    turns, phase = (torch.rand(rows, 1, generator=generator) for _ in range(2))
    angle = 2 * math.pi * ((2 + 2 * turns) * torch.linspace(0, 1, LENGTH) + phase)
    sine = angle.sin()
    shapes = torch.stack([sine, sine.sign(), 2 / math.pi * sine.asin()])
    noise = 0.2 * torch.randn(rows, LENGTH, generator=generator)
    return (shapes[kind, torch.arange(rows)] + noise)[:, None], kind


def unknown_signals(x: Tensor, seed: int) -> dict[str, Tensor]:
    """Sensor faults: known signals that drop out, spike, or turn into another signal."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(8, 40, (len(x), 1, 1), generator=generator)
    time = torch.arange(LENGTH)
    gap = (time >= start) & (time < start + 16)
    spikes = 3.0 * (torch.rand(x.shape, generator=generator) < 0.05)
    return {
        "dropouts": x.masked_fill(gap, 0.0),
        "spikes": x + spikes,
        "changes": torch.where(time < start, x, x.roll(1, 0)),
    }


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(1, 8, 7, stride=2), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 3)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--members", type=int, default=5)
    options = parser.parse_args()

    train, val, test = waves(1500, 0), waves(300, 1), waves(600, 2)
    ens = ds.Ensemble(network, members=options.members)
    ds.fit(ens, train, "independent", val=val, epochs=options.epochs)

    detectors = {
        "plain": ds.Detector(ens).fit(val),
        "tuned": ds.Detector(ens).tune(train, strangers=strangers).fit(val),
        "plain, with a distance,": ds.Detector(ens, "combined").fit(val, train=train),
    }
    accuracy = (ens.predict(test[0]).argmax(1) == test[1]).float().mean()
    print(f"Accuracy: {accuracy:.1%}, whichever detector is used.")
    for name, detector in detectors.items():
        known = detector.score(test[0])
        found = {
            kind: float(ds.detection.evaluate(known, detector.score(x), bootstrap=0).auroc)
            for kind, x in unknown_signals(test[0], 3).items()
        }
        listed = ", ".join(f"{kind} {auroc:.3f}" for kind, auroc in found.items())
        flagged = detector.is_ood(test[0]).float().mean()
        score = str(detector.score_name).partition(":")[0]
        print(f"{name} {score}: AUROC of {listed}; {flagged:.0%} of known signals flagged.")


if __name__ == "__main__":
    main()
