"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from reproductions.adp import jsd, overhead, theory
from reproductions.collusion import (
    architectures,
    cifar10,
    dropout,
    gap,
    gat,
    gradients,
    joint_training,
    signs,
    sweeps,
)
from reproductions.experiment import Experiment

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "collusion/joint-vs-independent": joint_training.JOINT_VS_INDEPENDENT,
    "collusion/explosion": signs.EXPLOSION,
    "collusion/bias-removal": signs.BIAS_REMOVAL,
    "collusion/codependence": signs.CODEPENDENCE,
    "collusion/search-beta": signs.SEARCH_BETA,
    "collusion/generalization-gap": gap.GENERALIZATION_GAP,
    "collusion/beta-sweep": sweeps.BETA_SWEEP,
    "collusion/training-curves": joint_training.TRAINING_CURVES,
    "collusion/cifar10": cifar10.CIFAR10,
    "collusion/cifar10-curves": cifar10.CIFAR10_CURVES,
    "collusion/gat": gat.EXPERIMENT,
    "collusion/gradients": gradients.EXPERIMENT,
    "collusion/larger-ensembles": sweeps.LARGER_ENSEMBLES,
    "collusion/score-averaging": sweeps.SCORE_AVERAGING,
    "collusion/cnn": architectures.CNN,
    "collusion/vgg-svhn": architectures.VGG_SVHN,
    "collusion/learner-dropout": dropout.LEARNER_DROPOUT,
    "adp/overhead": overhead.EXPERIMENT,
    "adp/theory": theory.EXPERIMENT,
    "adp/jsd": jsd.EXPERIMENT,
}
