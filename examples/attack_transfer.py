"""Attack a plain ensemble and an ADP ensemble: what transfers between members, and what is left.

    python examples/attack_transfer.py
    python examples/attack_transfer.py --steps 100 --restarts 5 --images 200

Two questions are easily confused. Does an adversarial image made for one member fool another? That
is transfer, and ADP lowers it. Does the ensemble withstand an attacker who sees all members? That
is robustness, and only the worst case over strong attacks measures it.
"""

import argparse

import torch

import dissensus as ds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--eps", type=float, default=0.1, help="largest change of a pixel")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="steps of each strong attack")
    parser.add_argument("--restarts", type=int, default=2)
    options = parser.parse_args()

    data = ds.data.load("digits")  # images in [0, 1]; any normalisation belongs in the network
    x, y = data.test[0][: options.images], data.test[1][: options.images]
    protocol = ds.robustness.standard(options.eps, steps=options.steps, restarts=options.restarts)
    network = ds.models.make_factory("small_cnn", data.input_shape, data.outputs)
    for objective in ("independent", "adp:alpha=2,beta=0.5"):
        ens = ds.Ensemble(network, members=3)
        ds.fit(ens, data.train, objective, val=data.val, epochs=options.epochs, batch_size=64)

        pgd = f"pgd:eps={options.eps},steps=10,step=0.1"  # the adp paper's: ten steps of ε/10
        followed = ds.robustness.transfer(ens, x, y, "pgd:eps=0.2,steps=20", targeted=True)
        others = followed[~torch.eye(ens.members, dtype=torch.bool)].mean()
        weak = ds.robustness.attack(ens, x, y, pgd)
        strong = ds.robustness.evaluate(ens, x, y, protocol=protocol)

        print(f"\n{objective}")
        print(f"  targets that transfer to another member    {others:.0%}")
        print(f"  accuracy without attack                    {strong.clean_accuracy}")
        print(f"  accuracy under {pgd}  {weak.accuracy}")
        print(f"  worst case over {len(strong.rows)} strong attacks          {strong.accuracy}")
        for flag in strong.flags:
            print(f"  do not trust this yet: {flag.text}")
    print("\nReport the worst case. It is an upper bound: an attack not tried here may do better.")
    print("Brackets are 95% intervals; if they overlap, compare on more images.")
    print("Fewer targets that transfer mean more diversity, not more robustness.")


if __name__ == "__main__":
    main()
