#!/usr/bin/env bash
# The headline with equal tokens in equal batches: one arm, from raw text to scores.
#   bash equal-tokens.sh ARM TEXT OUT      ARM: base, big, dlcl-30l or plain-30l
# TEXT holds train, newstest2013, newstest2014 and test (Europarl's) as .en.xz and .de.xz. Arms in one OUT share the data.
# A run of this size needs about 12 minutes (Base 5) and 20 GB of disk on an H200.
set -euo pipefail
arm=$1 text=$2 out=$3
run=$out/$arm/run model=$out/$arm/model home=$out/$arm/home
case $arm in
base) recipe=en-de-pre-base depth=6 ;;
big) recipe=en-de-pre-big depth=6 ;;
dlcl-30l) recipe=en-de-pre-dlcl-30l depth=30 ;;
plain-30l) recipe=en-de-pre-20l depth=30 ;;
*) echo "unknown arm $arm: base, big, dlcl-30l or plain-30l" >&2; exit 2 ;;
esac
mkdir -p "$home"
[ -d "$out/data" ] || deepnmt prepare --source "$text/train.en.xz" --target "$text/train.de.xz" \
    --valid-source "$text/newstest2013.en.xz" --valid-target "$text/newstest2013.de.xz" \
    --source-lang en --target-lang de --joint --vocab-size 32000 --out "$out/data"
deepnmt train $recipe model.encoder.num_layers=$depth \
    training.lr="${RATE:-2e-3}" training.schedule=inverse_sqrt training.warmup_steps=940 training.max_steps="${STEPS:-7500}" \
    training.tokens_per_update=32768 batching.tokens_per_batch=32768 batching.layout=packed training.precision=bf16 \
    model.dropout="${DROPOUT:-0.1}" model.attention_dropout=0.1 model.ffn_dropout=0.1 'training.betas=[0.9, 0.98]' \
    training.label_smoothing=0.1 training.seed="${SEED:-1}" training.validate_every=375 training.validation_lines=0 \
    training.best_by=loss training.keep_best=0 training.save_every=500 training.keep_last=5 training.save_epochs=false \
    training.export=last training.log_every=50 training.tensorboard=false \
    --data "$out/data" --out "$run" --resume
cp "$run/log.jsonl" "$run/recipe.toml" "$home"
deepnmt average "$run" --last 5 --out "$model"
for test in newstest2014 test; do
    for side in en de; do xz -dc "$text/$test.$side.xz" > "$out/$arm/$test.$side"; done
    deepnmt translate "$model" --beam 4 --length-penalty 0.6 --input "$out/$arm/$test.en" --output "$home/$test.de"
done
deepnmt inspect weights "$model" --out "$home/weights.csv" || true # the arms without DLCL have none
# On any machine: deepnmt score --hypothesis home/newstest2014.de --reference newstest2014.de --source-lang en --target-lang de
