"""Documents through `deepnmt translate` and from Python, with a model that has learned to reverse digits."""

import gzip
import io
import sys
from pathlib import Path

import pytest
from digits import reversed_digits

import deepnmt
from deepnmt.cli import main
from deepnmt.decoding import jobs
from deepnmt.decoding.documents.formats import ENDINGS, FORMATS, READERS, format_of, read_document
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError

(SOURCE, TARGET), (SECOND, SECOND_TARGET) = reversed_digits(2, seed=5)
CUE = "1\n00:00:01,000 --> 00:00:02,000\n"
DOCUMENTS = {
    "html": ("<p class='x'>{}</p>\n<pre>neun</pre>", "a.html"),
    "markdown": ("---\nx: y\n---\n# {}\n\n```\nneun\n```\n", "a.md"),
    "po": ('#: a.c\n{fuzzy}msgid "' + SOURCE + '"\nmsgstr "{}"\n', "a.po"),
    "srt": (CUE + "{}\n", "a.SRT"),
    "text": ("  {}\n\nneun", "a.txt"),
    "vtt": ("WEBVTT\n\n" + CUE.replace(",", ".") + "<i>{}</i>\n", "a.vtt"),
    "xliff": ("", "a.xlf"),
}


def source_and_target(kind):
    pattern, name = DOCUMENTS[kind]
    if kind == "xliff":
        before, after = (f'<xliff version="2.0"{more}><segment' for more in ("", ' trgLang="en"'))
        source = f"><source>{SOURCE}</source>"
        return (
            f"{before}{source}</segment></xliff>",
            f'{after} state="translated"{source}<target>{TARGET}</target></segment></xliff>',
            name,
        )
    if kind == "po":
        return pattern.format("", fuzzy=""), pattern.format(TARGET, fuzzy="#, fuzzy\n"), name
    return pattern.format(SOURCE), pattern.format(TARGET), name


def run(*arguments) -> int:
    return main([*map(str, ("translate", *arguments)), "--threads", "1"])


@pytest.fixture
def feed(monkeypatch):
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_every_format_is_tried_here():
    assert DOCUMENTS.keys() == READERS.keys()
    assert {*ENDINGS.values()} < {*FORMATS}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_files_pipes_and_python_say_the_same(digits_model, tmp_path, feed, capsysbinary, kind):
    source, target, name = source_and_target(kind)
    mark = "\ufeff"
    (tmp_path / name).write_text(mark + source, encoding="utf-8", newline="")
    chosen = ["--format", kind] if kind == "text" else []
    assert run(digits_model, "--input", tmp_path / name, "--output", tmp_path / "new" / name, *chosen) == 0
    assert (tmp_path / "new" / name).read_bytes().decode() == mark + target
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]
    assert b"sentences" in capsysbinary.readouterr().err
    feed(source.encode())
    assert run(digits_model, "--format", kind) == 0
    assert capsysbinary.readouterr().out.decode() == target
    assert deepnmt.translate_document(Translator(digits_model), source, kind) == target


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("text", ["", "\n", "\ufeff"])
def test_an_empty_document_stays_empty(digits_model, feed, capsysbinary, kind, text):
    text = {"vtt": "WEBVTT", "xliff": '<xliff version="1.2"/>'}.get(kind, text)
    feed(text.encode())
    assert run(digits_model, "--format", kind) == 0
    assert capsysbinary.readouterr().out.decode() == text


def test_compressed_documents_and_terms(digits_model, tmp_path):
    page, terms = tmp_path / "a.html.gz", tmp_path / "terms.tsv"
    page.write_bytes(gzip.compress(f"<b>{SOURCE}</b>".encode()))
    word = SOURCE.split()[0]
    terms.write_text(f"{word}\tnull null\n", encoding="utf-8")
    assert deepnmt.translate_file(digits_model, page, tmp_path / "out.html", terms=terms, device="cpu") == 1
    assert "null null" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_each_sentence_is_translated_once_and_only_words_are(digits_model, monkeypatch):
    seen = []
    original = Translator.translate_nbest

    def counted(self, texts, **settings):
        seen.append((list(texts), settings["alignments"]))
        return original(self, texts, **settings)

    monkeypatch.setattr(Translator, "translate_nbest", counted)
    page = f"<p>{SOURCE}</p><p>{SOURCE}</p><p>* * *</p><p>{SECOND.replace(' ', ' <b>', 1)}</b></p>"
    result = deepnmt.translate_document(Translator(digits_model), page, "html")
    assert seen == [([SOURCE], False), ([SECOND], True)]
    assert result.count(TARGET) == 2
    assert "<p>* * *</p>" in result


@pytest.mark.parametrize("stopped", range(1, 5))
def test_an_interrupted_document_is_resumed(digits_model, tmp_path, monkeypatch, capsys, stopped):
    """After any chunk, of sentences with and without tags; the result is that of one go."""
    texts = [source for source, _ in reversed_digits(4, seed=9)]
    tagged = [text.replace(" ", " <b>", 1) + "</b>" for text in texts[2:]]
    page, out = tmp_path / "a.html", tmp_path / "b.html"
    page.write_text("\n".join(f"<p>{text}</p>" for text in [*texts[:2], *tagged]))
    expected = deepnmt.translate_document(Translator(digits_model, device="cpu"), page.read_text(), "html")
    monkeypatch.setitem(jobs.CHUNK_LINES, "cpu", 1)
    original, calls, most = Translator.translate_nbest, [], stopped

    def interrupted(self, texts, **settings):
        if len(calls) == most:
            raise KeyboardInterrupt
        calls.append(texts)
        return original(self, texts, **settings)

    monkeypatch.setattr(Translator, "translate_nbest", interrupted)
    if stopped < 4:
        with pytest.raises(KeyboardInterrupt):
            deepnmt.translate_file(digits_model, page, out, device="cpu")
        assert not out.exists()
        most = 4
    assert deepnmt.translate_file(digits_model, page, out, device="cpu") == 4
    assert out.read_text() == expected
    assert sorted(map(tuple, calls)) == sorted((text,) for text in texts)  # each of them once
    said = f"deepnmt: resuming: {stopped} of 4 sentences of {page} are translated\n"
    assert (said in capsys.readouterr().err) == (stopped < 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_lines_stay_lines_unless_the_ending_says_otherwise():
    for name in ("a.txt", "a.en", "html", "a.po.txt"):
        assert format_of(Path(name)) == "lines"
    assert format_of(None) == "lines"


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.po", b'msgid "a"\n', [], "a.po, line 1: the message has no msgstr"),
        ("a.srt", b"hello\n", [], "a.srt, line 1: expected the number and the times"),
        ("a.vtt", b"hello\n", [], "a.vtt, line 1: the file does not begin with WEBVTT"),
        (
            "a.html",
            b"ok\n<p>\xe9</p>",
            [],
            "a.html, line 2: not valid UTF-8 at byte 4; convert the file to UTF-8 first",
        ),
        ("a.md", "a b".encode("utf-16"), [], "a.md is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"),
        ("a.md", bytes(100), [], "a.md is a binary file, not text"),
        ("a.html", b"a", ["--nbest", "2"], "n-best lists are for lines of text, not for html"),
        ("a.html", b"a", ["--json"], "JSON lines are for lines of text"),
        ("a.html", b"a", ["--chunk", "2"], "chunks are for lines of text"),
        ("a.txt", b"a", ["--format", "pdf"], "invalid choice: 'pdf'"),
    ],
)
def test_refusals_are_one_sentence_and_write_nothing(digits_model, tmp_path, capsys, name, content, options, message):
    (tmp_path / name).write_bytes(content)
    assert run(digits_model, "--input", tmp_path / name, "--output", tmp_path / "out", *options) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_python_refuses_an_unknown_format(digits_model):
    with pytest.raises(InputError, match=r"unknown format 'hmtl'; choose from .*; did you mean html"):
        read_document("a", "hmtl", "de")
    with pytest.raises(InputError, match=r"unknown format 'mardown'; choose from .*; did you mean markdown"):
        deepnmt.translate_file(digits_model, file_format="mardown")


def test_an_interrupted_job_leaves_nothing(digits_model, tmp_path, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    (tmp_path / "a.html").write_text(SOURCE)
    monkeypatch.setattr(Translator, "translate_nbest", interrupted)
    assert run(digits_model, "--input", tmp_path / "a.html", "--output", tmp_path / "out.html") == 130
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
