"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from reproductions.adp import (
    adversarial_examples,
    distortion,
    hundred_classes,
    members,
    resnet20,
    resnet20_members,
    scalings,
    white_box,
)
from reproductions.adp import variants as adp_variants
from reproductions.old.base import Experiment

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "adp/errors": members.ERRORS,
    "adp/features": members.FEATURES,
    "adp/resnet20": resnet20.RESNET20_RUNS,
    "adp/resnet20-members": resnet20_members.MEMBERS,
    "adp/resnet20-transfer": resnet20_members.TRANSFER,
    "adp/resnet20-detection": resnet20_members.DETECTION,
    "adp/mnist": scalings.MNIST,
    "adp/distortion": distortion.DISTORTION,
    "adp/white-box": white_box.WHITE_BOX,
    "adp/adversarial-training": adp_variants.ADVERSARIAL_TRAINING,
    "adp/transfer": adversarial_examples.TRANSFER,
    "adp/detection": adversarial_examples.DETECTION,
    "adp/five-members": adp_variants.FIVE_MEMBERS,
    "adp/temperature": hundred_classes.HUNDRED_CLASSES,
    "adp/histogram": members.HISTOGRAM,
}
