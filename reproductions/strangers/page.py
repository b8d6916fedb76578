"""Page of the comparison on unknown inputs, built from the records alone."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.records import Record
from dissensus.show import Panel, Plot, Series, save
from dissensus.tools.files import write_text
from reproductions.page import markdown_table
from reproductions.statistics import Estimate, mean_interval
from reproductions.strangers import estimators, regression
from reproductions.strangers.cells import (
    COMBINED,
    DISTANCES,
    OUTPUT_SCORES,
    SEEDS,
    planned,
    read_records,
)
from reproductions.strangers.combination import (
    CHOSEN,
    ENSEMBLES,
    RULES,
    mean_worst,
    read_choice,
    shortfalls,
)
from reproductions.strangers.contenders import CONTENDERS, RECIPE
from reproductions.strangers.goals import (
    BASE,
    DETECTORS,
    Comparison,
    Goal,
    check_goals,
    choices,
    compare_settings,
)
from reproductions.strangers.settings import SETTINGS

_FIGURE = "strangers/figures/gains.svg"
#: What the figure has, and its short names there.
_DRAWN = {
    "twice": "twice the members",
    "longer": "two more epochs",
    "ldr": "LDR",
    "exposure": "exposure, strangers",
    "exposure_tuned": "exposure, tuned copy",
    "foreign": "a2d, foreign data",
    "scratch": "a2d, strangers",
    "tuned": "a2d, tuned copy",
}
_SCORE = RECIPE.score.replace("_", " ")


def write_page(results: Path) -> Path:
    """Write ``strangers.md`` and its figure below ``results``, from the records there."""
    records = read_records(results / "strangers")
    if not records:
        raise ValueError(
            f"there are no records in {results / 'strangers'}; run reproductions.strangers"
        )
    if compare_settings(records):
        save(gains_plot(records), results / _FIGURE)
    path = results / "strangers.md"
    fitted = regression.read_regression(results), estimators.read_estimators(results)
    write_text(path, page_text(records, read_choice(results), *fitted))
    return path


def page_text(
    records: list[Record],
    choice: Sequence[Record] = (),
    regressors: Sequence[Record] = (),
    fitted: Sequence[Record] = (),
) -> str:
    """The page in Markdown.

    ``choice`` are the records of how the combination was settled, ``regressors`` those of
    :mod:`reproductions.strangers.regression`, ``fitted`` those of
    :mod:`reproductions.strangers.estimators`.
    """
    everything = compare_settings(records)
    lines = [*_head(records), *_goals(records)]
    if everything:
        lines += _summary(everything)
    for found in everything:
        lines += _setting(found)
    lines += [*regression.section(regressors), *estimators.section(fitted)]
    lines += [*_choices(everything), *_settling(records), *_combination(choice)]
    lines += [*_missing(records), *_method(records)]
    return "\n".join(lines) + "\n"


def gains_plot(records: list[Record]) -> Plot:
    """Mean AUROC minus that of the deep ensemble by its usual score, in each setting."""
    panels = []
    for found in compare_settings(records):
        rows = [(title, name, CONTENDERS[name].score) for name, title in _DRAWN.items()]
        rows += [("tuned copy, combined", "tuned", "combined")]
        rows += [(_words(score), BASE, score) for score in DETECTORS]
        rows = [row for row in rows if found.seeds(row[1], row[2])]
        gains = [
            found.gain(name, score, found.sets(), base_score=RECIPE.score)
            for _, name, score in rows
        ]
        series = Series(
            "",
            [title for title, *_ in rows],
            [gain.mean for gain in gains],
            "ink",
            "points",
            low=[_finite(gain.low, gain.mean) for gain in gains],
            high=[_finite(gain.high, gain.mean) for gain in gains],
            legend=False,
        )
        title = SETTINGS[found.setting].title
        panels.append(Panel("", "gain in mean AUROC", [series], title, horizontal=True))
    return Plot(panels, columns=2, size=(5.5, 3.4))


def _finite(bound: float, mean: float) -> float:
    return bound if np.isfinite(bound) else mean


# ---- parts of the page --------------------------------------------------------------------------


def _words(name: str) -> str:
    return name.replace("_", " ")


def _head(records: list[Record]) -> list[str]:
    settings = dict.fromkeys(r["setting"] for r in records if SETTINGS[r["setting"]].confirms)
    return [
        "# Unknown inputs: members that disagree on strangers",
        "",
        f"{len(settings)} settings, {len({r['contender'] for r in records})} ways to train, "
        f"{len(records)} ensembles, each scored on known and unknown inputs. *Strangers* are made",
        "from each training batch; no foreign data are seen but where the row says so.",
        "",
        "Built from the records in `strangers/*.jsonl` by `python -m benchmarks --only strangers`;",
        "no measurement is typed by hand. The last section says how it was measured.",
        "",
    ]


def _goals(records: list[Record]) -> list[str]:
    goals = check_goals(records)
    met = [goal for goal in goals if goal.met]
    rows = [
        [
            goal.name,
            SETTINGS[goal.setting].title + (f" ({goal.remark})" if goal.remark else ""),
            _signed(goal.measured),
            str(goal.measured.runs),
            f"{goal.least:+.3f}",
            _met(goal),
        ]
        for goal in goals
    ]
    if not rows:
        return []
    return [
        "## Goals",
        "",
        "A goal is met if the mean over seeds reaches it; *not sure* is added where the 95%",
        "interval of the paired differences reaches to the other side. AUROC is that of",
        f"{_SCORE} unless a score is named. A tuned copy detects alone, so it costs no accuracy",
        "by construction; the best detector is known in hindsight only. Of these "
        f"{len(goals)} goals {len(met)} are met, {sum(goal.sure for goal in met)} of them surely.",
        "",
        *markdown_table(["goal", "setting", "measured", "seeds", "at least", "met"], rows),
        "",
    ]


def _met(goal: Goal) -> str:
    word = "yes" if goal.met else "**no**"
    return word if goal.sure else f"{word}, not sure"


def _signed(found: Estimate) -> str:
    return found.text("{:+.3f}")


def _summary(everything: list[Comparison]) -> list[str]:
    """One row for each contender, one column for each setting."""
    names = [n for n in CONTENDERS if any(n in found.contenders for found in everything)]
    titles = [SETTINGS[found.setting].title for found in everything]
    tables = []
    for part, words in {"all": "all", "near": "near", "far": "far"}.items():
        rows = [
            [
                CONTENDERS[name].title,
                _words(CONTENDERS[name].score),
                *(
                    _cell(found, name, part) if name in found.contenders else "–"
                    for found in everything
                ),
            ]
            for name in names
        ]
        tables += [f"**Mean AUROC, {words} unknown sets**", ""]
        tables += [*markdown_table(["trained as", "score", *titles], rows), ""]
    rows = [
        [
            CONTENDERS[name].title,
            *(
                f"{100 * np.mean(_accuracies(found, name)):.1f}"
                if name in found.contenders
                else "–"
                for found in everything
            ),
        ]
        for name in names
    ]
    return [
        "## In short",
        "",
        f"![Gains over a deep ensemble]({_FIGURE})",
        "",
        "The figure has the mean AUROC over the unknown sets minus that of the deep ensemble by",
        f"{_SCORE}; its last six rows are detectors on that ensemble. In the tables each",
        "ensemble is judged by one score, settled beforehand: its mean AUROC, and the difference",
        "from the deep ensemble by the same score with its 95% interval over the seeds. Means are",
        "over the seeds and sets that a row has, differences over those that both have.",
        "",
        *tables,
        "**Accuracy in %, one ensemble for both**",
        "",
        *markdown_table(["trained as", *titles], rows),
        "",
        "The rows of tuned copies show what it would cost to predict with the copy as well.",
        "",
    ]


def _cell(found: Comparison, name: str, part: str) -> str:
    sets, score = found.sets(part), CONTENDERS[name].score
    mean = f"{np.mean(found.values(name, score, sets)):.3f}"
    return mean if name == BASE else f"{mean}, {_signed(found.gain(name, score, sets))}"


def _accuracies(found: Comparison, name: str) -> list[float]:
    return [found.record(name, seed)["accuracy"] for seed in found.seeds(name)]


def _setting(found: Comparison) -> list[str]:
    setting = SETTINGS[found.setting]
    sets = found.sets("every")
    header = ["trained as, score", "seeds", "accuracy", "mean", *map(_set_title(found), sets)]
    rows = []
    for name in found.contenders:
        own = dict.fromkeys((CONTENDERS[name].score, RECIPE.score))
        rows += [_row(found, name, score, sets) for score in own]
    of_features = [n for n in found.contenders if CONTENDERS[n].features]
    detectors = [
        _row(found, name, score, sets)
        for name in of_features
        for score in (*OUTPUT_SCORES, *DISTANCES, *COMBINED)
        if score in found.scores(name)
    ]
    return [
        f"## {setting.title}",
        "",
        _network(found),
        "",
        *markdown_table(header, rows),
        "",
        "**Detectors**",
        "",
        *markdown_table(header, detectors),
        "",
    ]


def _set_title(found: Comparison) -> Callable[[str], str]:
    setting = SETTINGS[found.setting]

    def title(name: str) -> str:
        where = "near" if name in setting.near else "far"
        where = "settled on" if name in setting.settled else where
        return f"{_words(name)} ({where})"

    return title


def _network(found: Comparison) -> str:
    setting = SETTINGS[found.setting]
    options = ", ".join(f"{key}={value}" for key, value in setting.options.items())
    return (
        f"Network `{setting.model.rpartition(':')[2]}`{f' ({options})' if options else ''}, "
        f"{setting.members} members, {setting.epochs} epochs of batches of {setting.batch_size} by "
        f"`{setting.optimizer}`, schedule {setting.schedule}. AUROC, means over seeds; the column "
        "*mean* leaves out the sets that recipes were settled on."
    )


def _row(found: Comparison, name: str, score: str, sets: Sequence[str]) -> list[str]:
    own = [found.record(name, seed) for seed in found.seeds(name, score)]
    cells = []
    for each in sets:
        values = [record["auroc"][each][score] for record in own if each in record["auroc"]]
        cells.append(f"{np.mean(values):.3f}" if values else "–")
    mean = mean_interval(found.values(name, score, found.sets()))
    accuracy = f"{100 * np.mean(_accuracies(found, name)):.1f}"
    title = f"{CONTENDERS[name].title}, {_words(score)}"
    return [title, str(len(own)), accuracy, mean.text("{:.3f}"), *cells]


def _choices(everything: list[Comparison]) -> list[str]:
    rows, worst = [], []
    for found in everything:
        for choice in choices(found):
            picks = Counter(choice.chosen).most_common()
            words = ", ".join(f"{pick} ({count})" for pick, count in picks)
            rows.append(
                [
                    SETTINGS[found.setting].title,
                    choice.what,
                    _words(words),
                    f"{choice.value:.3f}",
                    f"{choice.default:.3f}",
                    f"{choice.best:.3f}",
                ]
            )
            worst.append((found.setting, choice.what, choice.regret, choice.best - choice.default))
    if not rows:
        return []
    whats = dict.fromkeys(what for _, what, *_ in worst)
    sentences = []
    for what in whats:
        regrets = [regret for _, own, regret, _ in worst if own == what]
        default = [regret for _, own, _, regret in worst if own == what]
        sentences.append(
            f"- {what}: the choice is {np.mean(regrets):.3f} below the best in hindsight in the "
            f"mean of the settings ({len(regrets)}), {max(regrets):.3f} at most; the default is "
            f"{np.mean(default):.3f} below, {max(default):.3f} at most."
        )
    mixups = [
        choice.regret
        for found in everything
        for choice in choices(found, "mixup")
        if choice.what == "contender and score"
    ]
    header = ["setting", "what is chosen", "choices (seeds)", "chosen", "default", "best"]
    return [
        "## Choosing without foreign data",
        "",
        "Chosen is what has the highest AUROC on validation rows against strangers of a family",
        "that nobody was trained on: pixels permuted over images, or rows extrapolated from two",
        "others. Columns are the mean AUROC on the unknown sets of what was chosen, of the default",
        f"({_SCORE}; of the tuned copy where it is a choice) and of the best in hindsight, each",
        "chosen in every seed by itself.",
        "",
        *sentences,
        f"- judged by mixups of two inputs instead, contender and score together are "
        f"{np.mean(mixups):.3f} below the best in hindsight.",
        "",
        *markdown_table(header, rows),
        "",
    ]


def _settling(records: list[Record]) -> list[str]:
    settled = compare_settings(records, confirms=False)
    if not settled:
        return []
    found = settled[0]
    sets = found.sets("every")
    header = ["trained as", "score", "accuracy", *sets]
    rows = []
    for name in found.contenders:
        own = found.record(name, found.seeds(name)[0])
        for score in OUTPUT_SCORES:
            cells = [f"{own['auroc'][each][score]:.3f}" for each in sets]
            accuracy = f"{100 * own['accuracy']:.1f}"
            rows.append([CONTENDERS[name].title, _words(score), accuracy, *cells])
    return [
        "## How the recipe was settled",
        "",
        f"On {SETTINGS[found.setting].title}, against these two sets alone, with a seed of its",
        f"own: strength {RECIPE.strength:g} from scratch, {RECIPE.tuned_strength:g} and "
        f"{RECIPE.tuning_epochs} epochs for a tuned copy, {_SCORE} as the score, and "
        f"{RECIPE.exposure_score} as that of outlier exposure. It was",
        "the same in all settings, which were then run once.",
        "",
        *markdown_table(header, rows),
        "",
    ]


def _combination(choice: Sequence[Record]) -> list[str]:
    if not choice:
        return []
    settings = dict.fromkeys(record["setting"] for record in choice)
    tables = [name for name in settings if SETTINGS[name].kind == "table"]
    parts = [(kind, ensemble) for kind in ("images", "table") for ensemble in ENSEMBLES]
    ranked = sorted(RULES, key=lambda rule: -mean_worst(choice, rule.title))
    rows = []
    for rule in ranked:
        found = shortfalls(choice, rule.title)
        cells = [f"{found[part].worst:+.3f} ({found[part].mean:+.3f})" for part in parts]
        title = f"**{rule.title}**" if rule == CHOSEN else rule.title
        rows.append([title, f"{mean_worst(choice, rule.title):+.4f}", *cells])
    titles = [f"{'images' if kind == 'images' else 'tables'}, {name}" for kind, name in parts]
    return [
        "## How the combination was settled",
        "",
        "On Fashion-MNIST, all classes, against KMNIST and SVHN, and on the tables",
        f"{', '.join(tables)}, with seeds of their own.",
        "Each rule combines mutual information with distances; the first distance weighs one half",
        "and the rest share the other half, unless weights are equal. Columns show AUROC minus",
        "that of the best single score: on the worst set and, in brackets, in the mean over sets.",
        "The goal is about the worst set, so rules are ranked by it, in the mean of four columns.",
        "Within 0.002 they count as equal, and of these the harmonic mean was kept. No rule stays",
        "within 0.01 on tables: where one part sees next to nothing, its noise costs the others.",
        "The criterion was changed once, after this table had been seen: from the mean over sets,",
        "by which another rule is ahead, to the worst set; weights and the tie rule came from the",
        "same look. Results of earlier versions on the other settings were known.",
        "",
        *markdown_table(["rule", "mean of the worst", *titles], rows),
        "",
    ]


def _missing(records: list[Record]) -> list[str]:
    done: Counter[tuple[str, str]] = Counter((r["setting"], r["contender"]) for r in records)
    lines = []
    for name, setting in SETTINGS.items():
        if not setting.confirms:
            continue
        cells = dict.fromkeys(cell.contender for cell in planned(name))
        absent = [c for c in cells if not done[name, c]]
        few = {c: done[name, c] for c in cells if 0 < done[name, c] < len(SEEDS)}
        command = f"`python -m reproductions.strangers --settings {name}`"
        if len(absent) == len(cells):
            lines.append(f"- {setting.title}: not run; {command} runs it.")
            continue
        if absent:
            lines.append(f"- {setting.title}: not run are {', '.join(absent)}; {command}.")
        if few:
            counts = " to ".join(map(str, sorted({min(few.values()), max(few.values())})))
            lines.append(
                f"- {setting.title}: {counts} of {len(SEEDS)} seeds of {', '.join(few)}; {command} "
                "goes on."
            )
    for found in compare_settings(records):
        for name in found.contenders:
            seeds = found.seeds(name)
            few = {s: len(found.seeds(name, s)) for s in found.scores(name)}
            few = {score: count for score, count in few.items() if count < len(seeds)}
            if few:
                lines.append(
                    f"- {SETTINGS[found.setting].title}: {', '.join(few)} of {name} in "
                    f"{min(few.values())} of {len(seeds)} seeds."
                )
    note = [
        "A score that some seeds lack was mended after they were run, and its old values are left",
        "out; `--again` runs a cell once more.",
        "",
    ]
    return ["## Not run", "", *note, *lines, ""] if lines else []


def _method(records: list[Record]) -> list[str]:
    processors = ", ".join(dict.fromkeys(r["processor"] for r in records))
    versions = ", ".join(dict.fromkeys(r["version"] for r in records))
    hours = sum(r["train_cpu"] + r["score_cpu"] for r in records) / 60
    return [
        "## How it was measured",
        "",
        "- **Seeds** draw the rows, the weights and the classes that are held out: two of ten of",
        "  the images, a tenth of those of the features, one of satellite; of credit, which has",
        "  two classes, one kind of home. Contenders of a seed have the same rows, first weights",
        "  and batches, so differences are paired.",
        "- **Unknown sets.** *Near*: the classes held out, and mild corruption (severity 1; noise",
        "  of half a deviation on tables). *Far*: severity 5 and other image sets; on tables one",
        "  number of a row at ten deviations (*extreme*), and the numbers of another table. Known",
        "  are the test rows.",
        "- **Strangers** are mosaics and phase noise in equal parts for images, permuted columns",
        "  for features and tables, with the columns of one category together.",
        f"- **Outlier exposure** has the weight {RECIPE.exposure:g} and the uniform distribution",
        f"  as its target. **LDR** has λ = {RECIPE.ldr:g}, two of five members a step and 2.5",
        "  times the epochs. **Foreign data** are SVHN (images), CIFAR-10 (features) or the",
        "  numbers of the table spam; they are not tested on. Tuned copies go on from the deep",
        f"  ensemble for {RECIPE.tuning_epochs} epochs by Adam at 1e-3, as *two more epochs* does.",
        "- **Scores of features** are fitted to at most 4,000 training rows, on the penultimate",
        "  layer of all members; combinations are scaled on the validation rows.",
        f"- **Intervals** are Student's t over seeds. Version {versions}; {processors}; "
        f"{hours:.0f} CPU minutes in all.",
    ]
