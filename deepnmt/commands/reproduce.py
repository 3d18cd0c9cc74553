"""`deepnmt reproduce`: run the paper's experiments or your own, at full or reduced scale, and report the results."""

import argparse

from deepnmt.commands.options import add_options, settings_in
from deepnmt.errors import InputError
from deepnmt.reproduction.request import Request

EXAMPLE = """deepnmt reproduce --list
  deepnmt reproduce table1 figure4 --scale multi30k --data DATASET --out STUDY \\
      --minutes 20 --parallel 4
  deepnmt reproduce headline --scale europarl --data DATASET --out STUDY \\
      --minutes 60 --test newstest2014 newstest2014.en newstest2014.de
  # your own arms (docs/study.md)
  deepnmt reproduce mine.toml --scale multi30k --data DATASET --out STUDY"""
OPTIONS = {
    "experiments EXPERIMENT*": "name from --list or .toml file; section.field=value overrides a setting of every arm",
    "--list": "list the experiments and the scales",
    "--scale NAME": f"scale from --list (default: {Request.scale}, the recipes as they are)",
    "--data DATASET": "folder written by `deepnmt prepare`",
    "--out DIR": "study folder to write; run the command again to resume",
    "--stop-after MINUTES": "start no new runs after this time",
    "--seeds N": "number of seeds per arm (default: the scale's)",
    "--parallel N": f"number of concurrent runs per GPU (default: {Request.parallel})",
    "--device {cpu,cuda}": "device to train on (default: cuda if available)",
    "--keep-checkpoints": "keep the checkpoints of finished runs",
    "--no-scores": "stop after the translations; --score-only adds scores and reports, on any machine",
    "--dry-run": "list the runs with their sizes and estimated times, and exit",
    "--score-only DIR": "compute the missing scores of a study and update its reports",
    "--report-only DIR": "rewrite the reports of a study",
}
SIZE = {
    "--minutes MINUTES": "total device time of all runs",
    "--tokens N": "training tokens per run (default: the scale's)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS)
    add_options(parser, {"--arms LABEL+": "run only arms with these labels or patterns, such as 'DLCL *'"}, absent=[])
    add_options(parser.add_mutually_exclusive_group(), SIZE)
    names, text = ("NAME SOURCE REFERENCE", "REFERENCE"), "additional test set, with one or more references"
    parser.add_argument("--test", nargs="+", action="append", default=[], metavar=names, help=text)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.reproduction import reproduce

    if "list" in arguments:
        print(reproduce.describe_all())
        return
    for name in ("score_only", "report_only"):
        if name in arguments:
            reproduce.report_again(getattr(arguments, name), with_scores=name == "score_only")
            return
    request = settings_in(
        Request,
        arguments,
        experiments=tuple(text for text in arguments.experiments if "=" not in text),
        settings=tuple(text for text in arguments.experiments if "=" in text),
        tests=tuple(map(tuple, arguments.test)),
    )
    if not request.experiments:
        raise InputError("name at least one experiment (deepnmt reproduce --list shows them)")
    if "dry_run" in arguments:
        print(reproduce.preview(request))
    elif arguments.worker:
        reproduce.work_alone(request)
    else:
        reproduce.reproduce(request)
