"""HTML: sentences are taken out whole, without their tags, and the tags are put back into the translations.

Everything that is not text is copied byte by byte. Block elements and `<br>` separate texts; inline elements belong to
the sentence around them; the contents of OPAQUE elements and of those marked as not to be translated are kept.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate

from deepnmt.serving.hypotheses import ServedHypothesis
from deepnmt.serving.sentences import fitted_gaps, split_sentences
from deepnmt.serving.tags import Element, with_elements

BLOCKS = {
    "address", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas", "caption", "col",
    "colgroup", "dd", "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form",
    "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "iframe",
    "legend", "li", "link", "main", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup", "option", "p",
    "param", "search", "section", "select", "source", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
    "title", "tr", "track", "ul", "video",
}  # fmt: skip
OPAQUE_BLOCKS = {"math", "pre", "script", "style", "svg", "template", "textarea"}
OPAQUE = {*OPAQUE_BLOCKS, "code", "kbd", "samp", "var"}
VOID = {
    "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
}  # fmt: skip
MAX_DEPTH = 32  # of inline elements; deeper ones separate texts
MAX_OPAQUE = 80  # characters that may stand inside a sentence without being translated
_SPACE = re.compile(r"[ \t\n\r\f]+")
_TAG = re.compile(r"<[^>]*>")
_SENTENCE_END = re.compile(r"[.!?…।॥؟۔]\S*\s|[。！？\n\r]")


@dataclass
class Token:
    """A stretch of the document. `kind`: text, open, close, mark (an inline tag without content), opaque or block."""

    kind: str
    raw: str
    name: str = ""
    kept: bool = False  # the start of an element that is not to be translated


class _Tokens(HTMLParser):
    """The standard library's parser, asked only where tokens begin: the document itself says what they are."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[tuple[int, Token, str | None]] = []  # where, what, and its text if that is known
        self._lines = [0, *accumulate(len(line) + 1 for line in document.split("\n"))]
        # The parser looks for the end of a tag again and again where there is none: let it see only what may have one.
        end = document.rfind(">") + 1
        self.feed(document[:end])
        self.close()
        self.tokens: list[Token] = []
        starts = [where for where, _, _ in self.events]
        ends = [*starts, end][1:]
        if before := document[: starts[0] if starts else end]:  # the parser passed over it
            self.tokens.append(Token("mark", before))
        for (where, token, known), following in zip(self.events, ends, strict=True):
            raw = document[where:following]
            if known is not None and raw != known and raw.startswith(known):  # followed by what the parser passed over
                self.tokens += [replace(token, raw=known), Token("mark", raw[len(known) :])]
            else:
                self.tokens.append(replace(token, raw=raw))
        if document[end:]:
            self.tokens.append(Token("text", document[end:]))

    def _add(self, kind: str, name: str = "", kept: bool = False, text: str | None = None) -> None:
        line, column = self.getpos()
        self.events.append((self._lines[line - 1] + column, Token(kind, "", name, kept), text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        marked = any(
            (name == "translate" and (value or "").lower() == "no")
            or (name == "class" and "notranslate" in (value or "").split())
            for name, value in attrs
        )
        kind = "block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "mark" if tag in VOID else "open"
        self._add(kind, tag, tag not in VOID and (marked or tag in OPAQUE), self.get_starttag_text())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID or tag not in OPAQUE:
            self._add("block" if tag in BLOCKS else "mark", tag, text=self.get_starttag_text())
        else:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("block" if tag in BLOCKS or tag in OPAQUE_BLOCKS else "close", tag)

    def handle_data(self, data: str) -> None:
        self._add("text", text=data)

    def handle_entityref(self, name: str) -> None:
        self._add("text")

    def handle_charref(self, name: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("mark")

    def handle_decl(self, decl: str) -> None:
        self._add("block")

    def handle_pi(self, data: str) -> None:
        self._add("mark")

    def unknown_decl(self, data: str) -> None:
        self._add("mark")

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """In HTML it is a comment (older versions of the parser raise an error)."""
        return self.parse_bogus_comment(i)


def _without_kept(tokens: Sequence[Token]) -> list[Token]:
    """Each element that is not to be translated as one token, up to its end or that of the element around it."""
    result: list[Token] = []
    open_names: Counter[str] = Counter()
    kept: list[Token] = []
    inside: Counter[str] = Counter()

    def finish() -> None:
        token = Token("opaque", "".join(token.raw for token in kept))
        content = _content(token)
        if any(token.kind == "block" for token in kept) or len(content) > MAX_OPAQUE or _SENTENCE_END.search(content):
            token.kind = "block"
        result.append(token)
        kept.clear()
        inside.clear()

    for token in tokens:
        starts = token.kind == "open" or (token.kind == "block" and _is_start(token))
        ends = bool(token.name) and not starts and token.kind in ("close", "block") and token.name not in VOID
        if kept and ends and not inside[token.name] and open_names[token.name]:
            finish()
        if kept or token.kept:
            kept.append(token)
            inside[token.name] += starts - (ends and inside[token.name] > 0)
            if ends and token.name == kept[0].name and not inside[token.name]:
                finish()
            continue
        result.append(token)
        open_names[token.name] += starts - (ends and open_names[token.name] > 0)
    if kept:
        finish()
    return result


def _is_start(token: Token) -> bool:
    return bool(token.name) and token.name not in VOID and not token.raw.startswith("</")


def _with_matched_tags(tokens: list[Token]) -> list[Token]:
    """The same, with inline tags that cannot be matched as blocks: what they separate is translated by itself."""
    stack: list[int] = []
    names: Counter[str] = Counter()
    broken = 0  # elements below this depth have a separator inside
    separators: set[int] = set()
    for i, token in enumerate(tokens):
        if token.kind == "open":
            stack.append(i)
            names[token.name] += 1
            if len(stack) > MAX_DEPTH:
                separators.add(i)
                broken = len(stack)
        elif token.kind == "close":
            if not names[token.name]:
                separators.add(i)
                broken = len(stack)
                continue
            matched = True
            while True:
                own = stack.pop()
                names[tokens[own].name] -= 1
                matched &= tokens[own].name == token.name and len(stack) >= broken
                if not matched:
                    separators.add(own)
                if tokens[own].name == token.name:
                    break
            if not matched:
                separators.add(i)
                broken = len(stack)
            broken = min(broken, len(stack))
        elif token.kind == "block":
            broken = len(stack)
    separators.update(stack)
    return [replace(token, kind="block") if i in separators else token for i, token in enumerate(tokens)]


class Passage:
    """Text without a separator in it: its sentences, and where its tags are, in them and between them."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.raw = "".join(token.raw for token in tokens)
        self.elements: list[Element] = []
        self._tags: list[tuple[int, int, str]] = []  # where, of which element, and the tag itself
        self.text = self._read(tokens)
        self.sentences = split_sentences(self.text)
        self.starts = [0, *accumulate(len(s.text) + len(s.gap) for s in self.sentences)][:-1]
        self.inside: list[list[Element]] = [[] for _ in self.sentences]
        self.between: list[list[tuple[int, str]]] = [[] for _ in range(len(self.sentences) + 1)]
        self.is_copied = not any(map(str.isalnum, self.text)) or not self._give_homes()

    def _read(self, tokens: Sequence[Token]) -> str:
        pieces: list[str] = []
        length, space = 0, True  # does the text end in a space (or begin here)?
        open_elements: list[tuple[int, int, int]] = [(-1, 0, 0)]  # their numbers, tokens and tags before them
        for i, token in enumerate(tokens):
            parent = open_elements[-1][0]
            if token.kind in ("text", "opaque"):
                content = _content(token)
                content = content[1:] if space and content.startswith(" ") else content
                if token.kind == "opaque":
                    self._add(Element(length, length + len(content), token.raw, "", parent, is_opaque=True))
                pieces.append(content)
                length += len(content)
                space = content.endswith(" ") if content else space
            elif token.kind == "open":
                open_elements.append((len(self.elements), i, len(self._tags)))
                self._add(Element(length, length, token.raw, "<", parent))
            elif token.kind == "close":
                number, first, tags = open_elements.pop()
                if self.elements[number].start < length:
                    self.elements[number] = replace(self.elements[number], end=length, close=token.raw)
                    self._tags.append((length, number, token.raw))
                else:  # nothing inside
                    del self.elements[number:], self._tags[tags:]
                    raw = "".join(token.raw for token in tokens[first : i + 1])
                    self._add(Element(length, length, raw, "", open_elements[-1][0]))
            else:
                self._add(Element(length, length, token.raw, "", parent))
        return "".join(pieces)

    def _add(self, element: Element) -> None:
        """Marks that stand together become one."""
        last = self.elements[-1] if self.elements else None
        last_number = len(self.elements) - 1
        if (
            last is not None
            and (last.is_mark, last.start, last.parent) == (element.is_mark, element.start, element.parent)
            and last.is_mark
            and self._tags[-1][1] == last_number
        ):
            self.elements[-1] = replace(last, open=last.open + element.open)
            self._tags[-1] = (element.start, last_number, last.open + element.open)
            return
        self._tags.append((element.start, len(self.elements), element.open))
        self.elements.append(element)

    def _give_homes(self) -> bool:
        """Tags inside a sentence go into its translation, the others stay between sentences.

        False where content that must be kept was split, which is possible in a sentence of extreme length only.
        """
        numbers: dict[tuple[int, int], int] = {}  # (sentence, element): its number in the sentence
        for i, element in enumerate(self.elements):
            around = {self._sentence_at(element.start), self._sentence_at(element.end - 1)}
            around |= {self._sentence_at(element.start) - 1} if element.start == element.end else set()
            homes = [k for k in sorted(around) if k >= 0 and self._is_inside(element, k, numbers)]
            if element.is_opaque and len(homes) > 1:
                return False
            for k in homes[:1] if element.is_mark else homes:
                start, size = self.starts[k], len(self.sentences[k].text)
                numbers[k, i] = len(self.inside[k])
                begins, ends = element.start >= start, element.end <= start + size
                self.inside[k].append(
                    replace(
                        element,
                        start=max(element.start - start, 0),
                        end=min(element.end - start, size),
                        open=element.open if begins else "",
                        close=element.close if ends else "",
                        parent=numbers.get((k, element.parent), -1),
                        from_before=not begins,
                        goes_beyond=not ends,
                    )
                )
        for place, i, tag in self._tags:
            k = self._sentence_at(place)
            if any((k - back, i) in numbers and self._is_within(place, k - back) for back in (0, 1)):
                continue
            end = self.starts[k] + len(self.sentences[k].text)
            region = k if place == self.starts[k] and place < end else k + 1
            self.between[region].append((place - end if region == k + 1 else len(self.text), tag))
        return True

    def _sentence_at(self, place: int) -> int:
        return max(bisect_right(self.starts, place) - 1, 0)

    def _is_within(self, place: int, k: int) -> bool:
        return k >= 0 and self.starts[k] <= place <= self.starts[k] + len(self.sentences[k].text)

    def _is_inside(self, element: Element, k: int, numbers: dict[tuple[int, int], int]) -> bool:
        start, end = self.starts[k], self.starts[k] + len(self.sentences[k].text)
        if element.start == element.end:
            has_home = (k, element.parent) in numbers
            return start < element.start < end or (has_home and start <= element.start <= end)
        if max(start, element.start) >= min(end, element.end):
            return False
        return element.is_opaque or not (element.start <= start and element.end >= end)

    def written(self, hypotheses: Sequence[ServedHypothesis], language: str) -> str:
        """The passage with these translations of its sentences."""
        if self.is_copied:
            return self.raw
        first = len(self.raw) - len(self.raw.lstrip(" \t\n\r\f"))
        parts = [self.raw[:first]]
        parts += [tag for _, tag in self.between[0]]
        gaps = fitted_gaps(self.sentences, language)
        for k, (sentence, hypothesis) in enumerate(zip(self.sentences, hypotheses, strict=True)):
            parts.append(with_elements(sentence.text, self.inside[k], hypothesis))
            at = 0
            for place, tag in self.between[k + 1]:
                place = min(max(place, at), len(gaps[k]))
                parts += [gaps[k][at:place], tag]
                at = place
            parts.append(gaps[k][at:])
        return "".join(parts)


class MarkupText:
    """An HTML document. Law: with every sentence translated as itself, it is the document but for white space."""

    def __init__(self, document: str) -> None:
        tokens = _with_matched_tags(_without_kept(_Tokens(document).tokens))
        self.parts: list[str | Passage] = []
        run: list[Token] = []
        for token in [*tokens, Token("block", "")]:
            if token.kind != "block":
                run.append(token)
                continue
            if run:
                self.parts.append(Passage(run))
                run = []
            self.parts.append(token.raw)
        self._passages = [part for part in self.parts if isinstance(part, Passage) and not part.is_copied]

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        """The sentences to translate, and whether alignments are needed to put tags back."""
        return [
            (sentence.text, bool(elements))
            for passage in self._passages
            for sentence, elements in zip(passage.sentences, passage.inside, strict=True)
        ]

    def written(self, hypotheses: Sequence[ServedHypothesis], language: str) -> str:
        remaining = iter(hypotheses)
        return "".join(
            part if isinstance(part, str) else part.written(self._own(part, remaining), language) for part in self.parts
        )

    def _own(self, passage: Passage, remaining: Iterator[ServedHypothesis]) -> list[ServedHypothesis]:
        return [] if passage.is_copied else [next(remaining) for _ in passage.sentences]


def _content(token: Token) -> str:
    raw = token.raw if token.kind == "text" else _TAG.sub("", token.raw)
    return _SPACE.sub(" ", unescape(raw))
