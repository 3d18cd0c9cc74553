"""Rubbish in, a valid answer or a refusal out: never an error of the server, never a crash."""

import json
import string

from asking import ask, post, service, shouting_app
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import fixture, mark

from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import load_models
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.server import create_app

REFUSED = {400, 404, 405, 413, 415, 422}
FIELDS = [
    "text", "q", "model", "source", "target", "beam", "nbest", "length_penalty", "alignments", "stream", "format",
    "alternatives", "terms",
]  # fmt: skip
KINDS = [
    "", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain",
    "multipart/form-data", 'multipart/mixed; boundary="', "application/json; charset=utf-16", "image/png", ";;;",
]  # fmt: skip
# Any character at all: halves of characters, NUL, both directions, no width, line breaks of every kind.
CHARACTERS = st.one_of(
    st.characters(exclude_categories=()),
    st.sampled_from("\x00\ud800\udfff\u200b\u200e\u202e\ufeff\u2028\x85\r\n\t .!?…。<>&{}\"'אم"),
)
TEXT = st.text(CHARACTERS, max_size=80)
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(-2, 20))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
fuzzed = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fixture(scope="module")
def app():
    return shouting_app("en-de", "de-en", batch_wait=0.0, max_characters=5_000, max_texts=20)


def check(answer):
    """It is one of ours, whole and readable."""
    assert answer.status == 200 or answer.status in REFUSED, answer
    if answer.headers["content-type"] == "application/x-ndjson":
        assert answer.lines()[-1] == {"done": True}
    elif answer.status == 200:
        assert "translations" in answer.json() or "translatedText" in answer.json()
    else:
        assert list(answer.json()) == ["error"]
        assert answer.json()["error"]
    return answer


@fuzzed
@given(st.binary(max_size=400), st.sampled_from(KINDS), st.integers(1, 5))
def test_any_bytes_as_any_kind(app, body, kind, pieces):
    check(ask(app, "POST", "/translate", body, {"content-type": kind}, pieces=pieces))


@fuzzed
@given(st.text(string.printable, max_size=60), st.text(string.printable, max_size=200))
def test_any_kind_of_form(app, kind, body):
    kind = kind.replace("\n", "").replace("\r", "")
    for start in ("multipart/form-data; boundary=", "application/x-www-form-urlencoded; "):
        check(ask(app, "POST", "/translate", body.encode(), {"content-type": start + kind}))


@fuzzed
@given(VALUES)
def test_any_json(app, value):
    check(post(app, value if isinstance(value, dict) else {"text": value}))
    check(ask(app, "POST", "/translate", json.dumps(value).encode()))


@fuzzed
@given(
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(VALUES, NUMBERS, st.sampled_from(["en", "de", "html", "auto"])))
)
def test_the_right_fields_with_any_values(app, fields):
    check(post(app, fields))


@fuzzed
@given(st.one_of(TEXT, st.lists(TEXT, max_size=6)), st.booleans())
def test_any_text_is_answered(app, text, stream):
    answer = check(post(app, {"text": text, "stream": stream, "nbest": 2, "alignments": True}))
    assert answer.status == 200
    if not stream:
        texts = [text] if isinstance(text, str) else text
        assert len(answer.json()["translations"]) == len(texts)


@fixture(scope="module")
def phrase_app(phrase_folder):
    limits, metrics = Limits(batch_wait=0.0), Metrics()
    models = load_models([str(phrase_folder)], "cpu", "fp32", limits, metrics)
    yield create_app(models, limits, metrics)
    models.close()


WORDS = st.one_of(st.sampled_from(["the", "house", "is old", "İ", "ß", "SS", "ﬁ", "{name}", "<unk>", "。"]), TEXT)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(st.tuples(WORDS, WORDS), max_size=4), st.integers(1, 3))
def test_any_terms_of_a_real_model(phrase_app, words, terms, beam):
    """Some from the text, so that they are looked for and found."""
    terms += [(words[0], "Garten"), ("house", words[-1])]
    check(post(phrase_app, {"text": " ".join(words), "terms": terms, "beam": beam, "alignments": beam == 2}))


@fuzzed
@given(st.one_of(TEXT, st.lists(TEXT, max_size=6)), st.sampled_from(["text", "html"]))
def test_any_text_is_answered_to_libretranslates_clients(app, text, form):
    answer = check(post(app, {"q": text, "source": "en", "target": "de", "format": form}))
    assert answer.status == 200
    assert isinstance(answer.json()["translatedText"], str) == isinstance(text, str)


@fuzzed
@given(st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "X"]), st.text(max_size=30))
def test_any_path(app, method, path):
    path = path.replace("?", "").replace("#", "")
    for start in ("/", "/models/", "/page/", "/page/../../", "/translate/"):
        answer = ask(app, method, start + path.encode("utf-8", "replace").decode())
        assert answer.status < 500


@mark.parametrize(
    ("body", "status"),
    [
        (json.dumps({"text": "x" * 10_000_000}).encode(), 413),
        (b"\x00" * 10_000_000, 413),
        (json.dumps({"text": ["\n"] * 5_000}).encode(), 413),
        (json.dumps({"text": "\n" * 90_000}).encode(), 413),
        (json.dumps({"text": "\n" * 4_900}).encode(), 200),
        (b'{"text": "\\ud800"}', 200),
        (b'{"text": "\\u0000"}', 200),
        (b'{"text": "a", "text": "b"}', 200),
        (b'{"text": "a", "beam": 1e400}', 422),
        (b'{"text": "a", "beam": -0}', 422),
        (b'\xef\xbb\xbf{"text": "with a mark of byte order"}', 200),
        (b'{"text":' * 60_000, 413),
        (b'{"text":' * 10_000, 400),
    ],
    ids=range(13),
)
def test_known_invalid_bodies(app, body, status):
    assert check(ask(app, "POST", "/translate", body, pieces=50)).status == status


def test_after_all_that_nothing_is_left_behind(app):
    assert (service(app).requests, service(app).characters) == (0, 0)
    assert service(app).models[0].queue.depth == 0
    assert post(app, {"text": "still here"}).json()["translations"][0]["text"] == "STILL HERE"
