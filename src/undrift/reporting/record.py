"""The record of a finished run, and the columns of its history: what each holds and how it is shown, declared once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from undrift.diagnostics.columns import is_diagnostic
from undrift.statistics.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HistoryColumn:
    """A quantity recorded every round."""

    name: str
    dtype: str
    meaning: str
    chart: str | None = None  # title of its chart in the report
    title: str | None = None  # where it is drawn on request, if it has no chart in the report
    heading: str | None = None  # of its final value in the summary table
    percent: bool = False  # a share, shown as a percentage
    better: Literal["higher", "lower"] | None = None


# In the order of the files. A history may have further columns: the run's metrics.
COLUMNS = (
    HistoryColumn("round", "int64", "The number of the round, from 1."),
    HistoryColumn(
        "loss",
        "float64",
        "Mean loss over the test samples; NaN where the round was not evaluated.",
        chart="Test loss",
        heading="Final test loss",
        better="lower",
    ),
    HistoryColumn(
        "accuracy",
        "float64",
        "Share of test samples classified correctly; NaN where the round was not evaluated.",
        chart="Test accuracy",
        heading="Final accuracy",
        percent=True,
        better="higher",
    ),
    HistoryColumn(
        "train_loss",
        "float64",
        "Mean loss over the cohort's local training steps.",
        chart="Training loss",
        better="lower",
    ),
    HistoryColumn("bytes_down", "int64", "Bytes sent from the server to all clients of the cohort."),
    HistoryColumn("bytes_up", "int64", "Bytes sent from all clients of the cohort to the server."),
    HistoryColumn("participants", "int64", "Clients in the cohort."),
    HistoryColumn("seconds", "float64", "Time the round took, evaluation included."),
    HistoryColumn(
        "evaluation_seconds",
        "float64",
        "How much of it the evaluation took; NaN in runs from before it was recorded.",
    ),
    HistoryColumn("diverged", "bool", "Whether a loss or a model was no longer finite."),
)

TIMES = ["seconds", "evaluation_seconds"]  # what differs when a run is repeated


def _of_classes(name: str, title: str, meaning: str, *, chart: bool = True) -> HistoryColumn:
    """A share on the test samples of which more is better."""
    return HistoryColumn(
        name,
        "float64",
        f"{meaning} on the test samples.",
        chart=f"Test {title}" if chart else None,
        heading=f"Final {title.removesuffix(' (macro)')}",
        percent=True,
        better="higher",
    )


def _of_clients(
    figure: str, meaning: str, better: Literal["higher", "lower"], title: str = "", *, percent: bool = True
) -> HistoryColumn:
    """How the accuracies of clients are spread; figures without a title are shown in the report's part on clients."""
    return HistoryColumn(
        f"client_accuracy_{figure}",
        "float64",
        f"{meaning} of the model that each client would use.",
        chart=title or None,
        heading=title or None,
        percent=percent,
        better=better,
    )


# How metrics that are given by name are shown; other metrics get a default. What is the accuracy by another name has no
# chart, nor have those of which there are many.
NAMED_METRICS = {
    each.name: each
    for each in (
        _of_classes("f1", "F1 (macro)", "F1 score, averaged over classes (macro),"),
        _of_classes("precision", "precision (macro)", "Precision, averaged over classes (macro),"),
        _of_classes("recall", "recall (macro)", "Recall, averaged over classes (macro),"),
        _of_classes("f1_micro", "F1 (micro)", "F1 score of all classes together (micro), the accuracy,", chart=False),
        _of_classes(
            "precision_micro",
            "precision (micro)",
            "Precision of all classes together (micro), the accuracy,",
            chart=False,
        ),
        _of_classes(
            "recall_micro", "recall (micro)", "Recall of all classes together (micro), the accuracy,", chart=False
        ),
        _of_classes("auroc", "AUROC", "Area under the ROC curve of each class against the others, averaged over them,"),
        HistoryColumn(
            "calibration_error",
            "float64",
            "Expected calibration error on the test samples: how far confidence is from accuracy, in 15 bins.",
            chart="Calibration error",
            heading="Final calibration error",
            percent=True,
            better="lower",
        ),
        HistoryColumn(
            "personal_accuracy",
            "float64",
            "Mean accuracy of the model that each client would use, weighted by the clients' samples.",
            chart="Accuracy of clients' own models",
            heading="Final personal accuracy",
            percent=True,
            better="higher",
        ),
        _of_clients("mean", "Mean accuracy over clients", "higher"),
        _of_clients("std", "Standard deviation over clients of the accuracy", "lower"),
        _of_clients("worst", "Accuracy at the worst client", "higher"),
        _of_clients("worst_tenth", "Mean accuracy over the worst tenth of clients", "higher", "Worst tenth of clients"),
        _of_clients("best", "Accuracy at the best client", "higher"),
        _of_clients("gap", "Best minus worst client's accuracy", "lower"),
        _of_clients("jain", "Jain's index (1: all clients equal) of the accuracies", "higher", percent=False),
    )
}


def is_of_clients(name: str) -> bool:
    """Whether a column is about the models that clients would use."""
    return name == "personal_accuracy" or name.startswith("client_accuracy_")


_CLASS_ACCURACY = re.compile(r"accuracy_class_(\d+)")
# Of algorithms that keep several models: "accuracy" is that of the one which most clients of the cohort prefer.
SEVERAL_MODELS = {
    f"accuracy_{which}": HistoryColumn(
        f"accuracy_{which}", "float64", f"{which.capitalize()} accuracy of all the server's models.", percent=True
    )
    for which in ("best", "mean", "worst")
}
# Of runs whose clients may fail.
FAILURE_COLUMNS = {
    name: HistoryColumn(name, "float64", meaning, title=title)
    for name, title, meaning in (
        (
            "asked",
            "Clients asked",
            "Clients that were asked in the last attempt at the round; `participants` are those who answered.",
        ),
        (
            "attempts",
            "Attempts at the round",
            "Attempts at the round; one that too few clients answer is repeated with others.",
        ),
        ("unanswered", "Clients without an answer", "Clients that were asked and did not answer."),
        ("late", "Late answers", "Answers that came after the deadline."),
        ("repeated", "Repeated answers", "Answers that came twice; the second was ignored."),
        (
            "malformed",
            "Malformed answers",
            "Answers with other names, shapes or dtypes than those of the algorithm.",
        ),
        ("not_finite", "Answers that are not finite", "Answers with a number that is infinite or not a number."),
        ("absurd_norm", "Answers far too large", "Answers over a thousand times as large as the median."),
    )
}
# Of runs with client-level differential privacy.
PRIVACY = {
    "epsilon": HistoryColumn(
        "epsilon",
        "float64",
        "ε of the client-level (ε, δ)-differential privacy of the model after this round.",
        chart="Privacy spent, ε",
        heading="Final ε",
        better="lower",
    ),
    "delta": HistoryColumn("delta", "float64", "The δ for which ε holds.", heading="δ"),
}
_COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}
# Names that a metric cannot take: the declared columns, and what tables of several runs add to them.
RESERVED_NAMES = (
    *_COLUMNS_BY_NAME,
    *SEVERAL_MODELS,
    *FAILURE_COLUMNS,
    *PRIVACY,
    "label",
    "seed",
    "reference",
    "runs",
    "averaged",
    "accuracy_std",
    "best_accuracy",
    "best_accuracy_std",
    "best_round",
    "best_round_std",
    "last_k_accuracy",
    "last_k_accuracy_std",
    "last_k",
    "rounds_to_target",
    "rounds_to_target_std",
    "bytes_to_target",
    "bytes_to_target_std",
    "speed_up_to_target",
    "reached_target",
    "traffic",
    "training_seconds",
    "lr",
    "server_lr",
    "weighting",
    "exploded",
)


CENTRALISED = "centralised"  # the name under which a run on the pooled data is stored
EXPLODED = 100  # times the training loss of the first round


def exploded(loss: float, start: float) -> bool:
    """Whether a training loss is so much larger than at the start that something is wrong, though it is finite."""
    return start > 0 and loss > EXPLODED * start


class Record(NamedTuple):
    """One finished run, as tables and reports see it."""

    label: str
    seed: int
    history: pd.DataFrame
    config: dict[str, Any]
    environment: dict[str, Any]
    predictions: Predictions | None = None  # of the final model on the test samples, where they were kept
    detail: dict[str, Any] | None = None  # of the last evaluated round, where asked for: confusion, client_accuracy

    @property
    def reference(self) -> bool:
        """Whether it is no federated run but one on the pooled data, which the others are measured by."""
        algorithm = self.config.get("algorithm")
        return isinstance(algorithm, Mapping) and algorithm.get("name") == CENTRALISED

    @property
    def trial(self) -> bool:
        """Whether it is one of a tuning, by which settings were chosen: on held-out training data, not the test set."""
        return bool(self.config.get("trial"))

    @property
    def exploded(self) -> bool:
        """Whether the training loss exploded in some round; such a run is never shown as the best."""
        losses = self.history["train_loss"].tolist()
        return any(exploded(loss, losses[0]) for loss in losses)

    @property
    def diverged(self) -> bool:
        return bool(self.history["diverged"].astype(bool).any())

    @property
    def failed(self) -> bool:
        """Whether it is left out of means over seeds."""
        return self.diverged or self.exploded


def column(name: str) -> HistoryColumn:
    """The declaration of a column; an unknown metric is shown as a plain number of which no direction is better."""
    if known := (_COLUMNS_BY_NAME | NAMED_METRICS | SEVERAL_MODELS | FAILURE_COLUMNS | PRIVACY).get(name):
        return known
    if is_diagnostic(name):  # of which there are many: they have a section of their own
        return HistoryColumn(name, "float64", f"The diagnostic {name}.")
    if match := _CLASS_ACCURACY.fullmatch(name):
        return HistoryColumn(name, "float64", f"Accuracy on the test samples of class {match[1]}.", percent=True)
    words = name.replace("_", " ")
    return HistoryColumn(
        name, "float64", f"The metric {name}.", chart=words[:1].upper() + words[1:], heading=f"Final {words}"
    )


def metrics_in(histories: Iterable[Iterable[Hashable]]) -> list[HistoryColumn]:
    """The metrics among the columns of histories (or the keys of their rows), in order of first appearance."""
    names = dict.fromkeys(str(name) for history in histories for name in history)
    return [column(name) for name in names if name not in _COLUMNS_BY_NAME]


def history_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A row per round: the declared columns, then the metrics; NaN (0 in whole numbers) where a value is missing."""
    import pandas as pd  # which the processes of clients do not wait for

    columns = [*COLUMNS, *metrics_in(rows)]
    frame = pd.DataFrame(rows, columns=[each.name for each in columns])
    for each in columns:
        if each.dtype != "float64":  # of a run that was recorded before the column existed
            frame[each.name] = frame[each.name].fillna(0)
    return frame.astype({each.name: each.dtype for each in columns})


def shown_columns(histories: Iterable[pd.DataFrame]) -> list[HistoryColumn]:
    """What charts and tables show, shares such as accuracy before losses."""
    return sorted([*COLUMNS, *metrics_in(histories)], key=lambda each: not each.percent)
