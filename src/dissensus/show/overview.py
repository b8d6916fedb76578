"""The overview: a column for each metric that a run has, with the best of each marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dissensus.show.contents import Contents, Method, Number, Record
from dissensus.show.figure import mark_best
from dissensus.show.metrics import METRICS, Metric
from dissensus.show.safety_figures import norm_name

#: Verdicts from good to bad, for the order of rows.
VERDICTS = ("healthy", "not judged", "suspicious", "colluding")


@dataclass(frozen=True)
class OverviewColumn:
    """One column: a number for each method that has one."""

    metric: Metric
    names: Sequence[str]
    numbers: Sequence[Number | None]

    @property
    def ranked(self) -> list[tuple[str, Number]]:
        """The methods that have a number, from the best to the worst."""
        pairs = [(n, x) for n, x in zip(self.names, self.numbers, strict=True) if x is not None]
        highest = self.metric.better == "high"
        return sorted(pairs, key=lambda pair: pair[1].value, reverse=highest)


def columns(contents: Contents) -> dict[str, OverviewColumn]:
    """The columns that at least one run fills, by name."""
    methods, score = contents.methods, contents.score
    names, verdicts = [m.name for m in methods], [m.verdict for m in methods]
    table: dict[str, tuple[Metric, Sequence[Number | None]]] = {
        name: (metric, [method.numbers.get(name) for method in methods])
        for name, metric in METRICS.items()
    }
    ranks = [_verdict_rank(method) for method in methods]
    meaning = "Is the diversity real, or do members collude? By `dissensus diagnose`."
    table["verdict"] = (Metric("verdict", meaning), ranks)
    aurocs = [m.detection.mean_auroc(score) if m.detection else None for m in methods]
    meaning = f"Mean over the unknown sets, with the score {score}."
    table["auroc"] = (Metric("AUROC", meaning, "high", "estimate"), aurocs)
    table["robust"] = _robust_column(methods)
    return {
        name: OverviewColumn(metric, names, _marked(metric, numbers, verdicts))
        for name, (metric, numbers) in table.items()
        if any(numbers)
    }


def _marked(
    metric: Metric, numbers: Sequence[Number | None], verdicts: Sequence[str]
) -> Sequence[Number | None]:
    if not metric.better:
        return numbers
    return mark_best(numbers, verdicts, highest=metric.better == "high")


def _verdict_rank(method: Method) -> Number | None:
    if not method.verdict or method.diagnosis is None:
        return None
    known = method.verdict in VERDICTS
    rank = VERDICTS.index(method.verdict) if known else len(VERDICTS)
    return Number(rank, method.diagnosis.reference("verdict"))


def _robust_column(methods: Sequence[Method]) -> tuple[Metric, list[Number | None]]:
    """Worst-case accuracy; what ``dissensus attack`` has flagged is called doubtful."""
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
    return metric, [accuracies.get((norm, eps)) for accuracies in budgets]


def _budgets(attacks: Record | None) -> dict[tuple[str, float], Number | None]:
    """Worst-case accuracy by norm and ε."""
    numbers = {}
    for row in [] if attacks is None else attacks.rows("budgets"):
        number = row.number("accuracy", "low", "high")
        if number is not None and attacks is not None and attacks.rows("flags"):
            number = replace(number, doubt="doubtful")
        numbers[row.text("norm"), float(row.at("eps"))] = number
    return numbers
