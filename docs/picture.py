"""Draw the picture of the README from the runs of the built-in example: `make picture`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from undrift import Comparison

TARGET = Path(__file__).parent / "images" / "demo.svg"
COLOURS = {"FedAvg": "#8a8f98", "FedHBM": "#0072b2"}


def main(runs: str) -> None:
    curves = Comparison.from_directories([runs]).curves()
    mpl.rcParams |= {"font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "undrift", "svg.fonttype": "path"}
    figure, axes = plt.subplots(figsize=(7.6, 3.5), layout="constrained")
    for label, group in curves.groupby("label", sort=False):
        accuracy = 100 * group.groupby("round")["accuracy"].agg(["mean", "min", "max"])
        colour = COLOURS[str(label)]
        axes.fill_between(accuracy.index, accuracy["min"], accuracy["max"], color=colour, alpha=0.15, linewidth=0)
        axes.plot(accuracy.index, accuracy["mean"], color=colour, linewidth=2)
        end = accuracy["mean"].iloc[-1]
        axes.annotate(
            f"{label}  {end:.1f} %",
            (accuracy.index[-1], end),
            xytext=(8, 5 if label == "FedHBM" else -5),  # their ends are close together
            textcoords="offset points",
            color=colour,
            fontweight="bold",
            va="center",
        )
    axes.set(xlabel="round", ylabel="test accuracy, %", xlim=(1, curves["round"].max()), ylim=(0, 100))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e8", linewidth=0.8)
    axes.set_axisbelow(True)
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main(sys.argv[1])
