"""HTML in, the same HTML out, with other words between its tags."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import mark

from deepnmt.serving.markup import split_markup, texts_of, with_texts

PIECES = ["<p>", "</p>", "<", ">", "<!--", "-->", "<script>", "</script>", "a", " &amp; ", "<br/>", "<PRE x='>'>", "</"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_end_to_end_the_parts_are_the_document(document):
    assert "".join(part for _, part in split_markup(document)) == document


def shouted(document):
    parts = split_markup(document)
    return with_texts(parts, [text.upper() for text in texts_of(parts)])


@mark.parametrize(
    ("document", "expected"),
    [
        ('<p class="green">Hello!</p>', '<p class="green">HELLO!</p>'),
        ("a &amp; b &lt; c", "A &amp; B &lt; C"),
        ("1 < 2", "1 &lt; 2"),
        ("x<!-- no > no -->y", "X<!-- no > no -->Y"),
        ("x<script>if (a<b) {}</script>y", "X<script>if (a<b) {}</script>Y"),
        ("x<Code>let</CODE>y", "X<Code>let</CODE>Y"),
        ("<precious>gem</precious>", "<precious>GEM</precious>"),
        ("a<b", "A&lt;B"),
        ("", ""),
    ],
)
def test_only_what_is_between_tags_is_translated(document, expected):
    assert shouted(document) == expected


@mark.parametrize("document", ["<" * 100_000, "<!--" * 25_000, "<script>" * 12_000, "<a>" * 33_000])
def test_strange_documents_take_no_time(document):
    assert "".join(part for _, part in split_markup(document)) == document
