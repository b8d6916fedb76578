"""The overview: one row for each run, the best of each column marked, and the main findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dissensus.measures import MARKED
from dissensus.show.contents import Contents, Method, Number, Record
from dissensus.show.figure import format_number, join_names, mark_best
from dissensus.show.figures import FIGURES
from dissensus.show.html import (
    Elements,
    Html,
    best_mark,
    element,
    join_html,
    method_color,
    missing,
    scroll_box,
)
from dissensus.show.metrics import METRICS, Metric
from dissensus.show.safety_figures import norm_name

_VERDICTS = ("healthy", "not judged", "suspicious", "colluding")


@dataclass(frozen=True)
class Entry:
    """A cell: its text, the number behind it, and what stands below it."""

    text: str
    number: Number
    interval: str = ""

    @property
    def best(self) -> bool:
        """Whether it is not distinguishable from the best."""
        return self.number.best


@dataclass(frozen=True)
class Column:
    """One column: an entry for each method that has one."""

    metric: Metric
    entries: Sequence[Entry | None]


# ---- columns ------------------------------------------------------------------------------------


def columns(contents: Contents) -> dict[str, Column]:
    """The columns that at least one run fills, by name."""
    methods, score = contents.methods, contents.score
    verdicts = [method.verdict for method in methods]
    table = {
        name: _column(metric, [method.numbers.get(name) for method in methods], verdicts)
        for name, metric in METRICS.items()
    }
    table["verdict"] = _verdict_column(methods)
    meaning = f"Mean over the unknown sets, with the score {score}."
    aurocs = [m.detection.mean_auroc(score) if m.detection else None for m in methods]
    table["auroc"] = _column(Metric("AUROC", meaning, "high", "estimate"), aurocs, verdicts)
    table["robust"] = _robust_column(methods, verdicts)
    return {name: column for name, column in table.items() if any(column.entries)}


def _column(metric: Metric, numbers: Sequence[Number | None], verdicts: Sequence[str]) -> Column:
    """A column of ``numbers``, with marks on all that are not distinguishable from the best."""
    if metric.better:
        numbers = mark_best(numbers, verdicts, highest=metric.better == "high")
    entries: list[Entry | None] = []
    for number in numbers:
        if number is None:
            entries.append(None)
        else:
            text, _, interval = format_number(number, metric.form).partition(" ")
            entries.append(Entry(text, number, interval))
    return Column(metric, entries)


def _verdict_column(methods: Sequence[Method]) -> Column:
    entries: list[Entry | None] = []
    for method in methods:
        word = method.verdict
        if not word or method.diagnosis is None:
            entries.append(None)
        else:
            rank = _VERDICTS.index(word) if word in _VERDICTS else len(_VERDICTS)
            entries.append(Entry(word, Number(rank, method.diagnosis.reference("verdict"))))
    meaning = "Is the diversity real, or do members collude? By `dissensus diagnose`."
    return Column(Metric("verdict", meaning), entries)


def _robust_column(methods: Sequence[Method], verdicts: Sequence[str]) -> Column:
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
    return Column(metric, entries)


def _budgets(attacks: Record | None) -> dict[tuple[str, float], Number | None]:
    """Worst-case accuracy by norm and ε."""
    rows = [] if attacks is None else attacks.rows("budgets")
    return {
        (row.text("norm"), float(row.at("eps"))): row.number("accuracy", "low", "high")
        for row in rows
    }


# ---- findings -----------------------------------------------------------------------------------


def findings(contents: Contents) -> list[str]:
    """The main results in a few sentences, with a warning where one run each is no proof."""
    if len(contents.methods) < 2:
        return _verdict_findings(contents.methods)
    table = columns(contents)
    names, score = [method.name for method in contents.methods], contents.score

    def best(column: str, sentence: str) -> list[str]:
        return _best_finding(table[column], names, sentence) if column in table else []

    return [
        *best("accuracy", "Highest accuracy: {} ({})."),
        *best("rmse", "Lowest error: {} (RMSE {})."),
        *_verdict_findings(contents.methods),
        *best("auroc", f"Best at detecting unknown inputs: {{}} (mean AUROC {{}} with {score})."),
        *best("robust", "Highest accuracy in the worst case over all attacks: {} ({})."),
        "Each row is a single training run: differences smaller than the intervals, or than "
        "those between two seeds, are not findings.",
    ]


def _best_finding(column: Column, names: Sequence[str], sentence: str) -> list[str]:
    """The best of a column, and who is not distinguishable from it; or that nobody stands out."""
    pairs = [(n, e) for n, e in zip(names, column.entries, strict=True) if e is not None]
    if len(pairs) < 2:
        return []
    low, high = (end(pairs, key=lambda pair: pair[1].number.value) for end in (min, max))
    best = [(name, entry) for name, entry in pairs if entry.best]
    if not best:
        heading = column.metric.heading[:1].upper() + column.metric.heading[1:]
        ends = f"{heading} is {low[1].text} to {high[1].text}"
        return [f"{ends}: no difference beyond chance."]
    top = low if column.metric.better == "low" else high
    others = [_with_doubt(name, entry) for name, entry in best if entry is not top[1]]
    equal = f" Not distinguishable from it: {join_names(others)}." if others else ""
    value = " ".join(filter(None, (top[1].text, top[1].interval)))
    return [sentence.format(_with_doubt(*top), value) + equal]


def _with_doubt(name: str, entry: Entry) -> str:
    return f"{name}, which is {entry.number.doubt}," if entry.number.doubt else name


def _verdict_findings(methods: Sequence[Method]) -> list[str]:
    judged = [method for method in methods if method.verdict]
    doubtful = [method for method in judged if method.verdict in ("colluding", "suspicious")]
    if judged and not doubtful:
        return ["No run shows signs of collusion."]
    sentences = []
    for method in doubtful:
        reasons = method.diagnosis.at("reasons") if method.diagnosis else None
        why = str(reasons[0]).rstrip(".") if isinstance(reasons, list) and reasons else ""
        why = f": {why[:1].lower()}{why[1:]}" if why else ""
        sentences.append(f"{method.name} is {method.verdict}{why}.")
    return sentences


# ---- as HTML ------------------------------------------------------------------------------------


def overview_section(contents: Contents, make: Elements) -> Html:
    """All runs in one table; for a column that no run has, the command that would fill it."""
    if not contents.methods:
        return missing("No runs", "`dissensus train`")
    table = columns(contents)
    absent = []
    if "auroc" not in table:
        absent.append(missing("No column of AUROC", FIGURES["roc"].needs))
    if "robust" not in table and any(m.task != "regression" for m in contents.methods):
        absent.append(missing("No column of robust accuracy", FIGURES["accuracy-epsilon"].needs))
    head = [_heading("method", "The run's folder and objective")]
    metrics = [column.metric for column in table.values()]
    head += [_heading(metric.heading, metric.meaning, "value") for metric in metrics]
    rows = [_row(number, method, table, make) for number, method in enumerate(contents.methods)]
    runs = element(
        "table",
        element("caption", "One run in each row; click a heading to sort", class_="hidden"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="overview",
        id="runs",
    )
    meanings = [
        element("li", element("b", metric.heading), f": {metric.meaning}") for metric in metrics
    ]
    note = (
        f"Shaded: {MARKED} Test inputs are compared one by one where their predictions are kept. "
        "Every number links to its record: click it, or press Enter on it."
    )
    return join_html(
        element("ul", *(element("li", text) for text in findings(contents)), class_="short"),
        scroll_box(runs, "Overview of the runs"),
        element("p", note, class_="notes"),
        element("details", element("summary", "What the columns mean"), element("ul", *meanings)),
        *absent,
    )


def _heading(text: str, meaning: str, kind: str | None = None) -> Html:
    button = element("button", text, type="button", title=meaning)
    return element("th", button, scope="col", aria_sort="none", class_=kind)


def _row(number: int, method: Method, table: Mapping[str, Column], make: Elements) -> Html:
    words = f"{method.objective}, {method.members} members, {method.data} ({method.split})"
    if not method.status.startswith("finished"):
        words += f"; {method.status}"
    name = element(
        "th",
        element("span", class_="dot", style=method_color(number)),
        method.name,
        element("span", words, class_="objective"),
        scope="row",
        data_value=method.name,
    )
    cells = [
        _cell(column.metric.heading, column.entries[number], make) for column in table.values()
    ]
    return element("tr", name, *cells, data_method=number)


def _cell(heading: str, entry: Entry | None, make: Elements) -> Html:
    """A cell; on a phone, where there is no room for headings, it shows its label."""
    if entry is None:
        return element("td", "–", class_="value", data_value="", data_label=heading)
    value, source = entry.number.value, entry.number.source
    labels = {"data_value": value, "data_label": heading}
    if heading == "verdict":
        word = entry.text if entry.text in ("healthy", "suspicious", "colluding") else ""
        link = make.source_link(entry.text, source, entry.text)
        content = element("span", link, class_=f"verdict {word}".rstrip())
        return element("td", content, class_="value", **labels)
    link = make.source_link(entry.text, source, f"{value:.10g}")
    interval = element("span", entry.interval, class_="interval") if entry.interval else None
    kind = "value best" if entry.best else "value"
    return element("td", link, best_mark(entry.number), interval, class_=kind, **labels)
