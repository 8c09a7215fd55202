"""``fedshift deploy``: no option is dropped in silence, and text of others is only text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedshift.cli import main, parser
from fedshift.deploy import local_deployment
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.cli import _Display, _policy, _print_result
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.privacy.policy import Privacy

AGREE = ["deploy", "agree"]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    made = Agreement.of(Recipe.load("smoke/flower"), method="ERM", clients=2)
    return made.write(tmp_path / "task.toml")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 1
    return capsys.readouterr().err


def test_a_task_file_takes_no_option_that_a_recipe_does(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.toml"
    for option in (
        ["--disclosure-level", "0"],
        ["--deadline", "120"],
        ["--minimum", "1"],
        ["--clients", "2"],
        ["--method", "ERM"],
        ["--seed", "0"],
        ["--set", "plan.rounds=9"],
    ):
        said = refused(capsys, *AGREE, str(task), "-o", str(out), *option)
        assert f"got {option[0]};" in said
    assert not out.exists()
    assert main([*AGREE, str(task), "-o", str(out)]) == 0
    assert out.read_text() == task.read_text()


def test_a_lower_disclosure_level_than_the_method_needs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(
        capsys, *AGREE, "smoke/flower", "--disclosure-level", "0", "-o", str(tmp_path / "t.toml")
    )
    assert "needs disclosure level 2" in said
    assert not list(tmp_path.iterdir())


def test_a_deadline_is_that_of_the_job_unless_given(tmp_path: Path) -> None:
    for given, seconds in (([], 120.0), (["--deadline", "7"], 7.0)):
        words = [*AGREE, "smoke/flower", "--method", "ERM", "-o", str(tmp_path / "t.toml"), *given]
        assert main(words) == 0
        assert Agreement.read(tmp_path / "t.toml").job.deadline == seconds


def test_files_that_are_no_text_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.toml").write_bytes(b"\xff\xfe[deploy]")
    assert "must be TOML in UTF-8" in refused(capsys, *AGREE, str(tmp_path / "t.toml"))


def test_the_app_s_folder_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "app"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "fedshift_app" / "client_app.py").is_file()


def policy(disclosure_level: int, *words: str) -> Privacy | None:
    return _policy(
        parser().parse_args(["deploy", "local", "smoke/flower", *words]), disclosure_level
    )


def test_a_policy_for_all_sites() -> None:
    assert policy(2) is None
    assert policy(2, "--privacy", "noise=4.0", "min_rows=50") == Privacy(
        disclosure_level=2, noise=4.0, min_rows=50
    )
    assert policy(5, "--raw-rows") == Privacy(disclosure_level=5, raw=True)
    with pytest.raises(InputError, match="--raw-rows"):
        policy(5)
    with pytest.raises(InputError, match=r"KEY=VALUE.*'noise'"):
        policy(2, "--privacy", "noise")
    with pytest.raises(InputError, match=r"--privacy: unknown key 'nois'"):
        policy(2, "--privacy", "nois=4.0")


def test_logs_are_not_markup() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    with _Display(console) as shown:
        shown.event("node a did not get ready ([/v1/runtime/acquire-task][code: 2004] Failed)")
        shown.line("dropped: {'client': 'ward-3', 'why': 'Refused: [/no] thanks'}")
        shown.line("train.model 1/2 [/no] [bold]loss")
        shown._progress.refresh()
    said = out.getvalue()
    assert "([/v1/runtime/acquire-task][code: 2004] Failed)" in said
    assert "'Refused: [/no] thanks'" in said
    assert "[/no] [bold]loss" in said


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(2.333, "2.33"), ("unbounded", "unbounded"), ("[/no]" * 9, "[/no]")]
)
def test_the_table_shows_whatever_a_site_says(
    epsilon: Any, shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = io.StringIO()
    result = {
        "ledger": [],
        "evaluation": None,
        "objective": "ftw",
        "ratio": "multi-source",
        "disclosure_level": 2,
        "sites": {"ward-1": {"epsilon": epsilon, "ess_share": "[/]"}, "ward-2": {}},
        "events": [{"what": "dropped", "client": "a", "phase": "p", "round": 0, "why": "[/no]"}],
        "mean": None,
    }
    _print_result(result, Console(file=out, width=200, markup=False, highlight=False))
    assert shown in out.getvalue()
    assert "round 0: [/no]" in out.getvalue()


def test_deploy_local_hands_the_policy_on(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Enough(Exception):
        pass

    def stop(agreement: Agreement, folder: Path, **more: Any) -> None:
        seen.update(more)
        raise Enough

    monkeypatch.setattr(local_deployment, "deploy_local", stop)
    with pytest.raises(Enough):
        main(["deploy", "local", str(task), "--privacy", "noise=4.0"])
    assert seen["privacy"] == Privacy(disclosure_level=0, noise=4.0)
