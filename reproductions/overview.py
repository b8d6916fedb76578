"""Overview of all papers on one page: the answers to five questions each, and what is open.

Findings, counts and figures come from the records; the questions stand here, and the rest of the
page in ``outlook.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dissensus.tools.files import write_text
from reproductions.base import CANNOT, PAPERS, Claim, Finding
from reproductions.page import (
    RULE,
    Outcome,
    count_verdicts,
    duration,
    find_claim,
    markdown_table,
)
from reproductions.statistics import Effect

#: The claims that matter: a question in our words, and the claims that answer it, each as the
#: experiment and how the claim begins. Those of larger networks and more images come first: the
#: first that was tested is the answer, whatever it is; what others found stands below it.
QUESTIONS: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = {
    "collusion": {
        "Is an ensemble that is trained jointly worse than one trained independently?": (
            ("cifar10", "In these runs, joint training is less accurate than independent"),
            ("cifar10", "Joint training of the small network is less accurate"),
            ("cifar10", "In these runs, β = 1 is less accurate than each smaller β"),
            ("joint-vs-independent", "Independent training has a higher"),
        ),
        "Does its diversity explode?": (("explosion", "Test diversity is far larger at β = 1"),),
        "Is much of that diversity a constant offset of each member?": (
            ("bias-removal", "Debiasing typically removes"),
        ),
        "Do jointly trained members depend on each other?": (
            ("codependence", "Leaving out members hurts more"),
        ),
        "Does joint training generalise worse?": (
            ("cifar10-curves", "In these runs, joint training ends with a larger"),
            ("cifar10-curves", "In these runs, joint training of averaged scores ends with"),
            ("generalization-gap", "Joint training ends with a larger"),
        ),
    },
    "ldr": {
        "Do members trained with LDR disagree more on unknown inputs?": (
            ("diversity", "LDR has more unique predictions on unknown inputs than a deep ensemble"),
        ),
        "Does LDR with PDS detect unknown inputs better than a deep ensemble?": (
            ("detection", "LDR with PDS detects better than a deep ensemble with PDS"),
        ),
        "Does disagreement on hard training samples carry over to unknown inputs?": (
            ("planted", "It raises disagreement on Q more than on P"),
        ),
        "Is training with two members drawn for each batch as cheap for 50 members as for 5?": (
            ("size", "With two members drawn per batch"),
        ),
        "Does LDR help under shift?": (
            ("generalization", "Under shift, LDR's averaged predictions"),
        ),
    },
    "adp": {
        "Does ADP make networks more accurate under the paper's attacks?": (
            ("resnet20", "In these runs, ADP₂,₀.₅ is more accurate than the baseline under the"),
            ("mnist", "MNIST, mean image subtracted: under FGSM, BIM, PGD and MIM, ADP₂,₀.₅"),
            ("distortion", "MNIST: under C&W, ADP₂,₀.₅ is more accurate than the baseline"),
            ("distortion", "MNIST: under EAD, ADP₂,₀.₅ is more accurate than the baseline"),
        ),
        "Does ADP withstand strong white-box attacks?": (
            ("resnet20", "In these runs, ADP₂,₀.₅ withstands white-box attacks"),
            ("resnet20", "In these runs, ADP₂,₀.₅ is more accurate than the baseline in the worst"),
            ("mnist", "MNIST, mean image subtracted: ADP₂,₀.₅ is more accurate than the baseline"),
            ("white-box", "ADP₂,₀.₅ withstands white-box attacks"),
        ),
        "Is it the determinant, or would the entropy alone or label smoothing do?": (
            ("resnet20", "In these runs, ADP₂,₀.₅ is more accurate than label smoothing"),
            ("resnet20", "In these runs, the determinant helps beyond the entropy"),
            ("mnist", "MNIST, mean image subtracted: ADP₂,₀.₅ is more accurate than label"),
            ("white-box", "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, under"),
        ),
        "Do adversarial examples transfer less between ADP's members?": (
            ("resnet20-transfer", "In these runs, ADP's members follow the target of another"),
            ("transfer", "digits: ADP's members follow the target of another member less often"),
        ),
        "Does ADP cost next to nothing?": (("overhead", "ADP adds around 10 %"),),
    },
}

#: The experiment whose figure stands on the page.
FIGURES = {"collusion": "explosion", "ldr": "detection", "adp": "resnet20"}

#: The end of the page: what these runs do not answer and what it would take, and where published
#: settings differ from the papers' texts. ``{adp/mnist}`` stands for the number of its cells that
#: are left, ``{time of adp/mnist}`` for how long they take two cores, one cell each, going by those
#: that are done. Other times follow from 4.8 ms for each image and member of a training step of
#: ResNet-20 on one core of an EPYC, channels last; those of a GPU from 0.25 GFLOP an image at
#: 2 TFLOP/s.
OUTLOOK = Path(__file__).with_name("outlook.md")
_LEFT = re.compile(r"\{(time of )?([\w/ -]+)\}")


def overview_text(results: Sequence[Outcome]) -> str:
    """The page in Markdown, from the outcomes of all experiments."""
    lines = [
        "# Results",
        "",
        "What the papers claim, and what was measured here on two CPU cores. Built from the",
        "records by `python -m reproductions --report`; no measurement is typed by hand.",
        "",
        "## At a glance",
        "",
        "A question links to the claim, to what was run and to what the paper prints. Of more than",
        "two cases, such as data sets, the smallest and the largest effect are given.",
        "",
        *_at_a_glance(results),
        "",
        "## How a claim is judged",
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
        ]
        for question, claims in questions.items():
            lines += ["", f"### {question}", "", *_answer(own, claims)]
        lines += _figure(own, FIGURES[paper])
    return "\n".join([*lines, "", *_outlook(results)]) + "\n"


def _at_a_glance(results: Sequence[Outcome]) -> list[str]:
    """A table of all questions: the verdict on the first claim that was tested, and its effect."""
    rows = []
    for paper, questions in QUESTIONS.items():
        own = [one for one in results if one.experiment.paper == paper]
        for question, claims in questions.items():
            if found := _found(own, claims):
                outcome, claim, finding = found[0]
                here = ", in these runs" if claim.text.startswith("In these runs") else ""
                figure = f"[figure]({outcome.figure})" if outcome.drawable else "–"
                link = f"[{question}](#{_anchor(question)})"
                verdict = f"**{finding.verdict}**{here}"
                rows.append([paper, link, verdict, _effects(finding.effects), figure])
    return markdown_table(["paper", "question", "the claim", "effect, 95 % interval", ""], rows)


def _effects(effects: Mapping[str, Effect]) -> str:
    """What a verdict rests on: the effects, or of more than two cases the ends of their range."""
    if not effects:
        return "–"
    order = sorted(effects.items(), key=lambda item: item[1].estimate.mean)
    cases = [f"{case} {effect}".strip() for case, effect in order]
    if len(cases) > 2:
        cases = [f"from {cases[0]} to {cases[-1]}, {len(cases)} cases"]
    return f"{order[0][1].quantity}: {'; '.join(cases)}"


def _anchor(heading: str) -> str:
    """The anchor that a code host gives a heading.

    >>> _anchor("Does ADP's cost grow?")
    'does-adps-cost-grow'
    """
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _outlook(results: Sequence[Outcome]) -> list[str]:
    """The lines of :data:`OUTLOOK`, without those whose cells are all done."""
    known = {one.experiment.full_name: one for one in results}

    def fill(found: re.Match[str]) -> str:
        named = [known.get(name) for name in found[2].split()]
        if None in named:
            return "unknown" if found[1] else "all"
        some = [one for one in named if one is not None]
        if not found[1]:
            return str(sum(one.left for one in some))
        left = sum(one.left * one.record.seconds / len(one.record.records) for one in some)
        return duration(left / 2)

    def is_open(line: str) -> bool:
        names = [name for _, names in _LEFT.findall(line) for name in names.split()]
        return not names or any(name not in known or known[name].left for name in names)

    lines = OUTLOOK.read_text(encoding="utf-8").splitlines()
    return [_LEFT.sub(fill, line) for line in lines if is_open(line)]


def _found(
    own: Sequence[Outcome], claims: Sequence[tuple[str, str]]
) -> list[tuple[Outcome, Claim, Finding]]:
    """The claims that were tested; if none was, the first that has a record."""
    found = [one for claim in claims if (one := find_claim(own, *claim)) is not None]
    return [one for one in found if one[2].verdict != CANNOT] or found[:1]


def _answer(own: Sequence[Outcome], claims: Sequence[tuple[str, str]]) -> list[str]:
    """The verdict on the first claim that was tested with its numbers, and what others found."""
    found = _found(own, claims)
    if not found:
        names = " and ".join(f"`{name}`" for name in dict(claims))
        return [f"**{CANNOT.capitalize()}**: no record of {names}"]
    (outcome, claim, finding), *others = found
    numbers = {
        "Measured": finding.measured,
        "Published": finding.published,
        "Smallest effect that these runs could show": finding.smallest,
    }
    figure = f", [figure]({outcome.figure})" if outcome.drawable else ""
    return [
        f"**{finding.verdict.capitalize()}:** {claim.text}.",
        "",
        *(f"- {name}: {_shortened(text)}" for name, text in numbers.items() if text),
        f"- More: {_link(outcome)}{figure}",
        *(
            f"- In {_link(other)}, **{also.verdict}:** {text.text}. {_shortened(also.measured)}"
            for other, text, also in others
        ),
    ]


def _link(outcome: Outcome) -> str:
    name = outcome.experiment.name
    return f"[{name}]({outcome.experiment.paper}.md#{name})"


def _figure(own: Sequence[Outcome], name: str) -> list[str]:
    """The figure of one experiment, as lines of the page; none where it was not run."""
    return [
        line
        for one in own
        if one.experiment.name == name and one.drawable
        for line in ("", f"![{one.experiment.title}]({one.figure})")
    ]


def _shortened(text: str, most: int = 4) -> str:
    """A text with the first cases of each sentence that has one after the other.

    >>> _shortened("a 1; b 2; c 3. Larger in 3 of 3", most=2)
    'a 1; b 2; and 1 more. Larger in 3 of 3'
    """
    sentences = [sentence.split("; ") for sentence in text.split(". ")]
    return ". ".join(
        "; ".join(cases if len(cases) <= most else [*cases[:most], f"and {len(cases) - most} more"])
        for cases in sentences
    )


def write_overview(results: Sequence[Outcome], out: str | Path) -> Path:
    """Write ``README.md`` below ``out``."""
    path = Path(out) / "README.md"
    write_text(path, overview_text(results))
    return path
