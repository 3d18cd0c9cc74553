"""The server as its clients meet it: answers, streams, limits and refusals."""

import asyncio
import json
import re
import sys
from functools import cache
from types import SimpleNamespace
from urllib.parse import urlencode

from asking import Shouter, ask, asking, post, service, shouting_app
from phrasebook import phrase_tokenizers
from pytest import fixture, mark

from deepnmt.decoding.glossary import Glossary
from deepnmt.decoding.placeholders import lacks_placeholders
from deepnmt.decoding.term_search import TermBeams
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.serving import libretranslate
from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import _languages, load_models
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.server import PAGE, create_app
from deepnmt.serving.service import WINDOW
from deepnmt.serving.terms import TermsFile


@fixture
def app():
    return shouting_app()


def shouter(app):
    return service(app).models[0].translator


# -- translating


def test_one_text(app):
    answer = post(app, {"text": "Hello there."})
    assert answer.status == 200
    assert answer.json() == {
        "model": "en-de",
        "source": "en",
        "target": "de",
        "translations": [
            {
                "text": "HELLO THERE.",
                "sentences": [{"source": "Hello there.", "text": "HELLO THERE.", "score": -1.0, "gap": ""}],
            }
        ],
    }


def test_many_texts_keep_their_order_and_layout(app):
    texts = ["One. Two.\n\n  Three.\n", "", " \n", "four", "* * *\r\n- five"]
    answer = post(app, {"text": texts}).json()
    assert [translation["text"] for translation in answer["translations"]] == [text.upper() for text in texts]
    assert [len(translation["sentences"]) for translation in answer["translations"]] == [3, 0, 0, 1, 2]


def test_what_has_no_letters_is_not_the_models_business(app):
    assert (
        post(app, {"text": "-- 。\n…\n🙂\n\x00\u200b"}).json()["translations"][0]["text"] == "-- 。\n…\n🙂\n\x00\u200b"
    )
    assert shouter(app).calls == []


@mark.parametrize(
    ("pair", "text", "expected"),
    [("en-zh", "One. Two.\nThree.", "ONE.TWO.\nTHREE."), ("zh-en", "一。二。\n三。", "一。 二。\n三。")],
)
def test_sentences_stand_apart_as_the_target_language_has_it(pair, text, expected):
    assert post(shouting_app(pair), {"text": text}).json()["translations"][0]["text"] == expected


def test_options_reach_the_model(app):
    answer = post(app, {"text": "a b", "beam": 6, "length_penalty": 1, "nbest": 3, "alignments": True}).json()
    assert shouter(app).calls == [(["a b"], {"beam": 6, "length_penalty": 1.0, "nbest": 3})]
    (sentence,) = answer["translations"][0]["sentences"]
    assert [other["text"] for other in sentence["alternatives"]] == ["A B!", "A B!!"]
    assert sentence["alignment"]["links"] == [[0, 0], [1, 1]]
    assert sentence["alternatives"][0]["alignment"]["target_words"] == ["A", "B!"]


def test_a_stream_says_what_comes_and_ends_with_done(app):
    answer = post(app, {"text": ["One. Two.\n", "Three."], "stream": True})
    assert answer.headers["content-type"] == "application/x-ndjson"
    first, *lines, last = answer.lines()
    assert first == {"model": "en-de", "source": "en", "target": "de", "sentences": 3}
    assert [(line["number"], line["text"] + line["gap"]) for line in lines] == [
        (0, "ONE. "),
        (0, "TWO.\n"),
        (1, "THREE."),
    ]
    assert last == {"done": True}


def test_a_stream_and_a_plain_answer_say_the_same(app):
    text = "\n ".join(f"Line {i}. More of it!" for i in range(200))
    lines = post(app, {"text": text, "stream": True}).lines()
    streamed = "".join(line["text"] + line["gap"] for line in lines[1:-1])
    assert streamed == post(app, {"text": text}).json()["translations"][0]["text"] == text.upper()


def test_a_stream_is_sent_as_sentences_finish_not_at_the_end():
    app = shouting_app(max_batch_sentences=1)

    async def run():
        with shouter(app).held():
            work = asyncio.create_task(asking(app, "POST", "/translate", {"text": "One. Two.", "stream": True}))
            await asyncio.to_thread(shouter(app).entered.wait, 30)
            assert not work.done()
        return await work

    assert len(asyncio.run(run()).chunks) == 4


def test_requests_of_many_clients_share_batches(app):
    async def run():
        with shouter(app).held():
            first = asyncio.create_task(asking(app, "POST", "/translate", {"text": "first"}))
            await asyncio.to_thread(shouter(app).entered.wait, 30)
            rest = [asyncio.create_task(asking(app, "POST", "/translate", {"text": f"text {i}"})) for i in range(30)]
            while service(app).models[0].queue.depth < 30:
                await asyncio.sleep(0.001)
        return await asyncio.gather(first, *rest)

    answers = asyncio.run(run())
    said = [answer.json()["translations"][0]["text"] for answer in answers]
    assert said == ["FIRST", *(f"TEXT {i}" for i in range(30))]
    assert [len(texts) for texts, _ in shouter(app).calls] == [1, 30]


def test_a_long_document_does_not_keep_a_short_request_waiting():
    app = shouting_app(max_batch_sentences=8)
    document = "\n".join(f"line {i}" for i in range(500))
    queue = service(app).models[0].queue

    async def waiting(count):
        while queue.depth < count:
            await asyncio.sleep(0.001)

    async def run():
        with shouter(app).held():
            long = asyncio.create_task(asking(app, "POST", "/translate", {"text": document}))
            await asyncio.to_thread(shouter(app).entered.wait, 30)
            at_work = len(shouter(app).calls[0][0])
            await waiting(WINDOW - at_work)
            short = asyncio.create_task(asking(app, "POST", "/translate", {"text": "short"}))
            await waiting(WINDOW - at_work + 1)
        assert (await short).status == 200
        assert (await long).json()["translations"][0]["text"] == document.upper()

    asyncio.run(run())
    calls = [texts for texts, _ in shouter(app).calls]
    turn = next(i for i, texts in enumerate(calls) if "short" in texts)
    assert sum(map(len, calls[:turn])) <= WINDOW


def test_sentences_are_remembered_with_their_options():
    app = shouting_app(cache_megabytes=0.002)
    for text in ("One. Two.", "Two. One.", "Three.", "Two."):
        assert post(app, {"text": text}).status == 200
    asked = [sentence for texts, _ in shouter(app).calls for sentence in texts]
    assert asked == ["One.", "Two.", "Three.", "Two."], "the oldest is forgotten"
    post(app, {"text": "Two.", "beam": 2})
    assert shouter(app).calls[-1] == (["Two."], {"beam": 2, "length_penalty": 0.6, "nbest": 1})
    assert 'deepnmt_cached_sentences_total{model="en-de"} 2\n' in service(app).metrics.text()


# -- which model


@mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "en-de"),
        ({"target": "fr"}, "en-fr"),
        ({"source": "de"}, "de-en"),
        ({"source": "de-AT", "target": "en"}, "de-en"),
        ({"source": "EN", "target": "FR"}, "en-fr"),
        ({"model": "en-de-large"}, "en-de-large"),
    ],
)
def test_models_are_found_by_name_or_languages(fields, expected):
    app = shouting_app("en-de", "en-fr", "de-en", "en-de-large")
    assert post(app, {"text": "x", **fields}).json()["model"] == expected


@mark.parametrize("fields", [{"model": "nope"}, {"target": "xx"}, {"model": "en-de", "target": "fr"}])
def test_a_model_that_is_not_there_is_refused_with_what_is(fields):
    answer = post(shouting_app("en-de", "en-fr"), {"text": "x", **fields})
    assert answer.status == 422
    assert answer.json()["error"].endswith("available: en-de (en to de), en-fr (en to fr)")


# -- refusals


@mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 422, "text is missing"),
        ({"text": 3}, 422, "text must be a string or a list of strings"),
        ({"text": ["a", None]}, 422, "text must be a string or a list of strings"),
        ({"text": "a", "bean": 2}, 422, "unknown field 'bean'; did you mean beam?"),
        ({"text": "a", "beam": 0}, 422, "beam must be greater than or equal to 1"),
        ({"text": "a", "beam": 17}, 422, "beam must be at most 16, not 17"),
        ({"text": "a", "beam": "4"}, 422, "beam must be a valid integer"),
        ({"text": "a", "beam": True}, 422, "beam must be a valid integer"),
        ({"text": "a", "beam": 4, "nbest": 5}, 422, "nbest = 5 must be at most beam = 4"),
        ({"text": "a", "length_penalty": float("nan")}, 422, "length_penalty must be a finite number"),
        ({"text": "a", "alignments": "yes"}, 422, "alignments must be a valid boolean"),
        ({"text": "a", "q": "b"}, 422, "unknown field 'q'; known: text, model, source, target, beam, "),
        ({"text": "x" * 1001}, 413, "1,001 characters are more than the 1,000 of one request"),
        ({"text": ["x"] * 51}, 413, "51 texts are more than the 50 of one request"),
        ({"text": "x" * 130_000}, 413, "the body is longer than 116,000 bytes"),
        ({"q": "a"}, 400, "target is missing"),
        ({"q": {}, "target": "de"}, 400, "q must be a string or a list of strings"),
        ({"q": "a", "target": "xx"}, 400, "no model for target 'xx'; available: en-de (en to de)"),
        ({"q": "a", "target": "de", "format": "pdf"}, 400, "format must be 'text' or 'html'"),
        ({"q": "a", "target": "de", "alternatives": False}, 400, "alternatives must be a valid integer"),
        ({"q": "a", "target": "de", "alternatives": 99}, 400, "alternatives must be at most 15, not 99"),
    ],
)
def test_a_request_over_a_limit_or_wrong_is_told_so(fields, status, message):
    app = shouting_app(max_characters=1000, max_texts=50)
    answer = post(app, fields, pieces=7)
    assert answer.status == status
    assert answer.json()["error"].startswith(message)
    assert shouter(app).calls == []


@mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"{", {}, 400, "the body is not JSON: line 1, column 2"),
        (b"\xff\xfe{", {}, 400, "the body is not"),
        (b"", {}, 400, "the body is not JSON"),
        (b"[1]", {}, 422, "the body must be a JSON object"),
        (b"[" * 100_000, {}, 400, "the body is nested too deeply"),
        (b"\x1f\x8b", {"content-encoding": "gzip"}, 415, "the body must not be compressed"),
        (b'{"text": ' + b"1" * 6000 + b"}", {}, 400, "the body has a number with too many digits"),
        (b"<x/>", {"content-type": "application/xml"}, 415, "the body must be application/json"),
        (b"--x\r\n", {"content-type": "multipart/form-data; boundary=y"}, 422, "text is missing"),
        (b"q=Gr%FC%DFe&target=de", {"content-type": "application/x-www-form-urlencoded"}, 400, "the body is not UTF-8"),
        (b"a=1&" * 20_000, {"content-type": "application/x-www-form-urlencoded"}, 413, "the body has too many fields"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_so(app, body, headers, status, message):
    answer = ask(app, "POST", "/translate", body, headers)
    assert answer.status == status
    assert answer.json()["error"].startswith(message)


def test_a_body_that_never_arrives_is_given_up():
    async def run():
        app = shouting_app(upload_timeout=1)
        service(app).limits.__dict__["upload_timeout"] = 0.05

        async def receive():
            await asyncio.Event().wait()

        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [], "query_string": b""}
        await app(scope, receive, send)
        return sent

    start, body, *_ = asyncio.run(run())
    assert start["status"] == 408
    assert b"did not arrive" in body["body"]


def test_too_many_requests_at_once_are_refused_and_the_others_served():
    app = shouting_app(max_requests=3)

    async def run():
        with shouter(app).held():
            taken = [asyncio.create_task(asking(app, "POST", "/translate", {"text": "x"})) for _ in range(3)]
            while service(app).requests < 3:
                await asyncio.sleep(0.001)
            refused = [await asking(app, "POST", "/translate", {"text": "x", "stream": s}) for s in (False, True)]
        return await asyncio.gather(*taken), refused

    taken, refused = asyncio.run(run())
    assert [answer.status for answer in taken] == [200] * 3
    for answer in refused:
        assert answer.status == 429
        assert answer.json() == {"error": "3 requests are being served already; try again shortly"}
        assert answer.headers["retry-after"] == "1"
    assert (service(app).requests, service(app).characters) == (0, 0)


def test_too_many_characters_waiting_are_refused():
    app = shouting_app(max_waiting_characters=100)

    async def run():
        with shouter(app).held():
            taken = asyncio.create_task(asking(app, "POST", "/translate", {"text": "x" * 200}))  # it is alone
            while service(app).requests < 1:
                await asyncio.sleep(0.001)
            refused = await asking(app, "POST", "/translate", {"q": "x", "target": "de"})
        return await taken, refused

    taken, refused = asyncio.run(run())
    assert (taken.status, refused.status) == (200, 429)
    assert refused.json()["error"] == "200 characters are waiting already; try again shortly"


def test_what_takes_too_long_is_given_up_and_leaves_the_queue():
    app = shouting_app(timeout=1)
    service(app).limits.__dict__["timeout"] = 0.1
    with shouter(app).held():
        for fields in ({"text": "One. Two."}, {"q": "x", "target": "de"}):
            answer = post(app, fields)
            assert answer.status == 503
            assert answer.json()["error"].startswith("the translation took longer than 0.1 seconds")
        lines = post(app, {"text": "One. Two.", "stream": True}).lines()
        assert list(lines[-1]) == ["error"], "a stream has said 200 already: its last line says what went wrong"
    assert service(app).requests == 0
    service(app).limits.__dict__["timeout"] = 30
    assert post(app, {"text": "again"}).status == 200
    assert shouter(app).calls[-1][0] == ["again"], "what was given up is not translated any more"


def test_a_client_that_leaves_takes_its_sentences_along(app):
    async def run():
        leave = asyncio.Event()
        with shouter(app).held():
            busy = asyncio.create_task(asking(app, "POST", "/translate", {"text": "busy"}))
            await asyncio.to_thread(shouter(app).entered.wait, 30)
            going = [
                asyncio.create_task(asking(app, "POST", "/translate", fields, leave=leave))
                for fields in ({"text": "gone"}, {"text": "gone", "stream": True}, {"q": "gone", "target": "de"})
            ]
            while service(app).models[0].queue.depth < 3:
                await asyncio.sleep(0.001)
            leave.set()
            await asyncio.gather(*going)
            assert service(app).requests == 1
        await busy
        return await asking(app, "POST", "/translate", {"text": "next"})

    assert asyncio.run(run()).status == 200
    assert [texts for texts, _ in shouter(app).calls] == [["busy"], ["next"]]


def test_a_sentence_on_which_the_model_fails_is_an_error_of_the_server_and_only_there(app, caplog):
    answer = post(app, {"text": ["fine", "fine. Poison poison."]})
    assert (answer.status, answer.json()) == (500, {"error": "the model failed on the sentence 'Poison poison.'"})
    assert post(app, {"text": "fine"}).status == 200
    assert "failed on a batch" in caplog.text


def test_a_closed_service_refuses_with_503_and_health_says_so(app):
    service(app).closed = True
    for fields in ({"text": "x"}, {"text": "x", "stream": True}, {"q": "x", "target": "de"}):
        answer = post(app, fields)
        assert answer.status == 503
        assert answer.json() == {"error": "the server is shutting down and accepts no new requests"}
    health = ask(app, "GET", "/health")
    assert (health.status, health.json()["status"]) == (503, "shutting down")


@mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/translate", 405), ("GET", "/page/no", 404)]
)
def test_every_error_is_json(app, method, path, status):
    answer = ask(app, method, path)
    assert answer.status == status
    assert list(answer.json()) == ["error"]


def test_a_bug_is_a_500_with_a_sentence_and_a_trace_in_the_log(app, caplog, monkeypatch):
    monkeypatch.setattr(service(app).models, "languages", lambda: 1 / 0)
    answer = ask(app, "GET", "/languages")
    assert (answer.status, answer.json()) == (500, {"error": "internal error; see the server's log"})
    assert "ZeroDivisionError" in caplog.text


# -- LibreTranslate


FORM = {"content-type": "application/x-www-form-urlencoded"}
MULTIPART = {"content-type": "multipart/form-data; boundary=XX"}
FIELDS = {"q": "Grüße & mehr", "source": "en", "target": "de", "format": "text", "api_key": "secret"}


def multipart(fields):
    parts = [f'--XX\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    return ("".join(parts) + "--XX--\r\n").encode()


@mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/translate", json.dumps(FIELDS).encode(), {"content-type": "application/json; charset=utf-8"}),
        ("/translate", urlencode(FIELDS).encode(), FORM),
        ("/translate", multipart(FIELDS), MULTIPART),
        ("/translate", re.sub(rb'name="(\w+)"', rb"name=\1", multipart(FIELDS)), MULTIPART),
        ("/translate?" + urlencode(FIELDS), b"", FORM),
    ],
    ids=["json", "form", "multipart", "multipart of .NET", "query"],
)
def test_libretranslates_clients_are_served_however_they_send(app, path, body, headers):
    answer = ask(app, "POST", path, body, headers)
    assert (answer.status, answer.json()) == (200, {"translatedText": "GRÜSSE & MEHR"})


def test_null_is_the_same_as_no_field(app):
    nulls = dict.fromkeys(("source", "format", "alternatives"))
    assert post(app, {"q": "a", "target": "de", **nulls}).json()["translatedText"] == "A"
    assert post(app, {"text": "a", **dict.fromkeys(("model", "beam", "nbest", "alignments", "stream"))}).status == 200
    assert post(app, {"text": None}).json() == {"error": "text is missing"}


def test_libretranslates_lists_alternatives_and_detection(app):
    fields = {"q": ["a", "bb. C"], "source": "auto", "target": "de", "alternatives": 2}
    assert post(app, fields).json() == {
        "translatedText": ["A", "BB. C"],
        "alternatives": [["A!", "A!!"], ["BB.! C!", "BB.!! C!!"]],
        "detectedLanguage": [{"confidence": 100.0, "language": "en"}] * 2,
    }
    assert post(app, {**fields, "q": "a"}).json() == {
        "translatedText": "A",
        "alternatives": ["A!", "A!!"],
        "detectedLanguage": {"confidence": 100.0, "language": "en"},
    }


def test_libretranslates_html_keeps_its_tags(app):
    fields = {"q": '<p class="green">Hello &amp; <b>bye</b>!</p>', "source": "en", "target": "de", "format": "html"}
    assert post(app, fields).json() == {"translatedText": '<p class="green">HELLO &amp; <b>BYE</b>!</p>'}


GERMAN, FRENCH = "Das Haus ist alt und der Garten ist schön.", "La maison est vieille et le jardin est beau."


def test_languages_are_detected_among_those_served():
    app = shouting_app("de-en", "fr-en", "en-de")
    for text, language in ((GERMAN, "de"), (FRENCH, "fr"), ("The house is old, isn't it?", "en")):
        for fields in ({"q": text}, {"q": [text]}):
            (detected,) = ask(app, "POST", "/detect", fields).json()
            assert detected["language"] == language
            assert 50 < detected["confidence"] <= 100
    answer = post(app, {"q": FRENCH, "source": "auto", "target": "en"}).json()
    assert answer["detectedLanguage"]["language"] == "fr"
    assert len(service(app).models[1].translator.calls) == 1
    assert ask(shouting_app(), "POST", "/detect", {"q": FRENCH}).json() == [{"confidence": 100.0, "language": "en"}]


def test_without_py3langid_detection_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    monkeypatch.setattr(libretranslate, "_identifier", cache(libretranslate._identifier.__wrapped__))
    app = shouting_app("nl-de", "fr-de")
    for path, fields in (("/detect", {"q": "x"}), ("/translate", {"q": "x", "source": "auto", "target": "de"})):
        answer = ask(app, "POST", path, fields)
        assert answer.status == 400
        assert answer.json()["error"].startswith("language detection is unavailable: it needs py3langid (pip install")


def test_libretranslates_clients_find_the_settings_of_the_frontend(app):
    settings = ask(app, "GET", "/frontend/settings").json()
    assert settings["charLimit"] == Limits().max_characters
    assert settings["keyRequired"] is False
    assert settings["language"]["target"] == {"code": "de", "name": "German"}


def test_languages_are_listed_as_libretranslate_does():
    app = shouting_app("en-de", "en-fr", "de-en")
    assert ask(app, "GET", "/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]


class Polyglot(Shouter):
    """Puts the languages before what it says."""

    def for_languages(self, source, target):
        other = Polyglot()
        other._said = lambda text, rank, alignments: self._said(f"{source} to {target}: {text}", rank, alignments)
        return other


def polyglot_app(*codes):
    limits, metrics = Limits(), Metrics()
    served = ServedModel("many", codes[:2], Polyglot(), limits, metrics, (list(codes), list(codes)))
    return create_app(Models([served]), limits, metrics)


def test_a_model_with_many_languages():
    codes = ("eng_Latn", "deu_Latn", "jpn_Jpan")
    app = polyglot_app(*codes)
    languages = {entry["code"]: (entry["name"], entry["targets"]) for entry in ask(app, "GET", "/languages").json()}
    assert languages["deu_Latn"] == ("German", ["eng_Latn", "jpn_Jpan"])
    (about,) = ask(app, "GET", "/models").json()
    assert about == {
        "name": "many", "source": "eng_Latn", "target": "deu_Latn", "sources": [*codes], "targets": [*codes]
    }  # fmt: skip
    answer = post(app, {"text": "x", "target": "jpn_Jpan"}).json()
    assert (answer["source"], answer["target"]) == ("eng_Latn", "jpn_Jpan")
    assert answer["translations"][0]["text"] == "ENG_LATN TO JPN_JPAN: X"
    answer = post(app, {"q": "x", "source": "ja", "target": "de"}).json()  # as LibreTranslate's clients say it
    assert answer["translatedText"] == "JPN_JPAN TO DEU_LATN: X"
    answer = post(app, {"q": GERMAN, "source": "auto", "target": "en"}).json()
    assert answer["detectedLanguage"]["language"] == "deu_Latn"
    assert answer["translatedText"].startswith("DEU_LATN TO ENG_LATN")
    refused = post(app, {"text": "x", "target": "fin_Latn"})
    assert refused.status == 422
    assert refused.json()["error"].endswith("available: many (3 languages to 3 languages)")


@mark.parametrize(
    ("fields", "source", "target"),
    [
        ({}, "eng_Latn", "deu_Latn"),
        ({"target": "en"}, "deu_Latn", "eng_Latn"),
        ({"source": "de"}, "deu_Latn", "eng_Latn"),
        ({"source": "en"}, "eng_Latn", "deu_Latn"),
    ],
)
def test_of_two_languages_the_one_that_is_not_named_is_the_other(fields, source, target):
    answer = post(polyglot_app("eng_Latn", "deu_Latn"), {"text": "x", **fields}).json()
    assert (answer["source"], answer["target"]) == (source, target)


def test_among_many_languages_a_model_is_never_asked_to_translate_one_into_itself():
    codes = ("eng_Latn", "deu_Latn", "jpn_Jpan")
    app = polyglot_app(*codes)
    for fields, side, code in (({"target": "en"}, "source", "eng_Latn"), ({"source": "de"}, "target", "deu_Latn")):
        answer = post(app, {"text": "x", **fields})
        expected = f"name the {side} language too: many has 2 others than {code}"
        assert (answer.status, answer.json()) == (422, {"error": expected})
    answer = post(app, {"text": "x", "source": "en", "target": "jpn_Jpan"}).json()  # two kinds of codes
    assert (answer["source"], answer["target"]) == ("eng_Latn", "jpn_Jpan")
    same = post(app, {"text": "Hello there.", "source": "en", "target": "eng_Latn"}).json()
    assert same["translations"][0]["text"] == "Hello there."
    answer = post(app, {"q": "The house is old, isn't it?", "source": "auto", "target": "en"}).json()
    assert answer["detectedLanguage"]["language"] == "eng_Latn"
    assert answer["translatedText"] == "The house is old, isn't it?"
    # Another model is there for it.
    served, limits = service(app).models, Limits()
    served.append(ServedModel("de-en", ("de", "en"), Shouter(), limits, Metrics()))
    assert post(app, {"text": "x", "target": "en"}).json()["model"] == "de-en"


def test_a_model_with_many_languages_that_fails_at_first_is_not_called_failing():
    class Choosy(Polyglot):
        def translate_nbest(self, texts, **settings):
            raise InputError("choose one with --target-lang")

    codes, limits, metrics = ["eng_Latn", "deu_Latn"], Limits(), Metrics()
    served = ServedModel("many", codes, Choosy(), limits, metrics, (codes, codes))
    app = create_app(Models([served]), limits, metrics)
    assert post(app, {"text": "poison"}).status == 500
    assert ask(app, "GET", "/health").json()["status"] == "ok"


@mark.parametrize(
    ("sources", "targets", "own", "expected"),
    [
        (["de", "en", "fr"], ["en"], ("de", "en"), ("de", "en")),
        (["en", "de", "fr"], ["en"], ("", "en"), ("de", "en")),  # not from English to English
        (["de", "en", "fr"], ["de", "en", "fr"], ("", ""), ("en", "de")),
        (["en"], ["de", "en"], ("en", ""), ("en", "de")),
        (["en"], ["en"], ("en", "en"), ("en", "en")),
    ],
)
def test_the_default_languages_are_two(sources, targets, own, expected):
    source, target = (SimpleNamespace(language=language) for language in own)
    assert _languages(SimpleNamespace(source=source, target=target, languages=(sources, targets))) == expected


def test_languages_of_two_scripts_have_two_names():
    app = polyglot_app("zho_Hans", "zho_Hant", "pt", "pt_BR", "srp_Cyrl", "deu_Latn")
    names = {entry["code"]: entry["name"] for entry in ask(app, "GET", "/languages").json()}
    assert names == {
        "zho_Hans": "Chinese (Simplified)", "zho_Hant": "Chinese (Traditional)", "pt": "Portuguese (pt)",
        "pt_BR": "Portuguese (pt_BR)", "srp_Cyrl": "Serbian", "deu_Latn": "German",
    }  # fmt: skip
    settings = ask(app, "GET", "/frontend/settings").json()
    assert settings["language"]["source"]["name"] == "Chinese (Simplified)"


# -- facts


def test_health_models_and_limits():
    app = shouting_app("en-de", "de-en")
    assert ask(app, "GET", "/health").json() == {"status": "ok", "models": ["en-de", "de-en"], "failing": []}
    assert ask(app, "GET", "/models").json()[1] == {"name": "de-en", "source": "de", "target": "en"}
    assert ask(app, "GET", "/limits").json()["max_characters"] == Limits().max_characters


def test_metrics_count_requests_by_route_and_status_and_name_no_made_up_path(app):
    post(app, {"text": "One two. Three."})
    post(app, {"text": 3})
    ask(app, "GET", "/made/up")
    text = ask(app, "GET", "/metrics").body.decode()
    for line in (
        'deepnmt_requests_total{route="/translate",status="200"} 1',
        'deepnmt_requests_total{route="/translate",status="422"} 1',
        'deepnmt_requests_total{route="other",status="404"} 1',
        'deepnmt_errors_total{route="/translate",status="422"} 1',
        'deepnmt_request_seconds_count{route="/translate"} 2',
        'deepnmt_target_tokens_total{model="en-de"} 3',
        'deepnmt_queue_sentences{model="en-de"} 0',
        "deepnmt_requests_at_work 0",
    ):
        assert line in text.splitlines()
    assert "made" not in text


def test_pages_of_other_origins_are_let_in_only_when_told():
    asked = {"origin": "https://example.org", "access-control-request-method": "POST"}
    assert ask(shouting_app(), "OPTIONS", "/translate", headers=asked).status == 405
    allowed = ask(shouting_app(allow_origins=("https://example.org",)), "OPTIONS", "/translate", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"


def test_the_description_covers_every_route_and_both_shapes(app):
    description = ask(app, "GET", "/openapi.json").json()
    expected = {"/translate", "/detect", "/languages", "/frontend/settings", "/models", "/models/{name}/connections"}
    expected |= {"/limits", "/health", "/metrics"}
    assert set(description["paths"]) == expected
    content = description["paths"]["/translate"]["post"]["requestBody"]["content"]
    own, libre = content["application/json"]["schema"]["oneOf"]
    assert ("text" in own["properties"], "q" in libre["properties"]) == (True, True)
    assert (own["properties"]["nbest"]["maximum"], libre["properties"]["alternatives"]["maximum"]) == (16, 15)
    for shape in (own, libre):
        assert post(app, shape["examples"][0]).status == 200
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description))
    assert set(names) <= set(description["components"]["schemas"])


@mark.parametrize("file", sorted(PAGE.iterdir()), ids=lambda file: file.name)
def test_the_page_is_served_whole_and_asks_nobody_else(app, file):
    path = {"index.html": "/", "docs.html": "/docs"}.get(file.name, f"/page/{file.name}")
    answer = ask(app, "GET", path)
    assert answer.status == 200
    assert answer.body == file.read_bytes()
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), "something is loaded from elsewhere"
    assert not re.search(r"""(?:href=|src=|fetch\(|getJson\(|from )["'`]/""", text), "a proxy may serve it at /nmt/"
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["cache-control"] == "no-cache", "a page and scripts of different versions do not fit"


# -- with a real model


@fixture(scope="module")
def real_app(phrase_folder):
    limits, metrics = Limits(), Metrics()
    models = load_models([str(phrase_folder)], "cpu", "fp32", limits, metrics)
    yield create_app(models, limits, metrics)
    models.close()


def test_a_real_model_is_named_by_its_folder_and_languages(real_app):
    assert ask(real_app, "GET", "/models").json() == [{"name": "en-de", "source": "en", "target": "de"}]


def test_a_real_model_translates_aligns_and_offers_alternatives(real_app):
    fields = {"text": "The house is old.\n\nThe garden was warm.", "nbest": 4, "alignments": True}
    translation = post(real_app, fields).json()["translations"][0]
    assert translation["text"] == "Das Haus ist alt.\n\nDer Garten war warm."
    for sentence in translation["sentences"]:
        assert len(sentence["alternatives"]) == 3
        assert sentence["alignment"]["source_words"] == sentence["source"].split()
        assert sentence["alignment"]["target_words"] == sentence["text"].split()
        scores = [sentence["score"], *(other["score"] for other in sentence["alternatives"])]
        assert scores == sorted(scores, reverse=True)


def test_placeholders_and_addresses_come_through_where_the_model_alone_loses_them(real_app):
    texts = ["The {name} is old.", "The house is {0} %(count)d https://a.b/c?d today.", "Mail a@b.org, {x}."]
    alone = service(real_app).models[0].translator.translate(texts)
    assert any("{" not in text for text in alone)
    for fields in ({}, {"nbest": 2, "alignments": True}):
        answer = post(real_app, {"text": texts, **fields}).json()
        for text, translation in zip(texts, answer["translations"], strict=True):
            assert not lacks_placeholders(text, translation["text"])
            for sentence in translation["sentences"]:
                assert not any(lacks_placeholders(text, other["text"]) for other in sentence.get("alternatives", []))
    html = {"q": "<p>The <b>{name}</b> is old.</p>", "target": "de", "format": "html"}
    assert "{name}" in post(real_app, html).json()["translatedText"]


# -- terms


def texts_of(answer):
    return [translation["text"] for translation in answer.json()["translations"]]


@fixture(scope="module")
def terms_app(phrase_folder, tmp_path_factory):
    """A server with a glossary of its own."""
    file = tmp_path_factory.mktemp("terms") / "terms.tsv"
    file.write_text("House\tKirche\n", encoding="utf-8")
    limits, metrics = Limits(max_terms=5, max_term_characters=40, max_term_subwords=8), Metrics()
    models = load_models([str(phrase_folder)], "cpu", "fp32", limits, metrics, terms=[f"en-de={file}"])
    yield create_app(models, limits, metrics)
    models.close()


@mark.parametrize("terms", [{" house ": "Kirche"}, [["House", "Kirche"], ["HOUSE", "Kirche"]]])
def test_a_request_brings_terms_of_its_own(real_app, terms):
    text = "The house is old. The garden is old."
    (plain,) = texts_of(post(real_app, {"text": text}))
    assert plain == "Das Haus ist alt. Der Garten ist alt."
    (found,) = texts_of(post(real_app, {"text": text, "terms": terms}))
    assert "Kirche" in found and found.endswith("Der Garten ist alt.")
    lines = post(real_app, {"text": text, "terms": terms, "stream": True, "nbest": 2, "alignments": True}).lines()
    assert "Kirche" in lines[1]["text"]
    # Neither is answered with the other from the cache.
    assert texts_of(post(real_app, {"text": text})) == [plain]
    assert texts_of(post(real_app, {"text": text, "terms": {"house": "Suppe"}})) != [found]


def test_the_servers_terms_apply_to_every_request_and_give_way_to_its_own(terms_app):
    text = "The house is old."
    assert "Kirche" in texts_of(post(terms_app, {"text": text}))[0]
    for form in ("text", "html"):
        answer = post(terms_app, {"q": text, "target": "de", "format": form}).json()
        assert "Kirche" in answer["translatedText"]
    assert texts_of(post(terms_app, {"text": text, "terms": {"house": "Haus"}})) == ["Das Haus ist alt."]
    both = texts_of(post(terms_app, {"text": ["The house is old.", "The garden is old."], "terms": {"garden": "Haus"}}))
    assert "Kirche" in both[0] and "Haus" in both[1]


def test_the_servers_terms_are_encoded_before_the_first_request(terms_app, monkeypatch):
    monkeypatch.setattr(Glossary, "_encoded", lambda *_: 1 / 0)
    assert "Kirche" in texts_of(post(terms_app, {"text": "The house is old."}))[0]


def test_sentences_without_a_requests_terms_are_those_of_other_requests(phrase_folder, monkeypatch):
    limits, metrics = Limits(batch_wait=0), Metrics()
    models = load_models([str(phrase_folder)], "cpu", "fp32", limits, metrics)
    app = create_app(models, limits, metrics)
    submitted, queue, submit = [], models[0].queue, models[0].queue.submit
    monkeypatch.setattr(queue, "submit", lambda text, options: submitted.append(options) or submit(text, options))
    text = "The garden is old. The tree was warm."
    for terms in ({}, {"house": "Kirche"}, {"window": "Kirche", "light": "Haus"}):
        post(app, {"text": text, "terms": terms})
    assert 'deepnmt_cached_sentences_total{model="en-de"} 4\n' in metrics.text()
    assert 'deepnmt_sentences_total{model="en-de"} 2\n' in metrics.text()
    post(app, {"text": "The city is green. The house is old.", "terms": {"house": "Kirche"}})
    assert [bool(options.terms) for options in submitted] == [False, False, False, True], "batched with the others"
    models.close()


@mark.parametrize(
    ("terms", "status", "message"),
    [
        ("house=Haus", 422, "terms must be an object such as"),
        ({"house": 3}, 422, "terms must be an object such as"),
        ([["house"]], 422, "terms must be an object such as"),
        ([["a", "b", "c"]], 422, "terms must be an object such as"),
        ({"": "Haus"}, 422, "a term and its translation must not be empty: '', 'Haus'"),
        ({"house": " \n"}, 422, "a term and its translation must not be empty"),
        ([["house", "Haus"], ["House", "Suppe"]], 422, "the term 'House' has two translations"),
        ([["house", "Haus"], ["house", "Suppe"]], 422, "the term 'house' has two translations"),
        ({f"t{i}": "Haus" for i in range(6)}, 413, "6 terms are more than the 5 of one request"),
        ({"house": "x" * 41}, 413, "a term has 41 characters, more than 40"),
        ({"house": "qxzqxzqxzqxzqxz"}, 422, "the translation of the term 'house' has "),
        ({"\ud800": "\udfff"}, 200, None),
    ],
    ids=str,
)
def test_bad_terms_are_refused_in_a_sentence(terms_app, terms, status, message):
    answer = post(terms_app, {"text": "The house is old.", "terms": terms})
    assert answer.status == status
    assert message is None or answer.json()["error"].startswith(message)
    assert service(terms_app).requests == 0


def test_the_beam_for_the_terms_of_a_sentence_is_bounded(terms_app, monkeypatch):
    widths = []
    original = TermBeams.__init__

    def observed(self, rules, config, terms):
        original(self, rules, config, terms)
        widths.append(self.last.shape[1])

    monkeypatch.setattr(TermBeams, "__init__", observed)
    terms = {"old": "Suppe", "is": "Garten war", "the": "hell grün", "garden": "im Sommer"}
    (found,) = texts_of(post(terms_app, {"text": "The house is old " * 30, "terms": terms}))
    assert widths and max(widths) <= 4 + 8
    assert "hell grün" in found


class Glossarian(Shouter):
    """Keeps for which languages it was asked to encode which terms."""

    def __init__(self, asked, pair=None):
        super().__init__()
        self.asked, self.pair = asked, pair

    def for_languages(self, source, target):
        return Glossarian(self.asked, (source, target))

    def glossary(self, terms, max_symbols):
        self.asked.append((self.pair, terms))
        return Glossary({}, phrase_tokenizers(), max_symbols)


def test_terms_of_a_model_with_many_languages_are_for_those_of_the_request():
    codes, asked = ["eng_Latn", "deu_Latn", "jpn_Jpan"], []
    files = [TermsFile("en-de", {"House": "Haus"}), TermsFile("", {"Argos": "Argos", "house": "Hut"})]
    model = ServedModel("many", codes[:2], Glossarian(asked), Limits(), Metrics(), (codes, codes), files)
    asyncio.run(model.glossary())
    other = model.for_languages("eng_Latn", "jpn_Jpan")
    asyncio.run(other.glossary())
    asyncio.run(other.glossary((("old", "alt"),)))
    asyncio.run(model.glossary())
    assert asked == [
        (("eng_Latn", "deu_Latn"), {"argos": "Argos", "house": "Haus"}),
        (("eng_Latn", "jpn_Jpan"), {"argos": "Argos", "house": "Hut"}),
    ]


def test_of_two_files_with_a_term_in_any_spelling_the_later_counts(phrase_folder):
    """Composed or not, in upper or lower case: the same term."""
    files = [TermsFile("", {"The cafe\u0301": "Haus"}), TermsFile("", {"the caf\u00e9": "Garten"})]
    model = ServedModel("en-de", ("en", "de"), Translator(phrase_folder), Limits(), Metrics(), terms=files)
    (found,) = asyncio.run(model.glossary()).in_text("The caf\u00e9 is old.")
    assert found.text == "Garten"
    model.queue.close()


def test_the_learned_weights_are_shown_as_they_are(real_app):
    connections = ask(real_app, "GET", "/models/en-de/connections").json()
    model = service(real_app).models[0].translator.models[0]
    assert connections["encoder"]["kind"] == "dlcl"
    for side in ("encoder", "decoder"):
        size = getattr(model.config, side).num_layers + 1
        matrix = connections[side]["matrix"]
        assert (len(matrix), len(matrix[0])) == (size, size)
        assert matrix[-1][0] == round(getattr(model, side).connection.matrix()[-1][0].item(), 5)
    assert ask(real_app, "GET", "/models/nope/connections").status == 404


HARD = {
    "right to left": "مرحبا بالعالم. שלום עולם!",
    "zero width": "The\u200b house\u200d is\ufeff old.",
    "nul": "The house\x00 is old.",
    "controls": "".join(map(chr, range(32))) + " house \x7f\x85\u2028",
    "half a character": "The house \ud83d is old.",
    "emoji": "👩‍👩‍👧‍👦 is old 🏳️‍🌈.",
    "no spaces": "x" * 1_300,
    "spaces": "a" + " " * 50_000 + "b",
    "empty lines": "\n" * 5_000 + "The house is old." + "\r\n" * 5_000,
    "combining": "e" + "\u0301" * 500,
}


@mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_a_real_model_answers_any_text(real_app, text):
    answer = post(real_app, {"text": text, "beam": 2, "nbest": 2, "alignments": True})
    assert answer.status == 200
    gaps = [part for part in re.split(r"\S+", answer.json()["translations"][0]["text"]) if "\n" in part]
    assert sum(gap.count("\n") for gap in gaps) == text.replace("\u2028", "").count("\n")


GUIDE = (PAGE.parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


@mark.parametrize("body", re.findall(r"curl .*-d '(.+)'", GUIDE))
def test_the_requests_of_the_guide_are_answered(app, body):
    """As curl sends them: it says they are a form."""
    answer = ask(app, "POST", "/translate", body.encode(), FORM)
    assert answer.status == 200
    assert answer.body.upper().startswith(b'{"MODEL":"EN-DE"')


def test_the_guide_names_every_route_and_the_limits_as_they_are(app):
    for path in ask(app, "GET", "/openapi.json").json()["paths"]:
        assert path.split("/{")[0] in GUIDE
    limits = Limits()
    for name in ("max_characters", "max_requests", "max_waiting_characters"):
        assert f"`--{name.replace('_', '-')}` ({getattr(limits, name):,})" in GUIDE
    assert f"`--timeout` ({limits.timeout:g} s" in GUIDE
