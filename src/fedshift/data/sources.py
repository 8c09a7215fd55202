"""Data sets by name: the only module that reads data files or downloads.

``load("mnist")`` looks in the given folder, then in the folder of the environment variable
``FEDSHIFT_DATA``, then at the usual places (Debian's ``/usr/share/datasets``, the user's cache);
if a set is nowhere it is downloaded, unless ``FEDSHIFT_OFFLINE`` is set. What a file *holds* is
checked against a SHA-256 sum kept here, so files that were compressed by another hand pass and
damaged ones do not.

==================  ============================================================================
set                 files, in the folder or in a folder of the set's name below it
==================  ============================================================================
``digits``          none: inside scikit-learn; six tenths of every class are the training part
``mnist``           ``train-images-idx3-ubyte`` and its three companions, plain or ``.gz``
``fashion-mnist``   the same four names; Debian's ``dataset-fashion-mnist`` installs them
``cifar10``         ``cifar-10-batches-bin/data_batch_1.bin`` to ``5`` and ``test_batch.bin``
==================  ============================================================================
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedshift.core.files import atomic_path
from fedshift.errors import DataNotFoundError, InputError

if TYPE_CHECKING:
    from fedshift.data.federation import Federation, Shift

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """A labelled set of images: training part first, then the test part.

    Attributes
    ----------
    name : str
    x : ndarray of uint8 (n, height, width) or (n, channels, height, width)
    y : ndarray of int64 (n,)
        Class numbers from 0.
    n_train : int
        Rows of the training part.
    high : int
        Largest pixel value, 255 (16 for digits): ``x / high`` lies in [0, 1].
    """

    name: str
    x: UInt8Array
    y: Int64Array
    n_train: int
    high: int = 255

    def __len__(self) -> int:
        """Number of images."""
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.x.shape[1:]))
        return (
            f"Images({self.name!r}, {self.n_train} train + {len(self) - self.n_train} test, "
            f"{shape}, {self.n_classes} classes)"
        )

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    @property
    def train(self) -> tuple[UInt8Array, Int64Array]:
        """Images and labels of the training part."""
        return self.x[: self.n_train], self.y[: self.n_train]

    @property
    def test(self) -> tuple[UInt8Array, Int64Array]:
        """Images and labels of the test part."""
        return self.x[self.n_train :], self.y[self.n_train :]

    def split(self, shift: Shift, *, seed: int = 0) -> Federation:
        """Deal the images to clients: a federation of float32 in [0, 1], (n, channels, h, w).

        Parameters
        ----------
        shift : Labels, LabelDirichlet, CovariateTilt or ColourFlip
            A builder of `fedshift.data`; its train side deals from the training part, its test
            side from the test part.
        seed : int

        Examples
        --------
        >>> from fedshift.data import Labels
        >>> fed = load("digits").split(Labels.paper("five-clients"), seed=0)
        >>> fed[0].x.shape[1:], fed[0].x.dtype
        ((1, 8, 8), dtype('float32'))
        """
        x = self.x[:, None] if self.x.ndim == 3 else self.x
        if self.high != 255:  # builders take uint8 for 0 to 255, and scale only what they deal
            x = np.divide(x, np.float32(self.high), dtype=np.float32)
        n = self.n_train
        return shift.split(x[:n], self.y[:n], x[n:], self.y[n:], seed=seed)


@dataclass(frozen=True)
class _Source:
    """Where a set's files lie, what they hold and where they can be had."""

    sums: dict[str, str]  # file name: SHA-256 of what it holds, decompressed
    folders: tuple[str, ...]  # below a data folder
    urls: tuple[str, ...]  # folders of .gz files, or one archive
    most_bytes: int  # of one file, decompressed
    hint: str = ""


_SOURCES = {
    "mnist": _Source(
        sums={
            "train-images-idx3-ubyte": (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
            ),
            "train-labels-idx1-ubyte": (
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
            ),
            "t10k-images-idx3-ubyte": (
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
            ),
            "t10k-labels-idx1-ubyte": (
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
            ),
        },
        folders=("mnist", "MNIST/raw", "."),
        urls=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        most_bytes=47_040_016,
    ),
    "fashion-mnist": _Source(
        sums={
            "train-images-idx3-ubyte": (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
            ),
            "train-labels-idx1-ubyte": (
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
            ),
            "t10k-images-idx3-ubyte": (
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
            ),
            "t10k-labels-idx1-ubyte": (
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
            ),
        },
        folders=("fashion-mnist", "FashionMNIST/raw", "."),
        urls=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        most_bytes=47_040_016,
        hint="on Debian and Ubuntu, install the package dataset-fashion-mnist; otherwise ",
    ),
    "cifar10": _Source(
        sums={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        folders=(
            "cifar10/cifar-10-batches-bin",
            "cifar-10-batches-bin",
            "cifar10",
            "cifar-10",
            ".",
        ),
        urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        most_bytes=30_730_000,
    ),
}

NAMES = ("digits", *_SOURCES)


def load(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, download: bool = True
) -> Images:
    """Load a data set by name.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist", "cifar10"}
    data_dir : path, optional
        Look here first, and download to here.
    download : bool
        Whether to download what was not found; the environment variable ``FEDSHIFT_OFFLINE``
        forbids it for all.

    Raises
    ------
    InputError
        If there is no such set, or a file does not hold what it should.
    DataNotFoundError
        If a set is nowhere and cannot be downloaded; says which files to put where.

    Examples
    --------
    >>> load("digits")
    Images('digits', 1074 train + 723 test, 8×8, 10 classes)
    """
    if name == "digits":
        return _digits()
    if name not in _SOURCES:
        raise InputError(
            f"data set must be one of {', '.join(NAMES)}; got {name!r}; "
            "own tables need no name: pass the arrays"
        )
    files = _read_files(name, data_dir, download=download)
    return _cifar(files) if name == "cifar10" else _idx_set(name, files)


def available(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether `load` would find the set without a download (its files are not checked)."""
    return name == "digits" or (
        name in _SOURCES and _find(_SOURCES[name], _roots(data_dir)) is not None
    )


def _roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Data folders in order of preference."""
    out = [] if data_dir is None else [Path(data_dir)]
    if os.environ.get("FEDSHIFT_DATA"):
        out.append(Path(os.environ["FEDSHIFT_DATA"]))
    return [*out, Path("/usr/share/datasets"), Path("/usr/local/share/datasets"), _cache()]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "fedshift"


def _find(source: _Source, roots: list[Path]) -> dict[str, Path] | None:
    """A path for each file, all in one folder."""
    for root in roots:
        for folder in source.folders:
            found = {file: _either(root / folder / file) for file in source.sums}
            paths = {file: path for file, path in found.items() if path is not None}
            if len(paths) == len(source.sums):
                return paths
    return None


def _either(path: Path) -> Path | None:
    """The file, plain or compressed."""
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _read_files(
    name: str, data_dir: str | os.PathLike[str] | None, *, download: bool
) -> dict[str, bytes]:
    source, roots = _SOURCES[name], _roots(data_dir)
    paths = _find(source, roots)
    reason = "downloads are switched off"
    if paths is None and download and not os.environ.get("FEDSHIFT_OFFLINE"):
        given = data_dir is not None or bool(os.environ.get("FEDSHIFT_DATA"))
        folder = (roots[0] if given else _cache()) / source.folders[0]
        try:
            _download(source, folder)
        except OSError as error:
            reason = f"the download failed ({error})"
        paths = _find(source, roots)
    if paths is None:
        first = Path(source.folders[0]) / next(iter(source.sums))
        raise DataNotFoundError(
            f"data set {name!r} needs {len(source.sums)} files ({', '.join(source.sums)}); they "
            f"are in none of {', '.join(map(str, roots))} and {reason}; {source.hint}copy them "
            f"from a machine that has them and set FEDSHIFT_DATA to a folder that holds {first}"
        )
    return {file: _checked(path, source, source.sums[file]) for file, path in paths.items()}


def _checked(path: Path, source: _Source, expected: str) -> bytes:
    content = path.read_bytes()
    try:
        content = _unpacked(content, source.most_bytes) if path.suffix == ".gz" else content
        got = hashlib.sha256(content).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        got = f"a damaged file ({error})"
    if got != expected:
        raise InputError(
            f"{path} must hold data with SHA-256 {expected}; got {got}; "
            "remove the file and copy or download it again"
        )
    return content


def _unpacked(content: bytes, most: int) -> bytes:
    """Decompressed, but never more than expected: one byte too many fails the checksum."""
    with gzip.open(io.BytesIO(content)) as file:
        return file.read(most + 1)


def _download(source: _Source, folder: Path) -> None:
    """Fetch, check, then write under a temporary name and rename."""
    if len(source.urls) == 1:
        for file, content in _members(_fetch(source.urls[0]), source):
            _write(folder / file, content)
        return
    for file, expected in source.sums.items():
        packed = _fetch_any(source.urls, file + ".gz", expected, source.most_bytes)
        _write(folder / (file + ".gz"), packed)


def _fetch_any(urls: tuple[str, ...], file: str, expected: str, most: int) -> bytes:
    failures = []
    for url in urls:
        try:
            packed = _fetch(url + file)
            if hashlib.sha256(_unpacked(packed, most)).hexdigest() == expected:
                return packed
            failures.append(f"{url}{file}: wrong content")
        except (OSError, EOFError, zlib.error) as error:
            failures.append(f"{url}{file}: {error}")
    raise OSError("; ".join(failures))


def _members(archive: bytes, source: _Source) -> Iterator[tuple[str, bytes]]:
    """Checked members of a tar archive, by base name; nothing is unpacked to disk from it."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                file = Path(member.name).name
                stream = tar.extractfile(member) if member.isfile() else None
                if file not in source.sums or stream is None:
                    continue
                content = stream.read(source.most_bytes + 1)
                if hashlib.sha256(content).hexdigest() != source.sums[file]:
                    raise OSError(f"{file} in the archive has the wrong content")
                yield file, content
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(f"the archive is damaged: {error}") from None


def _fetch(url: str, timeout: float = 30.0) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        content: bytes = answer.read()
    return content


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _idx_set(name: str, files: dict[str, bytes]) -> Images:
    x = [_idx(files[f"{part}-images-idx3-ubyte"]) for part in ("train", "t10k")]
    y = [_idx(files[f"{part}-labels-idx1-ubyte"]) for part in ("train", "t10k")]
    return Images(name, np.concatenate(x), np.concatenate(y).astype(np.int64), len(y[0]))


def _idx(content: bytes) -> UInt8Array:
    """An idx file: two zeros, type 8 (bytes), number of axes, big-endian sizes, then data."""
    if content[:3] != b"\x00\x00\x08":
        raise InputError(
            f"an idx file of bytes must start with 00 00 08; got {content[:3].hex(' ')}"
        )
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4).astype(np.int64)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _cifar(files: dict[str, bytes]) -> Images:
    """Records of one label byte and 3 × 32 × 32 pixel bytes; the test batch comes last."""
    records = np.concatenate([_records(files[file]) for file in sorted(files)])
    x = records[:, 1:].reshape(-1, 3, 32, 32)
    n_test = len(_records(files["test_batch.bin"]))
    return Images("cifar10", x, records[:, 0].astype(np.int64), len(records) - n_test)


def _records(content: bytes) -> UInt8Array:
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def _digits() -> Images:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    rng = np.random.default_rng(0)
    train = np.zeros(len(bunch.target), dtype=bool)
    for c in range(10):  # six tenths of every class, the same ones always
        index = rng.permutation(np.flatnonzero(bunch.target == c))
        train[index[: int(0.6 * len(index))]] = True
    order = np.argsort(~train, kind="stable")  # the training part first
    x, y = bunch.images.astype(np.uint8)[order], bunch.target.astype(np.int64)[order]
    return Images("digits", x, y, int(train.sum()), high=16)


__all__ = ["NAMES", "Images", "available", "load"]
