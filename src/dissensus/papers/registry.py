"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from dissensus.papers.adp import (
    adversarial_examples,
    hundred_classes,
    jsd,
    members,
    overhead,
    theory,
    white_box,
)
from dissensus.papers.adp import variants as adp_variants
from dissensus.papers.base import Experiment
from dissensus.papers.collusion import (
    architectures,
    dropout,
    gap,
    gat,
    gradients,
    joint_training,
    signs,
    sweeps,
)
from dissensus.papers.ldr import (
    detection,
    diversity,
    factors,
    generalization,
    planted,
    scores,
    variants,
    weights,
)

__all__ = ["EXPERIMENTS"]

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
    "collusion/gat": gat.EXPERIMENT,
    "collusion/gradients": gradients.EXPERIMENT,
    "collusion/larger-ensembles": sweeps.LARGER_ENSEMBLES,
    "collusion/score-averaging": sweeps.SCORE_AVERAGING,
    "collusion/cnn": architectures.CNN,
    "collusion/vgg-svhn": architectures.VGG_SVHN,
    "collusion/learner-dropout": dropout.LEARNER_DROPOUT,
    "ldr/diversity": diversity.DIVERSITY,
    "ldr/detection": detection.DETECTION,
    "ldr/when": factors.WHEN,
    "ldr/planted": planted.EXPERIMENT,
    "ldr/baselines": scores.BASELINES,
    "ldr/strength": diversity.STRENGTH,
    "ldr/size": factors.SIZE,
    "ldr/generalization": generalization.GENERALIZATION,
    "ldr/layers": variants.LAYERS,
    "ldr/backbone": variants.BACKBONE,
    "ldr/scores": scores.SCORES,
    "ldr/two-stage": variants.TWO_STAGE,
    "ldr/worst-group": generalization.WORST_GROUP,
    "ldr/disagreement-data": variants.DISAGREEMENT_DATA,
    "ldr/stochastic-sum": variants.STOCHASTIC_SUM,
    "ldr/examples": diversity.EXAMPLES,
    "ldr/weights": weights.EXPERIMENT,
    "adp/errors": members.ERRORS,
    "adp/features": members.FEATURES,
    "adp/overhead": overhead.EXPERIMENT,
    "adp/white-box": white_box.WHITE_BOX,
    "adp/adversarial-training": adp_variants.ADVERSARIAL_TRAINING,
    "adp/transfer": adversarial_examples.TRANSFER,
    "adp/detection": adversarial_examples.DETECTION,
    "adp/five-members": adp_variants.FIVE_MEMBERS,
    "adp/theory": theory.EXPERIMENT,
    "adp/jsd": jsd.EXPERIMENT,
    "adp/temperature": hundred_classes.HUNDRED_CLASSES,
    "adp/histogram": members.HISTOGRAM,
}
