"""Which file is whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedshift.data.tables.folder import find_files, stem
from fedshift.data.tables.settings import TableSettings
from fedshift.errors import InputError


def found(root: Path, **settings: object) -> dict[str, tuple[str | None, str | None]]:
    layout = find_files(root, TableSettings.of(settings))
    return {f.path.relative_to(root).as_posix(): (f.site, f.part) for f in layout.files}


def test_a_folder_for_each_site_in_any_mix_of_formats(folder) -> None:
    root = folder(
        dict.fromkeys(
            ("a/train.csv", "a/test.csv.gz", "b/TRAIN.tsv", "b/deploy.parquet", "c/data.csv"), b"x"
        )
        | dict.fromkeys(
            ("a/codebook.csv", "a/readme.txt", "b/.hidden.csv", "notes/n.txt", "r.csv"), b"x"
        )
    )
    assert found(root) == {
        "a/test.csv.gz": ("a", "deploy"),
        "a/train.csv": ("a", "train"),
        "b/TRAIN.tsv": ("b", "train"),
        "b/deploy.parquet": ("b", "deploy"),
        "c/data.csv": ("c", None),
    }
    (note,) = find_files(root).notes
    assert note == "Ignored, because not a site table: a/codebook.csv, notes/, r.csv."


def test_flat_names(folder) -> None:
    root = folder(
        dict.fromkeys(
            ("a.train.csv", "a_test.csv", "b-2_training.parquet", "deploy_b-2.tsv", "key.csv"), b"x"
        )
    )
    assert found(root) == {
        "a.train.csv": ("a", "train"),
        "a_test.csv": ("a", "deploy"),
        "b-2_training.parquet": ("b-2", "train"),
        "deploy_b-2.tsv": ("b-2", "deploy"),
    }


def test_two_files_one_file_or_a_file_for_each_site(folder) -> None:
    root = folder({"train.csv": "x", "test.csv": "x", "more.csv": "x"})
    assert found(root) == {"train.csv": (None, "train"), "test.csv": (None, "deploy")}
    assert find_files(root / "more.csv").files[0].site is None


def test_words_that_all_files_begin_with_are_no_part_of_a_site(folder) -> None:
    root = folder(dict.fromkeys((f"processed.{s}.data" for s in ("cleveland", "va")), b"x"))
    assert found(root) == {
        "processed.cleveland.data": ("cleveland", None),
        "processed.va.data": ("va", None),
    }
    (root / "other.csv").write_text("x")
    assert ("processed.va", None) in found(root).values()
    assert found(root, files=["*.data"])["processed.va.data"] == ("va", None)
    assert found(root, site="hospital")["other.csv"] == (None, None)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "an empty folder"),
        (("a.docx", "b.txt"), "'a.docx', 'b.txt'"),
        (("a/train.csv", "a/train.parquet"), "train.csv and train.parquet"),
        (("a/test.csv", "a/deploy.csv", "a/train.csv"), "one deploy file"),
        (("a/x.csv", "a/y.csv"), "'a'"),
        (("a_train.csv", "a.train.csv"), "one train file"),
    ],
)
def test_ambiguous_folders_are_refused(folder, files: tuple[str, ...], words: str) -> None:
    root = folder(dict.fromkeys(files, b"x"))
    root.mkdir(exist_ok=True)
    with pytest.raises(InputError, match=words):
        find_files(root)


def test_no_such_place(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(InputError, match="must be a file or a folder"):
            find_files(path)


def test_a_link_to_nowhere_is_ignored(folder) -> None:
    root = folder({"a/train.csv": "x"})
    (root / "a" / "test.csv").symlink_to(root / "gone.csv")
    assert found(root) == {"a/train.csv": ("a", "train")}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(folder) -> None:
    root = folder({"a/train.csv": "x"})
    (root / "a").chmod(0)
    try:
        with pytest.raises(InputError, match="cannot be read"):
            find_files(root)
    finally:
        (root / "a").chmod(0o755)


def test_a_folder_that_cannot_be_listed(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder({"a/train.csv": "x"})

    def deny(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(InputError, match="Permission denied; check its permissions"):
        find_files(root)


def test_stems() -> None:
    assert [stem(Path(n)) for n in ("a.b.csv.gz", "a.PARQUET", "x.txt")] == ["a.b", "a", "x"]
