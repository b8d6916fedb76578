"""The overview: one row a run, the best of each column marked, and the findings in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dissensus.report.figure import listed, percent, short
from dissensus.report.figures_unknown import shown_score
from dissensus.report.found import Budget, Contents, Method, Number, Source

__all__ = ["Column", "Entry", "columns", "findings", "written"]

#: Columns that come from the run's own record: name, heading, meaning, and which end is better.
_MEASURED = (
    ("accuracy", "accuracy", "Share of test inputs predicted rightly.", "high"),
    ("rmse", "RMSE", "Root mean squared error, in the target's units.", "low"),
    ("nll", "NLL", "Negative log-likelihood of the combined prediction.", "low"),
    ("ece", "ECE", "Expected calibration error, with bins of equal width.", "low"),
    ("err", "ERR", "The ensemble's error: its loss on test inputs.", "low"),
    ("member_err", "mean ERR", "The members' own error, on average.", "low"),
    ("div", "DIV", "Diversity: mean ERR − ERR. More is not better by itself.", ""),
)

_VERDICTS = ("healthy", "not judged", "suspicious", "colluding")


@dataclass(frozen=True)
class Entry:
    """A cell: text to read, a value to sort by, where it comes from, whether it is the best."""

    text: str
    value: float
    source: Source
    best: bool = False
    interval: str = ""


@dataclass(frozen=True)
class Column:
    """One column: its heading, what it means, and an entry for each method that has one."""

    name: str
    heading: str
    meaning: str
    entries: Sequence[Entry | None]


def written(number: Number, form: str) -> str:
    """A number as tables show it: ``short``, ``percent``, or either with its interval.

    >>> written(Number(0.9123, Source(None), 0.9, 0.93), "estimate")
    '0.912 [0.900, 0.930]'
    """
    if form == "estimate":
        ends = "" if number.low is None else f" [{number.low:.3f}, {number.high:.3f}]"
        return f"{number.value:.3f}{ends}"
    if form == "percent_interval":
        ends = "" if number.low is None else f" [{number.low:.0%}, {number.high:.0%}]"
        return f"{percent(number.value)}{ends}"
    return percent(number.value) if form == "percent" else short(number.value)


def columns(contents: Contents) -> list[Column]:
    """The columns that at least one run fills."""
    methods, score, budget = contents.methods, shown_score(contents), common_budget(contents)
    made = [
        *(_measured(methods, *words) for words in _MEASURED),
        _verdicts(methods),
        _column(
            *("auroc", "AUROC", f"Mean over the unknown sets, by the score {score}.", "high"),
            [m.detected.mean_auroc(score) if m.detected else None for m in methods],
            "estimate",
        ),
        _doubted(
            _column(
                *("robust", "robust accuracy", _budget_told(budget), "high"),
                [_within(m, budget) for m in methods],
                "percent_interval",
            ),
            methods,
        ),
    ]
    return [column for column in made if any(column.entries)]


def common_budget(contents: Contents) -> tuple[str, float] | None:
    """The norm and ε that most runs were attacked within, the largest of those; None without."""
    counts: dict[tuple[str, float], int] = {}
    for method in contents.methods:
        for budget in method.attacked.budgets if method.attacked else ():
            key = (budget.norm, budget.eps)
            counts[key] = counts.get(key, 0) + 1
    return max(counts, key=lambda key: (counts[key], key[1]), default=None)


def _within(method: Method, budget: tuple[str, float] | None) -> Number | None:
    budgets: Sequence[Budget] = method.attacked.budgets if method.attacked else ()
    return next((b.accuracy for b in budgets if (b.norm, b.eps) == budget), None)


def _budget_told(budget: tuple[str, float] | None) -> str:
    if budget is None:
        return "Accuracy in the worst case over all attacks."
    norm = {"linf": "L∞", "l2": "L2"}.get(budget[0], budget[0])
    return (
        f"Accuracy in the worst case over all attacks within {norm} ε = {budget[1]:g}. Doubtful: "
        "there are signs that the attacks failed for their own reasons (see Under attack)."
    )


def _doubted(column: Column, methods: Sequence[Method]) -> Column:
    """``column`` with a mark where ``dissensus attack`` found a reason not to trust it."""
    entries = [
        replace(entry, interval=f"{entry.interval} doubtful".strip())
        if entry is not None and method.attacked and method.attacked.record.rows("flags")
        else entry
        for entry, method in zip(column.entries, methods, strict=True)
    ]
    return replace(column, entries=entries)


def _measured(
    methods: Sequence[Method], name: str, heading: str, meaning: str, better: str
) -> Column:
    form = "percent" if name in ("accuracy", "ece") else "short"
    numbers = [method.numbers.get(name) for method in methods]
    return _column(name, heading, meaning, better, numbers, form)


def _column(
    name: str,
    heading: str,
    meaning: str,
    better: str,
    numbers: Sequence[Number | None],
    form: str,
) -> Column:
    texts = [None if number is None else written(number, form) for number in numbers]
    bare = [None if text is None else text.partition(" ")[0] for text in texts]
    known = [number for number in numbers if number is not None]
    top = ""
    if better and len(known) > 1:
        best = (max if better == "high" else min)(known, key=lambda number: number.value)
        top = bare[numbers.index(best)] or ""  # what looks equal is marked alike
    entries = [
        None
        if number is None or text is None
        else Entry(
            text.partition(" ")[0],
            number.value,
            number.source,
            bool(top) and text.partition(" ")[0] == top,
            text.partition(" ")[2],
        )
        for number, text in zip(numbers, texts, strict=True)
    ]
    return Column(name, heading, meaning, entries)


def _verdicts(methods: Sequence[Method]) -> Column:
    entries: list[Entry | None] = []
    for method in methods:
        word = "" if method.diagnosis is None else method.diagnosis.text("verdict")
        if not word or method.diagnosis is None:
            entries.append(None)
            continue
        rank = _VERDICTS.index(word) if word in _VERDICTS else len(_VERDICTS)
        entries.append(Entry(word, float(rank), Source(method.diagnosis.file, "verdict")))
    meaning = "Is the diversity real, or do members collude? By `dissensus diagnose`."
    return Column("verdict", "verdict", meaning, entries)


def findings(contents: Contents) -> list[str]:
    """What the numbers say, in a few sentences; one run each is no proof, and it is said."""
    found = []
    table = {column.name: column for column in columns(contents)}
    names = [method.name for method in contents.methods]
    if len(names) > 1:
        for name, told in (
            ("accuracy", "Highest accuracy: {} ({})."),
            ("rmse", "Lowest error: {} (RMSE {})."),
        ):
            found += _told_best(table.get(name), names, told)
    found += _told_verdicts(contents.methods)
    if len(names) > 1:
        score = shown_score(contents)
        told = f"Unknown inputs are told best by {{}} (mean AUROC {{}} by {score})."
        found += _told_best(table.get("auroc"), names, told)
        robust = table.get("robust")
        if robust is not None:
            told = "Most accuracy is left in the worst case over all attacks by {} ({})."
            found += _told_best(robust, names, told)
        found.append(
            "Each row is one training: differences smaller than the intervals, or than what "
            "another seed would change, are no findings."
        )
    return found


def _told_best(column: Column | None, names: Sequence[str], told: str) -> list[str]:
    if column is None:
        return []
    best = [(n, e) for n, e in zip(names, column.entries, strict=True) if e is not None and e.best]
    if not best or len(best) == sum(entry is not None for entry in column.entries):
        return []
    value = " ".join(filter(None, (best[0][1].text, best[0][1].interval)))
    return [told.format(listed([name for name, _ in best]), value)]


def _told_verdicts(methods: Sequence[Method]) -> list[str]:
    judged = [
        (method.name, method.diagnosis.text("verdict"), method.diagnosis)
        for method in methods
        if method.diagnosis is not None and method.diagnosis.text("verdict")
    ]
    doubtful = [entry for entry in judged if entry[1] in ("colluding", "suspicious")]
    if not judged:
        return []
    if not doubtful:
        return ["No run shows signs of collusion."]
    sentences = []
    for name, word, record in doubtful:
        reasons = record.at("reasons")
        why = str(reasons[0]).rstrip(".") if isinstance(reasons, list) and reasons else ""
        why = why[:1].lower() + why[1:]
        sentences.append(f"{name} is {word}{': ' + why if why else ''}.")
    return sentences
