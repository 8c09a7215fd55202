"""Data sets: checksums, places, offline behaviour."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import urllib.error
from pathlib import Path

import numpy as np
import pytest

from fedshift.data import sources
from fedshift.data.sources import Images, available, load
from fedshift.errors import DataNotFoundError, InputError


def idx(a: np.ndarray) -> bytes:
    return bytes([0, 0, 8, a.ndim]) + np.array(a.shape, ">u4").tobytes() + a.tobytes()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere, no network."""
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.delenv("FEDSHIFT_OFFLINE", raising=False)
    places = sources._roots
    monkeypatch.setattr(
        sources, "_roots", lambda d: [p for p in places(d) if "share/datasets" not in str(p)]
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_network(url: str, timeout: float = 0.0) -> bytes:
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(sources, "_fetch", no_network)
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A four-file set of the mnist kind, small enough to write."""
    rng = np.random.default_rng(0)
    files = {}
    for part, n in (("train", 5), ("t10k", 3)):
        files[f"{part}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (n, 4, 4), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx(rng.integers(0, 3, n, dtype=np.uint8))
    monkeypatch.setitem(
        sources._SOURCES,
        "mnist",
        sources._Source(
            {k: sha(v) for k, v in files.items()}, ("mnist", "."), ("a/", "b/"), 10_000
        ),
    )
    return files


def put(folder: Path, files: dict[str, bytes], *, packed: bool = False) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(content, mtime=123) if packed else content)


def test_digits_need_no_file() -> None:
    digits = load("digits")
    assert digits.x.shape == (1797, 8, 8)
    assert digits.x.dtype == np.uint8
    assert digits.y.dtype == np.int64
    assert digits.x.max() == digits.high == 16
    assert len(digits.train[0]) + len(digits.test[0]) == len(digits)
    assert available("digits")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["mnist", "."])
def test_reads_plain_and_packed(
    nowhere: Path, tiny: dict[str, bytes], packed: bool, below: str
) -> None:
    put(nowhere / "data" / below, tiny, packed=packed)
    got = load("mnist", nowhere / "data")
    assert repr(got).startswith("Images('mnist', 5 train + 3 test, 4×4")
    assert got.x.tobytes() == b"".join(
        tiny[f"{p}-images-idx3-ubyte"][16:] for p in ("train", "t10k")
    )
    assert got.y[:5].tolist() == list(tiny["train-labels-idx1-ubyte"][8:])


def test_folder_from_the_environment(
    nowhere: Path, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(nowhere / "e" / "mnist", tiny)
    assert not available("mnist")
    monkeypatch.setenv("FEDSHIFT_DATA", str(nowhere / "e"))
    assert available("mnist")
    assert len(load("mnist")) == 8


def test_damaged_file_is_named(nowhere: Path, tiny: dict[str, bytes]) -> None:
    put(nowhere / "d", {**tiny, "t10k-labels-idx1-ubyte": b"damaged"})
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte must have content with SHA-256"):
        load("mnist", nowhere / "d")


def test_truncated_gzip_is_named(nowhere: Path, tiny: dict[str, bytes]) -> None:
    put(nowhere / "d", tiny, packed=True)
    path = nowhere / "d" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match="damaged file"):
        load("mnist", nowhere / "d")


def test_offline_error_says_what_to_do(nowhere: Path) -> None:
    with pytest.raises(DataNotFoundError, match="FEDSHIFT_DATA") as error:
        load("fashion-mnist")
    text = str(error.value)
    assert "no network in this test" in text
    assert "dataset-fashion-mnist" in text
    assert "train-images-idx3-ubyte" in text


def test_download_can_be_forbidden(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataNotFoundError, match="switched off"):
        load("cifar10", download=False)
    monkeypatch.setenv("FEDSHIFT_OFFLINE", "1")
    with pytest.raises(DataNotFoundError, match="switched off"):
        load("cifar10")


def test_download_checks_and_takes_the_next_mirror(
    nowhere: Path, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(url: str, timeout: float = 0.0) -> bytes:
        asked.append(url)
        mirror, file = url.split("/")
        return gzip.compress(b"not it" if mirror == "a" else tiny[file.removesuffix(".gz")])

    monkeypatch.setattr(sources, "_fetch", fetch)
    assert len(load("mnist")) == 8
    assert len(asked) == 8
    names = sorted(p.name for p in (nowhere / "cache" / "fedshift" / "mnist").iterdir())
    assert names == sorted(f"{k}.gz" for k in tiny)  # no temporary file left
    monkeypatch.setattr(sources, "_fetch", None)  # now it is on disk
    assert len(load("mnist")) == 8


def test_download_of_wrong_content_leaves_nothing(
    nowhere: Path, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_fetch", lambda url, timeout=0.0: gzip.compress(b"not it"))
    with pytest.raises(DataNotFoundError, match="wrong content"):
        load("mnist", nowhere / "d")
    assert not list(nowhere.rglob("*ubyte*"))


def test_cifar_archive(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    files = {
        name: rng.integers(0, 10, (2, 3073), dtype=np.uint8).tobytes()
        for name in sources._SOURCES["cifar10"].sums
    }
    old = sources._SOURCES["cifar10"]
    monkeypatch.setitem(
        sources._SOURCES,
        "cifar10",
        sources._Source({k: sha(v) for k, v in files.items()}, old.folders, ("one",), 10_000),
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"readme.html": b"x", **files}.items():
            member = tarfile.TarInfo(f"../cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(sources, "_fetch", lambda url, timeout=0.0: buffer.getvalue())
    cifar = load("cifar10", nowhere / "d")
    assert cifar.x.shape == (12, 3, 32, 32)
    assert cifar.n_train == 10
    assert cifar.test[0].tobytes() == b"".join(
        files["test_batch.bin"][i * 3073 + 1 : (i + 1) * 3073] for i in range(2)
    )
    assert not (nowhere / "d" / "cifar10" / "readme.html").exists()


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="digits, mnist, fashion-mnist, cifar10"):
        load("imagenet")


@pytest.mark.parametrize(
    ("name", "shape", "n_train"),
    [
        pytest.param("mnist", (28, 28), 60_000, marks=pytest.mark.data("mnist")),
        pytest.param("fashion-mnist", (28, 28), 60_000, marks=pytest.mark.data("fashion-mnist")),
        pytest.param("cifar10", (3, 32, 32), 50_000, marks=pytest.mark.data("cifar10")),
    ],
)
def test_full_sets(name: str, shape: tuple[int, ...], n_train: int) -> None:
    images = load(name, download=False)
    assert isinstance(images, Images)
    assert images.x.shape == (n_train + 10_000, *shape)
    assert images.n_train == n_train
    assert images.n_classes == 10
    if name != "mnist":
        assert np.bincount(images.y).tolist() == [(n_train + 10_000) // 10] * 10
