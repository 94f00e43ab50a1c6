"""An imputer for scikit-learn: a flow, trained on the incomplete rows themselves, fills their holes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import MissingIndicator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from viscos.commands.assemble.rows import completing
from viscos.core.batch import Incomplete, incomplete
from viscos.core.counts import count
from viscos.core.errors import InputError
from viscos.data.incomplete import IncompleteData
from viscos.data.scaling import Scaling
from viscos.data.vectors import Vectors
from viscos.imputers import GaussianImputer, Imputer

_ROWS = 500  # that are completed together


_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def _as_usual() -> Iterator[None]:
    """What torch makes meanwhile is of single precision, as rows are, and may have gradients, whatever the caller says.

    One imputer works at a time: torch's default precision, and the generator of first weights, are the whole process's.
    """
    with _ONE_AT_A_TIME, torch.inference_mode(False), torch.enable_grad():
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class FlowImputer(TransformerMixin, BaseEstimator):
    """Fills NaN by the mean of a flow's conditional distribution, and draws from it.

    A flow and an inference network are trained on the rows as they are, with their holes, as `viscos train
    dataset=table` trains them: on columns that are standardised by their observed entries, with the same settings but
    for the number of steps, and with cells that were held out in the place of tempering. A row is completed by the
    network's posterior and the flow. Columns are real numbers; encode categories before.

    - `flow` is the name of a flow, as in `viscos train`: `continuous`, `iresnet`, `planar` and others.
    - `max_steps` is the length of a phase of training, of which there are a few.
    - `draws` is the number of draws, in antithetic pairs, whose mean `transform` gives.
    - `calibrate` holds a tenth of the known cells out of the training, or where there are few a fifth in turn, and
      gives the mean of the flow, of a Gaussian, of nearest neighbours and of the column the shares in a column that
      suit these cells, and its draws the spread by which 90 % intervals cover as many of them. Otherwise the flow
      learns from all cells and completes alone, which takes a sixth of the time where fewer than 1,000 cells are known:
      there are six trainings then, and else one.
    - `min_value` and `max_value` are what fills a hole is never below and never above, one number or one for each
      column of X; what lies beyond is moved to the limit.
    - `keep_empty_features` keeps columns that have no value in `fit`, filled with 0; otherwise they are dropped.
    - `add_indicator` appends a column for each one with holes in `fit`, which says where they are.
    - `random_state` makes a fit what it is, and the draws: the same state, the same numbers.
    - `verbose` above 0 shows a bar for the training.

    What a row becomes does not depend on the rows beside it, but for the last digits; what `sample` draws for it does
    depend on its number. After `fit` there are `model_`, the flow and its network;
    `scaling_`, of the columns; `gaussian_`, of the scaled ones; `shares_` in the mean by name, one to each column that
    had a value; `width_`, the factors of their draws' spread; `kept_`, which these are; `indicator_`.

    Example:

        >>> from viscos.sklearn import FlowImputer
        >>> X = np.random.default_rng(0).normal(size=(60, 3)); X[::4, 1] = np.nan
        >>> FlowImputer(max_steps=20, random_state=0).fit_transform(X).shape
        (60, 3)
    """

    def __init__(
        self,
        *,
        flow: str = "continuous",
        max_steps: int = 200,
        draws: int = 32,
        calibrate: bool = True,
        min_value: Any = -np.inf,
        max_value: Any = np.inf,
        keep_empty_features: bool = False,
        add_indicator: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.flow, self.max_steps, self.draws, self.calibrate = flow, max_steps, draws, calibrate
        self.min_value, self.max_value = min_value, max_value
        self.keep_empty_features, self.add_indicator = keep_empty_features, add_indicator
        self.random_state, self.verbose = random_state, verbose

    @_as_usual()
    def fit(self, X: Any, y: Any = None) -> FlowImputer:
        """Trains on the rows X (n, columns), NaN in the holes; `y` is ignored. Returns itself.

        Raises `ValueError` for what is no table of numbers, has an infinite value, or nothing observed; and for limits
        that are not one to a column, or leave a column no values.
        """
        X = self._checked(X, fit=True)
        if not isinstance(self.calibrate, (bool, np.bool_)):
            raise InputError(f"calibrate is {self.calibrate!r}; give True or False")
        steps, _ = count(self.max_steps, "max_steps"), count(self.draws, "draws")
        self._limits = self._limits_of_columns()
        known = ~np.isnan(X)
        self.kept_ = known.any(0)
        if not self.kept_.any():
            raise InputError("nothing is observed in X, so there is nothing to learn from")
        self.indicator_ = MissingIndicator(error_on_new=False).fit(X) if self.add_indicator else None
        names = tuple(self._names()[self.kept_])
        table = Vectors("X", torch.from_numpy(X[:, self.kept_].astype(np.float64)), None, 0, columns=names)
        self.scaling_ = Scaling.fit(table, table.known)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data = IncompleteData(self.scaling_.standardise(table.values), table.known)
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(self._seed)  # layers draw their first weights from torch's own generator
            self.model_, self.gaussian_, self._method = completing(
                data, self.flow, steps, self._seed, self.verbose > 0, self.calibrate
            )
        shares = zip(self._method.imputers, self._method.weights.numpy().T, strict=True)
        self.shares_ = {imputer.name: share for imputer, share in shares}
        self.width_ = self._method.width.numpy()
        return self

    @_as_usual()
    def transform(self, X: Any) -> np.ndarray:
        """X with the mean of the draws in its holes (n, columns), and indicators if there are any."""
        X = self._checked(X)
        # All rows have the noise of the first: what one becomes does not depend on where it stands.
        numbers = np.zeros(len(X), dtype=np.int64)
        batches = self._batches(X, numbers)
        means = [self._method.best_mean(rows, self.draws, self._seed).mean() for rows in batches]
        means = self._mended(means, batches, lambda rows: self.gaussian_.conditional(rows.values, rows.observed))
        return self._appended(X, self._filled(X, means)[0])

    @_as_usual()
    def sample(self, X: Any, n: int = 1, random_state: Any = None) -> np.ndarray:
        """n completions of X (n, rows, columns), each with one joint draw in the holes of a row: multiple imputations.

        The same call gives the same draws, unless `random_state` says otherwise; those of the rows are independent.
        Where no solve found one, it is the Gaussian's, and a warning says of how many.
        """
        X = self._checked(X)
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"n is {n!r}; give the number of completions of each row, 1 or more")
        seed = self._seed if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        batches = self._batches(X, np.arange(len(X)))

        def drawn(imputer: Imputer, rows: Incomplete) -> Tensor:
            return imputer.impute(rows, int(n), seed, "sample").draws

        found, gaussian = [drawn(self._method, rows) for rows in batches], GaussianImputer(self.gaussian_)
        draws = self._mended(found, batches, lambda rows: drawn(gaussian, rows))
        return np.stack(self._filled(X, draws, int(n)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the columns that `transform` gives."""
        check_is_fitted(self)
        names = self._names(input_features)
        out = names if self.keep_empty_features else names[self.kept_]
        return out if self.indicator_ is None else np.append(out, self.indicator_.get_feature_names_out(names))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _checked(self, X: Any, *, fit: bool = False) -> np.ndarray:
        if not fit:
            check_is_fitted(self)
        kinds = [np.float64, np.float32]
        checked: np.ndarray = validate_data(
            self, X, reset=fit, dtype=kinds, ensure_all_finite="allow-nan", ensure_min_samples=2 if fit else 1
        )
        return checked

    def _limits_of_columns(self) -> np.ndarray:
        """(2, columns): least and largest value of what fills a hole of each column."""
        limits = []
        for name, none in (("min_value", -np.inf), ("max_value", np.inf)):
            given = getattr(self, name)
            limit = np.asarray(none if given is None else given, dtype=float)
            if limit.shape not in ((), (self.n_features_in_,)):
                raise InputError(
                    f"{name} has the shape {limit.shape}; give one number, or one for each of the "
                    f"{self.n_features_in_} columns"
                )
            limits.append(np.broadcast_to(limit, self.n_features_in_))
        low, high = limits
        if not (low < high).all():
            place = int((~(low < high)).argmax())
            raise InputError(
                f"min_value is {low[place]:g} and max_value {high[place]:g} for column {self._names()[place]}; "
                "the first must be the smaller one"
            )
        return np.stack(limits)

    def _names(self, given: Any = None) -> np.ndarray:
        known = getattr(self, "feature_names_in_", None)
        if given is None:
            given = [f"x{i}" for i in range(self.n_features_in_)] if known is None else known
        elif len(given) != self.n_features_in_ or (known is not None and list(given) != list(known)):
            raise ValueError("input_features is not equal to feature_names_in_, or is of another length")
        return np.asarray(given, dtype=object)

    def _batches(self, X: np.ndarray, index: np.ndarray) -> list[Incomplete]:
        """The rows with holes, as the model takes them."""
        rows = np.isnan(X[:, self.kept_]).any(1)
        holed = np.where(rows[:, None], X[:, self.kept_].astype(np.float64), np.nan)  # a message numbers those of X
        values = self.scaling_.standardise(holed)[torch.from_numpy(rows)]
        whole = incomplete(values, ~values.isnan(), torch.from_numpy(index[rows]))
        return [whole.select(slice(first, first + _ROWS)) for first in range(0, len(whole), _ROWS)]

    def _mended(
        self, found: list[Tensor], batches: list[Incomplete], spare: Callable[[Incomplete], Tensor]
    ) -> list[Tensor]:
        """What was found of each batch (…, rows, columns), and what is to spare where no solve found anything."""
        failed = [values.isnan().any(-1, keepdim=True) for values in found]
        if many := sum(int(each.sum()) for each in failed):
            total = sum(each.numel() for each in failed)
            what = "rows; they have the mean" if found[0].dim() == 2 else "draws of rows; there they have a draw"
            warnings.warn(
                f"the flow found no completion of {many} of {total} {what} of the Gaussian's conditional", stacklevel=4
            )
            together = zip(found, failed, batches, strict=True)
            found = [
                torch.where(no, spare(rows).to(values), values) if bool(no.any()) else values
                for values, no, rows in together
            ]
        return found

    def _filled(self, X: np.ndarray, found: list[Tensor], n: int = 1) -> list[np.ndarray]:
        """X (n times) with what was found (…, rows, columns) in its holes, in its own precision."""
        kept = X[:, self.kept_]
        rows = np.isnan(kept).any(1)
        values = torch.cat([v.view(n, -1, kept.shape[1]) for v in found], 1) if found else None
        completed = []
        for k in range(n):
            own = kept.copy()
            if values is not None:
                own[rows] = np.where(np.isnan(kept[rows]), self._restored(values[k]), kept[rows])
            completed.append(self._widened(X, own))
        return completed

    def _restored(self, values: Tensor) -> np.ndarray:
        """Values of the model in the columns' own units."""
        restored = self.scaling_.restore(values)
        constant = torch.tensor([name in self.scaling_.constant for name in self.scaling_.columns])
        restored = torch.where(constant, self.scaling_.center, restored)
        return np.clip(restored.numpy(), *self._limits[:, self.kept_])

    def _widened(self, X: np.ndarray, own: np.ndarray) -> np.ndarray:
        if not self.keep_empty_features:
            return own
        whole = np.where(np.isnan(X), np.clip(0, *self._limits), X).astype(X.dtype)
        whole[:, self.kept_] = own
        return whole

    def _appended(self, X: np.ndarray, completed: np.ndarray) -> np.ndarray:
        if self.indicator_ is None:
            return completed
        return np.hstack([completed, self.indicator_.transform(X).astype(completed.dtype)])
