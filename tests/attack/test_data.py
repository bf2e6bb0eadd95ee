"""Data that lie: damaged and hostile files, wrong arrays and arguments, test sets of one sample.

Whatever is given, either it works, or it is refused by an error of input in one line that names the file or the
argument. Nothing in a file is run, no other file is read, and the cache holds what it held before.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import pickletools
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

import hub_files
import undrift as ud
from mutations import little_memory, mutated, refused
from undrift.data import cache
from undrift.data.partition import SCHEMES

attack = pytest.mark.attack


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own for every case, and not much memory."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    with little_memory():
        yield tmp_path / "cache"


Files = dict[str, bytes]


def write(files: Files, directory: Path) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def content_of(directory: Path) -> Files:
    return {str(f.relative_to(directory)): f.read_bytes() for f in sorted(directory.rglob("*")) if f.is_file()}


def check_import(name: str, files: Files, tmp_path: Path, home: Path, *words: str) -> str | None:
    """Import files over a good data set: it is replaced by one that loads, or by none."""
    held = content_of(home)
    source = write(files, tmp_path / "hostile")
    said = refused(lambda: ud.data.get(name, source), *(words or (str(source),)))
    if said is not None:
        assert content_of(home) == held
    else:
        users = "train_user" in cache.arrays(name)
        data = ud.data.load(name, "natural" if users else "iid", None if users else 2)
        assert data.test is not None
        for x, y in ((data.x, data.y), data.test):
            assert len(x) == len(y) > 0
            assert int(y.max()) < (data.classes or 0)
    assert not list(tmp_path.rglob("harmed"))
    return said


# Raw files


def cifar_files(rng: Random) -> Files:
    stems = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    files = {}
    for number, stem in enumerate(stems):
        rows = hub_files.pixels("cifar10", 2, number).reshape(2, 3072)
        labels: Any = [number, 9]
        protocol = rng.randrange(6)
        if rng.random() < 0.3:
            labels = np.array(labels, dtype=rng.choice([np.uint8, np.int32, np.int64]))
        files[stem] = pickle.dumps({b"data": rows, b"labels": labels, b"filenames": [b"a", b"b"]}, protocol=protocol)
    return files


INSTRUCTIONS = [op.code.encode("latin-1") for op in pickletools.opcodes] + [
    b"cos\nsystem\n",
    b"cnumpy\ndtype\n",
    b"cnumpy\nndarray\n",
    b"X\x0c\x00\x00\x00touch harmed",
    b"\x85R",
    b"\x82\x01",
    b"r\xff\xff\xff\x7f",
]


@attack(short=25, long=1500)
def test_damaged_pickles(rng: Random, tmp_path: Path, home: Path) -> None:
    files = cifar_files(rng)
    ud.data.get("cifar10", write(files, tmp_path / "good"))
    for stem in rng.sample(list(files), rng.choice([1, 1, 3])):
        files[stem] = mutated(rng, files[stem], INSTRUCTIONS)
    check_import("cifar10", files, tmp_path, home)


class Wants:
    """Pickled, asks for a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


NDARRAY = b"cnumpy\nndarray\n"
U1 = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1K\x00K\x01\x87R"
DTYPE_STATE = b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
KEY = b"X\x04\x00\x00\x00data"


def batch(data: bytes, labels: bytes = b"]K\x01a") -> bytes:
    """A pickled batch whose images are made by these instructions."""
    return b"\x80\x02}(" + KEY + data + b"X\x06\x00\x00\x00labels" + labels + b"u."


HOSTILE = {
    "system": pickle.dumps(Wants(os.system, "touch harmed")),
    "system inside": pickle.dumps({b"data": Wants(os.system, "touch harmed"), b"labels": [1]}),
    "eval": pickle.dumps({b"data": Wants(eval, "open('harmed', 'w')"), b"labels": [1]}),
    "getattr": pickle.dumps({b"data": Wants(getattr, np.ndarray, "tofile"), b"labels": [1]}),
    "load": pickle.dumps({b"data": Wants(np.load, "/etc/passwd"), b"labels": [1]}),
    "memory that was never written": batch(NDARRAY + b"K\x01M\x00\x0c\x86\x85" + U1 + b"\x86R"),
    "memory of another": batch(NDARRAY + b"(K\x01M\x00\x0c\x86" + U1 + b"X\x01\x00\x00\x00aK\x00tR"),
    "a type with a state": batch(
        b"cnumpy\ndtype\nX\x02\x00\x00\x00O8K\x00K\x01\x87R(K\x03X\x01\x00\x00\x00|NNNK\x08K\x08K?tb"
    ),
    "an array of objects": pickle.dumps({b"data": np.full((1, 3072), None), b"labels": [1]}),
    "wide numbers": pickle.dumps({b"data": np.full((1, 3072), 300), b"labels": [1]}),
    "a long shape": batch(
        b"cnumpy.core.multiarray\n_reconstruct\n" + NDARRAY + b"K\x00\x85C\x01b\x87R(K\x01"
        b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86" + U1 + DTYPE_STATE + b"\x89C\x04abcdtb"
    ),
    "a persistent name": b"Pharmed\n.",
    "the extension registry": b"\x80\x02\x82\x01.",
    "buffers from elsewhere": b"\x80\x05\x97.",
    "a distant memo": b"\x80\x02]r\xff\xff\xff\xff.",
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
    "a bytearray that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a number that is not there": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"x.",
    "a hundred thousand lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a hundred thousand tuples as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "a list in itself": b"\x80\x02}q\x00(" + KEY + b"h\x00X\x06\x00\x00\x00labelsh\x00u.",
    "the same text again and again": b"\x80\x02}X\x40\x42\x0f\x00"
    + b"a" * 1_000_000
    + b"q\x00c_codecs\nencode\nq\x01("
    + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86RN" * 5000
    + b"u.",
    "unequal numbers": pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, 2]}),
    "labels of another kind": pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2.5]}),
    "labels out of range": pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2**70]}),
    "no images": pickle.dumps({b"labels": [1]}),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = cifar_files(Random(0))
    ud.data.get("cifar10", write(files, tmp_path / "good"))
    said = check_import(
        "cifar10", files | {"data_batch_3": HOSTILE[name]}, tmp_path, home, "data_batch_3 is not a compl"
    )
    assert said is not None


def idx_files(rng: Random) -> Files:
    files = {}
    for part in ("train", "t10k"):
        images, labels = hub_files.pixels("mnist", 4)[:, 0], np.arange(4, dtype=np.uint8)
        for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
            zipped = rng.random() < 0.5
            files[stem + ".gz" * zipped] = gzip.compress(content) if zipped else content
    return files


@attack(short=25, long=1500)
def test_damaged_idx_files(rng: Random, tmp_path: Path, home: Path) -> None:
    files = idx_files(rng)
    ud.data.get("mnist", write(files, tmp_path / "good"))
    good = ud.data.load("mnist", "iid", 1)
    name = rng.choice(list(files))
    inside = name.endswith(".gz") and rng.random() < 0.5
    content = gzip.decompress(files[name]) if inside else files[name]
    if rng.random() < 0.3:  # a size that is not true, up to terabytes
        place = 4 * rng.randrange(1, 4 if "images" in name else 2)
        content = gzip.decompress(content) if name.endswith(".gz") and not inside else content
        inside = name.endswith(".gz")
        content = content[:place] + struct.pack(">I", rng.choice([0, 1, 5, 2**16, 2**32 - 1])) + content[place + 4 :]
    else:
        content = mutated(rng, content)
    files[name] = gzip.compress(content) if inside else content
    said = check_import("mnist", files, tmp_path, home)
    if said is None and name.endswith(".gz") and not inside:  # it has a checksum
        assert torch.equal(ud.data.load("mnist", "iid", 1).x, good.x)


@pytest.mark.parametrize("declared", [1, 1 << 16, (1 << 32) - 1])
def test_a_file_of_zeros_that_goes_on_and_on(declared: int, tmp_path: Path, home: Path) -> None:
    files = idx_files(Random(0))
    zeros = zeros_compressed(1 << 30)
    name = next(name for name in files if "train-images" in name)
    del files[name]
    header = gzip.compress(struct.pack(">4I", 0x0803, declared, 28, 28))
    files["train-images-idx3-ubyte.gz"] = header + zeros
    assert check_import("mnist", files, tmp_path, home, "train-images-idx3-ubyte.gz is not a complete") is not None


def zeros_compressed(size: int) -> bytes:
    """Members of a gzip file, a thousand times smaller than what they become."""
    return gzip.compress(bytes(1 << 24)) * (size >> 24)


# Parquet


TABLES = ["mnist", "shakespeare", "stackoverflow", "qqp", "landmarks-users-160k"]


def parquet_files(name: str, directory: Path) -> Files:
    return content_of(hub_files.write_all(name, directory, 6))


@attack(short=25, long=1500)
def test_damaged_parquet_files(rng: Random, tmp_path: Path, home: Path) -> None:
    name = rng.choice(TABLES[:4])
    files = parquet_files(name, tmp_path / "good")
    ud.data.get(name, tmp_path / "good")
    damaged = rng.choice(list(files))
    files[damaged] = mutated(rng, files[damaged], [b"PAR1", b"\x15", b"\x00", b"\xff"])
    check_import(name, files, tmp_path, home, str(tmp_path / "hostile"), "the split ")


def cell(rng: Random, tmp_path: Path) -> Any:
    """What may stand in a table in place of what belongs there."""
    named = tmp_path / "a picture.png"
    if not named.exists():
        Image.fromarray(np.zeros((28, 28), np.uint8)).save(named)
    content = named.read_bytes()
    return rng.choice(
        [
            None,
            "",
            str(named),
            "word " * 50,
            content,
            content[: rng.randrange(len(content))],
            b"",
            {"bytes": None, "path": str(named)},
            {"bytes": b"", "path": str(named)},
            {"bytes": content, "path": "/etc/passwd"},
            {"path": str(named)},
            {"bytes": str(named)},
            [1, 2],
            ["a", None],
            [["a"]],
            0,
            -1,
            2**40,
            0.5,
            float("nan"),
            True,
            "\ud7ff\U0010ffff\x00\x1b[31m",
            encoded_image(rng),
        ]
    )


def encoded_image(rng: Random) -> bytes:
    size = rng.choice([(28, 28), (28, 28), (27, 28), (1, 1), (1500, 1500)])
    mode = rng.choice(["L", "RGB", "RGBA", "P", "1", "LA", "I;16", "I", "F", "CMYK"])
    kind = rng.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "EPS", "PPM", "WEBP", "ICO", "PDF", "TGA"])
    stream = io.BytesIO()
    try:
        Image.new(mode, size).save(stream, kind)
    except (OSError, ValueError, KeyError):
        return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n(harmed) (w) file\n"
    return mutated(rng, stream.getvalue()) if rng.random() < 0.3 else stream.getvalue()


@attack(short=25, long=1500)
def test_tables_with_other_cells(rng: Random, tmp_path: Path, home: Path) -> None:
    """Columns of other types, empty cells, names of files, doubled and missing columns, no rows."""
    name = rng.choice(TABLES[:4])
    hub_files.write_all(name, tmp_path / "good", 6)
    ud.data.get(name, tmp_path / "good")
    held = content_of(home)
    split = "train" if name == "shakespeare" else rng.choice(["train", hub_files.TESTS.get(name, "test")])
    columns: dict[str, Any] = hub_files.table(name, split, 6)
    column = rng.choice(list(columns))
    kind = rng.randrange(5)
    value = cell(rng, tmp_path)
    if kind == 0:
        columns[column] = [value] * len(columns[column])
    elif kind == 1:
        columns[column][rng.randrange(len(columns[column]))] = value
    elif kind == 2:
        columns = {key: [] for key in columns}
    elif kind == 3:
        del columns[column]
    try:
        arrays = {key: pa.array(values) for key, values in columns.items()}
    except (pa.ArrowException, OverflowError):  # pyarrow itself refuses such a mixture
        return
    if rng.random() < 0.2 and not pa.types.is_nested(arrays[rng.choice(list(arrays))].type):
        arrays = {k: v if pa.types.is_nested(v.type) else v.dictionary_encode() for k, v in arrays.items()}
    table = pa.Table.from_arrays(list(arrays.values()), list(arrays))
    if kind == 4:
        table = pa.Table.from_arrays([*table.columns, table.column(column)], [*table.column_names, column])
    (file,) = [f for f in (tmp_path / "good").rglob("*.parquet") if split in f.stem or name == "shakespeare"]
    try:
        pq.write_table(table, file)
    except pa.ArrowException:  # likewise
        return
    opened = Image.open

    def watched(source: Any, *rest: Any, **options: Any) -> Any:
        assert isinstance(source, io.BytesIO), "a file that a cell names was opened"
        return opened(source, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", watched)
        said = refused(lambda: ud.data.get(name, tmp_path / "good"), str(tmp_path / "good"))
    if said is None:
        users = "train_user" in cache.arrays(name)
        assert len(ud.data.load(name, "natural" if users else "iid", None if users else 2))
    else:
        assert content_of(home) == held


@attack(short=25, long=1500)
def test_images_of_any_kind(rng: Random, tmp_path: Path) -> None:
    """In a column of users' own: decoded as Pillow does it, or refused."""
    content = encoded_image(rng)
    said = refused(lambda: ud.FederatedData.from_hub({"image": [content], "label": [0]}, "iid", 1), "row 0 of column")
    if said is None:
        data = ud.FederatedData.from_hub({"image": [content], "label": [0]}, "iid", 1)
        assert data.x.dtype is torch.uint8
        assert data.x.shape[1] in (1, 3)
    assert not list(tmp_path.rglob("harmed"))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_pixels_beyond_bytes(mode: str) -> None:
    """Pillow would cut them off at 255."""
    deep = np.arange(250, 259).reshape(3, 3)
    kinds = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    for values, allowed in ((deep, False), (deep - 3, True), (deep - 251, False)):
        image = Image.fromarray(values.astype(kinds[mode]))
        if (values < 0).any() and mode == "I;16":
            continue
        table = {"image": [image], "label": [0]}
        said = refused(lambda table=table: ud.FederatedData.from_hub(table, "iid", 1), "not in 0..255")  # type: ignore[misc]
        assert (said is None) == allowed
        if allowed:
            assert ud.FederatedData.from_hub(table, "iid", 1).x[0, 0].tolist() == values.tolist()


# The cache


@attack(short=25, long=600)
def test_damaged_cache(rng: Random, tmp_path: Path, home: Path) -> None:
    name = rng.choice(["mnist", "shakespeare"])
    ud.data.get(name, hub_files.write_all(name, tmp_path / "good", 6))
    scheme, clients = ("iid", 2) if name == "mnist" else ("natural", None)
    good = ud.data.load(name, scheme, clients).fingerprint()
    file = rng.choice(sorted((home / name).iterdir()))
    if rng.random() < 0.1:
        file.unlink()
    elif file.suffix == ".json" and rng.random() < 0.5:
        file.write_text(json.dumps(other_json(rng, json.loads(file.read_text()))))
    else:
        file.write_bytes(mutated(rng, file.read_bytes(), [b"{", b'"', b"]", b"[" * 5000, b"PK\x03\x04", b"\x80\x02"]))
    said = refused(lambda: ud.data.load(name, scheme, clients), file.name, "is not here yet")
    if said is None:
        assert ud.data.load(name, scheme, clients).fingerprint() == good
    else:
        assert f"undrift data get {name}" in said
    assert isinstance(ud.data.is_local(name), bool)
    ud.data.get(name, tmp_path / "good")  # heals it
    assert ud.data.load(name, scheme, clients).fingerprint() == good


def other_json(rng: Random, value: Any) -> Any:
    """The value with one part of it replaced or left out, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.3:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: other_json(rng, value[key])}
    return rng.choice([None, [], {}, 0, -1, 2**70, "", "../../etc", [0], [2**60], ["a"], 1.5, True])


@attack(short=10, long=300)
def test_imports_that_end_at_any_moment(rng: Random, tmp_path: Path, home: Path) -> None:
    """A process that is killed during an import leaves the old data set or the new one."""

    class Killed(BaseException):
        pass

    for folder, count in (("old", 6), ("new", 8)):
        hub_files.write_all("mnist", tmp_path / folder, count)
    ud.data.get("mnist", tmp_path / "old")
    left = rng.randrange(12)

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def until_then(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments, **options)

        return until_then

    with pytest.MonkeyPatch.context() as patch:
        for module, names in (("os", ("replace", "fsync")), ("shutil", ("rmtree",)), ("numpy", ("save",))):
            for name in names:
                original = getattr(__import__(module), name)
                patch.setattr(f"{module}.{name}", deadly(original))
        with suppress(Killed):
            ud.data.get("mnist", tmp_path / "new")
    assert len(ud.data.load("mnist", "iid", 1).y) in (6, 8)
    assert cache.intact("mnist")
    ud.data.get("mnist", tmp_path / "new")
    assert len(ud.data.load("mnist", "iid", 1).y) == 8


@attack(short=2, long=40)
def test_imports_at_the_same_time(rng: Random, tmp_path: Path, home: Path) -> None:
    """Whoever loads meanwhile gets one of the data sets, whole."""
    counts = [6, 8, 10]
    for count in counts:
        hub_files.write_all("mnist", tmp_path / str(count), count)
    ud.data.get("mnist", tmp_path / "6")
    problems: list[BaseException] = []

    def often(action: Callable[[], Any]) -> None:
        try:
            for _ in range(6):
                action()
        except BaseException as error:
            problems.append(error)

    def load() -> None:
        assert len(ud.data.load("mnist", "iid", 1).y) in counts

    actions = [lambda count=count: ud.data.get("mnist", tmp_path / str(count)) for count in counts]
    threads = [threading.Thread(target=often, args=(action,)) for action in (*actions, load, load)]
    rng.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert cache.intact("mnist")
    assert [path.name for path in home.iterdir() if path.suffix != ".lock"] == ["mnist"]


# Users' own


@attack(short=20, long=600)
def test_folders_of_damaged_arrays(rng: Random, tmp_path: Path) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(6) % 3
    for client in "ab":
        (tmp_path / "data" / client).mkdir(parents=True)
        np.save(tmp_path / "data" / client / "x.npy", x)
        np.save(tmp_path / "data" / client / "y.npy", y)
    file = tmp_path / "data" / "b" / rng.choice(["x.npy", "y.npy"])
    pieces = [b"(", b"'", b"O8", b"PK\x03\x04", b"\x80\x02", b"9" * 30]
    file.write_bytes(mutated(rng, file.read_bytes()[: rng.choice([128, 10_000])], pieces))
    said = refused(lambda: ud.FederatedData.from_folders(tmp_path / "data"), str(file), "client 'b'", "row ")
    if said is None:
        assert ud.FederatedData.from_folders(tmp_path / "data").x.shape[1:] == (4,)


def as_any_kind(rng: Random, values: Any) -> Any:
    """The same numbers as another kind of object."""
    array = np.asarray(values)
    kinds: list[Callable[[Any], Any]] = [
        np.copy,
        lambda a: a.tolist(),
        torch.tensor,
        lambda a: torch.tensor(a.tolist()),
        lambda a: [torch.tensor(row) for row in a],
        lambda a: nn.Parameter(torch.tensor(a)) if a.dtype.kind == "f" else torch.tensor(a),
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: a.astype(a.dtype.newbyteorder()),
        lambda a: torch.tensor(a).repeat_interleave(2, 0)[::2],
        lambda a: (pd.DataFrame if a.ndim == 2 else pd.Series)(a) if a.ndim < 3 else a,
        read_only,
        tuple,
    ]
    return rng.choice(kinds)(array)


def read_only(array: Any) -> Any:
    copied = np.copy(array)
    copied.flags.writeable = False
    return copied


class OwnTensor(torch.Tensor):
    pass


def no_array(rng: Random, n: int) -> Any:
    """What is no array of numbers with a row for each of n samples, or a strange one."""
    return rng.choice(
        [
            None,
            5,
            "abc",
            {"a": 1},
            {1, 2, 3},
            (i for i in range(n)),
            [[1.0], [1.0, 2.0]],
            [None] * n,
            ["a"] * n,
            object(),
            np.ma.masked_array(np.zeros((n, 4)), mask=np.eye(n, 4, dtype=bool)),
            [np.ma.masked_array(np.zeros(4), mask=[True, False, False, False])] * n,
            torch.zeros(n, 4).to_sparse(),
            torch.zeros(n, 4).to_sparse_csr(),
            torch.zeros(n, 4, device="meta"),
            [torch.zeros(4, device="meta")] * n,
            [torch.zeros(i + 1) for i in range(n)],
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            torch.quantize_per_tensor(torch.zeros(n, 4), 0.1, 0, torch.quint8),
            torch.zeros(n, 4, dtype=torch.complex64),
            np.zeros((n, 4), dtype=object),
            np.zeros(n, dtype=[("a", "f4"), ("b", "i4")]),
            np.zeros((n, 4), dtype="M8[s]"),
            np.zeros((n, 4), dtype=complex),
            np.zeros((n, 4), dtype=np.longdouble),
            np.full((n, 4), np.nan, dtype=np.float16),
            np.full((n, 4), np.inf),
            np.full((n, 4), 2**64 - 1, dtype=np.uint64),
            pd.DataFrame({"a": [1] * n, "b": ["x"] * n}),
            pd.Series([None] * n),
            np.zeros((n + 1, 4)),
            np.zeros((0, 4)),
            np.zeros((n, 5)),
            np.float64(3.0),
            [2**70] * n,
            torch.zeros(n, 4).as_subclass(OwnTensor),
            torch.zeros(1, 4).expand(n, 4),
        ]
    )


def rows_of(rng: Random, n: int) -> Any:
    """The rows of a client, right or wrong, and where they are right, which these are."""
    some = sorted(rng.sample(range(n), rng.randrange(1, n + 1)))
    mask = [i in some for i in range(n)]
    right: list[Any] = [
        some,
        tuple(some),
        np.array(some),
        np.array(some, dtype=np.uint8),
        torch.tensor(some),
        pd.Series(some),
        mask,
        np.array(mask),
        torch.tensor(mask),
    ]
    wrong: list[Any] = [
        *([], [n], [-1], [0.5], [1.0], ["0"], [None], [[0]], 0, None, "0", True, {"a": 0}, object()),
        *([True, 2], [10**30], mask[:-1] + [True] * 2, [False] * n, np.array(some, dtype=float), np.array(5)),
        *(np.ma.masked_array(some, mask=True), torch.zeros(2, device="meta"), np.array([2**63], dtype=np.uint64)),
    ]
    return (rng.choice(right), some) if rng.random() < 0.8 else (rng.choice(wrong), None)


@attack(short=150, long=6000)
def test_federations_of_anything(rng: Random) -> None:
    """Arrays of every kind work alike; what is none is refused by name, and nothing given is changed."""
    n = rng.randrange(2, 7)
    x = np.arange(4 * n, dtype=rng.choice(["f4", "f8", "f2", "u1", "i8", "i2"])).reshape(n, 4)
    y = np.arange(n) % 3
    given = {"x": as_any_kind(rng, x), "y": as_any_kind(rng, y)}
    clients, truth = zip(*(rows_of(rng, n) for _ in range(rng.randrange(1, 4))), strict=True)
    strange = rng.random() < 0.5
    if strange:
        given[rng.choice(["x", "y"])] = no_array(rng, n)
    test = None if rng.random() < 0.5 else (as_any_kind(rng, x[:1]), as_any_kind(rng, y[:1]))
    before = repr((given, clients, test))
    made = []
    said = refused(
        lambda: made.append(ud.FederatedData(given["x"], given["y"], list(clients), test)),
        *("x ", "y ", "client", "row"),
    )
    assert repr((given, clients, test)) == before
    if said is not None:
        assert strange or None in truth, said
        return
    (data,) = made
    if not strange:
        assert None not in truth
        for i, own in enumerate(truth):
            assert torch.equal(data.client(i)[0], torch.from_numpy(x[own]))
            assert data.client(i)[1].tolist() == y[own].tolist()
    assert data.y.dtype in (torch.int64, torch.float16, torch.float32, torch.float64) or data.y.ndim > 1
    assert data.fingerprint() == data.fingerprint()
    assert data.classes is None or data.classes > 0


@attack(short=15, long=600)
def test_runs_on_anything(rng: Random) -> None:
    """A run on any such federation works, or is refused before its first round."""
    n = rng.randrange(4, 9)
    kinds: list[Callable[[Any], Any]] = [
        np.float32,
        np.float64,
        np.float16,
        np.uint8,
        np.int64,
        np.int16,
        lambda a: a > 4,
        lambda a: a.reshape(len(a), 2, 2),
        lambda a: a[:, :0],
        lambda a: a[:, 0],
        lambda a: a * 1e300,
    ]
    labels: list[Callable[[Any], Any]] = [
        *([np.int64] * 4),
        *(np.uint8, np.float32, lambda a: a > 0),
        lambda a: a - 1,
        lambda a: a * 10**12,
        lambda a: np.eye(3, dtype=int)[a],
        lambda a: a[:, None],
        lambda a: np.full(len(a), -100),
    ]

    def samples(count: int) -> tuple[Any, Any]:
        rows = np.array([[rng.uniform(0, 9) for _ in range(4)] for _ in range(count)])
        y = np.array([rng.randrange(3) for _ in range(count)])
        return (chosen if rng.random() < 0.8 else rng.choice(kinds))(rows), (
            target if rng.random() < 0.8 else rng.choice(labels)
        )(y)

    chosen, target = rng.choice(kinds[:3] * 3 + kinds), rng.choice(labels)
    model: Any = rng.choice(["mlp", "softmax", nn.Sequential(nn.Flatten(), nn.Linear(4, 3))])
    x, y = samples(n)
    test = samples(rng.choice([1, 2, 5]))
    held = [np.copy(part) for part in (x, y, *test)]
    runs = []

    def run() -> None:
        data = ud.FederatedData(x, y, np.array_split(np.arange(n), 2))
        runs.append(ud.simulate("fedavg", model, data, test=test, rounds=1, lr=0.01, batch_size=3))

    said = refused(run)
    for part, kept in zip((x, y, *test), held, strict=True):
        assert np.array_equal(part, kept)
    if said is None:
        assert np.isfinite(runs[0].history["loss"].iloc[-1])
        assert np.asarray(x).dtype.kind == np.asarray(test[0]).dtype.kind or {x.dtype.kind, test[0].dtype.kind} == {
            *"ib"
        }


NUMBERS = [
    *("0", "1", "2", "3", "10", "0.1", "0.5", "-1", "1e-300", "1e-320", "1e300", "1e308", "1e400", "nan", "inf"),
    *("-inf", "1.5", "1e18", "00", "1_0", "0x10", "abc", "", " 1", "²", "٣", "\n", "\x1b[31m", "9" * 30, "9" * 5000),
    *("1:2", "=", "'"),
]


@attack(short=150, long=6000)
def test_partitions_by_any_words(rng: Random) -> None:
    n = rng.choice([1, 2, 3, 10, 60])
    scheme = rng.choice([*SCHEMES, *SCHEMES, "", "x", "IID", " iid"])
    if rng.random() < 0.8:
        scheme += ":" + rng.choice(NUMBERS)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        scheme += "," + rng.choice(["min", "min ", "max", ""]) + rng.choice(["=", "", "=="]) + rng.choice(NUMBERS)
    many: list[Any] = [
        *(np.arange(n) % 3, np.arange(n), -np.arange(n), np.arange(n) * 10**12, np.arange(n) / 2, np.zeros((n, 2))),
        *(["a", "b"] * n, [None] * n, np.full(n, np.nan), np.arange(n) % 2 == 0, 5, None, torch.arange(n) % 4),
    ]
    labels = rng.choice(many if rng.random() < 0.3 else [np.arange(n) % 3])
    labels = labels[:n] if isinstance(labels, list) else labels
    clients: Any = rng.choice([1, 2, 2, 3, 3, n, None, 0, n + 1, -1, 2.0, "3", True, 10**12])
    seed: Any = rng.choice([*[0] * 12, 1, -1, 2**70, 1.5, None, "a", True])
    users = rng.choice([None, np.arange(n) % 2, [f"u{i % 3}" for i in range(n)], np.arange(n + 1), [None] * n, 5])
    parts: list[Any] = []
    refused(lambda: parts.extend(ud.data.partition(scheme, labels, clients, seed, users=users)))
    if parts:
        rows = np.concatenate(parts)
        assert len(np.unique(rows)) == len(rows)
        assert 0 <= rows.min() <= rows.max() < n
        assert min(map(len, parts)) > 0
        assert clients is None or len(parts) == clients


# Few test samples


def batch_norm(rng: Random) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(4, 5)]
    layers += [nn.BatchNorm1d(5, track_running_stats=rng.random() < 0.6) for _ in range(rng.randrange(1, 3))]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(5, 3))


@attack(short=10, long=300)
def test_few_test_samples(rng: Random) -> None:
    """One sample, or one in the last block, with batch normalisation of every kind."""
    torch.manual_seed(rng.randrange(1000))
    data = [(torch.randn(n, 4), torch.arange(n) % 3) for n in (5, 1, 4)]
    count = rng.choice([1, 1, 1, 2, 129, 2049])
    test = torch.randn(count, 4), torch.arange(count) % 3
    algorithm = rng.choice(["fedavg", "fedbn", "perfedavg", "mafsvrg(models=2)", "gafsvrg(models=2)", "scaffold"])
    run = ud.simulate(
        algorithm,
        batch_norm(rng),
        data,
        test=test,
        rounds=1,
        lr=0.01,
        buffers="local" if algorithm == "fedbn" else rng.choice(["averaged", "local", "dropped"]),
        engine=rng.choice(["sequential", "batched"]),
        metrics=["f1"],
    )
    assert np.isfinite(run.history["loss"].iloc[-1])
    assert 0 <= run.history["f1"].iloc[-1] <= 1
    assert len(run.evaluate()) >= 1
    assert len(run.clients) == 3
