"""`deepnmt reproduce`: run the paper's experiments, at its scale or a smaller one, and compare the figures."""

import argparse
from pathlib import Path

from deepnmt.commands.options import whole_number
from deepnmt.errors import InputError
from deepnmt.reproduction.request import Request

EXAMPLE = """deepnmt reproduce table1 figure4 --scale multi30k --data DATASET --out STUDY --minutes 20 --parallel 4
  deepnmt reproduce headline --scale europarl --data DATASET --out STUDY --minutes 60 \\
                    --test newstest2014 newstest2014.en newstest2014.de
  deepnmt reproduce --score-only STUDY      (add scores that were not computed where the runs were made)
  deepnmt reproduce --report-only STUDY     (write the reports again)
  deepnmt reproduce --list                  (the experiments and the scales)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help="names from --list, and settings for all arms as section.field=value",
    )
    parser.add_argument("--list", action="store_true", help="list the experiments and the scales")
    parser.add_argument(
        "--scale", default=Request.scale, metavar="NAME", help="a scale from --list (default: %(default)s, the paper's)"
    )
    parser.add_argument("--data", type=Path, metavar="DATASET", help="a dataset written by `deepnmt prepare`")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the study; the same command resumes it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--minutes", type=_minutes, metavar="M", help="device time for all runs together")
    size.add_argument("--tokens", type=whole_number(1), metavar="N", help="for every run (default: the scale's)")
    parser.add_argument("--stop-after", type=_minutes, metavar="M", help="start no further run after M minutes")
    parser.add_argument(
        "--arms",
        nargs="+",
        default=[],
        metavar="LABEL",
        help="only these arms, by their labels in reports, or as 'DLCL *'",
    )
    parser.add_argument("--seeds", type=whole_number(1), metavar="N", help="runs of every arm (default: the scale's)")
    parser.add_argument(
        "--test",
        nargs="+",
        action="append",
        default=[],
        metavar="NAME SOURCE REFERENCE",
        help="a further test set with one reference or several, beside the dataset's own",
    )
    parser.add_argument(
        "--parallel",
        type=whole_number(1),
        default=Request.parallel,
        metavar="N",
        help="runs at a time on one GPU (default: %(default)s)",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if available")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep them after a run has its model")
    parser.add_argument("--dry-run", action="store_true", help="only print the runs, their sizes and estimated times")
    parser.add_argument("--score-only", type=Path, metavar="DIR", help="compute missing scores of a study, and report")
    parser.add_argument("--report-only", type=Path, metavar="DIR", help="write the reports of a study again")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def _minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return number


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.reproduction import reproduce

    if arguments.list:
        print(reproduce.describe_all())
        return
    if arguments.report_only is not None or arguments.score_only is not None:
        folder = arguments.score_only or arguments.report_only
        reproduce.report_again(folder, with_scores=arguments.score_only is not None)
        return
    names = ("scale", "data", "out", "minutes", "tokens", "stop_after", "seeds", "parallel", "device")
    request = Request(
        experiments=tuple(text for text in arguments.experiments if "=" not in text),
        settings=tuple(text for text in arguments.experiments if "=" in text),
        arms=tuple(arguments.arms),
        tests=tuple(map(tuple, arguments.test)),
        keep_checkpoints=arguments.keep_checkpoints,
        **{name: getattr(arguments, name) for name in names},
    )
    if not request.experiments:
        raise InputError("name at least one experiment (deepnmt reproduce --list shows them)")
    if arguments.dry_run:
        print(reproduce.preview(request))
    elif arguments.worker:
        reproduce.work_alone(request)
    else:
        reproduce.reproduce(request)
