"""The command `deepnmt`: help at once, refusals in one sentence, statuses that scripts can trust."""

import inspect
import platform
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from pytest import fixture, mark, raises

import deepnmt
from deepnmt import cli
from deepnmt.errors import InputError, RunError


@fixture
def command(monkeypatch):
    """Put a command `probe` with this `run` into the table."""

    def install(run):
        probe = SimpleNamespace(EXAMPLE="deepnmt probe", add_arguments=lambda parser: None, run=run)
        monkeypatch.setitem(cli.COMMANDS, "probe", "does what a test wants")
        monkeypatch.setitem(sys.modules, "deepnmt.commands.probe", probe)

    return install


def raising(error):
    def run(arguments):
        raise error

    return run


@mark.parametrize(
    ("message", "shown"),
    [
        ("hold_out = 5 is too much", "--hold-out 5 is too much"),
        ("beam = 0 must be at least 1", "--beam 0 must be at least 1"),
        ("beam must be at least 1, not 0", "--beam must be at least 1, not 0"),
        ("omit it, or valid_source", "omit it, or --valid-source"),
        ("decoding.beam = 0, training.hold_out", "decoding.beam = 0, training.hold_out"),
        ("in/valid_source.txt and old_hold_out", "in/valid_source.txt and old_hold_out"),
        (
            "the setting valid_source = 3 of the model, tag = true",
            "the setting valid_source = 3 of the model, tag = true",
        ),
        ("a beam of light and byte_fallback", "a beam of light and byte_fallback"),
        ("choose another `beam` or pass `tag=True`", "choose another --beam or pass --tag"),
    ],
)
def test_an_error_names_the_options_of_the_command(monkeypatch, capsys, message, shown):
    def add_arguments(parser):
        for option in ("--hold-out", "--beam", "--valid-source", "--tag"):
            parser.add_argument(option)
        parser.add_argument("--no-byte-fallback", dest="byte_fallback", action="store_false")

    probe = SimpleNamespace(EXAMPLE="", add_arguments=add_arguments, run=raising(InputError(message)))
    monkeypatch.setitem(cli.COMMANDS, "probe", "does what a test wants")
    monkeypatch.setitem(sys.modules, "deepnmt.commands.probe", probe)
    assert cli.main(["probe", "--hold-out", "5", "--beam", "0", "--tag", "x"]) == 2
    assert capsys.readouterr().err == f"deepnmt: {shown}\n"


@mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("train.de, line 3: empty"), 2, "deepnmt: train.de, line 3: empty\n"),
        (RunError("the loss is not finite"), 1, "deepnmt: the loss is not finite\n"),
        (KeyboardInterrupt(), 130, "deepnmt: interrupted\n"),
        (OSError(28, "No space left on device", "/x/y"), 1, "deepnmt: No space left on device: /x/y\n"),
        (OSError("odd"), 1, "deepnmt: odd\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_one_sentence_and_a_status(command, capsys, error, status, message):
    command(raising(error))
    assert cli.main(["probe"]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


def test_a_bug_is_not_dressed_up_as_a_refusal(command):
    command(raising(KeyError("bug")))
    with raises(KeyError):
        cli.main(["probe"])


@mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "unknown command nonsense"),
        (["trian"], "unknown command trian; did you mean train?"),
        (["inspect"], "the following arguments are required: WHAT, MODEL_OR_RECIPE"),
        (["inspect", "size", "en-de-pre-base", "--nonsense"], "unknown argument --nonsense"),
        (["train", "demo", "--data", "D", "--out", "R", "--threads", "2"], "unknown argument --threads (see"),
        (["translate", "MODEL", "--n-best", "3"], "unknown argument --n-best; did you mean --nbest?"),
    ],
)
def test_bad_usage_is_one_sentence_that_points_to_the_help(capsys, arguments, message):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"deepnmt: {message}")
    assert captured.err.endswith(" --help)\n")
    assert captured.err.count("\n") == 1


def test_help_lists_every_command_and_no_arguments_is_help(capsys):
    for arguments in ([], ["--help"]):
        with raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        out = capsys.readouterr().out
        for name, summary in cli.COMMANDS.items():
            assert f"  {name:<15}{summary}" in out


def test_version(capsys):
    with raises(SystemExit):
        cli.main(["--version"])
    version = f"deepnmt {deepnmt.__version__} (Python {platform.python_version()}, torch "
    assert capsys.readouterr().out.startswith(version)


@mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_fits_in_80_columns(monkeypatch, capsys, name):
    monkeypatch.setenv("COLUMNS", "80")
    with raises(SystemExit):
        cli.main([*name.split(), "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_its_own_example(capsys, name):
    with raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    example = import_module(f"deepnmt.commands.{name}").EXAMPLE
    assert f"example:\n  {example}" in out
    assert example.startswith(f"deepnmt {name}")


LIGHT = """
import sys
from importlib import import_module
from pkgutil import iter_modules
import deepnmt.commands
from deepnmt import cli
for module in iter_modules(deepnmt.commands.__path__):
    import_module(f"deepnmt.commands.{module.name}")
slow = {"torch", "sentencepiece", "sacrebleu", "sacremoses", "rich"}
assert not slow & set(sys.modules), f"importing deepnmt.cli or a command imports {slow & set(sys.modules)}"
sys.stdout = open("/dev/null", "w")
for name in cli.COMMANDS:
    try:
        cli.main([name, "--help"])
    except SystemExit:
        pass
    assert not slow & set(sys.modules), f"deepnmt {name} --help imports {slow & set(sys.modules)}"
"""


def test_help_does_not_wait_for_slow_imports():
    ended = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m deepnmt inspect size en-de-pre-base | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout.strip() in ("0", "141")


def test_output_is_utf_8_in_any_locale_and_a_closed_stream_is_no_error():
    script = "import sys; from deepnmt import cli; status = cli.main(['presets']); print('▁'); sys.exit(status)"
    for closed in (0, 1, 2):
        command = f'PYTHONIOENCODING=ascii {sys.executable} -c "$0" {closed}>&-'
        ended = subprocess.run(["bash", "-c", command, script], capture_output=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert ended.stdout.endswith("▁\n".encode()) or closed == 1


def test_python_m_deepnmt_is_the_command():
    ended = subprocess.run([sys.executable, "-m", "deepnmt", "nonsense"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("deepnmt: unknown command nonsense")


EARLY = """
import runpy, sys
class Importing:
    def find_spec(name, *_):
        if name == "deepnmt.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Importing)
runpy.run_module("deepnmt", run_name="__main__")
"""


def test_an_interruption_during_the_imports_is_no_traceback():
    ended = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "deepnmt: interrupted\n")


@mark.parametrize("words", ["presets", "inspect size demo", "train demo --data a --out b"])
def test_a_python_without_the_dependencies_is_one_sentence(words):
    command = [sys.executable, "-S", "-m", "deepnmt"]  # without site-packages
    environment = {"PYTHONPATH": str(Path(deepnmt.__file__).parents[1])}
    run = partial(subprocess.run, env=environment, capture_output=True, text=True, check=False)
    ended = run([*command, *words.split()])
    assert ended.returncode == 1
    assert re.fullmatch(r"deepnmt: \S+ lacks the package \w+; run `make install` or .+\n", ended.stderr)
    assert ", no torch, " in run([*command, "--version"]).stdout


def test_the_package_names_what_others_may_build_on():
    script = "import deepnmt as d; shown = {name for name in dir(d) if name[0] != '_'}; d.errors.InputError"
    script += "; assert shown == {'errors', *d.__all__}, shown"
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in deepnmt.__all__:
        assert callable(getattr(deepnmt, name))
        if inspect.isfunction(getattr(deepnmt, name)):
            signature = inspect.signature(getattr(deepnmt, name))
            assert [one for one in signature.parameters if one not in getattr(deepnmt, name).__doc__] == [], name
            assert signature.return_annotation is not signature.empty
            assert all(one.annotation is not one.empty for one in signature.parameters.values())
    for mistake in (
        lambda: deepnmt.export("MODEL", to="pmml"),
        lambda: deepnmt.convert("MODEL", "OUT", toolkit="other"),
        lambda: deepnmt.score([1], ["text"]),
        lambda: deepnmt.inspect_curves(),
    ):
        with raises(InputError):
            mistake()
    assert list(deepnmt.score(["a b"], ["a b"], target_lang="German", metrics="compound_bleu")) == ["compound_bleu"]
    with raises(AttributeError, match="module 'deepnmt' has no attribute 'nonsense'"):
        deepnmt.nonsense  # noqa: B018
