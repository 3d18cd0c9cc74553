"""The scores and reports of a study, which need no GPU."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from deepnmt import devices
from deepnmt.evaluation import metrics
from deepnmt.evaluation.scores import score
from deepnmt.files import write_json, write_text
from deepnmt.progress import progress, say
from deepnmt.reproduction.document import write_report
from deepnmt.reproduction.experiment import Experiment
from deepnmt.reproduction.report import report
from deepnmt.reproduction.results import experiment_in, read_results, refresh
from deepnmt.reproduction.significance import add_p_values
from deepnmt.reproduction.study import HYPOTHESES, SCORES, Study, read_step
from deepnmt.text import joined, read_lines

Languages = tuple[str | None, str | None]  # source and target


def score_study(study: Study) -> None:
    """Compute missing scores from the study's folder alone."""
    about = study.read()
    languages = about["languages"][0], about["languages"][1]
    names = _metrics(languages, [_experiment(study, name).metric for name in about["experiments"]])
    folders = [path for path in sorted(study.runs.glob("*")) if (path / HYPOTHESES).is_dir()]
    missing: set[str] = set()
    with progress("score", total=len(folders), unit="runs") as shown:
        for found in _scored(study, folders, names, languages):
            missing |= set(found)
            shown.advance()
    if missing:
        say(f"not computed, because packages are missing: {', '.join(sorted(missing))}")


def _metrics(languages: Languages, wanted: Sequence[str]) -> list[str]:
    """The scores that suit the languages, the experiments' own first."""
    suitable = metrics.choose(metrics.Languages(*languages))
    return list(dict.fromkeys([*(name for name in wanted if name in suitable), *suitable]))


def _scored(study: Study, folders: Sequence[Path], names: Sequence[str], languages: Languages) -> Iterator[list[str]]:
    """Score the folders in several processes (TER takes a minute); yield the metrics that failed for each."""
    processes = min(devices.available_cores(), len(folders))
    if processes < 2:
        yield from (_score_run(study, folder, names, languages) for folder in folders)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_score_run, study, path, names, languages) for path in folders]):
            yield done.result()


def _score_run(study: Study, folder: Path, names: Sequence[str], languages: Languages) -> list[str]:
    """Return the metrics whose packages are not installed; they can be computed later."""
    scores: dict[str, Any] = read_step(folder / SCORES) or {}
    missing = []
    for test in study.tests():
        path = study.translations(folder.name, test.name)
        if not path.exists():
            continue
        hypotheses = read_lines(path)
        of_test = scores.setdefault(test.name, {})
        for name in names:
            if name in of_test:
                continue
            try:
                found = score(hypotheses, test.references, *languages, metrics=[name])[name]
            except ImportError:
                missing.append(name)
                continue
            of_test[name] = {"name": found.name, "value": round(found.value, 4), "signature": found.signature}
    write_json(folder / SCORES, scores)
    return missing


def write_reports(study: Study, names: Sequence[str]) -> None:
    """Write a report for each of these experiments, and an index of all."""
    for name in names:
        refresh(study, name)
        experiment = _experiment(study, name)
        if experiment.shows_significance:
            add_p_values(study, name)
        write_report(study.folder / name, experiment.title, report(read_results(study, name), experiment))
        say(f"{study.folder / name / 'report.md'}, report.html")
    written = [name for name in study.read()["experiments"] if (study.folder / name / "report.md").exists()]
    lines = [f"- [{_experiment(study, name).title}]({name}/report.md) ([HTML]({name}/report.html))" for name in written]
    write_text(study.folder / "index.md", "# Reports\n\n" + joined(lines))


def _experiment(study: Study, name: str) -> Experiment:
    return experiment_in(read_results(study, name))
