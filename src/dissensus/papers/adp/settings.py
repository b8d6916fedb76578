"""What the study of ensembles runs at each scale, in words; several experiments share it."""

from __future__ import annotations

__all__ = ["ENSEMBLE_SETTING", "STRONG"]

#: The standard protocol at scale ``cpu``.
STRONG = (
    "Standard protocol: AutoAttack (50 steps for each of its parts, 500 queries); on what it "
    "leaves, PGD with 100 steps and 5 restarts (cross-entropy with steps of 0.025 ε and 0.25 ε, "
    "margin with 0.1 ε), members weighed anew (100 steps, 5 restarts), Square (500 queries); the "
    "worst case for each image"
)

ENSEMBLE_SETTING = {
    "smoke": (
        "300 digits of scikit-learn, a tiny CNN, 8 epochs, 2 seeds, a few steps of each attack: "
        "everything runs, no claim can show."
    ),
    "cpu": (
        "MNIST, Fashion-MNIST and CIFAR-10, 4,000 training and 2,000 test images drawn by the "
        "seed, 3 seeds (5 for the baseline and ADP₂,₀.₅ on MNIST, Fashion-MNIST and digits). "
        "Three members of a CNN with two 3 × 3 convolutions of stride 2 (8 and 16 "
        "channels) and a hidden layer of 64, in place of ResNet-20, whose attacks are out of reach "
        "of two cores; Adam 2e-3, 15 epochs, batch 64, no augmentation. Scikit-learn's digits "
        "beside them (8 × 8 pixels, 1,397 for training, 400 for testing), with a CNN of two "
        "convolutions with max-pools (16 and 32 channels) and 40 epochs: small enough to be learnt "
        "by heart. The paper's attacks on 200 test images a seed (a row each of JSMA, C&W and EAD "
        f"on 12, MNIST only). {STRONG}; on 40 test images a seed. Fashion-MNIST and digits are not "
        "in the paper; their ε are ours. Label smoothing has the F_y = 0.588 of Eq. 7 as target. "
        "Adversarial training: ε ~ U(0.01, 0.05), 1:1, on Fashion-MNIST, with PGD of 2 steps. "
        "A gain that needs a larger network or longer training than this would not show."
    ),
    "paper": (
        "MNIST, CIFAR-10 and CIFAR-100 whole, three ResNet-20; Adam 1e-3, 40 epochs on MNIST "
        "(decay after 15 and 30; no augmentation), 180 on CIFAR (after 120 and 160; shifts and "
        "flips), batch 64; 3 seeds, where the paper has one. The paper's attacks on 1,000 images "
        "(JSMA too, the paper: 100); the standard protocol on 1,000, with 5,000 queries of Square."
    ),
}
