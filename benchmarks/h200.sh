#!/usr/bin/env bash
# Makes the evidence under benchmarks/h200 on a machine with several GPUs, a lane of work on each, side by side; every
# contender is alone on its GPU. PYTHON names the interpreter. Arguments choose lanes, as many as there are GPUs: headline,
# equal, proofs, levers; certificates are small, resnet18, resnet50 and convnext.
#   bash benchmarks/h200.sh small resnet18 resnet50 convnext
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=benchmarks/h200
lanes=${*:?name lanes}
lane_cores=14 # of each lane but the last, which has the others

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

headline_lane() { # the largest workload, both frameworks as tuned, in one run
    samestep "resnet50-bfloat16" compare torch:tuned jax:tuned --workload resnet50 --precision bfloat16 --quick
}

equal_lane() {
    equal torch resnet50
    equal jax resnet50
}

proofs_lane() {
    run selftest "$python" -m compare selftest --device cuda
    bare torch
    bare jax
    run compiled-gradient "$python" -m benchmarks.compiled_gradient --device cuda --precision float64
    equal torch cifar-cnn
}

lever() { # BACKEND WORKLOAD TUNING LEVER [--kernels]
    echo "== $1:$3 $2 $4 ${XLA_FLAGS:-}"
    timeout 200 "$python" -m benchmarks.levers --backend "$1" --workload "$2" --tuning "$3" --lever "$4" ${5:-} 2>&1 |
        grep -v "Delay kernel" | tail -40
}

all_levers() {
    timeout 200 "$python" benchmarks/plain_torch.py --workload resnet50 --mode graph
    lever torch resnet50 tuned none --kernels
    timeout 200 "$python" benchmarks/plain_jax.py --workload resnet50
    lever jax resnet50 tuned none --kernels
    lever jax resnet50 tuned jax-library-max-pool
    lever jax resnet50 tuned jax-pointwise-as-matmul
    lever torch resnet50 tuned+pointwise-matmul=off none
    "$python" benchmarks/plain_jax.py --workload cifar-cnn --scan 50
    "$python" benchmarks/plain_torch.py --workload cifar-cnn --mode graph
    lever jax cifar-cnn tuned none
    lever jax cifar-cnn tuned jax-library-max-pool
    lever torch cifar-cnn tuned none
    lever torch resnet50 tuned torch-coordinate-descent
}

levers_lane() { run levers all_levers; }

precisions() { # NAME ARGUMENTS...: certify at each precision, one after the other, so that programs are compiled once
    local name=$1 precision
    shift
    for precision in float32 bfloat16 tf32 float16; do
        samestep "agree-$name-$precision" agree "$@" --precision "$precision"
    done
}

# One certificate at a time on a GPU: processes that share one take turns of milliseconds, and a certificate waits often.
small_lane() {
    "$python" -m benchmarks.synthetic_mnist samestep-out/mnist # MNIST's own format, so that the loader is the real one
    precisions digits-cnn
    precisions mnist-cnn --workload mnist-cnn --data samestep-out/mnist
    precisions cifar-cnn --workload cifar-cnn --epochs 12
}

# Choosing kernels by timing them takes minutes here and decides nothing about agreement.
untimed() { XLA_FLAGS=--xla_gpu_autotune_level=0 precisions "$1" torch:stock jax:stock --workload "$@"; }

resnet18_lane() { untimed cifar-resnet18 --epochs 12; }

resnet50_lane() { untimed resnet50 --batch-size 8 --seeds 2; }

convnext_lane() { untimed convnext-tiny --batch-size 8 --seeds 2; }

gpu=0 core=0
for lane in $lanes; do
    cores=$lane_cores
    [[ $lane == "${lanes##* }" ]] && cores=$(($(nproc) - core))
    (
        export CUDA_VISIBLE_DEVICES=$gpu
        taskset -pc "$core-$((core + cores - 1))" $BASHPID >/dev/null
        "${lane}_lane"
    ) &
    gpu=$((gpu + 1)) core=$((core + cores))
done
wait
