"""The papers' tables and figures as named experiments, at three scales, with claims as checks."""

from dissensus.papers.adp import (
    adversarial,
    errors,
    five,
    jsd,
    many_classes,
    overhead,
    theory,
    transfer,
    white_box,
)
from dissensus.papers.adp import detection as adp_detection
from dissensus.papers.adp import diversity as adp_diversity
from dissensus.papers.base import Experiment
from dissensus.papers.collusion import (
    architectures,
    comparison,
    diagnosing,
    dropout,
    gap,
    gat,
    gradients,
    search_beta,
    sweeps,
)
from dissensus.papers.ldr import (
    detection,
    diversity,
    examples,
    factors,
    generalization,
    groups,
    planted,
    variants,
    weights,
)

__all__ = ["EXPERIMENTS"]

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "collusion/joint-vs-independent": comparison.JOINT_VS_INDEPENDENT,
    "collusion/explosion": diagnosing.EXPLOSION,
    "collusion/bias-removal": diagnosing.BIAS_REMOVAL,
    "collusion/codependence": diagnosing.CODEPENDENCE,
    "collusion/search-beta": search_beta.EXPERIMENT,
    "collusion/generalization-gap": gap.GENERALIZATION_GAP,
    "collusion/beta-sweep": sweeps.BETA_SWEEP,
    "collusion/training-curves": comparison.TRAINING_CURVES,
    "collusion/gat": gat.EXPERIMENT,
    "collusion/gradients": gradients.EXPERIMENT,
    "collusion/larger-ensembles": sweeps.LARGER_ENSEMBLES,
    "collusion/score-averaging": sweeps.SCORE_AVERAGING,
    "collusion/cnn": architectures.CNN,
    "collusion/vgg-svhn": architectures.VGG_SVHN,
    "collusion/learner-dropout": dropout.LEARNER_DROPOUT,
    "ldr/diversity": diversity.EXPERIMENT,
    "ldr/detection": detection.DETECTION,
    "ldr/when": factors.WHEN,
    "ldr/planted": planted.EXPERIMENT,
    "ldr/baselines": detection.BASELINES,
    "ldr/strength": variants.STRENGTH,
    "ldr/size": factors.SIZE,
    "ldr/generalization": generalization.EXPERIMENT,
    "ldr/layers": variants.LAYERS,
    "ldr/backbone": variants.BACKBONE,
    "ldr/scores": detection.SCORES,
    "ldr/two-stage": variants.TWO_STAGE,
    "ldr/worst-group": groups.EXPERIMENT,
    "ldr/disagreement-data": variants.DISAGREEMENT_DATA,
    "ldr/stochastic-sum": variants.STOCHASTIC_SUM,
    "ldr/examples": examples.EXPERIMENT,
    "ldr/weights": weights.EXPERIMENT,
    "adp/errors": errors.ERRORS,
    "adp/features": adp_diversity.FEATURES,
    "adp/overhead": overhead.EXPERIMENT,
    "adp/white-box": white_box.WHITE_BOX,
    "adp/adversarial-training": adversarial.ADVERSARIAL_TRAINING,
    "adp/transfer": transfer.TRANSFER,
    "adp/detection": adp_detection.DETECTION,
    "adp/five-members": five.FIVE_MEMBERS,
    "adp/theory": theory.EXPERIMENT,
    "adp/jsd": jsd.EXPERIMENT,
    "adp/temperature": many_classes.MANY_CLASSES,
    "adp/histogram": adp_diversity.HISTOGRAM,
}
