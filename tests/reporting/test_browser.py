"""The report's script in a browser, where there is one: curves, downloads, and labels that are text."""

from __future__ import annotations

import csv
import html
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

import undrift as ud
from records import FEDAVG, FEDHBM, record
from undrift.data.picture import draw
from undrift.reporting import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LABEL = '=<img src=x onerror="document.title=1">,'
DOWNLOADS = """<script>
const task = report.tasks[0];
const state = { axis: task.axes[0], hidden: new Set() };
for (const [name, text] of Object.entries({
  csv: csv(curveRows(task)), table: csv(task.summary), svg: figureText(task, task.charts[0], state),
})) document.body.append(Object.assign(document.createElement("pre"), { id: name, textContent: text }));
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no browser here")
def test_curves_and_downloads(tmp_path: Path) -> None:
    runs = [record(label, values, seed=seed) for label, values in ((LABEL, FEDAVG), ("B", FEDHBM)) for seed in range(2)]
    failed = record("C", [0.1, 0.1], loss=[1.0, 1e30], diverged_at=2)
    page = tmp_path / "page.html"
    page.write_text(report.render([*runs, failed], title="A page").replace("</body>", DOWNLOADS), encoding="utf-8")
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1000,2000"]
    found = subprocess.run([BROWSER, *options, "--dump-dom", page.as_uri()], capture_output=True, check=True)
    seen = found.stdout.decode()
    charts = re.findall(r'data-chart="(\w+)".*?</figure>', seen, re.DOTALL)
    assert charts == ["accuracy", "loss", "train_loss"]
    for drawn in re.findall(r'<div class="chart".*?</figure>', seen, re.DOTALL):
        assert "NaN" not in drawn
        assert drawn.count("<path") == 2 + 2 + 2  # bands, means, and a failed curve with its cross
    assert "<title>A page</title>" in seen
    assert "<img" not in seen.split("<main>")[1]

    def download(name: str) -> str:
        match = re.search(rf'<pre id="{name}">(.*?)</pre>', seen, re.DOTALL)
        assert match
        return html.unescape(match[1])

    rows = list(csv.reader(download("csv").splitlines()))
    assert rows[0][:5] == ["method", "round", "traffic (B)", "elapsed (s)", "accuracy"]
    assert rows[1][0] == f"'{LABEL}"  # no formula
    assert [float(row[4]) for row in rows[1:]] == [*FEDAVG, *FEDHBM]
    table = list(csv.DictReader(download("table").splitlines()))
    assert [row["accuracy"] for row in table] == ["0.8", "0.95", "0.1"]
    texts = [each.text for each in ElementTree.fromstring(download("svg")).iter() if each.tag.endswith("text")]
    assert {"Test accuracy", LABEL, "B", "C"} <= set(texts)


@pytest.mark.skipif(BROWSER is None, reason="no browser here")
def test_pages_are_as_wide_as_a_phone(tmp_path: Path) -> None:
    """Wide tables and pictures scroll by themselves."""
    runs = [record(label, FEDAVG, seed=seed) for label in ("FedAvg", "A long name of a method") for seed in range(2)]
    report.write(tmp_path / "report.html", [*runs, record("C", [0.1, 0.1], diverged_at=2)])
    draw(ud.data.load("digits", "dirichlet:0.1", 30), tmp_path / "data.html")
    frames = [f'<iframe src="{name}.html" style="width:390px;height:2000px"></iframe>' for name in ("report", "data")]
    measure = "[0, 1].map(i => frames[i].document.documentElement.scrollWidth).join()"
    script = f"<script>onload = () => document.body.append(`widths ${{{measure}}}`)</script>"
    (tmp_path / "phone.html").write_text("".join([*frames, script]), encoding="utf-8")
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--hide-scrollbars"]
    page = (tmp_path / "phone.html").as_uri()
    found = subprocess.run(
        [BROWSER, *options, "--allow-file-access-from-files", "--dump-dom", page], capture_output=True, check=True
    )
    assert "widths 390,390" in found.stdout.decode()
