"""Known tables: three that come with scikit-learn, and the four UCI tables of collusion.

Targets, rows and columns of the UCI tables are those of the first author's published loaders for
the same tables; one-hot encoding and logarithms as in the paper are left to its reproduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.data.column_values import complete_rows, parse_separated, text_column
from dissensus.data.dataset import Request
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.preparation import Column
from dissensus.data.table import Table
from dissensus.tools.specs import check_integer

_UCI = "https://archive.ics.uci.edu/static/public"
_ABALONE = (
    "sex,length,diameter,height,whole weight,shucked weight,viscera weight,shell weight,rings"
)


@dataclass(frozen=True)
class UCITable:
    """A UCI table: its file, its target, and the treatment of its columns."""

    folder: str
    file: RemoteFile
    target: str
    rows: int  # rows of the file
    complete: int  # rows without missing values, after `tail` is cut
    categories: tuple[str, ...]  # all other columns hold numbers
    drop: tuple[str, ...] = ()
    limit: int | None = None  # how many of the complete rows are used
    tail: int = 0  # rows at the end of the file that are no observations
    header: tuple[str, ...] = ()  # for a file that has none


UCI_TABLES: dict[str, UCITable] = {
    "abalone": UCITable(
        folder="uci-abalone",
        file=RemoteFile(
            "abalone.data",
            f"{_UCI}/1/abalone.zip",
            "sha256:de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
        ),
        target="rings",
        rows=4177,
        complete=4177,
        categories=("sex",),
        limit=1000,
        header=tuple(_ABALONE.split(",")),
    ),
    "bioconcentration": UCITable(
        folder="uci-bioconcentration",
        file=RemoteFile(
            "Grisoni_et_al_2016_EnvInt88.csv",
            f"{_UCI}/510/qsar+bioconcentration+classes+dataset.zip",  # no known checksum
        ),
        target="logBCF",
        rows=779,
        complete=779,
        categories=("nHM", "N-072", "B02[C-N]", "F04[C-O]"),
        drop=("CAS", "SMILES", "Set", "Class"),  # Class is derived from the target
    ),
    "facebook": UCITable(
        folder="uci-facebook",
        file=RemoteFile("dataset_Facebook.csv", f"{_UCI}/368/facebook+metrics.zip"),
        target="Lifetime Post Total Impressions",
        rows=500,
        complete=495,
        categories=("Type",),
    ),
    "weather": UCITable(
        folder="uci-weather",
        file=RemoteFile(
            "Bias_correction_ucl.csv",
            f"{_UCI}/514/bias+correction+of+numerical+prediction+model+temperature+forecast.zip",
            "sha256:f1e630ba9a637e9dae3e2c75c9ec46c50c7f3a54377fc177dce6557f08676552",
        ),
        target="Next_Tmax",
        rows=7752,
        complete=7588,
        categories=("station",),
        drop=("Date", "Next_Tmin"),
        limit=1000,
        tail=2,  # the last two rows are the columns' minima and maxima
    ),
}


def uci_table(
    name: str, request: Request, *, limit: int | str | None = "paper", verify: bool = True
) -> Table:
    """One of :data:`UCI_TABLES` to be split for as many seeds as wanted.

    ``limit="paper"`` keeps the first 1,000 complete rows of abalone and weather and all of the
    others; None keeps all; a number that many. ``verify=False`` reads a file that is not the
    official one, such as a part of it.
    """
    spec = UCI_TABLES[name]
    path = locate([spec.file], [spec.folder], request, what=name)[spec.file.name]
    raw = content(path, spec.file, verify=verify)
    text = raw.decode("utf-8-sig", errors="replace")
    columns = parse_separated(text, str(path), header=spec.header or True)
    wanted = {spec.target, *spec.categories, *spec.drop, *spec.header}
    if lacking := sorted(wanted - columns.keys()):
        raise ValueError(f"{path} is not the {name} table: it has no column {', '.join(lacking)}")
    count = len(columns[spec.target])
    if verify and count != spec.rows:
        found = f"it has {count} rows, expected {spec.rows}"
        raise ValueError(f"{path} is not the whole {name} table: {found}; delete it")
    observed = count - spec.tail
    ids = complete_rows({column: values[:observed] for column, values in columns.items()})
    if verify and len(ids) != spec.complete:
        raise ValueError(f"{path}: {len(ids)} rows are complete, expected {spec.complete}")
    limit = spec.limit if limit == "paper" else limit
    ids = ids if limit is None else ids[: check_integer("limit", limit)]
    rows = {column: text_column(values[i] for i in ids) for column, values in columns.items()}
    read = {
        column: values if column in spec.categories else Column(column, "number").read(values)
        for column, values in rows.items()
        if column not in spec.drop
    }
    y = read.pop(spec.target)
    return Table(
        name,
        "regression",
        read,
        y,
        ids,
        source=spec.file.url,
        notes=(f"target {spec.target}", *(f"dropped {column}" for column in spec.drop)),
        settings={"categorical": spec.categories, "missing": "error"},
    )


# ---- tables of scikit-learn ----------------------------------------------------------------------


#: Tables of scikit-learn: the function that gives one, its settings, and the task.
EMBEDDED_TABLES: dict[str, tuple[str, dict[str, Any], str]] = {
    # 569 tumours, 30 measurements, malignant or benign
    "breast_cancer": ("load_breast_cancer", {}, "classification"),
    # 178 wines, 13 measurements, three growers
    "wine": ("load_wine", {}, "classification"),
    # 442 patients, 10 measurements; the target is the progression of the disease in a year. Raw
    # units, because scikit-learn's own scaling uses the statistics of all rows.
    "diabetes": ("load_diabetes", {"scaled": False}, "regression"),
}


def embedded_table(name: str, request: Request | None = None) -> Table:
    """One of :data:`EMBEDDED_TABLES`."""
    import sklearn.datasets

    function, settings, task = EMBEDDED_TABLES[name]
    bunch = getattr(sklearn.datasets, function)(**settings)
    x = np.asarray(bunch.data, dtype=np.float64)
    return Table(
        name,
        task,
        {str(feature): column for feature, column in zip(bunch.feature_names, x.T, strict=True)},
        np.asarray(bunch.target),
        np.arange(len(x), dtype=np.int64),
        classes=tuple(map(str, bunch.target_names)) if task == "classification" else (),
        source=f"embedded in scikit-learn: sklearn.datasets.{function}",
        settings={"missing": "error"},
    )
