"""The plot of a partition: as a PNG, and as a page that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import undrift as ud
from undrift.data.heterogeneity import counts, heterogeneity
from undrift.data.picture import draw

X = np.zeros((12, 3), dtype=np.float32)


@pytest.mark.parametrize(("clients", "bubbles"), [(20, True), (150, False)])
def test_bubbles_or_a_heat_map(tmp_path: Path, clients: int, bubbles: bool) -> None:
    data = ud.data.load("digits", "dirichlet:0.3", clients)
    with Image.open(draw(data, tmp_path / "new" / "a.png", "digits")) as picture:
        assert picture.width == 1760
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 50
    page = draw(data, tmp_path / "a.html", "digits & <more>").read_text()
    assert "digits &amp; &lt;more&gt;" in page
    assert "{{" not in page
    assert not re.search(r"(src|href)=.http", page)
    assert ('<circle cx="' in page) == bubbles
    assert ("data:image/png;base64," in page) != bubbles
    table = counts(data)
    bars = page.split('<g class="bars">')[1].split("</g>")[0]
    assert bars.count("<rect") == clients
    assert f"client 0: {data.sizes[0]} samples" in bars
    legend = page.split('<div class="partition-legend"')[1].split("</div>")[0]
    shown = [int(number) for number in re.findall(r"</svg>([\d,]+)</span>", legend)]
    assert shown == sorted(shown)
    assert 0 < shown[-1] <= table.max()
    if bubbles:
        marks = page.split('<g class="marks">')[1].split("</g>")[0]
        assert marks.count("<circle") == (table > 0).sum()
        assert f"client 0, class {table[0].argmax()}: {table[0].max()} samples" in page
    with pytest.raises(ValueError, match=r"is a .png or a .html"):
        draw(data, tmp_path / "a.gif")


def test_data_without_classes(tmp_path: Path) -> None:
    data = ud.FederatedData(X, X, [[0, 3, 6], [1], [2, 4, 5, 7]])
    assert list(heterogeneity(data)) == ["samples"]
    assert draw(data, tmp_path / "a.png").stat().st_size > 5000
    page = draw(data, tmp_path / "a.html").read_text()
    assert page.count("<rect") == 3
    assert "partition-legend" not in page.split("</style>")[-1]


def test_titles_that_look_like_template_code_stay_text(tmp_path: Path) -> None:
    data = ud.FederatedData(X, X, [[0], [1]])
    assert "<h1>{{ png }} {% raw %}</h1>" in draw(data, tmp_path / "a.html", "{{ png }} {% raw %}").read_text()
