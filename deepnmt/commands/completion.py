"""`deepnmt completion`: tab completion for a shell, generated from the options of every command."""

import argparse
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from deepnmt import commands

EXAMPLE = """deepnmt completion bash > ~/.local/share/bash-completion/completions/deepnmt
  deepnmt completion zsh > ~/.deepnmt-completion    # source it in ~/.zshrc
  deepnmt completion fish > ~/.config/fish/completions/deepnmt.fish"""
BASH = """_deepnmt() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words="" presets="{presets}"
    case "$COMP_CWORD $current" in
    "1 "*) words="{commands} --help --version" ;;
    *" -"*) case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
    *) case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _deepnmt deepnmt"""
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit"  # which runs functions written for bash
PRESETS = "$presets"

Actions = list[argparse.Action]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="shell that will read the script")


def run(arguments: argparse.Namespace) -> None:
    from deepnmt.config import preset_names

    tables = {module.name: _actions(module.name) for module in iter_modules(commands.__path__)}
    actions = {name: listed for name, listed in tables.items() if listed}
    presets = " ".join(preset_names())
    if arguments.shell == "fish":
        print("\n".join([f"set -l presets {presets}", *_fish(actions)]))
        return
    options = "\n".join(f'        {name}) words="{" ".join(_flags(listed))}" ;;' for name, listed in actions.items())
    values = "\n".join(f"        {line}" for name, listed in actions.items() for line in _values(name, listed))
    script = BASH.format(presets=presets, commands=" ".join(actions), options=options, values=values)
    print(script if arguments.shell == "bash" else f"{ZSH}\n{script}")


def _actions(name: str) -> Actions:
    """The arguments of a command; none for a module that is not one."""
    module = import_module(f"{commands.__name__}.{name}")
    if not hasattr(module, "EXAMPLE"):
        return []
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _flags(actions: Actions) -> list[str]:
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def _values(command: str, actions: Actions) -> Iterator[str]:
    """Branches of the script: what may follow each option, and otherwise the positional arguments."""
    free = []
    for action in actions:
        if action.option_strings and action.nargs != 0:
            pattern = f'"{command} {action.option_strings[-1]}"'
            if words := _choices(action):
                yield f'{pattern}) words="{words}" ;;'
            else:
                free.append(pattern)
    if words := " ".join(_choices(action) for action in actions if not action.option_strings).strip():
        yield f"{'|'.join(free) or 'none'}) ;;"
        yield f'"{command} "*) words="{words}" ;;'


def _choices(action: argparse.Action) -> str:
    """The possible values of an argument; none if it is free, such as a file."""
    metavar = str(action.metavar)
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    return metavar.replace("|", " ") if "|" in metavar else PRESETS if "RECIPE" in metavar else ""


def _fish(actions: dict[str, Actions]) -> Iterator[str]:
    yield f'complete -c deepnmt -n __fish_use_subcommand -f -a "{" ".join(actions)}"'
    for name, listed in actions.items():
        here = f'complete -c deepnmt -n "__fish_seen_subcommand_from {name}"'
        for action in listed:
            words = f' -a "{choices}"' if (choices := _choices(action)) else ""
            for flag in _flags([action]):
                yield f"{here} -l {flag[2:]}{_takes(action)}{words}"
            if words and not action.option_strings:
                yield f"{here}{words}"


def _takes(action: argparse.Action) -> str:
    """No value, one of its choices alone, or any; fish also offers files for the last."""
    return "" if action.nargs == 0 else " -x" if _choices(action) not in ("", PRESETS) else " -r"
