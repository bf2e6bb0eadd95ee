"""The table for papers: LaTeX that compiles, Markdown that renders, CSV that reads back."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import undrift as ud
from records import FEDAVG, FEDHBM, record
from undrift.reporting.export import latex_text

LABEL = r"A_1 & 50% #2 λ=0.1 {x} $y ~ ^ \z"
CELL = re.compile(r"(?<!\\)&")


def comparison() -> ud.Comparison:
    runs = [record(LABEL, FEDAVG, seed=seed) for seed in range(2)]
    return ud.Comparison([*runs, *(record("B|*b*", FEDHBM, seed=seed) for seed in range(2))])


def rows(text: str) -> list[list[str]]:
    """The cells of a `tabular`, as LaTeX would split them."""
    body = text.split("\\toprule\n")[1].split("\\bottomrule")[0]
    lines = [line for line in body.splitlines() if line != "\\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [[cell.strip() for cell in CELL.split(line.removesuffix(r" \\"))] for line in lines]


def test_latex() -> None:
    text = comparison().to_latex()
    head, first, second = rows(text)
    assert text.startswith(f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\toprule\n")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert text.count("\\midrule") == 1
    assert len(head) == len(first) == len(second)
    assert head[:3] == ["Method", "Seeds", r"Final accuracy (\%)"]
    assert first[0] == (
        r"A\_1 \& 50\% \#2 $\lambda$=0.1 \{x\} \$y \textasciitilde{} \textasciicircum{} \textbackslash{}z"
    )
    assert (first[2], second[2]) == (r"80.0~$\pm$~0.0", r"\textbf{95.0~$\pm$~0.0}")
    assert text.isascii()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("η_g", r"$\eta$\_g"),
        ("Δ", r"$\Delta$"),
        ("ο", "o"),
        ("Ü – 2 ×", r"Ü -- 2 $\times$"),
        ("<a>", r"\textless{}a\textgreater{}"),
        ("[3pt] *", "{[}3pt] {*}"),  # after the end of a row, LaTeX would read a distance
    ],
)
def test_characters(text: str, expected: str) -> None:
    assert latex_text(text) == expected


def test_markdown() -> None:
    head, rule, first, second = comparison().to_markdown(["accuracy", "rounds"]).splitlines()
    assert head == "| Method | Final accuracy (%) | Rounds to 80.0 % |"
    assert rule == "| :-- | --: | --: |"
    assert first.startswith(r"| A\_1 & 50% \#2 λ=0.1")
    assert second == r"| B\|\*b\* | **95.0 ± 0.0** | **2 ± 0** |"


def test_csv(tmp_path: Path) -> None:
    path = comparison().to_csv(tmp_path / "table.csv")
    read, table = pd.read_csv(path), comparison().table()
    assert list(read.columns) == list(table.columns)
    numbers = table.select_dtypes("number")
    pd.testing.assert_frame_equal(read[numbers.columns], numbers, check_exact=True)
    assert read["label"].tolist() == [LABEL, "B|*b*"]


def test_tasks_have_tables_of_their_own() -> None:
    tasks = [record("A", FEDAVG, config={"model": model, "algorithm": {"name": "a"}}) for model in ("cnn_1", "mlp")]
    assert ud.Comparison(tasks).to_latex(["accuracy"]).count("\\toprule") == 2
    assert ud.Comparison(tasks).to_latex(["accuracy"]).startswith("% cnn_1\n\\begin{tabular}{lr}\n")
    assert ud.Comparison(tasks).to_markdown(["accuracy"]).startswith("**cnn_1**\n\n| Method")


def test_an_unknown_column() -> None:
    with pytest.raises(ValueError, match="got 'acc'"):
        comparison().to_latex(["acc"])
