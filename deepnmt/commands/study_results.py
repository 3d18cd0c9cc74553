"""What `deepnmt reproduce` does when there are translations: their scores, and the reports."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepnmt.progress import say

if TYPE_CHECKING:
    from deepnmt.reproduction.report import Drawing, Line
    from deepnmt.reproduction.study import Study

Languages = tuple[str | None, str | None]  # source and target


def score_study(study: "Study") -> None:
    """Scores of all translations that lack some; needs the study's folder only."""
    from deepnmt.devices import available_cores
    from deepnmt.progress import progress
    from deepnmt.reproduction.paper import EXPERIMENTS
    from deepnmt.reproduction.study import HYPOTHESES

    about = study.read()
    languages = about["languages"][0], about["languages"][1]
    metrics = _metrics(languages, [EXPERIMENTS[name].metric for name in about["experiments"]])
    folders = [path for path in sorted(study.runs.glob("*")) if (path / HYPOTHESES).is_dir()]
    missing: set[str] = set()
    with progress("score", total=len(folders), unit="runs") as shown:
        for found in _scored(study, folders, metrics, languages, min(available_cores(), len(folders))):
            missing |= set(found)
            shown.advance()
    if missing:
        say(f"not installed here, so still missing: {', '.join(sorted(missing))}")


def _scored(
    study: "Study", folders: Sequence[Path], metrics: Sequence[str], languages: Languages, processes: int
) -> Iterator[list[str]]:
    """What is missing of each folder, as it is done; in several processes, for TER alone takes a minute."""
    if processes < 2:
        yield from (_score_one(study, folder, metrics, languages) for folder in folders)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_score_one, study, path, metrics, languages) for path in folders]):
            yield done.result()


def _score_one(study: "Study", folder: Path, metrics: Sequence[str], languages: Languages) -> list[str]:
    from deepnmt.reproduction.scoring import score_run

    return score_run(folder, study.tests(), metrics, _scorer(languages))


def _metrics(languages: Languages, wanted: Sequence[str]) -> list[str]:
    """The scores that suit the languages, the experiments' own first."""
    from deepnmt.evaluation import metrics

    source, target = (metrics.base_language(code) for code in languages)
    suitable = metrics.choose(metrics.Languages(source, target), lowercase=False)
    return list(dict.fromkeys([*(name for name in wanted if name in suitable), *suitable]))


def _scorer(
    languages: Languages,
) -> "Callable[[Sequence[str], Sequence[Sequence[str]], str], Mapping[str, Any]]":
    from deepnmt.evaluation.scores import score
    from deepnmt.reproduction.scoring import NotInstalledError

    def by_metric(hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: str) -> Mapping[str, Any]:
        try:
            found = score(hypotheses, references, *languages, metrics=[metric])[metric]
        except ImportError as error:
            raise NotInstalledError(str(error)) from error
        return {"name": found.name, "value": round(found.value, 4), "signature": found.signature}

    return by_metric


def write_reports(study: "Study", names: Sequence[str]) -> None:
    for name in names:
        _report(study, name)
    _index(study)


def _report(study: "Study", name: str) -> None:
    from deepnmt.analysis.charts import page
    from deepnmt.reproduction.document import write_report
    from deepnmt.reproduction.paper import EXPERIMENTS
    from deepnmt.reproduction.report import report
    from deepnmt.reproduction.results import read_results, refresh

    refresh(study, name)
    experiment = EXPERIMENTS[name]
    blocks = report(read_results(study, name), experiment, drawing())
    write_report(study.folder / name, experiment.title, blocks, page)
    say(f"{study.folder / name / 'report.md'}, report.html")


def _index(study: "Study") -> None:
    from deepnmt.files import replacing
    from deepnmt.reproduction.paper import EXPERIMENTS

    names = [name for name in study.read()["experiments"] if (study.folder / name / "report.md").exists()]
    lines = [f"- [{EXPERIMENTS[name].title}]({name}/report.md) ([HTML]({name}/report.html))" for name in names]
    with replacing(study.folder / "index.md") as aside:
        aside.write_text("# Reports\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def drawing() -> "Drawing":
    from deepnmt.analysis.charts import Axes, Series, line_chart
    from deepnmt.analysis.weights import ConnectionWeights, draw
    from deepnmt.reproduction.report import Drawing

    def lines(found: "Sequence[Line]", title: str, x_label: str, y_label: str, log: bool) -> str:
        series = [Series(name, points, spread, dashed=dashed) for name, points, spread, dashed in found]
        return line_chart(series, Axes(title=title, x_label=x_label, y_label=y_label, log_y=log))

    return Drawing(lines, lambda stored: draw([ConnectionWeights.stored(table) for table in stored]))
