#!/usr/bin/env bash
# `deepnmt reproduce beyond` on Multi30k, on one rented GPU, a lease at a time.
#
#   bash results/beyond/run.sh TEXT OUT            e.g. MINUTES=9.5 bash results/beyond/run.sh shared/multi30k-en-de "$OUT"
#
# TEXT has train, val, test_2016_flickr and test_2017_flickr as .en.xz and .de.xz. OUT receives what is worth bringing home,
# written anew every minute, so a command that is cut off leaves all but its last minute:
#   OUT/study.tar.gz      the small files of every run (a few MB): curves, translations
#   OUT/compiled.tar.gz   the compiler's cache, which saves the next lease about a minute
# Runs are done seed by seed: all 18-layer arms, all 30-layer arms, then the next seed.
#
# Resume on the same machine: repeat the command; runs that were cut off continue from their checkpoints. On another machine:
#   STUDY=study.tar.gz COMPILED=compiled.tar.gz bash results/beyond/run.sh TEXT OUT
# finished runs are not repeated; those that were cut off start again. At home, for scores, significance and the report:
#   tar xzf study.tar.gz && cp results/beyond/cost.json study/beyond/ && deepnmt reproduce --score-only study
#
# MINUTES    for this command; the last half minute of it packs the files
# SEEDS, PARALLEL (processes at a time), TOKENS (of a run), ARMS (patterns without spaces: "DLCL?30L *18L"), SETTINGS (overrides)
set -euo pipefail
text=$1 out=$2
MINUTES=${MINUTES:-9.5} SEEDS=${SEEDS:-3} PARALLEL=${PARALLEL:-12} TOKENS=${TOKENS:-8192000} DEVICE=${DEVICE:-cuda} WORK=${WORK:-/tmp/beyond}
started=$(date +%s)
end=$(python3 -c "print(int($started + 60 * $MINUTES) - 30)")
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
# Every worker compiles by itself: pools of compilers in a dozen workers would be in each other's way.
export TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_CACHE_DIR=$WORK/compiled/inductor TRITON_CACHE_DIR=$WORK/compiled/triton
deepnmt() { python3 -m deepnmt "$@"; }
mkdir -p "$WORK/text" "$WORK/compiled" "$out"
if [ -n "${STUDY:-}" ] && [ ! -d "$WORK/study" ]; then tar xzf "$STUDY" -C "$WORK"; fi
if [ -n "${COMPILED:-}" ] && [ ! -d "$TRITON_CACHE_DIR" ]; then tar xzf "$COMPILED" -C "$WORK"; fi

if [ ! -d "$WORK/multi30k" ]; then
    for name in train val test_2016_flickr test_2017_flickr; do
        for side in en de; do xz -dc "$text/$name.$side.xz" > "$WORK/text/$name.$side"; done
    done
    deepnmt prepare --source "$WORK/text/train.en" --target "$WORK/text/train.de" \
        --valid-source "$WORK/text/val.en" --valid-target "$WORK/text/val.de" \
        --test-source "$WORK/text/test_2016_flickr.en" --test-target "$WORK/text/test_2016_flickr.de" \
        --source-lang en --target-lang de --joint --vocab-size 10000 --out "$WORK/multi30k"
fi

if [ "$DEVICE" = cuda ]; then # the workers' kernels run side by side under MPS; without it they take turns
    export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps
    mkdir -p "$WORK/mps"
    echo quit | timeout 5 nvidia-cuda-mps-control > /dev/null 2>&1 || true # one that an earlier command left
    nvidia-cuda-mps-control -d && python3 -c "import torch; torch.ones(1, device='cuda').item()" || unset CUDA_MPS_PIPE_DIRECTORY
    echo "MPS: ${CUDA_MPS_PIPE_DIRECTORY:-none}"
fi

pack() {
    [ -d "$WORK/study/runs" ] || return 0
    tar czf "$out/.study" -C "$WORK" --exclude training --exclude model --exclude .lock study && mv "$out/.study" "$out/study.tar.gz"
}
(while sleep 60; do pack; done) 2> /dev/null &
packer=$!

read -ra arms <<< "${ARMS:-*}"
# shellcheck disable=SC2086
timeout -s TERM -k 20 $((end - $(date +%s))) python3 -m deepnmt reproduce beyond training.tensorboard=false ${SETTINGS:-} \
    --scale multi30k --data "$WORK/multi30k" --out "$WORK/study" --tokens "$TOKENS" --seeds "$SEEDS" \
    --test test2017 "$WORK/text/test_2017_flickr.en" "$WORK/text/test_2017_flickr.de" \
    --parallel "$PARALLEL" --device "$DEVICE" --no-scores --arms "${arms[@]}" || echo "not all runs are done (status $?)"

kill $packer 2> /dev/null || true
pack || true
tar czf "$out/compiled.tar.gz" -C "$WORK" compiled || true
[ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || echo quit | timeout 5 nvidia-cuda-mps-control || true
echo "$(find "$WORK/study/runs" -name decode.json | wc -l) runs translated, $(grep -l '"status": "failed"' "$WORK"/study/runs/*/train.json 2> /dev/null | wc -l) failed to train, after $(($(date +%s) - started)) s"
grep -h "ended with an error" "$WORK"/study/workers/*.log | tail -3 || true
ls -l "$out"
