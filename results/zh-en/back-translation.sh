#!/bin/sh
# One round of back-translation, Chinese-English, end to end: half of a small corpus is parallel text, of the other half
# only the English side is used. Then table 4 of the paper in small, without and with what came of it.
#
#   results/zh-en/back-translation.sh TEXT OUT [SETTING of `deepnmt reproduce` ...]
#
# TEXT holds train, val and test as .zh.xz and .en.xz (for us: 3AM, https://github.com/MaxyLee/3AM, MIT).
set -eu
text=$1 out=$2
shift 2
recipe=$(dirname "$0")/reverse.toml
mkdir -p "$out/text"
half=$(($(xz -dc "$text/train.en.xz" | wc -l) / 2))
for language in zh en; do
    xz -dc "$text/train.$language.xz" | head -n "$half" > "$out/text/half.$language"
done
xz -dc "$text/train.en.xz" | tail -n +"$((half + 1))" > "$out/text/mono.en"

prepare() {  # NAME SOURCE TARGET PRETOKENIZERS CORPORA...
    name=$1 source=$2 target=$3 pretokenizers=$4
    shift 4
    [ -e "$out/$name/dataset.json" ] || deepnmt prepare "$@" \
        --valid-source "$text/val.$source.xz" --valid-target "$text/val.$target.xz" \
        --test-source "$text/test.$source.xz" --test-target "$text/test.$target.xz" \
        --source-lang "$source" --target-lang "$target" --pretokenizer $pretokenizers --separate --vocab-size 8000 \
        --min-frequency 2 --out "$out/$name"
}

prepare reverse en zh "none jieba" --source "$out/text/half.en" --target "$out/text/half.zh"
[ -e "$out/reverse-run/model/meta.json" ] || deepnmt train "$recipe" --data "$out/reverse" --out "$out/reverse-run" --resume
[ -e "$out/text/synthetic.zh" ] || deepnmt backtranslate "$out/reverse-run/model" "$out/text/mono.en" --out "$out/text/synthetic"

prepare half zh en "jieba none" --source "$out/text/half.zh" --target "$out/text/half.en"
prepare with-synthetic zh en "jieba none" --source "$out/text/half.zh" --target "$out/text/half.en" \
    --corpus synthetic "$out/text/synthetic.zh" "$out/text/synthetic.en" --tag "synthetic=<bt>"
for data in half with-synthetic; do
    deepnmt reproduce table4 --scale multi30k --data "$out/$data" --out "$out/study-$data" "$@"
done
