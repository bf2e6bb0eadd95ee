"""Which parameters form a layer."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrizations

from undrift.client.layout import Layout


def test_a_parametrised_layer_is_one_layer() -> None:
    module = nn.Sequential(
        nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 4)), parametrizations.orthogonal(nn.Linear(4, 3))
    )
    layout = Layout.of(module)
    assert [names[0] for names in layout.layers] == ["0.weight", "1.bias", "2.bias"]
    assert layout.head(2) == tuple(name for name in layout.names if not name.startswith("0."))
    assert sorted(name for names in layout.layers for name in names) == sorted(layout.names)


def test_an_old_weight_norm_is_one_layer() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.utils.weight_norm(nn.Linear(4, 3)))
    assert Layout.of(module).head(1) == ("1.bias", "1.weight_g", "1.weight_v")
