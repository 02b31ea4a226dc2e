#!/usr/bin/env bash
# Step times of resnet50 on one and two GPUs, every way to use them, beside certificates over devices: all compile at once,
# and are timed one after the other. PYTHON names the interpreter, ARCHIVE a file to pack all of it into.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=benchmarks/h200
compiling=${COMPILING:-165}
turn=$(mktemp -u)

step_time() { # GPUS ARGUMENTS...: one contender
    local gpus=$1
    shift
    CUDA_VISIBLE_DEVICES=$gpus timeout 290 "$python" -m benchmarks.devices --turn "$turn" "$@" 2>&1 | tail -5
}

certificate() { # NAME GPUS ARGUMENTS...
    local name=$1 gpus=$2
    shift 2
    mkdir -p "$folder/$name"
    CUDA_VISIBLE_DEVICES=$gpus timeout "$compiling" "$python" -m compare agree "$@" --device cuda --out "$folder/$name" \
        >"$folder/$name/report.txt" 2>&1
    echo "$name: exit code $? after $SECONDS s"
}

"$python" -m benchmarks.synthetic_mnist samestep-out/mnist
certificate agree-digits-cnn-2-devices 0,1 torch:stock+ddp jax:stock+sharded jax:stock+pmap --devices 2 --seeds 2 &
certificate agree-mnist-cnn-float32 1 --workload mnist-cnn --data samestep-out/mnist &
for batch_norm in sync local; do
    step_time 0,1 --backend torch --tuning tuned+ddp --devices 2 --batch-norm $batch_norm &
    step_time 0,1 --backend jax --tuning tuned+pmap --devices 2 --batch-norm $batch_norm &
done
step_time 0,1 --backend jax --tuning tuned+sharded --devices 2 &
step_time 0 --backend torch --tuning tuned+ddp &
step_time 1 --backend jax --tuning tuned+sharded &
sleep "$compiling"
touch "$turn"
wait
if [[ -n ${ARCHIVE:-} ]]; then tar -czf "$ARCHIVE" "$folder"; fi
