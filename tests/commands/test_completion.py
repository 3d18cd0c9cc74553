"""Tab completion: scripts generated from the parsers, run by a real shell."""

import re
import shutil
import subprocess

from pytest import fixture, mark

from deepnmt import cli
from deepnmt.config import preset_names

ASK = """set -u
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMPREPLY=()
_deepnmt
complete -p deepnmt > /dev/null && echo "${COMPREPLY[@]}"
"""


@fixture
def script(capsys, tmp_path):
    def write(shell):
        assert cli.main(["completion", shell]) == 0
        path = tmp_path / f"deepnmt.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return write


@fixture
def ask(script):
    """What bash offers after these words, the last of which is being typed."""
    path = script("bash")

    def offered(*words):
        asked = ["bash", "--norc", "-c", ASK, "bash", str(path), "deepnmt", *words]
        ended = subprocess.run(asked, capture_output=True, text=True, check=True)
        assert ended.stderr == ""
        return ended.stdout.split()

    return offered


@mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], ["train", "translate"]),
        (["train", "--re"], ["--resume"]),
        (["train", "en-de-pre-dlcl-3"], ["en-de-pre-dlcl-30l"]),
        (["train", "--resume", "en-de-pre-dlcl-3"], ["en-de-pre-dlcl-30l"]),
        (["train", "--data", "d"], []),  # a file, which bash completes itself
        (["translate", "m"], []),
        (["translate", "MODEL", "--precision", ""], ["fp32", "bf16", "fp16", "int8"]),
        (["inspect", "w"], ["weights"]),
        (["demo", "--recipe", "stud"], ["student"]),
        (["nonsense", "--"], []),
        (["reproduce", "--work"], []),  # a hidden option
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_completes(ask, words, expected):
    assert ask(*words) == expected


def test_every_command_option_and_preset_is_offered(ask):
    assert {*ask("")} == {*cli.COMMANDS, "--help", "--version"}
    assert {*ask("train", "")} == {*preset_names()}
    for name in cli.COMMANDS:
        parser = cli._parser(name)[0]
        known = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
        assert {*ask(name, "-")} == known - {"--worker"}


@mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_reads_its_script(script):
    command = f"source {script('zsh')} && whence _deepnmt"
    assert subprocess.run(["zsh", "-fc", command], capture_output=True, text=True, check=True).stdout == "_deepnmt\n"


@mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(script):
    command = f"source {script('fish')}; complete -C 'deepnmt translate M --precision i'"
    assert subprocess.run(["fish", "-Nc", command], capture_output=True, text=True, check=True).stdout == "int8\n"


def test_the_scripts_of_zsh_and_fish_have_every_option(script):
    for shell, pattern in (("zsh", r"--(?!help|version)[a-z-]+"), ("fish", r"(?<= -l )(?!help)[a-z-]+")):
        text = script(shell).read_text()
        assert {"tokens-per-update", "no-early-stop"} <= {flag.lstrip("-") for flag in re.findall(pattern, text)}
