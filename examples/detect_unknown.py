"""Detect inputs of a kind never seen in training, with a detector that is saved and loaded.

    python examples/detect_unknown.py
    python examples/detect_unknown.py --score mutual_information

Members learn the digits 0 to 7. The digits 8 and 9, and noisy images of known digits, are the
unknown inputs. The threshold comes only from validation images of known digits, as in practice:
no unknown inputs are available when it is set.
"""

import argparse
import tempfile
from pathlib import Path

import dissensus as ds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--score", default=None, help="see `dissensus scores`")
    parser.add_argument("--out", type=Path, default=None, help="where to save the detector")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())

    data = ds.data.load("digits", hold_out=["8", "9"])  # kept out of all splits, in data.extra
    network = ds.models.make_factory("small_cnn", data.input_shape, data.outputs)
    ens = ds.Ensemble(network, members=options.members)
    ds.fit(ens, data.train, "independent", val=data.val, epochs=options.epochs)

    detector = ds.Detector(ens, score=options.score).fit(data.val, accept=0.95)
    detector.save(out / "detector.json")
    detector = ds.Detector.load(out / "detector.json", ens)  # later, elsewhere

    known, labels = data.test
    unknown = {
        "digits 8 and 9": data.extra["held_out"][0],
        "noisy digits": ds.data.corrupt(known, "gaussian_noise", 5),
    }
    familiar = detector.score(known)
    print(f"Score: {detector.score_name}.")
    accuracy = (ens.predict(known).argmax(1) == labels).float().mean()
    print(f"Accuracy on known digits: {accuracy:.1%}.")
    print(f"Known digits flagged: {detector.is_ood(known).float().mean():.0%} (target: 5%).")
    for name, x in unknown.items():
        found = ds.detection.evaluate(familiar, detector.score(x))
        share = detector.is_ood(x).float().mean()
        print(f"{name.capitalize()} flagged: {share:.0%}; AUROC {found.auroc}.")
    print(f"Saved {out / 'detector.json'}: a score, a threshold, and quantiles to monitor.")


if __name__ == "__main__":
    main()
