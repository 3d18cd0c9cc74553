#!/usr/bin/env bash
# Equal tokens in equal batches: one arm, from raw text to translations.
#   bash equal-tokens.sh ARM TEXT OUT
# ARM is base, big, plain-NNl, dlcl-NNl or post-dlcl-NNl, with NN encoder layers, or the name of a beyond-* preset and its
# depth, such as beyond-denseformer-30l. TEXT holds train, newstest2013, newstest2014 and test (Europarl's) as .en.xz and
# .de.xz. Arms in one OUT share the data and take turns at training: started together, one translates while the next trains.
# Settings are environment variables:
#   WIDTH=full   the paper's: d 512 (Big 1024), joint BPE of 32k, batches of 32,768 tokens, rate 2e-3
#   WIDTH=half   d 256 (Big 512), joint BPE of 16k, batches of 16,384 tokens, rate 2.8e-3
#   EPOCHS=12  SEED=1  RATE  DROPOUT=0.1  OPTIMIZER=adam  STEPS (instead of EPOCHS, for a trial)
#   SETTINGS     more overrides of the recipe, such as model.encoder.connection.period=3
#   NAME         the folder of the arm in OUT; default: ARM, and the seed if it is not 1
#   SHARED=1     other work has the GPU too, such as another arm, so the speed of generation is not measured
# At the full width an arm needs about 12 minutes (Base 5) and 20 GB of disk on an H200.
set -euo pipefail
arm=$1 text=$2 out=$3
width=${WIDTH:-full} seed=${SEED:-1}
depth=$(sed -n 's/.*-\([0-9]*\)l$/\1/p' <<< "$arm")
case $arm in
base) recipe=en-de-pre-base depth=6 ;;
big) recipe=en-de-pre-big depth=6 ;;
plain-[0-9]*l) recipe=en-de-pre-20l ;;
dlcl-[0-9]*l) recipe=en-de-pre-dlcl-30l ;;
post-dlcl-[0-9]*l) recipe=en-de-post-dlcl-25l ;;
beyond-*-[0-9]*l) recipe=${arm%-*} ;;
*) echo "unknown arm $arm: base, big, plain-30l, dlcl-30l, post-dlcl-25l or beyond-NAME-30l" >&2; exit 2 ;;
esac
case $width in
full) vocabulary=32000 tokens=32768 epoch=625 rate=2e-3 size=() ;;
half)
    vocabulary=16000 tokens=16384 epoch=1250 rate=2.8e-3 dim=256
    [ "$arm" = big ] && dim=512
    size=(model.{encoder,decoder}.dim=$dim model.{encoder,decoder}.ffn_dim=$((4 * dim)) model.{encoder,decoder}.num_heads=$((dim / 64)))
    ;;
*) echo "WIDTH is full or half, not $width" >&2; exit 2 ;;
esac
steps=${STEPS:-$((${EPOCHS:-12} * epoch))}
name=$arm data=$out/data-$width
[ "$seed" = 1 ] || name=$arm-seed$seed
name=${NAME:-$name}
read -ra settings <<< "${SETTINGS:-}"
run=$out/$name/run model=$out/$name/model home=$out/$name/home
mkdir -p "$home"
given=()
for setting in WIDTH EPOCHS STEPS SEED RATE DROPOUT OPTIMIZER SETTINGS NAME SHARED; do
    [ -z "${!setting:-}" ] || given+=("$setting=${!setting@Q}")
done
echo "${given[*]}${given:+ }bash results/europarl/equal-tokens.sh $arm TEXT OUT" > "$home/command.txt"
if [ ! -d "$data" ]; then
    exec 9> "$out/data.lock" && flock 9 # the first of several arms prepares for all
    [ -d "$data" ] || deepnmt prepare --source "$text/train.en.xz" --target "$text/train.de.xz" \
        --valid-source "$text/newstest2013.en.xz" --valid-target "$text/newstest2013.de.xz" \
        --source-lang en --target-lang de --joint --vocab-size $vocabulary --out "$data"
    exec 9>&-
fi
exec 9> "$out/train.lock" && flock 9
deepnmt train $recipe model.encoder.num_layers="$depth" "${size[@]}" \
    training.optimizer="${OPTIMIZER:-adam}" training.lr="${RATE:-$rate}" training.schedule=inverse_sqrt \
    training.warmup_steps=$(((steps / 8 + 9) / 10 * 10)) training.max_steps=$steps training.tokens_per_update=$tokens \
    batching.tokens_per_batch=$tokens batching.layout=packed training.precision=bf16 \
    model.dropout="${DROPOUT:-0.1}" model.attention_dropout=0.1 model.ffn_dropout=0.1 'training.betas=[0.9, 0.98]' \
    training.label_smoothing=0.1 training.seed=$seed training.validate_every=$((steps < 20 ? 1 : steps / 20)) training.validation_lines=0 \
    training.best_by=loss training.keep_best=0 training.save_every=$((steps < 15 ? 1 : steps / 15)) training.keep_last=5 \
    training.save_epochs=false training.export=last training.log_every=50 training.tensorboard=false "${settings[@]}" \
    --data "$data" --out "$run" --resume 9>&-
exec 9>&-
cp "$run/log.jsonl" "$run/recipe.toml" "$home"
deepnmt average "$run" --last 5 --out "$model"
for test in newstest2014 test; do
    for side in en de; do xz -dc "$text/$test.$side.xz" > "$out/$name/$test.$side"; done
    deepnmt translate "$model" --beam 4 --length-penalty 0.6 --input "$out/$name/$test.en" --output "$home/$test.de"
done
[ -n "${SHARED:-}" ] || deepnmt bench generate "$run/recipe.toml" --precision bf16 --json > "$home/speed.json"
deepnmt inspect weights "$model" --out "$home/weights.csv" || true # some schemes have none
# On any machine: deepnmt score --hypothesis home/newstest2014.de --reference newstest2014.de --source-lang en --target-lang de
