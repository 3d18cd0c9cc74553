"""`deepnmt demo`: from nothing to a translation model of one's own."""

import argparse
from pathlib import Path

EXAMPLE = "deepnmt demo --target fr --minutes 20 --out demo-fr"
EXAMPLES = 10
OPTIONS = ("target", "minutes", "out", "with_baseline", "recipe", "device")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="de", metavar="LANGUAGE", help="language to translate English to (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="time for everything after the downloads (default: 12 on a CPU, 1 on a GPU)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder to write (default: %(default)s)"
    )
    parser.add_argument(
        "--with-baseline", action="store_true", help="also train a 6-layer post-norm Transformer for the same time"
    )
    parser.add_argument("--recipe", metavar="RECIPE", help="train this recipe instead of the demo's")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is a GPU")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.demo.course import DemoSettings, run_demo
    from deepnmt.demo.report import show, write_report

    demo = run_demo(DemoSettings(**{name: getattr(arguments, name) for name in OPTIONS}))
    show(demo, EXAMPLES)
    report = write_report(demo, EXAMPLES)
    print(f"\nCurves, examples and the weights of the layers: {report}")
    print("\nNext:")
    print(f"  echo 'Turn on the light.' | deepnmt translate {demo.model}")
    print(f"  deepnmt serve {demo.model}          # a page to translate on")
    print("  deepnmt prepare --help               # the same with your own text")
