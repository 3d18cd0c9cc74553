"""What clients send and get, as they see it in the OpenAPI description."""

from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepnmt.serving.batching import Options
from deepnmt.serving.limits import Limits, RefusedError

Texts = str | list[str]
Shape = TypeVar("Shape", bound=BaseModel)


class TranslateRequest(BaseModel):
    """One text or several. A text may have many sentences and lines; the translation keeps its layout."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"text": "Hello, world!", "source": "en", "target": "de"}]},
    )

    text: Texts = Field(description="what to translate")
    model: str | None = Field(None, description="the name of a model; see /models")
    source: str | None = Field(None, description="the language of the text, such as en")
    target: str | None = Field(None, description="the language to translate to, such as de")
    beam: int = Field(Options.beam, ge=1, description="hypotheses kept while searching; 1 is fastest")
    length_penalty: float = Field(
        Options.length_penalty, ge=-5, le=5, allow_inf_nan=False, description="higher: longer translations"
    )
    nbest: int = Field(Options.nbest, ge=1, description="how many translations of each sentence, at most beam")
    alignments: bool = Field(Options.alignments, description="also which word was translated from which")
    stream: bool = Field(False, description="answer line by line (NDJSON), each sentence as soon as it is translated")


class LibreTranslateRequest(BaseModel):
    """The request of LibreTranslate, as JSON or as a form; told apart by its field q. Other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"q": "Hello, world!", "source": "en", "target": "de", "format": "text"}]},
    )

    q: Texts = Field(description="what to translate")
    source: str = Field("auto", description="the language of the text, or auto")
    target: str = Field(description="the language to translate to")
    format: Literal["text", "html"] = Field(
        "text", description="html: tags are kept and what is between them translated"
    )
    alternatives: int = Field(0, ge=0, description="how many other translations to give")


class AlignmentAnswer(BaseModel):
    source_words: list[str]
    target_words: list[str]
    links: list[tuple[int, int]] = Field(description="source word and target word, from zero")
    weights: list[list[float]] = Field(description="for each target word how much it looks at each source word")


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


class StackAnswer(BaseModel):
    kind: str = Field(description="the connection scheme")
    num_layers: int
    matrix: list[list[float]] | None = Field(description="row: what a layer receives; column: from which output")


class ConnectionsAnswer(BaseModel):
    encoder: StackAnswer
    decoder: StackAnswer


class HealthAnswer(BaseModel):
    status: Literal["ok", "shutting down"]
    models: list[str]


class ErrorAnswer(BaseModel):
    error: str


def checked(shape: type[Shape], fields: dict[str, Any], status: int) -> Shape:
    """The request, or a refusal that names the first field that is wrong."""
    try:
        return shape.model_validate(fields)
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_input=False)[0]
        name = str(error["loc"][0]) if error["loc"] else "body"
        if error["type"] == "extra_forbidden":
            raise RefusedError(status, _unknown(name, list(shape.model_fields))) from None
        if name in ("text", "q") and error["type"] != "missing":
            raise RefusedError(status, f"{name} must be a string or a list of strings") from None
        message = error["msg"].removeprefix("Input should be ")
        told = "is missing" if error["type"] == "missing" else f"must be {message}"
        raise RefusedError(status, f"{name} {told}") from None


def _unknown(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    shown = name if len(name) <= 40 else f"{name[:40]}…"
    return f"unknown field {shown!r}; " + (f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}")


def checked_texts(texts: Texts, limits: Limits) -> list[str]:
    listed = [texts] if isinstance(texts, str) else texts
    if len(listed) > limits.max_texts:
        raise RefusedError(413, f"{len(listed):,} texts are more than the {limits.max_texts:,} of one request")
    size = sum(map(len, listed))
    if size > limits.max_characters:
        raise RefusedError(413, f"{size:,} characters are more than the {limits.max_characters:,} of one request")
    return listed


def checked_options(request: TranslateRequest, limits: Limits) -> Options:
    if request.beam > limits.max_beam:
        raise RefusedError(422, f"beam must be at most {limits.max_beam}, not {request.beam}")
    if request.nbest > request.beam:
        raise RefusedError(422, f"nbest = {request.nbest} must be at most beam = {request.beam}")
    return Options(
        beam=request.beam,
        length_penalty=request.length_penalty,
        nbest=request.nbest,
        alignments=request.alignments,
    )
