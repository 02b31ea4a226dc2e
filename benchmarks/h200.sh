#!/usr/bin/env bash
# Makes the evidence under benchmarks/h200 on a machine with four GPUs, a lane of work on each, side by side; every
# contender is alone on its GPU while it is timed, certificates share one. PYTHON names the interpreter.
# Arguments choose lanes: torch, jax, levers, agree (default: all).
#   bash benchmarks/h200.sh agree
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=benchmarks/h200
lanes=${*:-torch jax levers agree}
timing_cores=10 # of each lane that times; the certificates, which compile most, share the others

run() { # NAME COMMAND...: run it, keep what it prints
    local name=$1
    shift
    mkdir -p "$(dirname "$folder/$name")"
    "$@" >"$folder/$name.txt" 2>&1
    echo "$name: exit code $? after $SECONDS s"
}

samestep() { # NAME ARGUMENTS...: run samestep, its result and what it prints in a folder of that name
    local name=$1
    shift
    run "$name/report" "$python" -m compare "$@" --device cuda --out "$folder/$name"
}

equal() { # BACKEND WORKLOAD: a contender against itself, as tuned
    samestep "equal-$1-$2" compare "$1:tuned" "$1:tuned" --workload "$2" --precision bfloat16
}

bare() { # BACKEND: samestep's step time against a loop by hand
    run "bare-$1" "$python" -m benchmarks.bare_loop --backend "$1" --tuning tuned --workload cifar-cnn \
        --precision bfloat16 --device cuda
}

torch_lane() {
    equal torch cifar-cnn
    equal torch resnet50
    bare torch
}

jax_lane() {
    run selftest "$python" -m compare selftest --device cuda
    equal jax cifar-cnn
    bare jax
    equal jax resnet50
}

lever() { # BACKEND WORKLOAD TUNING LEVER [--kernels]
    echo "== $1:$3 $2 $4 ${XLA_FLAGS:-}"
    timeout 200 "$python" -m benchmarks.levers --backend "$1" --workload "$2" --tuning "$3" --lever "$4" ${5:-} 2>&1 |
        tail -40
}

all_levers() {
    timeout 200 "$python" benchmarks/plain_jax.py --workload resnet50
    lever jax resnet50 tuned none --kernels
    lever jax resnet50 tuned+graph-capture none
    lever jax resnet50 tuned+graph-capture+steps-per-dispatch=5 none
    lever jax resnet50 tuned jax-pointwise-as-matmul --kernels
    lever jax resnet50 tuned jax-two-pass-variance
    timeout 200 "$python" benchmarks/plain_torch.py --workload resnet50 --mode graph
    lever torch resnet50 tuned none --kernels
    lever torch resnet50 tuned torch-pointwise-as-matmul
    "$python" benchmarks/plain_jax.py --workload cifar-cnn --scan 50
    "$python" benchmarks/plain_torch.py --workload cifar-cnn --mode graph
    lever jax cifar-cnn tuned none --kernels
    lever jax cifar-cnn tuned+steps-per-dispatch=50 none
    lever torch cifar-cnn tuned none --kernels
    lever torch cifar-cnn tuned torch-coordinate-descent
}

levers_lane() { run levers all_levers; }

agree_lane() {
    export TORCHINDUCTOR_COMPILE_THREADS=2
    "$python" -m benchmarks.synthetic_mnist samestep-out/mnist # MNIST's own format, so that the loader is the real one
    local precision
    for precision in float32 tf32 bfloat16 float16; do
        samestep "agree-digits-cnn-$precision" agree --precision "$precision" &
        samestep "agree-mnist-cnn-$precision" \
            agree --workload mnist-cnn --data samestep-out/mnist --precision "$precision" &
        samestep "agree-cifar-cnn-$precision" agree --workload cifar-cnn --epochs 12 --precision "$precision" &
        samestep "agree-cifar-resnet18-$precision" \
            agree --workload cifar-resnet18 --epochs 12 --precision "$precision" &
        for workload in resnet50 convnext-tiny; do
            # Choosing kernels by timing them takes minutes here and decides nothing about agreement.
            XLA_FLAGS=--xla_gpu_autotune_level=0 samestep "agree-$workload-$precision" \
                agree torch:stock jax:stock --workload $workload --batch-size 8 --seeds 2 --precision "$precision" &
        done
    done
    wait
}

gpu=0 core=0
for lane in $lanes; do
    cores=$timing_cores
    [[ $lane == agree ]] && cores=$(($(nproc) - core))
    (
        export CUDA_VISIBLE_DEVICES=$gpu
        taskset -pc "$core-$((core + cores - 1))" $BASHPID >/dev/null
        "${lane}_lane"
    ) &
    gpu=$((gpu + 1)) core=$((core + cores))
done
wait
