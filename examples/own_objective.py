"""A custom objective in one file, and what the diagnosis says about it.

    python examples/own_objective.py
    python examples/own_objective.py --strength 1 --epochs 80

The idea looks good: reward members for scores that differ. ``Spread`` does so in twenty lines. But
it matters what the reward costs. If each member must be right on its own, differing has a price.
If only their average must be right, each member can add its own constant, the constants cancel,
and the reward is free. The diagnosis distinguishes the two.
"""

import argparse
from dataclasses import dataclass

from torch import Tensor

import dissensus as ds
from dissensus.losses import mean_cross_entropy
from dissensus.objectives import Objective, Terms


@dataclass(frozen=True)
class Spread(Objective):
    """A cross-entropy − strength · s / (1 + s), with s the mean squared distance from mean scores.

    With ``together``, the cross-entropy is that of the averaged scores; otherwise it is the mean
    over members. An objective needs no more than this: a frozen dataclass with its settings as
    fields, a check with clear messages, and the formula in ``terms``.
    """

    strength: float = 0.5
    together: bool = False
    hyperparameters = ("strength",)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.shape[0] < 2:
            raise ValueError(f"Spread needs two members or more, got {outputs.shape[0]}")

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        mean = outputs.mean(0, keepdim=True)
        error = mean_cross_entropy(mean if self.together else outputs, targets)
        distance = (outputs - mean).square().mean()
        reward = distance / (1 + distance)
        return Terms(error - self.strength * reward, {"error": error, "reward": reward})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--strength", type=float, default=0.5)
    options = parser.parse_args()

    data = ds.data.load("digits")
    network = ds.models.make_factory("mlp", data.input_shape, data.outputs, hidden=(64,))
    contenders = {
        "no reward": Spread(0.0),
        "reward, every member must be right": Spread(options.strength),
        "reward, only the average must be right": Spread(options.strength, together=True),
    }
    for name, objective in contenders.items():
        ens = ds.Ensemble(network, members=options.members, combine="score")
        ds.fit(ens, data.train, objective, val=data.val, epochs=options.epochs)

        on_train, on_test = ds.predict(ens, data.train), ds.predict(ens, data.test)
        found = ds.diagnose(on_train, on_test, combine="score")
        accuracy = (ens.predict(data.test[0]).argmax(1) == data.test[1]).float().mean()
        members = (on_test.outputs.argmax(-1) == on_test.targets).float().mean()
        print(f"\n{name}: accuracy {accuracy:.1%}, {members:.1%} per member")
        print(f"  DIV / ERR on test data: {found.explosion['test'].ratio:.2g}")
        print(f"  {found.verdict.sentence}")
        print(f"  {found.verdict.advice}\n")


if __name__ == "__main__":
    main()
