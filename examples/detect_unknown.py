"""Notice inputs of a kind that was never trained on, with a detector that is saved and loaded.

    python examples/detect_unknown.py
    python examples/detect_unknown.py --score mutual_information

Members learn the digits 0 to 7. The digits 8 and 9, and noisy images of known digits, are the
unknown. The threshold comes from validation images of known digits alone, as it must in practice:
what is unknown is not there when the threshold is set.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import dissensus as ds

KNOWN = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--score", default="pds", help="see `dissensus scores`")
    parser.add_argument("--out", type=Path, default=None, help="folder of the run and the detector")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())

    data = ds.data.load("digits")
    train, val, test = (known(split) for split in (data.train, data.val, data.test))
    network = ds.models.make_factory("small_cnn", data.input_shape, KNOWN)
    ens = ds.Ensemble(network, members=options.members)
    ds.fit(ens, train, "independent", val=val, epochs=options.epochs)

    detector = ds.Detector(ens, score=options.score).fit(val, tpr=0.95)
    detector.save(out / "detector.json")
    detector = ds.Detector.load(out / "detector.json", ens)  # elsewhere, later

    unknown = {
        "digits 8 and 9": data.test[0][data.test[1] >= KNOWN],
        "noisy digits": ds.data.corrupt(test[0], "gaussian_noise", 5),
    }
    familiar = detector.score(test[0])
    accuracy = (ens.predict(test[0]).argmax(1) == test[1]).float().mean()
    print(f"Accuracy on known digits: {accuracy:.1%}.")
    print(f"Known digits flagged: {detector.is_ood(test[0]).float().mean():.0%} (5% intended).")
    for name, x in unknown.items():
        found = ds.detection.evaluate(familiar, detector.score(x))
        share = detector.is_ood(x).float().mean()
        print(f"{name.capitalize()} flagged: {share:.0%}; AUROC of {options.score} {found.auroc}.")
    print(f"The detector is {out / 'detector.json'}: a score, a threshold, and quantiles to watch.")


def known(split: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of a split whose class is trained on."""
    x, y = split
    return x[y < KNOWN], y[y < KNOWN]


if __name__ == "__main__":
    main()
