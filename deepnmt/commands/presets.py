"""`deepnmt presets`: the bundled recipes, with a line about each, or the settings of one."""

import argparse

from deepnmt.commands.options import OVERRIDES, add_options

EXAMPLE = """deepnmt presets
  deepnmt presets en-de-pre-dlcl-30l model.encoder.num_layers=25 > mine.toml"""
GROUPS = {  # by the beginning of the name
    "demo": "The demo",
    "deep": "The deep model that we recommend today",
    "student": "A fast model, for distillation",
    "en-de": "The paper's English-German systems",
    "zh-en": "The paper's Chinese-English systems",
    "beyond": "Depth methods published since, with 18 encoder layers",
}
NEXT = """
deepnmt presets NAME                                  shows all settings of a preset
deepnmt train NAME --data DATASET --out RUN           trains it"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "print all settings of this preset or recipe file (.toml) as TOML"
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=text)
    add_options(parser, OVERRIDES)


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.config import describe_preset, load_recipe, preset_names
    from deepnmt.settings import to_table, to_toml

    if arguments.recipe is not None:
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        if about := describe_preset(arguments.recipe):
            print(f"# {about}")
        print(to_toml(to_table(recipe)), end="")
        return
    for prefix, title in GROUPS.items():
        group = [name for name in preset_names() if name.startswith(prefix)]
        width = max(map(len, group))
        print(f"{title}:")
        print("\n".join(f"  {name:<{width}}  {describe_preset(name)}" for name in group))
    print(NEXT)
