"""The page in a real browser: headless Chromium, where there is one."""

import json
import threading
from types import SimpleNamespace

from asking import Shouter, listening, service, shouting_app
from chromium import Chromium, find_chromium
from phrasebook import phrases
from pytest import approx, fixture, mark, skip

from deepnmt.serving.limits import Limits
from deepnmt.serving.loading import load_models
from deepnmt.serving.models import Models, ServedModel
from deepnmt.serving.prometheus import Metrics
from deepnmt.serving.server import create_app

TEXT = "document.getElementById('output').textContent"
# Counts the characters of all strings that the page joins from lists.
COUNT_JOINED = """(() => {
    const join = Array.prototype.join;
    globalThis.joined = 0;
    Array.prototype.join = function (separator) {
        const result = join.call(this, separator);
        globalThis.joined += result.length;
        return result;
    };
})()"""


@fixture(scope="module")
def chromium(tmp_path_factory):
    executable = find_chromium()
    if executable is None:
        skip("no Chromium on this machine: apt-get install chromium")
    browser = Chromium(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@fixture
def browser(chromium):
    """A tab of the same size and colours for every test; afterwards nothing went wrong in it."""
    chromium.resize(1200, 820)
    chromium.prefer("light")
    chromium.wrong.clear()
    chromium.requested.clear()
    yield chromium
    assert chromium.wrong == []


@fixture(scope="module")
def phrase_app(phrase_folder):
    limits, metrics = Limits(), Metrics()
    return create_app(load_models([str(phrase_folder)], "cpu", "fp32", limits, metrics), limits, metrics)


@fixture(scope="module")
def phrase_address(chromium, phrase_app):
    with listening(phrase_app) as address:
        yield address


@fixture
def faint_weights(phrase_app):
    """Some of the learned weights, made small for one test."""
    model = service(phrase_app).models[0].translator.models[0]
    weights = [stack.connection.weight for stack in (model.encoder, model.decoder)]
    before = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.data[2, :2] = 0.02
    yield
    for weight, values in zip(weights, before, strict=True):
        weight.data.copy_(values)


class Patient(Shouter):
    """Holds every sentence with the word `wait` until it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        stack = SimpleNamespace(connection=SimpleNamespace(kind="residual", learned_weights=lambda: None), num_layers=6)
        config = SimpleNamespace(encoder=stack, decoder=stack)
        self.models = [SimpleNamespace(encoder=stack, decoder=stack, config=config)]

    def translate_nbest(self, texts, **settings):
        if any("wait" in text for text in texts):
            assert self.go.wait(30)
        return super().translate_nbest(texts, **settings)


@fixture(scope="module")
def shouting(chromium):
    """An application with two models that shout, and its address."""
    translators = [Patient(), Patient()]
    app = shouting_app("en-de", "de-en", translators=translators, max_batch_sentences=1, max_characters=4_000)
    with listening(app) as address:
        yield app, address


def says(browser, text):
    browser.wait(f"{TEXT} === {json.dumps(text)}")


def test_typing_translates_after_a_pause_and_offers_other_ways(browser, phrase_address):
    browser.open(phrase_address)
    browser.type("The house is old.")
    says(browser, "Das Haus ist alt.")
    assert browser.evaluate("document.getElementById('source-label').textContent") == "English"
    assert browser.wait("document.querySelectorAll('#alternatives-list button').length") == 4
    browser.point("#alternatives-list li:nth-child(2) button", click=True)
    second = browser.wait("document.querySelector('#alternatives-list [aria-pressed=true] bdi').textContent")
    assert second != "Das Haus ist alt."
    says(browser, second)


def test_pointing_at_a_word_lights_where_it_came_from(browser, phrase_address):
    browser.open(phrase_address)
    browser.type("The garden was warm. The house is old.")
    says(browser, "Der Garten war warm. Das Haus ist alt.")
    browser.point(".sentence[data-i='1'] .word:nth-of-type(2)")
    assert browser.evaluate("document.querySelector('.word.lit').textContent") == "Haus"
    marks = browser.evaluate("[...document.querySelectorAll('#backdrop mark')].map((mark) => mark.textContent)")
    assert "house" in marks
    assert not set(marks) & {"garden", "was", "warm."}, "no link crosses sentences"
    places = "(e) => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width]; }"
    backdrop, area = (browser.evaluate(f"({places})(document.getElementById('{i}'))") for i in ("backdrop", "source"))
    assert backdrop == approx(area), "the marks lie under the words"
    browser.point("#count")
    assert browser.evaluate("document.querySelectorAll('.lit, #backdrop mark').length") == 0


def test_the_word_at_the_caret_lights_its_translation(browser, phrase_address):
    browser.open(phrase_address)
    browser.type("The garden was warm.")
    says(browser, "Der Garten war warm.")
    for _ in range(3):
        browser.press("ArrowLeft")
    browser.wait("[...document.querySelectorAll('.word.lit')].some((word) => word.textContent === 'warm.')")


def test_everything_can_be_reached_with_the_keyboard(browser, phrase_address):
    browser.open(phrase_address)
    browser.type("The house is old. The garden was warm.")
    browser.press("Enter", control=True)
    says(browser, "Das Haus ist alt. Der Garten war warm.")
    for _ in range(5):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.matches('.sentence')"):
            break
    assert browser.evaluate("document.activeElement.textContent") == "Das Haus ist alt."
    browser.press("ArrowDown")
    assert browser.evaluate("document.activeElement.textContent") == "Der Garten war warm."
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('.word.lit').textContent") == "Garten"
    browser.wait("!document.getElementById('alternatives').hidden")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.matches('#alternatives-list button')")
    browser.press("Tab")
    browser.press("Enter")
    chosen = browser.wait("document.querySelector('.sentence.chosen').textContent")
    assert chosen != "Der Garten war warm."
    assert browser.evaluate(TEXT) == f"Das Haus ist alt. {chosen}"


def test_terms_change_the_translation_once_their_line_is_complete(browser, phrase_address):
    browser.open(phrase_address)
    browser.type("The house is old.")
    says(browser, "Das Haus ist alt.")
    browser.point("#glossary summary", click=True)
    browser.point("#terms", click=True)
    browser.type("house")
    browser.type(" =")
    assert browser.evaluate("document.getElementById('source').value") == "The house is old."
    browser.type("  Kirche ")
    browser.wait(f"{TEXT}.includes('Kirche')")
    browser.type("\n# nothing\ngarden = ")
    assert "Kirche" in browser.evaluate(TEXT)
    browser.type("Garten\nHOUSE=Haus")
    told = browser.wait("document.getElementById('problem').textContent")
    assert told.startswith("Translation failed: the term 'HOUSE' has two translations")
    browser.evaluate("document.getElementById('terms').select()")
    browser.type("garden\tGarten\nhouse\tGarten")
    browser.wait(f"{TEXT}.includes('Garten')")
    browser.evaluate("document.getElementById('terms').select()")
    browser.type(" ")
    says(browser, "Das Haus ist alt.")
    assert browser.evaluate("document.getElementById('problem').hidden")
    browser.wrong.clear()


def test_a_long_text_appears_sentence_by_sentence(browser, shouting):
    app, address = shouting
    patient = service(app).models[0].translator
    text = "\n\n".join(["First of all. Then more.", "Please wait here.", *(f"Line {i}." for i in range(500))])
    patient.go.clear()
    browser.open(address)
    browser.evaluate(COUNT_JOINED)
    browser.type(text)
    browser.wait(f"{TEXT}.startsWith('FIRST OF ALL. THEN MORE.')")
    assert browser.evaluate("document.getElementById('status').textContent").startswith("2 sentences, ")
    assert not browser.evaluate("document.getElementById('progress').hidden")
    patient.go.set()
    says(browser, text.upper())
    browser.wait("document.getElementById('progress').hidden")
    assert browser.evaluate("document.getElementById('status').textContent").startswith("503 sentences")
    assert browser.evaluate("joined") < 10 * len(text), "the whole result was built again for every sentence"
    browser.point(".sentence[data-i='1']", click=True)
    assert browser.wait("document.querySelectorAll('#alternatives-list button').length") == 4, "fetched when chosen"


def test_typing_on_gives_up_what_is_not_wanted_any_more(browser, shouting):
    app, address = shouting
    patient = service(app).models[0].translator
    patient.go.clear()
    browser.open(address)
    browser.type("do wait")
    browser.press("Enter", control=True)
    while not service(app).requests:
        browser.evaluate("1")
    browser.point("#clear", click=True)
    while service(app).requests:
        browser.evaluate("1")
    patient.go.set()
    browser.type("hello")
    says(browser, "HELLO")


def test_a_file_is_translated_and_can_be_saved(browser, shouting, tmp_path):
    _, address = shouting
    content = "\ufeff" + "\r\n".join(f"Line {i} of the file. Grüße!" for i in range(400))
    assert len(content) > 4_000, "more than one request may hold"
    (tmp_path / "letter.txt").write_text(content, encoding="utf-8", newline="")
    browser.save_downloads_in(tmp_path)
    browser.open(address)
    browser.choose_file("#file", tmp_path / "letter.txt")
    expected = content.removeprefix("\ufeff").replace("\r\n", "\n").upper()
    says(browser, expected)
    browser.wait("!document.getElementById('download').disabled && document.getElementById('progress').hidden")
    browser.point("#download", click=True)
    saved = tmp_path / "letter.de.txt"
    while not (saved.exists() and saved.read_text(encoding="utf-8") == expected):
        browser.evaluate("1")


@mark.parametrize(
    ("content", "expected"),
    [
        ("Grüße.".encode("utf-16"), "GRÜSSE."),
        ("Grüße.".encode("cp1252"), "GRÜSSE."),
        (b"PK\x03\x04\0\0", "The page says: a.txt is not a text file of at most 5 MB."),
    ],
)
def test_files_of_other_encodings_and_kinds(browser, shouting, tmp_path, content, expected):
    (tmp_path / "a.txt").write_bytes(content)
    browser.open(shouting[1])
    browser.choose_file("#file", tmp_path / "a.txt")
    problem = "document.getElementById('problem').textContent"
    says = f"{problem} ? 'The page says: ' + {problem} : {TEXT}"
    browser.wait(f"({says}) === {json.dumps(expected)}")


def test_dragged_text_is_left_to_the_browser(browser, shouting):
    browser.open(shouting[1])
    dragged = """((type, data) => { const event = new DragEvent(type, {dataTransfer: data, cancelable: true});
        dispatchEvent(event); return event.defaultPrevented; })"""
    for kind in ("dragover", "drop"):
        for fill, is_ours in (("setData('text/plain', 'x')", False), ("items.add(new File(['x'], 'x.txt'))", True)):
            script = f"{dragged}('{kind}', (() => {{ const d = new DataTransfer(); d.{fill}; return d; }})())"
            assert browser.evaluate(script) is is_ours


def test_models_can_be_chosen_and_languages_swapped(browser, shouting):
    _, address = shouting
    browser.open(address)
    options = browser.evaluate("[...document.querySelectorAll('#model option')].map((option) => option.text)")
    assert options == ["English → German", "German → English"]
    browser.type("hello")
    says(browser, "HELLO")
    browser.point("#swap", click=True)
    assert browser.evaluate("document.getElementById('source').value") == "HELLO"
    assert browser.evaluate("document.getElementById('source-label').textContent") == "German"


class Polyglot(Patient):
    def for_languages(self, source, target):
        other = Polyglot()
        other._said = lambda text, rank, alignments: self._said(f"{target} {text}", rank, alignments)
        return other


def test_languages_of_one_model_can_be_chosen_and_swapped(browser):
    codes, limits, metrics = ["eng_Latn", "deu_Latn", "jpn_Jpan", "zho_Hant"], Limits(), Metrics()
    served = ServedModel("many", tuple(codes[:2]), Polyglot(), limits, metrics, (codes, codes))
    choose = "(() => { const s = document.getElementById('target-language'); s.value = 'jpn_Jpan';"
    with listening(create_app(Models([served]), limits, metrics)) as address:
        browser.open(address)
        assert browser.evaluate("document.getElementById('model').hidden")
        labels = browser.evaluate("[...document.getElementById('target-language').options].map((o) => o.text)")
        assert labels == ["English", "German", "Japanese", "Traditional Chinese"]
        browser.type("hello")
        says(browser, "DEU_LATN HELLO")
        browser.evaluate(choose + " s.dispatchEvent(new Event('change')); })()")
        says(browser, "JPN_JPAN HELLO")
        browser.point("#swap", click=True)
        says(browser, "ENG_LATN JPN_JPAN HELLO")
        assert browser.evaluate("document.getElementById('source').lang") == "jpn_Jpan"


def test_what_the_server_refuses_is_said_on_the_page(chromium, browser, shouting):
    app, address = shouting
    browser.open(address)
    service(app).closed = True
    try:
        browser.type("hello")
        told = browser.wait("document.getElementById('problem').textContent")
        assert told == "Translation failed: the server is shutting down and accepts no new requests."
    finally:
        service(app).closed = False
    browser.type(" again")
    says(browser, "HELLO AGAIN")
    assert browser.evaluate("document.getElementById('problem').hidden")
    assert all("503" in entry for entry in chromium.wrong)
    chromium.wrong.clear()


def test_a_lost_connection_is_said_and_made_up_for(chromium, browser, shouting):
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.open(shouting[1])
    browser.type("hello")
    says(browser, "HELLO")
    browser.send("Network.emulateNetworkConditions", offline=True, **network)
    browser.type(" there")
    told = browser.wait("document.getElementById('problem').textContent")
    assert told == "Translation failed: the server cannot be reached."
    assert browser.evaluate("document.getElementById('target-pane').className") == "pane stale", "not of this text"
    browser.send("Network.emulateNetworkConditions", offline=False, **network)
    says(browser, "HELLO THERE")
    assert browser.evaluate("document.getElementById('problem').hidden")
    chromium.wrong.clear()


@mark.parametrize(
    "text", ["مرحبا بالعالم", "e\u0301 \u200b zero", "<b>bold</b> & <script>alert(1)</script>", "👩‍👩‍👧‍👦 ok"]
)
def test_any_text_is_shown_as_text(browser, shouting, text):
    _, address = shouting
    browser.open(address)
    browser.type(text)
    says(browser, text.upper())
    assert browser.evaluate("document.querySelectorAll('#output b, #output script').length") == 0


def test_the_heat_maps_show_the_weights_by_the_papers_rule(browser, phrase_address, faint_weights):
    browser.open(f"{phrase_address}/#layers")
    browser.wait("document.querySelectorAll('.heat').length === 2")
    connections = browser.evaluate("fetch('/models/en-de/connections').then((answer) => answer.json())")
    for side in ("encoder", "decoder"):
        matrix = connections[side]["matrix"]
        shown = sum(abs(v) >= 0.1 and abs(v) >= 0.05 * max(map(abs, row)) for row in matrix for v in row)
        connected = sum(v != 0 for row in matrix for v in row)
        drawn = f"document.querySelectorAll('#stack-{side} td.positive, #stack-{side} td.negative').length"
        assert browser.evaluate(drawn) == shown < connected
        browser.evaluate("document.getElementById('faint').click()")
        assert browser.evaluate(drawn) == connected
        browser.evaluate("document.getElementById('faint').click()")
    browser.point("#stack-encoder tbody tr:nth-child(5) td:nth-of-type(4)")
    readout = "document.querySelector('#stack-encoder .readout').textContent"
    value = connections["encoder"]["matrix"][4][3]
    assert browser.evaluate(readout).startswith(f"Layer 5 weights layer 3: {value:.3f}".replace("-", "−"))
    browser.evaluate("document.querySelector('#stack-encoder .heat').focus()")
    browser.press("ArrowUp")
    assert browser.evaluate(readout).startswith("Layer 4 weights layer 3: ")


def test_where_nothing_is_learned_the_page_says_so(browser, shouting):
    _, address = shouting
    browser.open(f"{address}/#layers")
    told = browser.wait("document.getElementById('stack-encoder')?.innerText")
    assert "6 layers, residual connection" in told
    assert "no learned weights to show" in told


def test_colours_follow_the_system_and_the_choice_is_kept(browser, shouting):
    _, address = shouting
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    browser.open(address)
    light = browser.evaluate(ground)
    browser.prefer("dark")
    dark = browser.evaluate(ground)
    assert light != dark
    browser.point("#theme", click=True)
    assert browser.evaluate(ground) == light
    for path in ("", "/docs"):
        browser.open(address + path)
        assert browser.evaluate(ground) == light, "remembered"
    browser.evaluate("localStorage.clear()")


@mark.parametrize("path", ["/", "/#layers", "/docs"])
def test_every_view_fits_a_phone_and_asks_nobody_else(browser, phrase_address, path):
    browser.resize(360, 740, phone=True)
    browser.open(phrase_address + path)
    if path == "/":
        browser.type("The house is old. " + "X" * 200)
        browser.wait(f"{TEXT}.startsWith('Das Haus ist alt.')")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    if path == "/docs":
        browser.wait("document.querySelectorAll('.scroll').length")
        cut = (
            "[...document.querySelectorAll('.scroll')].filter((table) => table.scrollWidth > table.clientWidth).length"
        )
        assert browser.evaluate(cut) == 0, "a table is cut off"
    small = """[...document.querySelectorAll('button, select')].filter((element) => element.offsetParent)
        .filter((element) => element.getBoundingClientRect().height < 36).map((element) => element.id)"""
    assert browser.evaluate(small) == [], "too small for a finger"
    assert all(url.startswith((phrase_address, "about:", "data:")) for url in browser.requested)


@mark.parametrize("path", ["/", "/#layers"])
def test_every_control_has_a_name(browser, shouting, path):
    _, address = shouting
    browser.open(address + path)
    browser.send("Accessibility.enable")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    controls = [
        n for n in nodes if n.get("role", {}).get("value") in ("button", "textbox", "combobox", "checkbox", "link")
    ]
    assert len(controls) > 5
    assert [n for n in controls if not n.get("ignored") and not n.get("name", {}).get("value")] == []


def test_a_long_document_of_a_real_model_is_the_same_as_line_by_line(browser, phrase_address):
    pairs = phrases(150, seed=77)
    browser.open(phrase_address)
    browser.type("\n".join(source for source, _ in pairs))
    browser.wait(f"{TEXT}.split('\\n').length === 150 && document.getElementById('progress').hidden")
    lines = browser.evaluate(TEXT).split("\n")
    right = sum(line == target for line, (_, target) in zip(lines, pairs, strict=True))
    assert right > 120
