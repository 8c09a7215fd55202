"""What commands print: whole words, the result first, flags in errors, hints that work."""

from __future__ import annotations

import csv
import io
import os
import random
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

import fedshift as fs
from fedshift.cli import main, parser

ROOT = Path(__file__).parents[1]
LONG = "Universitätsklinikum-Hamburg-Eppendorf-Kardiologie"
DELAY = "departure_delay_of_the_previous_flight"
METHOD = "ERM-of-all-clients-together-without-any-weights"


def fedshift(*words: object, columns: int = 80) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in a terminal of this width."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, COLUMNS=str(columns)), redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def table(path: Path, *, late: float, delay: float, seed: int) -> None:
    """A small table with text, gaps and a cell to repair."""
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([DELAY, "carrier", "distance", "part", "airport", "w", "late"])
        for i in range(100):
            y = rng.random() < late
            rows.writerow(
                [
                    f"{rng.gauss(20 + 8 * y + delay, 6):.1f}",
                    rng.choice(["UA", "AA", "DL", ""]),
                    "unknown" if i == 0 else f"{rng.gauss(500, 90):.0f}",
                    "same",
                    "here",
                    1,
                    "yes" if y else "no",
                ]
            )


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "sites"
    for seed, name in enumerate((LONG, "north")):
        table(folder / name / "train.csv", late=0.3, delay=0.0, seed=seed)
        table(folder / name / "deploy.csv", late=0.6, delay=9.0 * seed, seed=9 + seed)
    return folder


@pytest.fixture(scope="module")
def trained(sites: Path) -> tuple[Path, str]:
    """The folder of a run, and what the command printed."""
    run = sites.parent / "a run"
    code, out, err = fedshift("train", sites, "--label", "late", "--model", "linear", "-o", run)
    assert (code, err) == (0, "")
    return run, out


@pytest.fixture(scope="module")
def runs(sites: Path) -> tuple[Path, Path]:
    """A small recipe with a long name of a method, and a folder with its runs."""
    recipe, runs = sites.parent / "two.toml", sites.parent / "runs"
    recipe.write_text(
        'title = "Two Gaussians, with a title that is far too long for any line of a terminal"\n'
        '[data]\nshift = "mean-shift"\ntrain_rows = 40\ntest_rows = 20\n[plan]\niterations = 3\n'
        '[train]\nmodel = "linear"\ndevice = "cpu"\n'
        f'[[method]]\nname = "ERM"\nobjective = "erm"\n'
        f'[[method]]\nname = "{METHOD}"\nobjective = "erm"\n'
    )
    assert fedshift("run", recipe, "-o", runs)[0] == 0
    return recipe, runs


def words(text: str) -> set[str]:
    return {w for w in text.split() if not set(w) <= set("-✓")}


def check_whole(narrow: str, wide: str, columns: int) -> None:
    """Every word of the narrow output is one of the wide output, and lines fit where words do."""
    text, *_ = re.split(r"- columns that do not fit", narrow, maxsplit=1)
    assert words(text) <= words(wide)
    for line in text.splitlines():
        assert len(line) <= columns or max(map(len, line.split())) > columns - 20, line


# -- words stay whole ------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 60])
def test_no_table_breaks_a_word(
    columns: int, sites: Path, trained: tuple[Path, str], runs: tuple[Path, Path]
) -> None:
    recipe, out = runs
    for command in (
        ["diagnose", sites, "--label", "late"],
        ["compare", out],
        ["run", recipe, "-o", out],
    ):
        _, wide, _ = fedshift(*command, "--verbose", columns=1000)
        code, narrow, err = fedshift(*command, columns=columns)
        assert (code, err) == (0, "")
        check_whole(narrow, wide, columns)
        code, everything, _ = fedshift(*command, "--verbose", columns=columns)
        assert words(everything) == words(wide)  # what did not fit is there
        assert "do not fit" not in everything
        name = LONG if command[0] == "diagnose" else METHOD
        assert name in narrow
    assert LONG in trained[1]
    assert max(map(len, trained[1].splitlines())) <= 80 + len(str(trained[0]))


def test_what_does_not_fit_is_named(sites: Path) -> None:
    _, out, _ = fedshift("diagnose", sites, "--label", "late", columns=60)
    assert "columns that do not fit:" in out
    assert "--verbose prints them" in " ".join(out.split())
    assert DELAY not in out.split("columns that do not fit")[0]
    assert DELAY in fedshift("diagnose", sites, "--label", "late", "-v", columns=60)[1]


def test_files_have_every_column(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert fedshift("compare", runs[1], "-o", tmp_path / "all.txt", columns=40)[0] == 0
    header = (tmp_path / "all.txt").read_text(encoding="utf-8").splitlines()[2]
    assert {"worst", "best", "AUROC", "loss", "seconds"} <= set(header.split())


# -- the result first ------------------------------------------------------------------------------


def test_train_prints_the_result_then_the_next_step(
    sites: Path, trained: tuple[Path, str], tmp_path: Path
) -> None:
    run, out = trained
    lines = out.splitlines()
    assert re.match(r"(kept|took) \w+; ", lines[0])
    assert not any(line.startswith(("note", "- ", "Training and test")) for line in lines)
    assert re.match(r"\d+ notes? on how the files were read: see ", lines[-1])
    files = re.findall(r"(?m)(?:wrote|see) (.+?)(?:, or|$)", out)
    assert [Path(f) for f in files] == [run / "report.html"] * 2
    assert (run / "report.html").is_file()
    # the command that it names
    command = next(line for line in lines if line.startswith("  fedshift "))
    new = [str(sites) if w == "NEW" else w for w in shlex.split(command)]
    code, drift, err = fedshift(*new[1:])
    assert (code, err) == (0, "")
    assert drift.startswith("Verdict: ")


def test_notes_are_in_the_file_that_is_named_or_printed(sites: Path, tmp_path: Path) -> None:
    command = ["diagnose", sites, "--label", "late"]
    _, out, _ = fedshift(*command)
    assert out.startswith(("Training and test differ at", "No shift"))
    assert re.search(r"\n\d+ notes on how the files were read: add --verbose\n$", out)
    file = tmp_path / "d.json"
    _, out, _ = fedshift(*command, "-o", file, columns=1000)
    assert out.endswith(f"see {file}, or add --verbose\n")
    assert "is left out" in file.read_text(encoding="utf-8")
    _, out, _ = fedshift(*command, "--verbose", columns=1000)
    assert "- Column 'part' is left out" in out


def test_the_hint_of_the_report_works(sites: Path, trained: tuple[Path, str]) -> None:
    page = (trained[0] / "report.html").read_text(encoding="utf-8")
    hints = set(re.findall(r"<code>(fedshift diagnose [^<]*--since[^<]*)</code>", page))
    assert len(hints) == 1
    values = {"NEW": str(sites), "RUN": str(trained[0])}
    command = [values.get(word, word) for word in hints.pop().split()]
    assert fedshift(*command[1:])[0] == 0


# -- options ---------------------------------------------------------------------------------------


def commands(top: ArgumentParser) -> Iterator[ArgumentParser]:
    """All commands that have no further commands."""
    below = [a for a in top._actions if isinstance(a.choices, dict)]
    if not below:
        yield top
    for action in below:
        for sub in action.choices.values():
            yield from commands(sub)


def test_every_command_that_writes_has_the_same_option() -> None:
    writing = []
    for command in commands(parser()):
        outputs = [
            a for a in command._actions if any(o.startswith("--out") for o in a.option_strings)
        ]
        assert [a.option_strings for a in outputs] in ([], [["-o", "--output"]]), command.prog
        writing += [command.prog.removeprefix("fedshift ")] if outputs else []
    assert {"diagnose", "train", "report", "run", "compare", "pack", "demo", "doctor"} <= {*writing}
    assert {"deploy local", "deploy agree"} <= {*writing}
    for words in (["run", "x"], ["demo"], ["doctor"], ["deploy", "local"], ["train", "x"]):
        for option in ("-o", "--output", "--out"):
            assert parser().parse_args([*words, option, "here"]).output == Path("here")


@pytest.mark.parametrize(
    ("option", "given", "meant"),
    [
        ("label", "Late", "late"),
        ("site", "Airport", "airport"),
        ("split", "Part", "part"),
        ("weights", "W", "w"),
        ("drop", "Carrier", "carrier"),
        ("numeric", "Distance", "distance"),
        ("categorical", "CARRIER", "carrier"),
        ("positive", "Yes", "yes"),
    ],
)
def test_a_name_is_not_guessed(option: str, given: str, meant: str, sites: Path) -> None:
    label = [] if option == "label" else ["--label", "late"]
    code, out, err = fedshift("train", sites, *label, f"--{option}", given, "-o", sites / "no")
    assert (code, out) == (1, "")
    assert err.startswith(f"fedshift: --{option} must ")
    assert err.endswith(f"got {given!r}; did you mean {meant!r}?\n")
    settings = {"label": "late", option: [given] if option in ("drop", "numeric") else given}
    with pytest.raises(fs.errors.InputError, match=f"^{option}= must .* did you mean {meant!r}"):
        fs.train(sites, **settings)
    assert not (sites / "no").exists()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--label", "late", "--site", "carrier", "--drop", "carrier"],
        ["--label", ""],
        ["--label", "late", "--task", "regression"],
        ["--label", "late", "--positive", ">0"],
        ["--label", "late", "--task", "regression", "--positive", "yes"],
        ["--label", "carrier", "--positive", "ZZ"],
        ["--label", "late", "--test-share", "2"],
        ["--label", "late", "--names", "a,b"],
        ["--label", "late", "--drop", "w,w"],
        ["--label", "late", "--model", "mpl"],
        ["--label", "late", "--objective", "frw"],
        ["--label", DELAY, "--task", "classification", "--numeric", "carrier"],
    ],
)
def test_errors_of_a_command_name_flags(options: list[str], sites: Path) -> None:
    code, _, err = fedshift("train", sites, *options, "-o", sites / "no")
    assert code == 1
    assert not re.search(r"\b[a-z_]+=", err), err
    assert err.count("\n") == 1


def test_notes_of_a_command_name_flags(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 2}\n" for i in range(60))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"x,outcome\n{rows}")
    _, out, _ = fedshift("diagnose", tmp_path, "-v", columns=1000)
    assert "set --label for another" in out
    assert any("set label= for another" in note for note in fs.Sites.read(tmp_path).notes)


# -- what installs fedshift ------------------------------------------------------------------------


def test_nothing_installs_a_package_by_the_name_of_fedshift() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "apps").rglob("*.*")]
    for path in [*pages, *(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        if path.suffix in (".md", ".py", ".toml"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install[^\n`&]*\bfedshift\b", text), path
            assert not re.search(r"\bfedshift\[\w", text), path


def test_hints_install_from_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedshift.doctor.find_spec", lambda name: None)
    _, out, _ = fedshift("doctor", "-o", tmp_path / "runs", columns=1000)
    for extra in ("report", "tables", "flower"):
        hint = f"in the clone of fedshift, run: pip install -c constraints.txt -e '.[{extra}]'"
        assert hint in out
