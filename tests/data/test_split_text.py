"""Text that is already split is noticed, and raw text is not taken for it."""

from pathlib import Path

import pytest
from grammar import english_german, write_pairs
from sacremoses import MosesTokenizer

import deepnmt
from deepnmt.data.split_text import split_sign

RAW = [source for source, _ in english_german(200)]
QUOTED = ['It isn\'t "state-of-the-art"', "the dog's bone (new)", "He said: go", "well-known; isn't it?"]
SPLIT = {
    "looks split by subword-nmt": [line.replace("ee", "e@@ e").replace("og", "o@@ g") for line in RAW],
    "looks split by SentencePiece": [f"▁{line.replace(' ', ' ▁').replace('ee', 'e e')}" for line in RAW],
    "looks tokenised for OpenNMT": [line.replace(",", " ￭,").replace(".", " ￭.") for line in RAW],
    "looks split into words": 40 * ["我 喜欢 你 。", "你 呢 ？", "她 会 用 Python 编程"],
    "looks tokenised": [str(MosesTokenizer("en").tokenize(line, return_str=True)) for line in RAW],
}


@pytest.mark.parametrize("finding", SPLIT)
def test_split_text_is_recognised(finding: str) -> None:
    assert (split_sign(SPLIT[finding]) or "").startswith(f"{finding} (")


def test_tokens_are_recognised_without_full_stops() -> None:
    moses = MosesTokenizer("en")
    tokenised = [str(moses.tokenize(line, return_str=True, aggressive_dash_splits=True)) for line in 10 * QUOTED]
    assert (split_sign(tokenised) or "").startswith("looks tokenised (")


@pytest.mark.parametrize(
    "raw",
    [
        *RAW[:1],
        *QUOTED,
        "@@ -1,3 +1,4 @@ def main():",
        "Bonjour ! Ça va ? « Oui » : bien sûr ; non",
        "He said &quot;yes&quot; &amp; went; it&apos;s so",
        "me@@example.org, level ▁▂▃▄ and ▁ alone",
        "and so on ... . .. the end ...",
        "我喜欢你。",
        "她说：“好！” 然后走了。",
        "これはテストです。 次の行に移ります！",
        "ฉันรักคุณ และเธอก็รักฉัน ใช่ไหม",
        "قال: «نعم»، ثم ذهب إلى البيت.",
        "यह एक परीक्षा है ।",
        "Write to anna.berg@example.org or bob@example.com.",
        "| name | size | 12 @ 3 |",
        "git diff HEAD~1 -- src/main.c  # see @param",
        "",
    ],
)
def test_raw_text_is_not_taken_for_split_text(raw: str) -> None:
    assert split_sign(500 * [raw]) is None
    assert split_sign(RAW + 9 * [SPLIT["looks split by SentencePiece"][0]]) is None


def test_prepare_warns_of_split_text_and_names_the_file_and_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train = english_german(200)
    source, target = write_pairs(tmp_path, "train", list(zip(RAW, SPLIT["looks tokenised"], strict=True)))
    columns = tmp_path / "valid.tsv"
    columns.write_text("".join(f"{a}\t▁{b}\n" for a, b in english_german(20, seed=1)), encoding="utf-8")
    options = {"source_lang": "en", "target_lang": "de", "vocab_size": 400, "workers": 1}
    deepnmt.prepare(source=source, target=target, valid_tsv=columns, out=tmp_path / "data", **options)
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("deepnmt: ")]
    so = "and the model would write such text;"
    assert warnings == [
        f"deepnmt: column 2 of {columns} looks split by SentencePiece (20 of 20 lines), {so} "
        "join its subwords first: sed 's/ //g; s/▁/ /g; s/^ //'",
        f"deepnmt: {target} looks tokenised (200 of 200 lines), {so} detokenise it first: sacremoses -l de detokenize",
    ]
    source, target = write_pairs(tmp_path, "train", train)
    deepnmt.prepare(source=source, target=target, out=tmp_path / "raw", **options)
    assert "looks" not in capfd.readouterr().err
