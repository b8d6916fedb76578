"""An ensemble of your own nn.Module, trained from your own DataLoader.

    python examples/own_network.py
    python examples/own_network.py --epochs 3

The data are scikit-learn's digits, so the script runs offline. To adapt it to your work, change
the class ``Network`` and the function ``loaders``.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import dissensus as ds


class Network(nn.Module):
    """Any module that maps a batch of inputs to one row of logits each."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.output = nn.Linear(16 * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.convolution(images))
        return self.output(nn.functional.max_pool2d(features, 2).flatten(1))


def loaders() -> tuple[DataLoader, DataLoader, DataLoader]:
    """Batches ``(x, y)`` for training, validation (to choose the best epoch) and testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    data = TensorDataset(x, torch.tensor(labels))
    train, val, test = random_split(data, [0.6, 0.2, 0.2], torch.Generator().manual_seed(0))
    return (
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(val, batch_size=256),
        DataLoader(test, batch_size=256),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--objective", default="independent", help="see `dissensus objectives`")
    parser.add_argument("--out", type=Path, default=None, help="run folder (default: temporary)")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp()) / "run"
    train, val, test = loaders()

    # Pass a function that makes a network, not a network: every member starts from its own weights.
    ens = ds.Ensemble(Network, members=options.members, seed=0)
    history = ds.fit(ens, train, options.objective, val=val, epochs=options.epochs, out=out)

    predictions = ds.predict(ens, test)
    found = ds.decompose(predictions.outputs, predictions.targets)
    right = predictions.outputs.argmax(-1) == predictions.targets
    combined = ds.combine(predictions.outputs, "probability").argmax(-1) == predictions.targets
    print(f"Epoch {history.best_epoch} of {len(history.epochs)} was the best on validation data.")
    print(f"Test accuracy: members {right.float().mean():.1%} on average, ensemble ", end="")
    print(f"{combined.float().mean():.1%}.")
    print(
        f"Cross-entropy: {found.ensemble_error:.3f} = {found.member_error:.3f} (members) "
        f"− {found.diversity:.3f} (diversity)."
    )
    print(f"The run is saved in {out}; ds.fit with resume=True continues from there.")


if __name__ == "__main__":
    main()
