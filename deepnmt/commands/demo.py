"""`deepnmt demo`: from nothing to a translation model of one's own."""

import argparse

from deepnmt.commands.options import add_options

EXAMPLE = "deepnmt demo --target fr --minutes 20 --out demo-fr"
EXAMPLES = 10
OPTIONS = {
    "--target LANGUAGE": "language to translate English to (default: de)",
    "--minutes X": "time for everything after the downloads (default: 12 on a CPU, 1 on a GPU)",
    "--out DIR": "folder to write (default: demo)",
    "--with-baseline": "also train a 6-layer post-norm Transformer for the same time",
    "--recipe RECIPE": "train this recipe instead of the demo's",
    "--device {cpu,cuda}": "default: cuda if there is a GPU",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.demo.course import DemoSettings, run_demo
    from deepnmt.demo.report import show, write_report

    demo = run_demo(DemoSettings(**vars(arguments)))
    show(demo, EXAMPLES)
    report = write_report(demo, EXAMPLES)
    print(f"\nCurves, examples and the weights of the layers: {report}")
    print("\nNext:")
    print(f"  echo 'Turn on the light.' | deepnmt translate {demo.model}")
    print(f"  deepnmt serve {demo.model}          # a page to translate on")
    print("  deepnmt prepare --help               # the same with your own text")
