"""The plot of a partition: as a PNG, and as a page that needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import undrift as ud
from undrift.data import picture_svg
from undrift.data.heterogeneity import heterogeneity
from undrift.data.picture import draw
from undrift.data.split import Split, counts

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


def named() -> ud.FederatedData:
    hospitals = {f"St. {name} <&>": (X[:3], np.array([0, 1, number % 2])) for number, name in enumerate(("Ann", "Bob"))}
    data = ud.FederatedData.from_clients(hospitals)
    data.class_names = ("benign & <b>", "malignant")
    return data


def test_names_of_clients_and_classes(tmp_path: Path) -> None:
    page = draw(named(), tmp_path / "a.html").read_text()
    for name in ("St. Ann &lt;&amp;&gt;", "benign &amp; &lt;b&gt;"):
        assert f">{name}</text>" in page
    assert "client St. Bob &lt;&amp;&gt;, class malignant: 2 samples" in page
    assert draw(named(), tmp_path / "a.png").stat().st_size > 5000


def test_a_split_is_stored_if_it_is_small() -> None:
    split = Split.of(named())
    again = Split.from_plain(json.loads(json.dumps(split.plain())))
    assert again is not None
    assert picture_svg.svg(again, picture_svg.SMALL) == picture_svg.svg(split, picture_svg.SMALL)
    large = Split.of(ud.data.load("digits", "iid", 400)).plain()
    assert large == {"clients": 400}
    for other in (None, large, split.plain() | {"sizes": [3]}, split.plain() | {"table": "x"}):
        assert Split.from_plain(other) is None


def test_titles_that_look_like_template_code_stay_text(tmp_path: Path) -> None:
    data = ud.FederatedData(X, X, [[0], [1]])
    assert "<h1>{{ png }} {% raw %}</h1>" in draw(data, tmp_path / "a.html", "{{ png }} {% raw %}").read_text()
