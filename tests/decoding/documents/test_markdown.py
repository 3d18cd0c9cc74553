"""Markdown: the parser that knows it best finds the same blocks, links and code before and after."""

import re
import time
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pytest import mark
from translations import TRANSLATIONS, backwards, doubled, hypothesis, same, written

from deepnmt.decoding.documents.markdown import _inline, read_markdown

ROOT = Path(__file__).parents[3]
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shout(sentence):
    return hypothesis(sentence, sentence.upper().split(), range(len(sentence.split())))


def translated(text, translate):
    return written(read_markdown(text, "de"), translate)


@mark.parametrize(
    ("text", "expected"),
    [
        ("Turn on **the light** now.", "NOW. **LIGHT THE** ON TURN"),
        ("# A title #\n", "# TITLE A #\n"),
        ("Two words\n=====\n", "WORDS TWO\n=====\n"),
        ("> quoted text\n> goes on\n", "> ON GOES TEXT QUOTED\n"),
        ("- an item\n- [ ] a task\n  1. a third\n", "- ITEM AN\n- [ ] TASK A\n  1. THIRD A\n"),
        ("See [the docs](http://a.b/c_d 'x y') now", "NOW [DOCS THE](http://a.b/c_d 'Y X') SEE"),
        ("See [the docs][1] now\n\n[1]: http://a.b 'A title'", "NOW [DOCS THE][1] SEE\n\n[1]: http://a.b 'A title'"),
        ("See [Docs] and [not]\n\n[docs]: x", r"\[NOT\] AND [DOCS][Docs] SEE" "\n\n[docs]: x"),
        ("See [docs][] now\n\n[docs]: x", "NOW [DOCS][docs] SEE\n\n[docs]: x"),
        ("Run `make it` now", "NOW `make it` RUN"),
        ("an image ![alt text](x.png) here", "![TEXT ALT](x.png) HERE IMAGE AN"),
        ('![alt *text*](x.png "it\'s (a) \\"title\\"")', '![alt *text*](x.png "\\"TITLE\\" \\(A\\) IT\\\'S")'),
        (
            "![the ref] ![the ref][] ![a b][the ref]\n\n[the ref]: x",
            "![the ref] ![the ref][] ![B A][the ref]\n\n[the ref]: x",
        ),
        ("    code here\n\n```\nmore code\n```\n", "    code here\n\n```\nmore code\n```\n"),
        ("---\ntitle: x y\n---\na b\n", "---\ntitle: x y\n---\nB A\n"),
        ("| a b | c |\n|---|---|\n| `x` d | e |\n", "| B A | C |\n|---|---|\n| D `x` | E |\n"),
        ("one two  \nthree four\\\nfive six", "TWO ONE  \nFOUR THREE\\\nSIX FIVE"),
        ("a *b _c_* ~~d~~ __e__", "__E__ ~~D~~ *_C_ B* A"),
        ("snake_case 2 * 3 * 4", r"4 \* 3 \* 2 SNAKE_CASE"),
        (r"a \*b\* &amp; c", r"C & \*B\* A"),
        ("text <b>bold</b> and<br>a line", "AND <b>BOLD</b> TEXT<br>LINE A"),
        ("<div align=center>\n  <b>Hello</b> there\n</div>\n", "<div align=center>\n  THERE <b>HELLO</b>\n</div>\n"),
        ("see <http://a.b/c> and http://x.y/z_1.", "http://x.y/z_1. AND <http://a.b/c> SEE"),
        ("a note[^1]\n\n[^1]: the note", "NOTE A[^1]\n\n[^1]: NOTE THE"),
        ("> [!NOTE]\n> read this\n", "> [!NOTE]\n> THIS READ\n"),
        (":::tip\nread this\n:::\n", ":::tip\nTHIS READ\n:::\n"),
        ("[![a b](c)](d)\ne f", "[![B A](c)](d) F E"),
        ("first 1.", r"1\. FIRST"),
        ("stop! [here](x)", "[HERE](x) STOP!"),
        ("x -", "\\- X"),
        ("`a.b = c`, d `e`", "`a.b = c` `e` D ,"),
        ("run `-a\n--help=x` now please", "PLEASE NOW `-a\n--help=x` RUN"),
        ("a b <!-- c --> d e", "B A <!-- c --> E D"),
        ("* a b\n\n\tc d\n", "* B A\n\n\tD C\n"),
        ("> a <b>\n> </b> c", "> <b> </b> C A"),
        ("a <b> ~~</b> b~~ ~~c~~", "~~ ~~C~~ <b> ~~</b> B A"),
    ],
)
def test_text_is_translated_and_markup_stays(text, expected):
    assert translated(text, backwards) == expected
    assert translated(text.replace("\n", "\r\n"), backwards) == expected.replace("\n", "\r\n")


def test_paragraphs_are_wrapped_again_with_their_prefix():
    text = f"1. {'one ' * 15}three\n   four five six.\n\n> {'seven ' * 14}eight\n> nine ten\n"
    assert translated(text, backwards) == (
        f"1. SIX. FIVE FOUR THREE {'ONE ' * 12}ONE\n   ONE ONE\n\n"
        f"> TEN NINE EIGHT {'SEVEN ' * 11}SEVEN\n> SEVEN SEVEN\n"
    )


def test_lines_are_not_broken_inside_of_code_or_between_characters_of_chinese():
    def chinese(sentence):
        return hypothesis(sentence, ["一二三" if word == "one" else word for word in sentence.split()], range(80))

    result = translated("one one `'例'` two\n" * 20, chinese)
    assert result.replace("\n", " ") == "一二三 一二三 `'例'` two " * 20


def test_no_line_begins_a_block_by_accident():
    text = "word word word word 1. - + # > = word\nword word word\n"
    for width in range(8, 30):
        result = translated(text.replace("\nword", " " * (width % 3) + "\nword"), backwards)
        assert [token.type for token in PARSER.parse(result)] == ["paragraph_open", "inline", "paragraph_close"]


def kept(text):
    """What must be the same before and after: blocks, targets, code, images, raw HTML."""
    environment = {}
    found = Counter()
    for block in PARSER.parse(text, environment):
        if block.type == "inline":
            for token in block.children:
                if token.type in ("link_open", "image"):
                    has_title = token.attrGet("title") is not None
                    found[token.type, token.attrGet("href") or token.attrGet("src"), has_title] += 1
                elif token.type in ("code_inline", "html_inline"):
                    found[token.type, token.content.replace("\n", " ")] += 1
        else:
            content = block.content if block.type in ("fence", "code_block") else ""
            found[block.type, content, block.info, block.level] += 1
    return found, environment.get("references", {}).keys()


WORDS = ["one", "two", "Three", "four.", "`co de`", "![alt](i.png)", "http://u.v/w", "<b>", "</b>", "é", "a_b", "2"]
WORDS += ["\\*", "&lt;", "[ref]", "!"]
PAIRS = [("*", "*"), ("**", "**"), ("_", "_"), ("[", "](t.html)"), ("[", "](<a b> 'x')"), ("[", "][ref]"), ("~~", "~~")]
INLINE = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: st.tuples(st.sampled_from(PAIRS), st.lists(inner, min_size=1, max_size=3)).map(
        lambda pair: pair[0][0] + " ".join(pair[1]) + pair[0][1]
    ),
    max_leaves=8,
)
TEXT = st.lists(INLINE, min_size=1, max_size=8).map(" ".join)
PREFIX = st.sampled_from(["", "# ", "> ", "- ", "1. ", "- - ", "> 1. "])
BLOCK = st.one_of(
    st.tuples(PREFIX, TEXT).map("".join),
    st.tuples(TEXT, TEXT).map("\n".join),
    st.tuples(TEXT, TEXT).map("  \n".join),
    st.tuples(TEXT, TEXT).map(lambda pair: f"- {pair[0]}\n  {pair[1]}"),
    st.tuples(TEXT, TEXT).map(lambda pair: f"> {pair[0]}\n> {pair[1]}"),
    st.sampled_from(
        ["```\ncode\n```", "    indented", "***", "<div>\nhello *x*\n</div>", "| a | b |\n|---|---|\n| one two | `x` |"]
    ),
)
DOCUMENTS = st.lists(BLOCK, max_size=5).map(lambda blocks: "\n\n".join([*blocks, '[ref]: /r "T"\n']))
NOISE = st.one_of(st.text(max_size=80), st.text("*_`[]()!<>#-+|\\ \n\ta1.:~&", max_size=60))


@given(st.one_of(DOCUMENTS, NOISE))
def test_what_is_translated_as_itself_stays_as_it_was(text):
    assert translated(text, same) == text


@given(DOCUMENTS)
def test_blocks_links_images_and_code_stay_whatever_the_translation(text):
    for translate in (shout, backwards, doubled):
        result = translated(text, translate)
        assert kept(result) == kept(text)


@given(st.one_of(INLINE, NOISE))
def test_the_tokens_of_a_text_are_the_text(text):
    assert "".join(token.raw for token in _inline(text, frozenset())) == text


@mark.parametrize(
    "text",
    [
        "***a** b* c",
        "*a **b*** c",
        "***a* b** c",
        "**a *b*** c",
        "***a b*** c",
        "__a *b*__ c",
        "___a__ b_ c",
        "one *two **three*** four ***five** six*",
    ],
)
def test_emphasis_stays_where_its_delimiters_are_mixed(text):
    def emphasis(text):
        tokens = PARSER.parseInline(text)[0].children
        return Counter(token.type for token in tokens if token.nesting), "*" in "".join(t.content for t in tokens)

    for translate in (shout, backwards):
        assert emphasis(translated(text, translate)) == emphasis(text)


@given(NOISE)
def test_any_text_can_be_translated(text):
    for translate in TRANSLATIONS:
        translated(text, translate)


@mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_documentation_of_this_project(page):
    text = page.read_text(encoding="utf-8")
    assert translated(text, same) == text
    assert kept(translated(text, shout)) == kept(text)
    for target in re.findall(r"\]\([^)]*\)", text):
        assert target in translated(text, shout)
        break


@mark.parametrize("text", ["*a " * 10_000, "[" * 20_000, "[a](b" * 5_000, "a\n" * 10_000, "<" * 20_000, "`a" * 3_000])
def test_strange_texts_take_no_time(text):
    started = time.monotonic()
    assert translated(text, same) == text
    assert time.monotonic() - started < 10
