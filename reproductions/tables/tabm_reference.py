"""TabM as its authors' example trains it, behind ``fit`` and ``predict``.

32 members, piecewise-linear embeddings of numbers, AdamW; numbers become normal quantiles,
20% of the rows stop the training (patience 16), and the best epoch counts. One thing is ours: a cap
on the CPU time of a fit, after which the best epoch so far is taken (``capped_`` says so).
"""

import copy
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder, QuantileTransformer
from torch import Tensor
from torch.nn import functional as F

from reproductions.tables.contenders import spread_dates

_BATCH = 256
_PATIENCE = 16


class TabMReference:
    """A classifier or a regressor; ``cap`` is in seconds of CPU time."""

    def __init__(self, task: str, seed: int, cap: float = 180.0) -> None:
        self.task, self.seed, self.cap = task, seed, cap

    def fit(self, X: Any, y: NDArray[Any]) -> "TabMReference":
        """Train until the held-out rows have not improved for 16 epochs."""
        start = time.process_time()
        torch.manual_seed(self.seed)
        self.capped_ = False
        X = spread_dates(X)
        self.classes_ = np.unique(y) if self.task == "classification" else None
        self.shift_ = 0.0 if self._classes else float(y.mean())
        self.scale_ = 1.0 if self._classes else float(y.std()) or 1.0
        own, held = train_test_split(
            np.arange(len(y)),
            test_size=0.2,
            random_state=self.seed,
            stratify=y if self._classes and np.bincount(y).min() > 4 else None,
        )
        self._learn_columns(X.iloc[own])
        numbers, codes = self._encode(X)
        targets = (
            torch.from_numpy(np.searchsorted(self.classes_, y))
            if self.classes_ is not None
            else torch.from_numpy((y - self.shift_) / self.scale_).float()
        )
        self.model_ = self._make(numbers[own])
        optimizer = torch.optim.AdamW(self.model_.parameters(), lr=2e-3, weight_decay=3e-4)
        best, waited, state = np.inf, 0, copy.deepcopy(self.model_.state_dict())
        while waited < _PATIENCE and not self.capped_:
            self.model_.train()
            for rows in torch.from_numpy(own)[torch.randperm(len(own))].split(_BATCH):
                optimizer.zero_grad()
                self._loss(self._forward(numbers, codes, rows), targets[rows]).backward()
                torch.nn.utils.clip_grad_norm_(self.model_.parameters(), 1.0)
                optimizer.step()
                self.capped_ = time.process_time() - start > self.cap
                if self.capped_:
                    break
            error = self._error(self._outputs(numbers[held], codes[held]), targets[held])
            waited += 1
            if error < best:
                best, waited, state = error, 0, copy.deepcopy(self.model_.state_dict())
        self.model_.load_state_dict(state)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The mean of the members' predictions."""
        if self._classes:
            found: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]  # type: ignore[index]
            return found
        return self._combine(self._outputs(*self._encode(X))) * self.scale_ + self.shift_

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The mean of the members' probabilities."""
        return self._combine(self._outputs(*self._encode(X)))

    @property
    def _classes(self) -> int:
        return 0 if self.classes_ is None else len(self.classes_)

    def _learn_columns(self, X: Any) -> None:
        numbers = X.select_dtypes("number")
        # The embeddings have no bins for constants; gaps are a category of their own.
        self.numbers_ = [name for name in numbers if numbers[name].nunique() > 1]
        self.gaps_ = [name for name in self.numbers_ if numbers[name].isna().any()]
        self.texts_ = list(X.select_dtypes(exclude="number"))
        self.encoder_ = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
        ).fit(X[self.texts_])
        values = numbers[self.numbers_].to_numpy(np.float64)
        noise = np.random.default_rng(self.seed).normal(0.0, 1e-5, values.shape)
        if self.numbers_:
            self.quantiles_ = QuantileTransformer(
                n_quantiles=min(len(X), max(min(len(X) // 30, 1000), 10)),
                output_distribution="normal",
                subsample=10**9,
                random_state=self.seed,
            ).fit(values + noise)
        self.levels_ = [len(levels) for levels in self.encoder_.categories_]

    def _encode(self, X: Any) -> tuple[Tensor, Tensor]:
        """Numbers as normal quantiles, 0 where missing, and categories as codes."""
        X = spread_dates(X)
        numbers = np.zeros((len(X), 0), np.float32)
        if self.numbers_:
            values = self.quantiles_.transform(X[self.numbers_].to_numpy(np.float64))
            numbers = np.nan_to_num(values).astype(np.float32)
        codes = self.encoder_.transform(X[self.texts_])
        # The last code of a category means missing or new.
        codes = np.where(np.isnan(codes), self.levels_, codes)
        gaps = X[self.gaps_].isna().to_numpy()
        both = np.concatenate([codes, gaps], 1).astype(np.int64)
        return torch.from_numpy(numbers), torch.from_numpy(both)

    def _make(self, numbers: Tensor) -> Any:
        from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
        from tabm import TabM

        embeddings = None
        if self.numbers_:
            bins = compute_bins(numbers, n_bins=min(48, len(numbers) - 1))
            embeddings = PiecewiseLinearEmbeddings(bins, 16, activation=False, version="B")
        return TabM.make(
            n_num_features=len(self.numbers_),
            cat_cardinalities=[levels + 1 for levels in self.levels_] + [2] * len(self.gaps_),
            d_out=self._classes or 1,
            num_embeddings=embeddings,
        )

    def _forward(self, numbers: Tensor, codes: Tensor, rows: Tensor | slice) -> Tensor:
        outputs: Tensor = self.model_(
            numbers[rows] if numbers.shape[1] else None, codes[rows] if codes.shape[1] else None
        )
        return outputs  # [batch, members, outputs]

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean of the members' losses."""
        members = outputs.shape[1]
        flat, repeated = outputs.flatten(0, 1), targets.repeat_interleave(members)
        if self._classes:
            return F.cross_entropy(flat, repeated)
        return F.mse_loss(flat.squeeze(-1), repeated)

    @torch.no_grad()
    def _outputs(self, numbers: Tensor, codes: Tensor) -> Tensor:
        self.model_.eval()
        pieces = [
            self._forward(numbers, codes, slice(first, first + 1024))
            for first in range(0, len(numbers), 1024)
        ]
        return torch.cat(pieces)

    def _combine(self, outputs: Tensor) -> NDArray[Any]:
        if self._classes:
            return outputs.softmax(-1).mean(1).double().numpy()
        return outputs.squeeze(-1).mean(1).double().numpy()

    def _error(self, outputs: Tensor, targets: Tensor) -> float:
        """RMSE or the error rate, which the example stops by."""
        combined, known = self._combine(outputs), targets.numpy()
        if self._classes:
            return float((combined.argmax(1) != known).mean())
        return float(np.sqrt(((combined - known) ** 2).mean()))
