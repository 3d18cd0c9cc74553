"""Requests and answers, as the OpenAPI description shows them to clients."""

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deepnmt.heatmap import Colours, shown
from deepnmt.model.transformer import Transformer
from deepnmt.serving.batch_queue import Failure
from deepnmt.serving.limits import Limits, RefusedError
from deepnmt.settings import did_you_mean
from deepnmt.text import shortened

Texts = str | list[str]
Terms = dict[str, str] | list[Annotated[list[str], Field(min_length=2, max_length=2)]]
Shape = TypeVar("Shape", bound=BaseModel)


class TranslateRequest(BaseModel):
    """One text or several. A text may have many sentences and lines; the translation keeps its layout."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"text": "Hello, world!", "source": "en", "target": "de"}]},
    )

    text: Texts = Field(description="one text or a list of texts")
    model: str | None = Field(None, description="name of a model; see /models")
    source: str | None = Field(None, description="the language of the text, such as en")
    target: str | None = Field(None, description="the language to translate to, such as de")
    beam: int | None = Field(None, ge=1, description="hypotheses kept per step; default: the model's own")
    length_penalty: float | None = Field(
        None,
        ge=-5,
        le=5,
        allow_inf_nan=False,
        description="higher values favour longer translations; default: the model's own",
    )
    nbest: int = Field(1, ge=1, description="translations of each sentence, at most beam")
    terms: Terms = Field(
        {}, description='terms and their required translations, such as {"light": "Leuchte"}, or pairs'
    )
    alignments: bool = Field(False, description="also return which target word comes from which source word")
    stream: bool = Field(False, description="answer line by line (NDJSON), each sentence as soon as it is translated")


class LibreTranslateRequest(BaseModel):
    """A LibreTranslate request, as JSON or as a form, recognised by its field q. Other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"q": "Hello, world!", "source": "en", "target": "de", "format": "text"}]},
    )

    q: Texts = Field(description="one text or a list of texts")
    source: str = Field("auto", description="the language of the text, or auto to detect it")
    target: str = Field(description="the language to translate to")
    format: Literal["text", "html"] = Field(
        "text", description="html: sentences are translated whole and tags are put back around their words"
    )
    alternatives: int = Field(0, ge=0, description="number of other translations")

    @field_validator("alternatives", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        """A form sends strings, so pydantic is not strict here and would take false for zero."""
        return str(value) if isinstance(value, bool) else value


class DetectRequest(BaseModel):
    """A LibreTranslate request. Other fields are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [{"q": "Hello, world!"}]})

    q: Texts = Field(description="one text, or several, which are joined")


class DetectionAnswer(BaseModel):
    language: str
    confidence: float = Field(description="percent")


class AlignmentAnswer(BaseModel):
    source_words: list[str]
    target_words: list[str]
    links: list[tuple[int, int]] = Field(description="source word and target word, from zero")
    weights: list[list[float]] = Field(description="for each target word, its attention to each source word")


class HypothesisAnswer(BaseModel):
    text: str
    score: float = Field(description="log probability over length to the power of the length penalty")
    alignment: AlignmentAnswer | None = None


class SentenceAnswer(HypothesisAnswer):
    source: str
    gap: str = Field(description="the spaces and line breaks that follow in the text")
    alternatives: list[HypothesisAnswer] = Field([], description="the next best, when nbest is above 1")


class TextAnswer(BaseModel):
    text: str
    sentences: list[SentenceAnswer]


class TranslateAnswer(BaseModel):
    model: str
    source: str
    target: str
    translations: list[TextAnswer] = Field(description="one for each text, in order")


class LibreTranslateAnswer(BaseModel):
    translatedText: Texts  # noqa: N815 (LibreTranslate's own names)
    alternatives: list[Any] | None = None
    detectedLanguage: Any | None = None  # noqa: N815


class LanguageAnswer(BaseModel):
    code: str
    name: str
    targets: list[str]


class ModelAnswer(BaseModel):
    name: str
    source: str
    target: str
    sources: list[str] | None = Field(None, description="all source languages of a model that has several")
    targets: list[str] | None = Field(None, description="all target languages of a model that has several")


class StackAnswer(BaseModel):
    kind: str = Field(description="the connection scheme")
    num_layers: int
    matrix: list[list[float]] | None = Field(None, description="rows: readers; columns: the outputs they weight")
    readers: list[str] = Field([], description="the reader of each row, such as layer 3, the output or decoder layer 1")
    shades: list[list[float]] = Field([], description="the weights divided by the largest, from -1 to 1, for colours")
    faint: list[list[bool]] = Field([], description="whether the rule of the paper's figure 6 leaves a weight blank")

    @classmethod
    def of(cls, model: Transformer, side: str) -> "StackAnswer":
        """The encoder or the decoder of a model."""
        config, learned = getattr(model.config, side), getattr(model, side).connection.learned_weights()
        table: dict[str, Any] = {"kind": config.connection.kind, "num_layers": config.num_layers}
        if learned is not None:
            matrix = [[round(value, 5) for value in row] for row in learned.matrix.tolist()]
            largest = Colours.of(matrix).largest
            table |= {"matrix": matrix, "readers": learned.readers}
            table["shades"] = [[round(value / largest, 5) for value in row] for row in matrix]
            table["faint"] = [[math.isnan(value) for value in row] for row in shown(matrix)]
        return cls(**table)


Status = Literal["ok", "failing", "shutting down"]


class HealthAnswer(BaseModel):
    status: Status
    models: list[str]
    failing: list[Failure]


class ErrorAnswer(BaseModel):
    error: str


def checked(shape: type[Shape], fields: dict[str, Any], status: int, limits: Limits) -> Shape:
    """The request, or a refusal that names the first invalid field."""
    for texts in (fields.get("text"), fields.get("q")):
        if isinstance(texts, list) and len(texts) > limits.max_texts:
            raise RefusedError(413, f"{len(texts):,} texts are more than the {limits.max_texts:,} of one request")
    if isinstance(terms := fields.get("terms"), list | dict) and len(terms) > limits.max_terms:
        raise RefusedError(413, f"{len(terms):,} terms are more than the {limits.max_terms:,} of one request")
    try:
        return shape.model_validate(fields)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_input=False)[0]
        name = str(error["loc"][0]) if error["loc"] else "body"
        if error["type"] == "extra_forbidden":
            hint = did_you_mean(shortened(name), shape.model_fields) or f"; known: {', '.join(shape.model_fields)}"
            raise RefusedError(status, f"unknown field {shortened(name)!r}{hint}") from None
        if name in ("text", "q") and error["type"] != "missing":
            raise RefusedError(status, f"{name} must be a string or a list of strings") from None
        if name == "terms":
            kinds = 'an object such as {"light": "Leuchte"} or a list of pairs such as [["light", "Leuchte"]]'
            raise RefusedError(status, f"terms must be {kinds}") from None
        wrong = f"must be {error['msg'].removeprefix('Input should be ')}"
        raise RefusedError(status, f"{name} {'is missing' if error['type'] == 'missing' else wrong}") from None


def checked_terms(terms: Terms, limits: Limits) -> tuple[tuple[str, str], ...]:
    pairs = tuple((term, text) for term, text in (terms.items() if isinstance(terms, dict) else terms))
    longest = max((len(text) for pair in pairs for text in pair), default=0)
    if longest > limits.max_term_characters:
        raise RefusedError(413, f"a term has {longest:,} characters, more than {limits.max_term_characters:,}")
    return pairs


def checked_texts(texts: Texts, limits: Limits) -> list[str]:
    listed = [texts] if isinstance(texts, str) else texts
    size = sum(map(len, listed))
    if size > limits.max_characters:
        raise RefusedError(413, f"{size:,} characters are more than the {limits.max_characters:,} of one request")
    return listed
