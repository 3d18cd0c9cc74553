"""`deepnmt presets`: the bundled recipes, with a line about each, or the settings of one."""

import argparse

from deepnmt.commands.options import OVERRIDES, add_options

EXAMPLE = """deepnmt presets
  deepnmt presets en-de-pre-dlcl-30l model.encoder.num_layers=25"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "show all settings of this preset or recipe file (.toml) as TOML"
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
    names = preset_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {describe_preset(name)}")
