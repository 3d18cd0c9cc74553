"""A package for Argos Translate and LibreTranslate: a zip of a CTranslate2 model, a SentencePiece model and metadata.

Argos splits text into sentences with its own model, encodes them with the SentencePiece model, and joins the results.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.decoding.export import DESCRIPTION, export
from deepnmt.decoding.export.comparison import Agreement, Tell
from deepnmt.decoding.export.expressible import refuse, unlike_sentencepiece
from deepnmt.errors import InputError
from deepnmt.files import replacing
from deepnmt.languages import base_language, language_name

NAME, SUFFIX = "Argos Translate", ".argosmodel"


def export_package(folder: Path, out: Path, texts: Sequence[str], tell: Tell) -> Agreement | None:
    """Write the MODEL `folder` as the file `out`, verified like an export to CTranslate2."""
    tokenizers = TokenizerPair.load(folder)
    refuse(NAME, unlike_sentencepiece(tokenizers))
    source, target = tokenizers.source.language, tokenizers.target.language
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9",
        "from_code": base_language(source),
        "from_name": language_name(source),
        "to_code": base_language(target),
        "to_name": language_name(target),
    }
    with TemporaryDirectory() as temporary:
        written = Path(temporary) / "model"
        agreement = export(folder, written, "ctranslate2", texts, tell)
        name = f"translate-{metadata['from_code']}_{metadata['to_code']}-1_0"
        with replacing(out) as aside, zipfile.ZipFile(aside, "w") as package:
            package.writestr(f"{name}/metadata.json", json.dumps(metadata, indent=2, ensure_ascii=False) + "\n")
            package.write(written / "source.spm", f"{name}/sentencepiece.model")
            for file in sorted(written.iterdir()):
                if file.suffix != ".spm" and file.name != DESCRIPTION:
                    package.write(file, f"{name}/model/{file.name}")
    return agreement


def check_package(path: Path, overwrite: bool) -> None:
    """Raise if the file exists, unless it may be overwritten and is a zip."""
    if path.exists():
        if not overwrite:
            raise InputError(f"{path} already exists; choose another `out` or pass `overwrite=True`")
        if not (path.is_file() and zipfile.is_zipfile(path)):
            raise InputError(f"{path} is not a package and will not be overwritten; choose another `out`")
