"""`deepnmt demo`: download a corpus, train a model on it, and show what it can do."""

import argparse

from deepnmt.commands.options import add_options

EXAMPLE = "deepnmt demo --target fr --minutes 20 --out demo-fr"
EXAMPLES = 10
OPTIONS = {
    "--target CODE": "language to translate English into (default: de)",
    "--minutes X": "total time, downloads excluded (default: 12 on a CPU, 1 on a GPU)",
    "--out DIR": "folder to write (default: demo)",
    "--with-baseline": "also train a 6-layer post-norm Transformer for the same time",
    "--recipe RECIPE": "preset or recipe file to train instead of the demo's",
    "--device {cpu,cuda}": "device to train on (default: cuda if available)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.demo.course import DemoSettings, run_demo
    from deepnmt.demo.report import show, write_report

    demo = run_demo(DemoSettings(**vars(arguments)))
    show(demo, EXAMPLES)
    report = write_report(demo, EXAMPLES)
    print(f"\nCurves, examples and learned layer weights: {report}")
    print("\nNext (after `make demo`, first run `. .venv/bin/activate`):")
    print(f"  echo 'Turn on the light.' | deepnmt translate {demo.model}")
    print(f"  deepnmt serve {demo.model}          # a web page for translating")
    print("  deepnmt prepare --help               # the same with your own text")
