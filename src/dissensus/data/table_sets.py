"""Known tables: three that come with scikit-learn, and the four UCI tables of collusion.

The UCI tables have the preprocessing of the same authors' loaders.

Appendix B asks for "standardization of the features and targets, one hot encoding of categorical
features, and log transformation of skewed features" and no more; targets, row counts and encodings
are those of the first author's published loaders for the same tables. The paper does not say which
features are skewed. The rule here: a numeric column that is not negative on the training rows and
whose skewness there is above ``log_skew`` (2 by default, None for no logs) is replaced
by log(1 + x). On the whole of each table that means

- abalone: none (the largest skewness of its first 1,000 rows is 1.0);
- bioconcentration: X2Av;
- facebook: the eleven counts (reach, impressions by fans, engaged users, consumers, consumptions,
  comments, likes, shares, interactions and the like), not the calendar columns or page likes;
- weather: the four precipitation columns LDAPS_PPT1 to LDAPS_PPT4.

A column near the limit may change sides from one split to another, because only training rows
count; ``preprocessing["log_features"]`` of a split lists them. Targets are standardised
and not logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.data.column_values import text_column
from dissensus.data.dataset import Request
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.formats import complete_rows, parse_separated
from dissensus.data.preparation import Column, Preparation, sort_levels
from dissensus.data.table import Table

_UCI = "https://archive.ics.uci.edu/static/public"
_UNCHECKED = "there was no unmodified copy to compute one: rows, columns and names are checked"
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
    columns: int  # after one-hot encoding
    one_hot: tuple[str, ...]
    drop_first: bool = False  # leave out the first level of each categorical column
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
        columns=9,
        one_hot=("sex",),
        drop_first=True,
        limit=1000,
        header=tuple(_ABALONE.split(",")),
    ),
    "bioconcentration": UCITable(
        folder="uci-bioconcentration",
        file=RemoteFile(
            "Grisoni_et_al_2016_EnvInt88.csv",
            f"{_UCI}/510/qsar+bioconcentration+classes+dataset.zip",
            unchecked=_UNCHECKED,
        ),
        target="logBCF",
        rows=779,
        complete=779,
        columns=45,
        one_hot=("nHM", "N-072", "B02[C-N]", "F04[C-O]"),
        drop=("CAS", "SMILES", "Set", "Class"),  # Class is derived from the target
    ),
    "facebook": UCITable(
        folder="uci-facebook",
        file=RemoteFile(
            "dataset_Facebook.csv", f"{_UCI}/368/facebook+metrics.zip", unchecked=_UNCHECKED
        ),
        target="Lifetime Post Total Impressions",
        rows=500,
        complete=495,
        columns=21,
        one_hot=("Type",),
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
        columns=45,
        one_hot=("station",),
        drop_first=True,
        drop=("Date", "Next_Tmin"),
        limit=1000,
        tail=2,  # the last two rows are the columns' minima and maxima
    ),
}


def uci_table(
    name: str,
    request: Request,
    *,
    log_skew: float | None = 2.0,
    limit: int | str | None = "paper",
    verify: bool = True,
) -> Table:
    """One of :data:`UCI_TABLES` in raw units, to be split for as many seeds as wanted.

    ``limit="paper"`` keeps the first 1,000 complete rows of abalone and weather and all of the
    others; None keeps all; a number that many. ``verify=False`` reads a file that is not the
    official one, such as a part of it.
    """
    spec = UCI_TABLES[name]
    path = locate([spec.file], [spec.folder], request, what=name)[spec.file.name]
    raw = content(path, spec.file, verify=verify)
    text = raw.decode("utf-8-sig", errors="replace")
    columns = parse_separated(text, str(path), header=spec.header or True)
    wanted = {spec.target, *spec.one_hot, *spec.drop, *spec.header}
    if lacking := sorted(wanted - columns.keys()):
        raise ValueError(f"{path} is not the {name} table: it has no column {', '.join(lacking)}")
    count = len(columns[spec.target])
    if verify and count != spec.rows:
        raise ValueError(
            f"{path} is not the whole {name} table: it has {count} rows, expected {spec.rows}; "
            "delete it and load again, or pass verify=False to use it as it is"
        )
    observed = count - spec.tail
    ids = complete_rows({column: values[:observed] for column, values in columns.items()})
    if verify and len(ids) != spec.complete:
        raise ValueError(f"{path}: {len(ids)} rows are complete, expected {spec.complete}")
    limit = spec.limit if limit == "paper" else limit
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit must be 'paper', None or a number of rows, got {limit!r}")
    ids = ids[:limit]
    others = {spec.target, *spec.drop, *spec.one_hot}
    numeric = [column for column in columns if column not in others]
    rows = {column: text_column(values[i] for i in ids) for column, values in columns.items()}
    first = 1 if spec.drop_first else 0
    levels = {column: tuple(sort_levels(rows[column])[first:]) for column in spec.one_hot}
    preparation = Preparation(
        (
            *(Column(column, "number") for column in numeric),
            *(Column(column, "category", levels[column]) for column in spec.one_hot),
        ),
        missing="error",
    )
    x, y = preparation.encode(rows, path), Column(spec.target, "number").read(rows[spec.target])
    if verify and x.shape[1] != spec.columns:
        raise ValueError(f"{path} gives {x.shape[1]} columns, expected {spec.columns}")
    return Table(
        name,
        "regression",
        x,
        y,
        preparation,
        ids,
        log_skew=log_skew,
        source=spec.file.url,
        notes=(
            f"target {spec.target}; one-hot {', '.join(spec.one_hot)}"
            + (" without the first level" if spec.drop_first else "")
            + (f"; dropped {', '.join(spec.drop)}" if spec.drop else ""),
        ),
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


def embedded_table(name: str, request: Request | None = None, *, standardize: bool = True) -> Table:
    """One of :data:`EMBEDDED_TABLES` in raw units."""
    import sklearn.datasets

    function, settings, task = EMBEDDED_TABLES[name]
    bunch = getattr(sklearn.datasets, function)(**settings)
    x = np.asarray(bunch.data, dtype=np.float64)
    columns = tuple(Column(str(feature), "number") for feature in bunch.feature_names)
    return Table(
        name,
        task,
        x,
        np.asarray(bunch.target),
        Preparation(columns, missing="error"),
        np.arange(len(x), dtype=np.int64),
        classes=tuple(map(str, bunch.target_names)) if task == "classification" else (),
        source=f"embedded in scikit-learn: sklearn.datasets.{function}",
        standardize=standardize,
    )
