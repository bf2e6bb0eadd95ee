"""Named data sets: import, cache, load, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hub_files
import undrift as ud
from undrift.data import cache, text
from undrift.data.catalogue import CATALOGUE, BuiltIn, Description, Images
from undrift.data.text import IGNORED

FETCHED = [name for name, entry in CATALOGUE.items() if not isinstance(entry.content, BuiltIn)]
REAL = Path(os.environ.get("UNDRIFT_TEST_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


def kept(home: Path) -> list[Path]:
    """What a cache holds, without its locks."""
    return [path for path in home.glob("*") if path.suffix != ".lock"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


# All of them


@pytest.mark.parametrize("name", FETCHED)
def test_imported_from_files_as_on_the_hub(name: str, source: Path) -> None:
    manifest = ud.data.get(name, hub_files.write_all(name, source))
    assert manifest["name"] == name
    assert manifest["source"] == str(source)
    assert cache.intact(name)
    data = ud.data.load(name, "natural" if CATALOGUE[name].user else "iid", None if CATALOGUE[name].user else 4)
    assert data.classes == CATALOGUE[name].classes
    assert data.class_names is None or len(data.class_names) == data.classes
    assert data.test is not None
    assert data.recipe["name"] == name
    content = CATALOGUE[name].content
    if isinstance(content, Images):
        assert data.x.dtype is torch.uint8  # bytes stay bytes in memory
        assert data.x.shape == (20, *content.shape)
        assert data.y.tolist() == [i % data.classes for i in range(20)]
        assert data.normalise == (content.mean, content.std)
        assert ud.data.load(name, "iid", 2, normalise=False).normalise is None
        if not content.resized:
            assert np.array_equal(data.x.numpy(), hub_files.pixels(name, 20, len("train")))
            held = hub_files.pixels(name, 20, len(hub_files.TESTS.get(name, "test")))
            assert np.array_equal(data.test[0].numpy(), held)
    if CATALOGUE[name].user:
        assert len(data) == {"shakespeare": 3, "stackoverflow": 7}.get(name, 5)


def test_an_entry_is_all_a_new_data_set_needs(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Description(
        "Tiny grey images.",
        Images((1, 4, 4), (0.5,), (0.25,)),
        inputs=("image",),
        label="label",
        classes=3,
        hub=None,
        partition="iid",
        clients=2,
        defaults={"model": "mlp", "lr": 0.2},
    )
    monkeypatch.setitem(CATALOGUE, "tiny-grey", entry)
    assert ud.data.available()["tiny-grey"] == "Tiny grey images."
    assert ud.data.default_partition("tiny-grey") == "iid"
    assert not ud.data.is_local("tiny-grey")
    ud.data.get("tiny-grey", hub_files.write_all("tiny-grey", source))
    assert ud.data.is_local("tiny-grey")
    data = ud.data.load("tiny-grey")
    assert (len(data), data.classes, data.normalise) == (2, 3, ((0.5,), (0.25,)))
    run = ud.simulate("fedavg", data="tiny-grey", rounds=1)
    assert (run.config["model"], run.options.lr) == ("mlp", 0.2)


def test_default_settings_are_copies() -> None:
    ud.data.default_settings("digits")["lr"] = 5
    assert ud.data.default_settings("digits") == {"model": "cnn", "lr": 0.1}
    with pytest.raises(ValueError, match=r"unknown data set 'digit'.*'digits'"):
        ud.data.default_settings("digit")


@pytest.mark.parametrize(
    ("name", "meant"), [("fmnist", "fashion-mnist"), ("FashionMNIST", "fashion-mnist"), ("CIFAR-10", "cifar10")]
)
def test_names_as_others_write_them(name: str, meant: str) -> None:
    assert ud.data.full_name(name) == meant


def test_runs_store_the_full_name() -> None:
    assert ud.data.load("Digits").recipe == ud.data.load("digits").recipe


def test_digits_are_those_of_scikit_learn() -> None:
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(1797)
    data = ud.data.load("digits", "iid", 1)
    x, y = (bunch.images[:, None] / 16).astype(np.float32)[order], bunch.target[order]
    assert data.test is not None
    assert np.array_equal(torch.cat([data.test[0], data.x]).numpy(), x)
    assert np.array_equal(torch.cat([data.test[1], data.y]).numpy(), y)


def test_digits_are_built_in() -> None:
    assert ud.data.is_local("digits")
    assert len(ud.data.load("digits")) == 40
    with pytest.raises(ValueError, match="'digits' is built in"):
        ud.data.get("digits")


def test_photographers_are_clients(source: Path) -> None:
    ud.data.get("landmarks-users-160k", hub_files.write_all("landmarks-users-160k", source))
    data = ud.data.load("landmarks-users-160k")
    assert [data.client(i)[1].tolist() for i in range(2)] == [[0, 5, 10, 15], [1, 6, 11, 16]]
    assert data.local_tests is None  # the published test set is nobody's


def test_pictures_of_any_size_are_cut_to_a_square(source: Path) -> None:
    """A 24×32 picture: its shorter side becomes 256, of which the middle 224 are kept."""
    columns = hub_files.table("inaturalist-users-120k", "train", 2)
    wide = np.zeros((3, 24, 32), dtype=np.uint8)
    wide[:, :, :4] = 255  # 43 columns after scaling, of which 58 are cut off
    columns["image"][0] = hub_files.encoded(wide)
    hub_files.write(source / "train.parquet", columns)
    hub_files.write(source / "test.parquet", columns)
    ud.data.get("inaturalist-users-120k", source)
    assert int(ud.data.load("inaturalist-users-120k").x[0].max()) < 10


# Text


def test_the_alphabet_is_leafs() -> None:
    assert len(text.ALPHABET) == len(set(text.ALPHABET)) == 80
    assert text.characters("a z\n@é").tolist() == [text.ALPHABET.index(c) for c in "a z\n  "]


def test_shakespeare_predicts_the_next_character(source: Path) -> None:
    ud.data.get("shakespeare", hub_files.write_all("shakespeare", source))
    data = ud.data.load("shakespeare", "natural")
    whole = hub_files.ROLES["play/HAMLET"]
    spoken = text.characters(whole)
    cut = int(0.8 * len(whole))
    x, y = data.client(0)
    assert x.shape == (cut - 80, 80)
    for row in (0, 17, len(y) - 1):
        assert x[row].tolist() == spoken[row : row + 80].tolist()
        assert y[row] == spoken[row + 80]
    held = data.client_test(0)
    assert held is not None
    assert held[0][0].tolist() == spoken[cut : cut + 80].tolist()  # no character of it was trained on
    assert len(held[1]) == len(whole) - cut - 80


def test_long_roles_are_thinned_evenly(source: Path) -> None:
    long = "".join(chr(97 + i % 26) for i in range(50_000))
    hub_files.write(source / "train.parquet", {"character_id": ["a", "b"], "text": [long, "short " * 200]})
    ud.data.get("shakespeare", source)
    data = ud.data.load("shakespeare", "natural")
    assert data.sizes.tolist() == [2000, 960 - 80]
    assert data.local_tests is not None
    assert np.diff(data.local_tests.offsets).tolist() == [500, 240 - 80]
    starts = np.arange(2000) * (40_000 - 80) // 2000
    assert data.client(0)[0][:, 0].tolist() == text.characters(long)[starts].tolist()


def test_leafs_samples_are_put_together_again(source: Path, home: Path) -> None:
    """The hub has windows and next characters; they give the same data as the texts."""
    columns: dict[str, list[str]] = {"character_id": [], "x": [], "y": []}
    for role, spoken in hub_files.ROLES.items():
        for start in range(len(spoken) - 80):
            columns["character_id"].append(role)
            columns["x"].append(spoken[start : start + 80])
            columns["y"].append(spoken[start + 80])
    hub_files.write(source / "leaf" / "train.parquet", columns)
    ud.data.get("shakespeare", source / "leaf")
    windows = cache.arrays("shakespeare")
    ud.data.get("shakespeare", hub_files.write_all("shakespeare", source / "texts"))
    for name, values in cache.arrays("shakespeare").items():
        assert np.array_equal(values, windows[name])


def test_stackoverflow_predicts_every_next_word(source: Path) -> None:
    train = {"client_id": ["u", "u", "v"], "tokens": ["b b b a a c", "b a", "x " * 25]}
    hub_files.write(source / "train.parquet", train)
    hub_files.write(source / "test.parquet", {"client_id": ["v"], "tokens": ["a new b"]})
    ud.data.get("stackoverflow", source)
    data = ud.data.load("stackoverflow")
    words = {"x": 1, "b": 2, "a": 3, "c": 4}  # by frequency
    unknown, begin, end = 10_001, 10_002, 10_003
    assert data.x.dtype is torch.int16
    assert data.x.shape == data.y.shape == (3, 20)
    assert data.x[1].tolist() == [begin, words["b"], words["a"], end] + [0] * 16
    assert data.y[1].tolist() == [words["b"], words["a"], end] + [IGNORED] * 17
    assert data.x[2].tolist() == [begin] + [words["x"]] * 19
    assert data.y[2].tolist() == [words["x"]] * 20
    assert data.test is not None
    assert data.test[0][0, :5].tolist() == [begin, words["a"], unknown, words["b"], end]


def test_users_have_a_thousand_sentences_at_most(source: Path) -> None:
    hub_files.write(source / "train.parquet", {"client_id": ["u"] * 1200 + ["v"], "tokens": ["a b"] * 1201})
    hub_files.write(source / "test.parquet", {"client_id": ["v"] * 12_000, "tokens": ["a b"] * 12_000})
    ud.data.get("stackoverflow", source)
    data = ud.data.load("stackoverflow")
    assert data.sizes.tolist() == [1000, 1]
    assert data.test is not None
    assert len(data.test[1]) == 10_000


def test_questions_are_pairs_of_rows(source: Path) -> None:
    columns: dict[str, list[Any]] = {"question1": ["Why, why?", "Who"], "question2": ["why not", None], "label": [1, 0]}
    for split in ("train", "validation"):
        hub_files.write(source / f"{split}.parquet", columns)
    ud.data.get("qqp", source)
    data = ud.data.load("qqp", "iid", 1)
    why, comma, rest = 1, 2, [3, 4, 5]  # "why" three times, all others once, in alphabetical order
    assert data.x.shape == (2, 2, 30)
    assert data.x[0, 0, :5].tolist() == [why, comma, why, rest[0], 0]
    assert data.x[0, 1, :3].tolist() == [why, 4, 0]
    assert data.x[1, 1].tolist() == [0] * 30


# Other files


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files(source: Path, ending: str) -> None:
    raw = source / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = hub_files.pixels("mnist", 12)[:, 0]
    labels = (np.arange(12) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (raw / (stem + ending)).write_bytes(gzip.compress(idx(array)) if ending else idx(array))
    ud.data.get("mnist", source)
    data = ud.data.load("mnist", "iid", 3)
    assert np.array_equal(data.x.numpy()[:, 0], images)
    assert data.y.tolist() == labels.tolist()
    (raw / f"train-images-idx3-ubyte{ending}").write_bytes(b"\x00\x00\x08\x03 and not much more")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.* is not a complete idx file"):
        ud.data.get("mnist", source)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("binary", [False, True])
def test_cifar_batches(source: Path, classes: int, binary: bool) -> None:
    source.mkdir()
    name = f"cifar{classes}"
    count = 3 if classes == 10 else 15
    stems = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if classes == 10 else ["train", "test"]
    for number, stem in enumerate(stems):
        rows = hub_files.pixels(name, count, number).reshape(count, 3072)
        labels = (np.arange(count) + number) % classes
        if binary:
            before = labels[:, None] if classes == 10 else np.stack([labels * 0, labels], axis=1)
            (source / f"{stem}.bin").write_bytes(np.hstack([before, rows]).astype(np.uint8).tobytes())
        else:
            key = b"labels" if classes == 10 else b"fine_labels"
            (source / stem).write_bytes(pickle.dumps({b"data": rows, key: labels.tolist()}, protocol=2))
    ud.data.get(name, source)
    data = ud.data.load(name, "iid", 3)
    assert data.x.shape == (15, 3, 32, 32)
    assert np.array_equal(data.x[:count].numpy(), hub_files.pixels(name, count, 0))
    assert data.test is not None
    assert data.test[1].tolist() == ((np.arange(count) + len(stems) - 1) % classes).tolist()


def test_a_pickle_that_runs_code_is_refused(source: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch harmed",)

    source.mkdir()
    for stem in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (source / stem).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"is not a complete CIFAR batch: it refers to posix.system"):
        ud.data.get("cifar10", source)


@pytest.mark.parametrize(
    "layout",
    [
        "{}.parquet",
        "data/{}-00000-of-00001-0123456789abcdef.parquet",
        "plain_text/{}-00000-of-00001.parquet",
    ],
)
def test_layouts_of_the_hub(source: Path, layout: str) -> None:
    for split in ("train", "test"):
        hub_files.write(source / layout.format(split), hub_files.table("cifar10", split, 5))
    assert ud.data.get("cifar10", source)["arrays"]["train_x"]["shape"] == [5, 3, 32, 32]


def test_files_in_parts_keep_their_order(source: Path) -> None:
    whole = hub_files.table("mnist", "train", 9)
    for part in range(3):
        rows = {column: values[3 * part : 3 * part + 3] for column, values in whole.items()}
        hub_files.write(source / f"train-{part:05d}-of-00003.parquet", rows)
    hub_files.write(source / "test.parquet", whole)
    ud.data.get("mnist", source)
    assert ud.data.load("mnist", "iid", 1).y.tolist() == whole["label"]
    (source / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(ValueError, match=r"1 are missing, the first of them train-00001-of-00003.parquet"):
        ud.data.get("mnist", source)


# The hub


# The cache


def test_a_missing_data_set_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match="undrift data get mnist, or from files: undrift data get mnist --from DIR"):
        ud.data.load("mnist")
    with pytest.raises(ValueError, match="get it with: undrift data get stackoverflow --from DIR"):
        ud.simulate("fedavg", "word-lstm", "stackoverflow")


def test_loading_needs_no_decoder(source: Path, home: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    program = (
        "import sys; sys.modules |= dict.fromkeys(('PIL', 'pyarrow', 'datasets'))\n"
        "import undrift; print(len(undrift.data.load('mnist', 'iid', 4)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, env=os.environ).strip() == "4"


def test_arrays_are_mapped_and_writing_to_them_changes_memory_only(source: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    assert all(isinstance(values, np.memmap) for values in cache.arrays("mnist").values())
    ud.data.load("mnist", "iid", 2).x[:] = 0
    assert cache.intact("mnist")
    assert int(ud.data.load("mnist", "iid", 2).x.max()) > 0


def test_a_killed_import_leaves_nothing_usable(source: Path, home: Path) -> None:
    hub_files.write_all("mnist", source)
    program = (
        "import os, signal, sys, undrift\n"
        "from undrift.data import cache\n"
        "cache._describe = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"undrift.data.get('mnist', {str(source)!r})"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ, check=False).returncode == -9
    leftovers = kept(home)
    assert len(leftovers) == 1  # all arrays written, but not in their place
    with pytest.raises(ValueError, match="is not here yet"):
        ud.data.load("mnist")
    yesterday = time.time() - 25 * 3600
    os.utime(leftovers[0], (yesterday, yesterday))
    ud.data.get("mnist", source)
    assert [path.name for path in kept(home)] == ["mnist"]  # and yesterday's remains are gone
    assert cache.intact("mnist")


def test_a_failed_import_keeps_the_old_data(source: Path, home: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    before = (home / "mnist" / "manifest.json").read_bytes()
    columns = hub_files.table("mnist", "test", 5)
    columns["image"][3] = {"bytes": b"no picture", "path": None}
    hub_files.write(source / "mnist" / "test-00000-of-00001.parquet", columns)
    with pytest.raises(ValueError, match="row 3 of the split 'test' is not a readable image"):
        ud.data.get("mnist", source)
    assert (home / "mnist" / "manifest.json").read_bytes() == before
    assert [path.name for path in kept(home)] == ["mnist"]


def test_damage_is_noticed(source: Path, home: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    file = home / "mnist" / "train_x.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"damaged.*get it again with: undrift data get mnist"):
        ud.data.load("mnist", "iid", 2)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not cache.intact("mnist")
    manifest = json.loads((home / "mnist" / "manifest.json").read_text())
    (home / "mnist" / "manifest.json").write_text(json.dumps(manifest | {"format": 0}))
    with pytest.raises(ValueError, match="is not here yet"):
        ud.data.load("mnist")


# Refusals


def spoil(name: str, source: Path, change: Any, split: str = "train") -> None:
    """Files of which one split is changed."""
    hub_files.write_all(name, source)
    columns = hub_files.table(name, split, 20)
    change(columns)
    (file,) = source.rglob(f"{split}-*.parquet")
    hub_files.write(file, columns)


def test_a_truncated_file_is_refused(source: Path, home: Path) -> None:
    hub_files.write_all("mnist", source)
    (file,) = source.rglob("train-*.parquet")
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PAR1 nonsense PAR1"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{file.name} is not a complete parquet file"):
            ud.data.get("mnist", source)
    middle = len(content) // 2
    file.write_bytes(content[: middle - 500] + bytes(1000) + content[middle + 500 :])
    with pytest.raises(ValueError, match=r"is damaged|is not a readable image|not a complete parquet"):
        ud.data.get("mnist", source)
    assert kept(home) == []


def setting(column: str, row: int, value: Any) -> Any:
    return lambda columns: columns[column].__setitem__(row, value)


TALL = hub_files.encoded(np.zeros((1, 30, 28), np.uint8))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "mnist",
            lambda c: c.update(img=c.pop("image")),
            "no column 'image'; needed: 'image', 'label'; there are: 'label', 'img'",
        ),
        ("mnist", setting("image", 7, TALL), "row 7 of the split 'train' .*: it has 30×28 pixels, not 28×28"),
        ("mnist", setting("image", 2, None), "row 2 of the split 'train' is not a readable image"),
        ("mnist", setting("label", 0, 10), "labels of the split 'train' must lie in 0..9, got 0..10"),
        ("mnist", lambda c: c.update(label=["7"] * 20), "column 'label' must hold whole numbers, got string"),
        ("mnist", lambda c: [v.clear() for v in c.values()], "the split 'train' of .* is empty"),
        ("qqp", setting("label", 0, -1), "must lie in 0..1, got -1..1"),
        ("stackoverflow", lambda c: c.pop("client_id"), "no column 'client_id'"),
        ("stackoverflow", lambda c: c.update(tokens=[""] * 20), "the split 'train' of .* has no sentences"),
        ("landmarks-users-160k", lambda c: c.pop("user_id"), "no column 'user_id'"),
    ],
)
def test_wrong_content_is_refused(name: str, change: Any, words: str, source: Path, home: Path) -> None:
    spoil(name, source, change)
    with pytest.raises(ValueError, match=words):
        ud.data.get(name, source)
    assert kept(home) == []


def test_wrong_places_are_refused(source: Path) -> None:
    with pytest.raises(ValueError, match="is not a directory"):
        ud.data.get("mnist", source)
    source.mkdir()
    with pytest.raises(ValueError, match=r"none of the supported files: parquet .*, idx files"):
        ud.data.get("mnist", source)
    hub_files.write(source / "training.parquet", hub_files.table("mnist", "train", 3))
    with pytest.raises(ValueError, match=r"no parquet file of the split 'train' .* it has training.parquet"):
        ud.data.get("mnist", source)
    with pytest.raises(ValueError, match="unknown data set 'minst'; did you mean 'mnist'"):
        ud.data.get("minst")
    with pytest.raises(ValueError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        ud.data.load("cifar")
    with pytest.raises(ValueError, match=r"not on the hub as a federation.*columns user_id, image, class"):
        ud.data.get("inaturalist-users-120k")
    hub_files.write(source / "short" / "train.parquet", {"character_id": ["a"], "text": ["too short"]})
    with pytest.raises(ValueError, match="no text long enough for 80 characters and one more"):
        ud.data.get("shakespeare", source / "short")


# Runs


def test_a_run_by_name_is_resumed_by_name(source: Path, tmp_path: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    data = ud.data.load("mnist", "dirichlet:0.5,min=2", 4, seed=3, test_share=0.25)
    options: dict[str, Any] = {"batch_size": 4, "lr": 0.1}
    whole = ud.simulate("fedavg", "softmax", data, rounds=4, **options)
    ud.simulate("fedavg", "softmax", data, rounds=2, out=tmp_path / "run", **options)
    resumed = ud.resume(tmp_path / "run", 4)
    assert torch.equal(resumed.parameters["1.weight"], whole.parameters["1.weight"])


def test_fewer_samples_than_clients(source: Path) -> None:
    ud.data.get("mnist", hub_files.write_all("mnist", source))
    with pytest.raises(ValueError, match="clients must not be more than the 20 samples, got 100"):
        ud.data.load("mnist")
    with pytest.raises(ValueError, match="these data have no users"):
        ud.data.load("mnist", "natural")


def test_natural_clients_keep_their_own_tests(source: Path) -> None:
    ud.data.get("shakespeare", hub_files.write_all("shakespeare", source))
    everyone = ud.data.load("shakespeare", "natural")
    chosen = set()
    for seed in range(10):
        some = ud.data.load("shakespeare", "natural", clients=2, seed=seed)
        assert len(some) == 2
        assert some.test is not None
        for i in range(2):
            x, _ = some.client(i)
            (same,) = [j for j in range(3) if torch.equal(everyone.client(j)[0], x)]
            chosen.add(same)
            for mine, known in zip(some.client_test(i) or (), everyone.client_test(same) or (), strict=True):
                assert torch.equal(mine, known)
        assert some.local_tests is not None
        assert len(some.test[1]) == len(some.local_tests.rows)
    assert chosen == {0, 1, 2}
    mixed = ud.data.load("shakespeare", "iid", 5)
    assert mixed.local_tests is None
    assert len(mixed) == 5


# Real files


def real(name: str) -> Path:
    if not (REAL / name).is_dir():
        pytest.skip(f"no real files of {name}: set UNDRIFT_TEST_DATA to their directory")
    return REAL / name


@pytest.mark.parametrize(
    ("name", "folder", "counts"),
    [
        ("mnist", "mnist", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("fashion-mnist", "fashion_mnist", [1000] * 10),
        ("cifar10", "cifar10", [1000] * 10),
    ],
)
def test_real_images(name: str, folder: str, counts: list[int], source: Path) -> None:
    """The test sets, used for both splits to save time."""
    files = real(folder)
    source.mkdir()
    for split in ("train", "test"):
        (source / f"{split}.parquet").symlink_to(files / "test.parquet")
    ud.data.get(name, source)
    data = ud.data.load(name, "dirichlet:0.3", 10)
    assert data.y.bincount().tolist() == counts
    assert data.normalise is not None
    x = data.x.double() / 255
    assert x.mean((0, 2, 3)).tolist() == pytest.approx(data.normalise[0], abs=0.01)
    assert x.std((0, 2, 3)).tolist() == pytest.approx(data.normalise[1], abs=0.01)


def test_real_shakespeare() -> None:
    ud.data.get("shakespeare", real("shakespeare"))
    data = ud.data.load("shakespeare", "natural,min=2000", 100)
    assert len(data) == 100
    assert set(data.sizes) == {2000}  # the federation of FedHBM's paper
    assert data.classes == 80
    assert int(data.x.max()) < 80
    run = ud.simulate(
        "fedavg", "char-lstm", data, test=(data.x[:200], data.y[:200]), rounds=1, cohort=2, steps=1, batch_size=8
    )
    assert np.isfinite(run.history["loss"].iloc[-1])
