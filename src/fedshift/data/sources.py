"""Load image data sets by name; the only module that downloads.

``load("mnist")`` looks in this order: the `data_dir` argument, the folder of the environment
variable ``FEDSHIFT_DATA``, Debian's ``/usr/share/datasets``, ``/usr/local/share/datasets``, and
the user's cache. If none of these folders has the set, it is downloaded, unless
``FEDSHIFT_OFFLINE`` is set. The decompressed content of each file is checked against a SHA-256 sum,
so it does not matter how a file was compressed.

==================  ============================================================================
set                 files, in the folder or in a subfolder with the set's name
==================  ============================================================================
``digits``          none: part of scikit-learn; 60 % of every class are the training part
``mnist``           ``train-images-idx3-ubyte`` and the three other files, plain or ``.gz``
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
    """A labelled set of images: the training part first, then the test part.

    `load` returns it; `split` makes a federation from it.

    Attributes
    ----------
    name : str
    x : ndarray of uint8 (n, height, width) or (n, channels, height, width)
    y : ndarray of int64 (n,)
        Class numbers from 0.
    n_train : int
        Number of rows in the training part.
    high : int
        Largest pixel value: 16 for digits, 255 for the other sets. ``x / high`` lies in [0, 1].
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
        """Return a federation of float32 images (n, channels, height, width) in [0, 1].

        Parameters
        ----------
        shift : Labels, LabelDirichlet, CovariateTilt or ColourFlip
            A builder of `fedshift.data`. Clients get their training rows from the training part
            and their test rows from the test part.
        seed : int
            Chooses which images each client gets.

        Raises
        ------
        InputError
            If the builder does not fit the images, for instance if a class has too few rows.

        Examples
        --------
        >>> from fedshift.data import Labels
        >>> fed = load("digits").split(Labels.paper("five-clients"), seed=0)
        >>> fed[0].x.shape[1:], fed[0].x.dtype
        ((1, 8, 8), dtype('float32'))
        """
        x = self.x[:, None] if self.x.ndim == 3 else self.x
        if self.high != 255:  # builders scale uint8 by 255, and only the rows they use
            x = np.divide(x, np.float32(self.high), dtype=np.float32)
        n = self.n_train
        return shift.split(x[:n], self.y[:n], x[n:], self.y[n:], seed=seed)


@dataclass(frozen=True)
class _Source:
    """Files of a set: their folders, checksums and download addresses."""

    sums: dict[str, str]  # file name: SHA-256 of its decompressed content
    folders: tuple[str, ...]  # below a data folder
    urls: tuple[str, ...]  # folders of .gz files, or one archive
    most_bytes: int  # of one file, decompressed
    hint: str = ""


#: files of MNIST and of sets like it
_IDX_FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def _idx_sums(*sums: str) -> dict[str, str]:
    """Return the SHA-256 sums of `_IDX_FILES` by file."""
    return dict(zip(_IDX_FILES, sums, strict=True))


_SOURCES = {
    "mnist": _Source(
        sums=_idx_sums(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        folders=("mnist", "MNIST/raw", "."),
        urls=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        most_bytes=47_040_016,
    ),
    "fashion-mnist": _Source(
        sums=_idx_sums(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
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
    """Return an image data set by name.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist", "cifar10"}
    data_dir : path, optional
        Folder that is searched first. Missing files are downloaded to it.
    download : bool
        Whether to download missing files. The environment variable ``FEDSHIFT_OFFLINE`` forbids
        all downloads.

    Raises
    ------
    InputError
        If there is no set of that name, or a file's content is not the expected one.
    DataNotFoundError
        If files are missing and cannot be downloaded. The message lists the files and
        where to put them.

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
            "for your own data build a Federation from arrays"
        )
    files = _read_files(name, data_dir, download=download)
    return _cifar(files) if name == "cifar10" else _idx_set(name, files)


def available(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Return whether `load` finds the set without a download. The content is not checked."""
    return name == "digits" or (
        name in _SOURCES and _find(_SOURCES[name], _roots(data_dir)) is not None
    )


def _roots(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return the data folders to search, in order."""
    out = [] if data_dir is None else [Path(data_dir)]
    if os.environ.get("FEDSHIFT_DATA"):
        out.append(Path(os.environ["FEDSHIFT_DATA"]))
    return [*out, Path("/usr/share/datasets"), Path("/usr/local/share/datasets"), _cache()]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "fedshift"


def _find(source: _Source, roots: list[Path]) -> dict[str, Path] | None:
    """Return a path for each file, all in one folder, or None if no folder has all."""
    for root in roots:
        for folder in source.folders:
            candidates = {file: _either(root / folder / file) for file in source.sums}
            paths = {file: path for file, path in candidates.items() if path is not None}
            if len(paths) == len(source.sums):
                return paths
    return None


def _either(path: Path) -> Path | None:
    """Return the path of the file, plain or compressed, or None."""
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _read_files(
    name: str, data_dir: str | os.PathLike[str] | None, *, download: bool
) -> dict[str, bytes]:
    source, roots = _SOURCES[name], _roots(data_dir)
    paths = _find(source, roots)
    reason = "downloads are switched off"
    if paths is None and download and not os.environ.get("FEDSHIFT_OFFLINE"):
        custom = data_dir is not None or bool(os.environ.get("FEDSHIFT_DATA"))
        folder = (roots[0] if custom else _cache()) / source.folders[0]
        try:
            _download(source, folder)
        except OSError as error:
            reason = f"the download failed ({error})"
        paths = _find(source, roots)
    if paths is None:
        first = Path(source.folders[0]) / next(iter(source.sums))
        raise DataNotFoundError(
            f"data set {name!r} needs {len(source.sums)} files ({', '.join(source.sums)}); none of "
            f"{', '.join(map(str, roots))} has them and {reason}; {source.hint}copy them from a "
            f"machine that has them and set FEDSHIFT_DATA to a folder that holds {first}"
        )
    return {file: _read_checked(path, source, source.sums[file]) for file, path in paths.items()}


def _read_checked(path: Path, source: _Source, expected: str) -> bytes:
    content = path.read_bytes()
    try:
        content = _unpack(content, source.most_bytes) if path.suffix == ".gz" else content
        got = hashlib.sha256(content).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        got = f"a damaged file ({error})"
    if got != expected:
        raise InputError(
            f"{path} must have content with SHA-256 {expected}; got {got}; "
            "remove the file and copy or download it again"
        )
    return content


def _unpack(content: bytes, most: int) -> bytes:
    """Decompress at most one byte more than expected, which then fails the checksum."""
    with gzip.open(io.BytesIO(content)) as file:
        return file.read(most + 1)


def _download(source: _Source, folder: Path) -> None:
    """Download and check the files, then write each whole or not at all."""
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
            if hashlib.sha256(_unpack(packed, most)).hexdigest() == expected:
                return packed
            failures.append(f"{url}{file}: wrong content")
        except (OSError, EOFError, zlib.error) as error:
            failures.append(f"{url}{file}: {error}")
    raise OSError("; ".join(failures))


def _members(archive: bytes, source: _Source) -> Iterator[tuple[str, bytes]]:
    """Yield the checked members of a tar archive by base name, without unpacking it to disk."""
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
        raise OSError(f"the archive {source.urls[0]} is damaged: {error}") from None


def _fetch(url: str, timeout: float = 30.0) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        content: bytes = answer.read()
    return content


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _idx_set(name: str, files: dict[str, bytes]) -> Images:
    x, y, test_x, test_y = (_idx(file, files) for file in _IDX_FILES)
    labels = np.concatenate([y, test_y]).astype(np.int64)
    return Images(name, np.concatenate([x, test_x]), labels, len(y))


def _idx(file: str, files: dict[str, bytes]) -> UInt8Array:
    """Parse an idx file: two zeros, type 8 (bytes), number of axes, big-endian sizes, data."""
    if (content := files[file])[:3] != b"\x00\x00\x08":
        raise InputError(
            f"{file} must start with bytes 00 00 08; got {content[:3].hex(' ')}; download it again"
        )
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4).astype(np.int64)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _cifar(files: dict[str, bytes]) -> Images:
    """Parse records of one label byte and 3 × 32 × 32 pixel bytes; the test batch is last."""
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
    for c in range(10):  # 60 % of every class, always the same rows
        index = rng.permutation(np.flatnonzero(bunch.target == c))
        train[index[: int(0.6 * len(index))]] = True
    order = np.argsort(~train, kind="stable")  # the training part first
    x, y = bunch.images.astype(np.uint8)[order], bunch.target.astype(np.int64)[order]
    return Images("digits", x, y, int(train.sum()), high=16)
