"""Overview of all papers on one page: five questions each, what is open, and what it would take.

Findings, counts and figures come from the records; the questions, and where published settings
differ from the papers' texts, stand here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dissensus.files import write_text
from dissensus.papers.base import PAPERS
from dissensus.papers.page import RULE, Outcome, count_verdicts, markdown_table

#: The claims that matter: a question in our words, the experiment, and how the claim begins.
QUESTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "collusion": {
        "Is an ensemble that is trained jointly worse than one trained independently?": (
            "joint-vs-independent",
            "Independent training has a higher",
        ),
        "Does its diversity explode?": ("explosion", "Test diversity is far larger at β = 1"),
        "Is much of that diversity a constant offset of each member?": (
            "bias-removal",
            "Debiasing typically removes",
        ),
        "Do jointly trained members depend on each other?": (
            "codependence",
            "Leaving out members hurts more",
        ),
        "Does joint training generalise worse?": (
            "generalization-gap",
            "Joint training ends with a larger",
        ),
    },
    "ldr": {
        "Do members trained with LDR disagree more on unknown inputs?": (
            "diversity",
            "LDR has more unique predictions on unknown inputs than deep ensemble",
        ),
        "Does LDR with PDS detect unknown inputs better than a deep ensemble?": (
            "detection",
            "LDR with PDS detects better than a deep ensemble with PDS",
        ),
        "Does disagreement on hard training samples carry over to unknown inputs?": (
            "planted",
            "It raises disagreement on Q more than on P",
        ),
        "Is training with two members drawn for each batch as cheap for 50 members as for 5?": (
            "size",
            "With two members drawn a batch",
        ),
        "Does LDR help under shift?": ("generalization", "Under shift, LDR's averaged predictions"),
    },
    "adp": {
        "Does ADP make CIFAR-10 networks more accurate under the paper's attacks?": (
            "resnet20",
            "In these runs, ADP₂,₀.₅ is more accurate than the baseline under the paper's attacks",
        ),
        "Does ADP withstand strong white-box attacks?": (
            "white-box",
            "ADP₂,₀.₅ withstands white-box attacks",
        ),
        "Is it the determinant, or would label smoothing do?": (
            "white-box",
            "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, under",
        ),
        "Do adversarial examples transfer less between ADP's members?": (
            "transfer",
            "digits: ADP's members follow the target of another member less often",
        ),
        "Does ADP cost next to nothing?": ("overhead", "ADP adds around 10 %"),
    },
}

#: The experiment whose figure stands on the page.
FIGURES = {"collusion": "explosion", "ldr": "detection", "adp": "white-box"}

#: What these runs do not answer: the question, the command, and what it takes. Times of ResNet-20
#: follow from 4.8 ms for each image and member of a training step on one core of an EPYC, channels
#: last; those of a GPU from 0.25 GFLOP an image at 2 TFLOP/s. They are estimates.
OPEN: Sequence[tuple[str, str, str]] = (
    (
        "adp: the paper's gain under attack on CIFAR-10, at 88 % accuracy or more; one seed",
        "`dissensus reproduce adp/resnet20`",
        "two cores: 2 h for each of four ensembles, two at a time",
    ),
    (
        "adp: Tables 1 to 4 and Figures 3 to 5 on MNIST, CIFAR-10 and CIFAR-100 whole",
        "`dissensus reproduce adp --scale paper`",
        "one GPU: about 1 h to train each CIFAR ensemble, three seeds of up to nine contenders, "
        "and as long again for attacks on 1,000 images: days",
    ),
    (
        "collusion: joint training of networks of 80 % accuracy and more, all of CIFAR-10",
        "`dissensus reproduce collusion/cifar10`",
        "two cores: 20 min for each of eight small ensembles, 2 h for each of two or three of "
        "ResNet-20, two at a time; the third is the baseline of `adp/resnet20`",
    ),
    (
        "collusion: Table 1 and Figures 5 and 6 with ResNet-18 on CIFAR whole",
        "`dissensus reproduce collusion/beta-sweep --scale paper`",
        "one GPU: days",
    ),
    (
        "collusion: Table 1 on ImageNet",
        "`dissensus reproduce collusion/joint-vs-independent --scale paper`",
        "several GPUs: weeks; ImageNet in a folder that DISSENSUS_DATA lists",
    ),
    (
        "ldr: Tables 1 to 3 on ImageNet features of DeiT-III",
        "`dissensus reproduce ldr --scale paper`",
        "one GPU: days; ImageNet and the unknown sets in folders that DISSENSUS_DATA lists",
    ),
)

#: Settings of adp: what the text says, what the authors' code does, what is used here.
_SETTINGS = (
    ("optimiser", "Adam, 1e-3", "Adam, 1e-3", "the same; 2e-3 on two cores"),
    (
        "decay of the rate, CIFAR",
        "“similar setting as He et al.”",
        "× 0.1 after 100 and 150 epochs in one version, after 80, 120 and 160 in another",
        "after 120 and 160 of 180; on two cores 8 epochs along a cosine from 2e-3 instead",
    ),
    ("weight decay", "–", "1e-4 Σ w² of convolutions' kernels", "the same: λ = 2e-4 on kernels"),
    (
        "pixels",
        "scaled to [0, 1]",
        "[0, 1], then the mean image subtracted, no division",
        "the same, subtracted inside the network, after augmentation",
    ),
    ("augmentation, CIFAR", "–", "shifts of 10 %, flips; off by default", "shifts and flips"),
    (
        "shortcuts",
        "ResNet-20 of He et al.",
        "1 × 1 projections without batch norm, biases in convolutions",
        "1 × 1 projections with batch norm, no biases",
    ),
    ("network, MNIST", "ResNet-20", "ResNet-32 in one version", "ResNet-20"),
    (
        "the epoch that is kept",
        "–",
        "the best on the test images, by the members' mean accuracy",
        "the last; 5,000 training images are for validation",
    ),
    ("α", "2", "1 by default, 2 in the instructions", "2"),
    (
        "more members than L − 1",
        "20 on ten classes, for timing",
        "1e-6 on the diagonal",
        "the same, with a warning",
    ),
)


_STEPS = (
    "1. `pip install dissensus[plots,robustness]` with a torch that sees the GPU "
    "(`python -c 'import torch; print(torch.cuda.is_available())'`).",
    "2. Data sets are downloaded where that is possible; else put `cifar-10-batches-bin`,",
    "   `cifar-100-binary` and `mnist` below a folder and name it in `DISSENSUS_DATA` (a list of",
    "   folders will do).",
    "3. `dissensus reproduce adp --scale smoke` runs everything small, in minutes.",
    "4. `dissensus reproduce adp/resnet20 --scale paper` is the pair that decides: the baseline",
    "   and ADP₂,₀.₅, 180 epochs, attacked every 20 epochs.",
    "5. `dissensus reproduce adp --scale paper` runs the rest into `results-paper/`; give names to",
    "   run parts, `--set seeds=1` to begin with one seed.",
    "6. After an interruption give the same command again: finished cells are kept, and a training",
    "   goes on from its last checkpoint, in `~/.cache/dissensus/reproduce`.",
    "7. `dissensus reproduce --report --scale paper` builds the pages again from the records.",
)


def overview_text(results: Sequence[Outcome]) -> str:
    """The page in Markdown, from the outcomes of all experiments."""
    lines = [
        "# Results",
        "",
        "What the papers claim, and what was measured here on two CPU cores. Built from the",
        "records by `dissensus reproduce --report`; nothing on this page is written by hand.",
        "",
        *RULE,
    ]
    for paper, questions in QUESTIONS.items():
        own = [one for one in results if one.experiment.paper == paper]
        if not own:
            continue
        lines += [
            "",
            f"## {paper}",
            "",
            f"{PAPERS[paper]}. {count_verdicts(own)} [All of them]({paper}.md).",
            "",
            *markdown_table(
                ["question", "measured", "smallest effect it could show", "verdict", "more"],
                [_row(own, question, *claim) for question, claim in questions.items()],
            ),
            *_figure(own, FIGURES[paper]),
        ]
    lines += [
        "",
        "## What is open, and what it would take",
        "",
        "Times are estimates. Every command goes on where it was interrupted.",
        "",
        *markdown_table(["open", "command", "machine and time"], OPEN),
        "",
        "## The adp paper on a GPU machine, step by step",
        "",
        *_STEPS,
        "",
        "## Published settings of adp that differ from the paper's text",
        "",
        *markdown_table(["setting", "text", "authors' code", "here"], _SETTINGS),
    ]
    return "\n".join(lines) + "\n"


def _row(own: Sequence[Outcome], question: str, experiment: str, words: str) -> list[str]:
    found = [
        (outcome, claim, finding)
        for outcome in own
        for claim, finding in outcome.findings
        if outcome.experiment.name == experiment and claim.text.startswith(words)
    ]
    if not found:
        return [question, f"`{experiment}` has no record", "–", "not tested at this scale", "–"]
    outcome, claim, finding = found[0]
    figure = f", [figure]({outcome.figure})" if outcome.drawable else ""
    return [
        question,
        f"{claim.text}. {_shortened(finding.measured)}",
        _shortened(finding.smallest or "–"),
        f"**{finding.verdict}**",
        f"[{experiment}]({outcome.experiment.paper}.md#{experiment}){figure}",
    ]


def _figure(own: Sequence[Outcome], name: str) -> list[str]:
    """The figure of one experiment, as lines of the page; none where it was not run."""
    return [
        line
        for one in own
        if one.experiment.name == name and one.drawable
        for line in ("", f"![{one.experiment.title}]({one.figure})")
    ]


def _shortened(sentence: str, most: int = 4) -> str:
    """The first cases of a sentence that has one after the other.

    >>> _shortened("a 1; b 2; c 3", most=2)
    'a 1; b 2; and 1 more'
    """
    cases = sentence.split("; ")
    left = len(cases) - most
    return "; ".join(cases[:most]) + f"; and {left} more" if left > 0 else sentence


def write_overview(results: Sequence[Outcome], out: str | Path) -> Path:
    """Write ``README.md`` below ``out``."""
    path = Path(out) / "README.md"
    write_text(path, overview_text(results))
    return path
