"""The overview: one row for each run, the best of each column marked, and the main findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dissensus.show.contents import Contents, Method, Number, Record
from dissensus.show.figure import format_number, join_names, mark_best
from dissensus.show.metrics import METRICS, Metric
from dissensus.show.safety_figures import norm_name

_VERDICTS = ("healthy", "not judged", "suspicious", "colluding")


@dataclass(frozen=True)
class Entry:
    """A cell: its text, the number behind it, and what stands below it."""

    text: str
    number: Number
    interval: str = ""


@dataclass(frozen=True)
class OverviewColumn:
    """One column: an entry for each method that has one."""

    metric: Metric
    entries: Sequence[Entry | None]


# ---- columns ------------------------------------------------------------------------------------


def columns(contents: Contents) -> dict[str, OverviewColumn]:
    """The columns that at least one run fills, by name."""
    methods, score = contents.methods, contents.score
    verdicts = [method.verdict for method in methods]
    table = {
        name: _column(metric, [method.numbers.get(name) for method in methods], verdicts)
        for name, metric in METRICS.items()
    }
    meaning = "Is the diversity real, or do members collude? By `dissensus diagnose`."
    entries = [_verdict_entry(method) for method in methods]
    table["verdict"] = OverviewColumn(Metric("verdict", meaning), entries)
    meaning = f"Mean over the unknown sets, with the score {score}."
    aurocs = [m.detection.mean_auroc(score) if m.detection else None for m in methods]
    table["auroc"] = _column(Metric("AUROC", meaning, "high", "estimate"), aurocs, verdicts)
    table["robust"] = _robust_column(methods, verdicts)
    return {name: column for name, column in table.items() if any(column.entries)}


def _column(
    metric: Metric, numbers: Sequence[Number | None], verdicts: Sequence[str]
) -> OverviewColumn:
    """A column of ``numbers``, with marks on all that are not distinguishable from the best."""
    if metric.better:
        numbers = mark_best(numbers, verdicts, highest=metric.better == "high")
    return OverviewColumn(metric, [_entry(number, metric.form) for number in numbers])


def _entry(number: Number | None, form: str) -> Entry | None:
    if number is None:
        return None
    text, _, interval = format_number(number, form).partition(" ")
    return Entry(text, number, interval)


def _verdict_entry(method: Method) -> Entry | None:
    if not method.verdict or method.diagnosis is None:
        return None
    known = method.verdict in _VERDICTS
    rank = _VERDICTS.index(method.verdict) if known else len(_VERDICTS)
    return Entry(method.verdict, Number(rank, method.diagnosis.reference("verdict")))


def _robust_column(methods: Sequence[Method], verdicts: Sequence[str]) -> OverviewColumn:
    """Worst-case accuracy; entries that ``dissensus attack`` has flagged are called doubtful."""
    budgets = [_budgets(method.attacks) for method in methods]
    keys = [key for accuracies in budgets for key in accuracies]
    # The budget that most runs have; of several, the largest.
    norm, eps = max(keys, key=lambda key: (keys.count(key), key[1]), default=("", 0.0))
    meaning = (
        f"Accuracy in the worst case over all attacks within {norm_name(norm)} ε = {eps:g}. "
        "Doubtful: there are signs that the attacks failed for reasons of their own (see Under "
        "attack)."
    )
    metric = Metric("robust accuracy", meaning, "high", "percent_interval")
    column = _column(metric, [accuracies.get((norm, eps)) for accuracies in budgets], verdicts)
    entries = [
        replace(entry, interval=f"{entry.interval} doubtful".strip())
        if entry is not None and method.attacks and method.attacks.rows("flags")
        else entry
        for entry, method in zip(column.entries, methods, strict=True)
    ]
    return OverviewColumn(metric, entries)


def _budgets(attacks: Record | None) -> dict[tuple[str, float], Number | None]:
    """Worst-case accuracy by norm and ε."""
    rows = [] if attacks is None else attacks.rows("budgets")
    return {
        (row.text("norm"), float(row.at("eps"))): row.number("accuracy", "low", "high")
        for row in rows
    }


# ---- findings -----------------------------------------------------------------------------------

#: The columns with a finding, and how its sentence begins.
_FINDINGS = {
    "accuracy": "Highest accuracy",
    "rmse": "Lowest RMSE",
    "auroc": "Best at detecting unknown inputs, by mean AUROC",
    "robust": "Highest accuracy in the worst case over all attacks",
}


def findings(contents: Contents) -> list[str]:
    """The main results in a few sentences, with a warning where one run each is no proof."""
    table, names = columns(contents), [method.name for method in contents.methods]
    best = [
        _best_finding(words, table[name], names)
        for name, words in _FINDINGS.items()
        if name in table and len(list(filter(None, table[name].entries))) > 1
    ]
    doubtful = [m for m in contents.methods if m.verdict in ("colluding", "suspicious")]
    verdicts = [f"{m.name} is {m.verdict}. {''.join(m.reasons[:1])}".strip() for m in doubtful]
    if not doubtful and any(method.verdict for method in contents.methods):
        verdicts = ["No run shows signs of collusion."]
    warning = (
        "Each row is a single training run: differences smaller than the intervals, or than "
        "those between two seeds, are not findings."
    )
    return [*best[:1], *verdicts, *best[1:], *([warning] if len(names) > 1 else [])]


def _best_finding(words: str, column: OverviewColumn, names: Sequence[str]) -> str:
    """The best of a column, and who is not distinguishable from it; or that nobody stands out."""
    pairs = [(n, e) for n, e in zip(names, column.entries, strict=True) if e is not None]
    pairs.sort(key=lambda pair: pair[1].number.value, reverse=column.metric.better == "high")
    marked = [
        f"{name}, which is {entry.number.doubt}," if entry.number.doubt else name
        for name, entry in pairs
        if entry.number.best
    ]
    if not marked:
        heading = column.metric.heading[:1].upper() + column.metric.heading[1:]
        low, high = sorted((pairs[0], pairs[-1]), key=lambda pair: pair[1].number.value)
        return f"{heading} is {low[1].text} to {high[1].text}: no difference beyond chance."
    value = f"{pairs[0][1].text} {pairs[0][1].interval}".strip()
    equal = f" Not distinguishable from it: {join_names(marked[1:])}." if marked[1:] else ""
    return f"{words}: {marked[0]} ({value}).{equal}"
