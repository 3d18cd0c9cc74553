"""docs/tutorial.md is true: its commands run in order, and print what the page shows below them."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import CLIENT, Process, fork_commands
from pytest import fixture, mark

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "8000"
LIMIT = 600  # seconds for the whole page, on a machine that is busy with other things
pytestmark = mark.timeout(LIMIT + 60)

CURL = f"""#!{sys.executable}
# Where there is no curl: as much of it as the tutorial uses.
import sys, time, urllib.request
url = next(word for word in sys.argv[1:] if word.startswith("http"))
body = sys.argv[sys.argv.index("-d") + 1].encode() if "-d" in sys.argv else None
tries = int(sys.argv[sys.argv.index("--retry") + 1]) if "--retry" in sys.argv else 0
while True:
    try:
        sys.stdout.buffer.write(urllib.request.urlopen(url, body).read())
        break
    except urllib.error.URLError:
        if tries <= 0:
            raise
        tries -= 1
        time.sleep(1)
"""


@dataclass(frozen=True)
class Step:
    """A block of commands, and the output that the page shows below it (None: an example, or nothing)."""

    commands: str
    shown: str | None


def steps_of(page: str) -> list[Step]:
    blocks = FENCED.findall(page)
    steps = []
    for (language, _, commands), (next_language, note, shown) in zip(blocks, [*blocks[1:], ("", "", "")], strict=True):
        if language == "sh":
            steps.append(Step(commands, shown if next_language == "text" and not note.strip() else None))
    return steps


STEPS = steps_of(PAGE)


@dataclass(frozen=True)
class Walk:
    folder: Path
    outputs: list[str]

    def output(self, command: str) -> str:
        """What the block printed in which this command stands."""
        (found,) = [number for number, step in enumerate(STEPS) if command in step.commands]
        return self.outputs[found]


@fixture(scope="module")
def walk(tmp_path_factory) -> Walk:
    """The whole page, once, in one shell as a reader would have it; a block that fails ends it."""
    folder, aside = tmp_path_factory.mktemp("tutorial"), tmp_path_factory.mktemp("aside")
    load_corpus().write(folder)
    logs = [aside / f"{number}.txt" for number in range(len(STEPS))]
    port = str(free_port())
    script = "set -e\n" + "".join(
        f"exec > {shlex.quote(str(log))} 2>&1\n{step.commands.replace(PORT, port)}"
        for step, log in zip(STEPS, logs, strict=True)
    )
    with (
        tempfile.TemporaryDirectory(prefix="deepnmt-", dir="/tmp") as short,  # the address of a socket must be short
        Process(fork_commands, [address := f"{short}/socket"], CUDA_VISIBLE_DEVICES="") as server,
    ):
        while not Path(address).exists():
            assert server.status is None, server.output
            time.sleep(0.05)
        # Standard output of the shell is a file: one process cannot hold up the test by keeping a pipe open.
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment(aside, address),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=LIMIT)
        finally:
            kill_group(process.pid)
            kill_group(server.pid)
            process.wait()
    outputs = [log.read_text(encoding="utf-8") for log in logs if log.exists()]
    assert status == 0, f"this block failed:\n{STEPS[len(outputs) - 1].commands}\nwith\n{outputs[-1]}"
    return Walk(folder, outputs)


def load_corpus():
    spec = importlib.util.spec_from_file_location("tutorial_corpus", ROOT / "docs" / "tutorial_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(aside: Path, address: str) -> dict[str, str]:
    """This interpreter's deepnmt first on the path, from wherever it is installed."""
    tools = aside / "bin"
    tools.mkdir()
    write_tool(tools / "deepnmt", CLIENT.format(python=sys.executable, address=address))
    if shutil.which("curl") is None:
        write_tool(tools / "curl", CURL)
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "no_proxy": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "",
        "LC_ALL": "C.UTF-8",
    }


def write_tool(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def pattern_of(line: str) -> str:
    """A line as the page shows it: any number fits any other, any space any other, and … fits anything."""
    patterns = {"…": ".*"}
    number, space = r"[+-]?\d[\d,.:e+-]*", r"\s+"
    parts = re.split(rf"({number}|{space}|…)", line.strip())
    return "".join(
        patterns.get(part)
        or (number if re.fullmatch(number, part) else space if re.fullmatch(space, part) else re.escape(part))
        for part in parts
    )


@mark.parametrize("number", [number for number, step in enumerate(STEPS) if step.shown])
def test_a_command_prints_what_the_page_shows_below_it(walk, number):
    printed = walk.outputs[number]
    for line in STEPS[number].shown.splitlines():
        assert re.search(rf"^\s*{pattern_of(line)}\s*$", printed, re.MULTILINE), f"{line}\nis not in\n{printed}"


def test_the_stopped_run_goes_on_where_it_was_and_ends(walk):
    stopped = re.search(r"stopped after step (\d+) and saved a checkpoint", walk.output("--out run &"))
    assert 50 <= int(stopped[1]) < 250
    lines = [json.loads(line) for line in (walk.folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [50, 100, 150, 200, 250]
    assert "step 50/250" not in walk.output("--resume"), "steps that were saved are not taken again"


def test_the_models_of_the_tutorial_have_learned_to_translate(walk):
    for command in ("deepnmt evaluate averaged", "deepnmt evaluate run-more/model"):
        bleu = re.search(r"^BLEU +([\d.]+) +BLEU\|nrefs:1\|case:mixed", walk.output(command), re.MULTILINE)
        assert float(bleu[1]) > 60, command
    text = (walk.folder / "test.out.de").read_text(encoding="utf-8").splitlines()
    reference = (walk.folder / "test.de").read_text(encoding="utf-8").splitlines()
    assert sum(a == b for a, b in zip(text, reference, strict=True)) > 50


def test_the_best_three_translations_differ_and_come_best_first(walk):
    lines = [line.split("\t") for line in walk.output("--nbest 3").splitlines() if line.count("\t") == 2]
    scores, texts = [float(score) for _, score, _ in lines], [text for _, _, text in lines]
    assert [number for number, _, _ in lines] == ["1", "1", "1"]
    assert scores == sorted(scores, reverse=True)
    assert len(set(texts)) == 3


def test_alignment_links_name_words_of_both_sides(walk):
    (line,) = [line for line in walk.output("--alignments").splitlines() if "\t" in line]
    text, links = line.split("\t")
    source = (walk.folder / "test.en").read_text(encoding="utf-8").splitlines()[0]
    for a, b in (link.split("-") for link in links.split()):
        assert int(a) < len(source.split())
        assert int(b) < len(text.split())


def test_the_server_answers_both_sentences(walk):
    (answer,) = [line for line in walk.output("deepnmt serve").splitlines() if line.startswith('{"model"')]
    (translation,) = json.loads(answer)["translations"]
    assert [sentence["source"] for sentence in translation["sentences"]] == [
        "The doctor sees the clock.",
        "The lamp is bright.",
    ]
    assert all(sentence["text"].strip() for sentence in translation["sentences"])


def test_back_translation_pairs_genuine_german_with_synthetic_english(walk):
    english = (walk.folder / "back.en").read_text(encoding="utf-8").splitlines()
    german = (walk.folder / "back.de").read_text(encoding="utf-8").splitlines()
    mono = (walk.folder / "mono.de").read_text(encoding="utf-8").splitlines()
    assert len(english) == len(german) > 900
    assert set(german) <= set(mono)


def test_the_weights_page_loads_nothing(walk):
    page = (walk.folder / "weights.html").read_text(encoding="utf-8")
    assert "<svg" in page or "<table" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"']https?:", page)


def test_the_corpus_of_the_page_keeps_its_parts_apart(tmp_path):
    load_corpus().write(tmp_path)
    english = {name: set((tmp_path / f"{name}.en").read_text().splitlines()) for name in ("train", "valid", "test")}
    assert not english["train"] & english["valid"]
    assert not english["train"] & english["test"]
    assert not english["valid"] & english["test"]


def test_a_shown_number_fits_any_number_and_nothing_else():
    assert re.fullmatch(pattern_of("BLEU  99.1  …|x"), "BLEU 7 and so on|x")
    assert not re.fullmatch(pattern_of("BLEU  99.1"), "BLEU none")
    assert not re.fullmatch(pattern_of("total 3"), "sum 3")
