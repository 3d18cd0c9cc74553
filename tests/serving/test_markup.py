"""HTML in, the same HTML out, with other words in it: every tag once, balanced, attributes untouched."""

import re
from collections import Counter
from html import unescape

import numpy as np
from asking import post, service, shouting_app
from hypothesis import given
from hypothesis import strategies as st
from pytest import mark

from deepnmt.decoding.alignment import Alignment, word_spans
from deepnmt.decoding.translator import Hypothesis
from deepnmt.serving.html_tokens import _Tokens
from deepnmt.serving.markup import MarkupText


def hypothesis(text, target_words, links):
    """A translation whose words look at one source word each."""
    words = text.split()
    alignment = Alignment(words, target_words, np.eye(len(words), dtype=np.float32)[list(links)])
    return Hypothesis(" ".join(target_words), 0.0, 0.0, [], alignment)


def same(text):
    return Hypothesis(text, 0.0, 0.0, [])


def backwards(text):
    """The words in capitals, the last one first."""
    words = text.split()
    return hypothesis(text, [word.upper() for word in reversed(words)], range(len(words) - 1, -1, -1))


def doubled(text):
    """Every word twice, at both ends of the sentence."""
    words = [word.lower() for word in text.split()]
    return hypothesis(text, [*words, *words], [*range(len(words)), *range(len(words))])


def silent(text):
    return hypothesis(text, [], [])


TRANSLATIONS = [same, backwards, doubled, silent]


def translated(document, translate, language="de"):
    text = MarkupText(document)
    return text.written([translate(sentence) for sentence, _ in text.sentences], language)


@mark.parametrize(
    ("document", "expected"),
    [
        ("<p>Turn on <b>the light</b> now.</p>", "<p>NOW. <b>LIGHT THE</b> ON TURN</p>"),
        ("<p>Turn on <b>the light</b>.</p>", "<p><b>LIGHT. THE</b> ON TURN</p>"),
        ('<a href="x" title="a > b">One</a> two', 'TWO <a href="x" title="a > b">ONE</a>'),
        ("<i>big <b>old</b></i> house", "HOUSE <i><b>OLD</b> BIG</i>"),
        ("One two.<br>Three four.", "TWO. ONE<br>FOUR. THREE"),
        ("a &amp; b &lt; c", "C &lt; B &amp; A"),
        ("1 < 2", "2 &lt; 1"),
        ("x <!-- no > no -->y z", "Z <!-- no > no -->Y X"),
        ("one <img src=a alt='>'>two", "<img src=a alt='>'>TWO ONE"),
        ("go<script>if (a<b) {}</script>on", "GO<script>if (a<b) {}</script>ON"),
        ("run <Code>make it</CODE> now", "NOW <Code>make it</CODE> RUN"),
        ("run <code title='a > b'>make it</code> now", "NOW <code title='a > b'>make it</code> RUN"),
        ("<pre>let it be", "<pre>let it be"),
        ("<div>a b <pre>let it</div>c d", "<div>B A <pre>let it</div>D C"),
        ('call <span translate="no">Big Ben</span> now', 'NOW <span translate="no">Big Ben</span> CALL'),
        ('<p class="x notranslate">a <b>b</b></p>c d', '<p class="x notranslate">a <b>b</b></p>D C'),
        ("<b>a <i>b</b> c</i> d e", "<b>A <i>B</b> C</i> E D"),
        ("a <b>b c", "A <b>C B"),
        ("a</b> b c", "A</b> C B"),
        ("One. <b>Two. Three</b> four.", "ONE. <b>TWO. THREE</b> FOUR."),
        ("a <i>One. <b>Two. Three</b> four.</i> b", "A <i>ONE. <b>TWO. THREE</b> FOUR.</i> B"),
        ("Say: <i>one two. Three four.</i>", "SAY: <i>TWO. ONE FOUR. THREE</i>"),
        ("H<sub>2</sub>O is wet", "WET IS H<sub>2</sub>O"),
        ("a<sup>2</sup> <b>2</b>", "<b>2</b> A<sup>2</sup>"),
        ("<p>\n  Turn it\n  on.\n</p>", "<p>\n  ON. IT TURN </p>"),
        ("<precious>gem</precious> a", "A <precious>GEM</precious>"),
        ("a<b", "A&lt;B"),
        ("", ""),
    ],
)
def test_tags_follow_their_words(document, expected):
    assert translated(document, backwards) == expected


def test_the_stop_after_an_element_stays_outside_of_it():
    def german(text):
        return hypothesis(text, ["Schalte", "das", "Licht", "ein."], [0, 2, 3, 1])

    assert translated("Turn on <b>the light</b>.", german) == "Schalte <b>das Licht</b> ein."

    def at_the_end(text):
        return hypothesis(text, ["Ein", "ist", "das", "Licht."], [1, 0, 2, 3])

    assert translated("Turn on <b>the light</b>.", at_the_end) == "Ein ist <b>das Licht</b>."


WORDS = st.sampled_from(["one", "two.", "Three", "a &amp; b", "&lt;", "x!", "Und. So", "日本。語", "é", "  ", "\n"])
OPENINGS = ["b", 'a href="x>y"', "i class='&amp;'", "span", "P", "div", "code", "em translate=no", "li", "sub"]
MARKS = ["<br>", "<!-- a > b -->", "<img src='>'>", "<wbr/>", "<hr />"]


def element(inside):
    return st.tuples(st.sampled_from(OPENINGS), inside).map(
        lambda pair: f"<{pair[0]}>{' '.join(pair[1])}</{pair[0].split()[0]}>"
    )


BALANCED = st.recursive(
    st.one_of(WORDS, st.sampled_from(MARKS)), lambda inner: element(st.lists(inner, max_size=4)), max_leaves=12
)
DOCUMENTS = st.lists(BALANCED, max_size=6).map(" ".join)
PIECES = [*MARKS, "<b>", "</b>", "<P x='>'>", "</p>", "<pre>", "</pre>", "<script>", "</script>", "<!--", "<![CDATA["]
PIECES += ["-->", "</>", "<", ">", "&", "&amp", "a b", " c. D ", "<?x?>", "<!doctype html>", "<i/>", "</", '<a "', "\n"]
ANY_DOCUMENT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
TAG = re.compile(r"""<!--.*?-->|<(?:[^<>"']|"[^"]*"|'[^']*')*>""")


def tags(document):
    return TAG.findall(document)


def text_of(document):
    return re.sub(r"\s+", "", unescape(TAG.sub(" ", document)))


def is_balanced(document):
    stack = []
    for tag in tags(document):
        name = re.match(r"</?([a-z]*)", tag, re.IGNORECASE)[1].lower()
        if tag.startswith("</"):
            if not stack or stack.pop() != name:
                return False
        elif name and name not in ("br", "img", "wbr", "hr"):
            stack.append(name)
    return not stack


@given(DOCUMENTS)
def test_every_tag_comes_out_once_untouched_and_balanced(document):
    assert is_balanced(document)
    for translate in TRANSLATIONS:
        for language in ("de", "zh"):
            result = translated(document, translate, language)
            assert Counter(tags(result)) == Counter(tags(document))
            assert is_balanced(result)


def test_hundreds_of_tags_in_one_sentence_are_placed_in_proportion():
    document = "".join(f"<b>word{i % 10}</b> " for i in range(80)) + "<i>" * 20 + "end" + "</i>" * 20
    for translate in TRANSLATIONS:
        result = translated(document, translate)
        assert Counter(tags(result)) == Counter(tags(document))
        assert is_balanced(result)


@given(DOCUMENTS)
def test_what_is_translated_as_itself_stays_as_it_was(document):
    result = translated(document, same)
    assert tags(result) == tags(document)
    assert text_of(result) == text_of(document)


@given(ANY_DOCUMENT)
def test_invalid_html_loses_no_markup(document):
    """Whatever the parser takes for markup is in the answer, as it was."""
    assert "".join(token.raw for token in _Tokens(document).tokens) == document
    markup = "".join(token.raw for token in _Tokens(document).tokens if token.kind != "text")
    for translate in TRANSLATIONS:
        result = translated(document, translate)
        left = Counter(result)
        left.subtract(Counter(re.sub(r"[ \t\n\r\f]", "", markup)))
        assert min(left.values(), default=0) >= 0
    assert text_of(translated(document, same)) == text_of(document) or "<" in document


@given(st.text(" ab.", max_size=20), st.lists(st.sampled_from(["a", "b", ".", "", "ab"]), max_size=6))
def test_word_spans_are_in_order_and_say_the_words(text, words):
    spans = word_spans(text, words)
    assert all(text[start:end] in (word, "") for (start, end), word in zip(spans, words, strict=True))
    assert [place for span in spans for place in span] == sorted(place for span in spans for place in span)


def test_only_sentences_with_tags_inside_are_asked_for_alignments():
    app = shouting_app()
    fields = {"q": "<p>Hello there.</p> <p>Turn <b>it</b> on.</p>", "target": "de", "format": "html", "alternatives": 1}
    answer = post(app, fields).json()
    assert answer["translatedText"] == "<p>HELLO THERE.</p> <p>TURN <b>IT</b> ON.</p>"
    assert answer["alternatives"] == ["<p>HELLO THERE.!</p> <p>TURN <b>IT</b> ON.!</p>"]
    assert sorted(texts for texts, _ in service(app).models[0].translator.calls) == [["Hello there."], ["Turn it on."]]
