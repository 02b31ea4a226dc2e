#!/usr/bin/env bash
# Makes the evidence under benchmarks/h200 on a machine with several GPUs: one argument a GPU, each a list of steps that
# are carried out one after the other, side by side with the other GPUs', on so many cores (an equal part without @).
# PYTHON names the interpreter, ARCHIVE a file to pack all of it into. Steps are the functions step_NAME below.
#   bash benchmarks/h200.sh selftest,gradient,fit@8 digits,resnet18@24
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=benchmarks/h200
: "${*:?name steps, one list a GPU}"
lane_cores=$(($(nproc) / $#))

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

step_headline() { # the largest workload, both frameworks as tuned, in one run
    samestep "resnet50-bfloat16" compare torch:tuned jax:tuned --workload resnet50 --precision bfloat16
}

step_small() { # the smaller headline
    samestep "cifar-cnn-bfloat16" compare torch:tuned jax:tuned --workload cifar-cnn --precision bfloat16
}

step_stream() { # batches that stay on the device beside batches that come from the host, from pre-decoded photographs
    "$python" -m benchmarks.synthetic_photographs samestep-out/photographs
    samestep "stream-resnet50" compare torch:tuned torch:tuned+input=stream jax:tuned jax:tuned+input=stream \
        --workload resnet50 --precision bfloat16 --data samestep-out/photographs --epochs 1 --quick
}

step_stream-test() {
    run stream-test "$python" -m pytest tests/parity/test_stream.py -k gpu --benchmark-disable -p no:cacheprovider
}

step_equal-torch() { equal torch resnet50; }

step_equal-jax() { equal jax resnet50; }

step_equal-small() {
    equal torch cifar-cnn
    equal jax cifar-cnn
}

step_selftest() { run selftest "$python" -m compare selftest --device cuda; }

step_fit() { samestep fit-cifar-cnn fit --workload cifar-cnn --precision bfloat16 --memory 8192; }

step_bare() {
    bare torch
    bare jax
}

step_gradient() {
    run compiled-gradient "$python" -m benchmarks.compiled_gradient --device cuda --precision float64
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

step_beside() {
    run beside-plain-cifar-cnn "$python" -m benchmarks.beside_plain --workload cifar-cnn
    run beside-plain-resnet50 "$python" -m benchmarks.beside_plain --workload resnet50 --rounds 2
}

step_levers() { run levers all_levers; }

precisions() { # NAME ARGUMENTS...: certify at each precision, two at a time: a certificate compiles more than it computes
    local name=$1 precision
    shift
    for precision in float32 bfloat16 tf32 float16; do
        samestep "agree-$name-$precision" agree "$@" --precision "$precision" &
        if [[ $precision == bfloat16 ]]; then wait; fi
    done
    wait
}

step_digits() { precisions digits-cnn; }

mnist_images() { # MNIST's own format, so that the loader is the real one
    "$python" -m benchmarks.synthetic_mnist samestep-out/mnist
}

step_mnist() {
    mnist_images
    precisions mnist-cnn --workload mnist-cnn --data samestep-out/mnist
}

step_mnist-float32() {
    mnist_images
    samestep agree-mnist-cnn-float32 agree --workload mnist-cnn --data samestep-out/mnist --precision float32
}

step_cifar() { precisions cifar-cnn --workload cifar-cnn --epochs 12; }

step_resnet18() { precisions cifar-resnet18 torch:stock jax:stock --workload cifar-resnet18 --epochs 30; }

large() { precisions "$1" torch:stock jax:stock --workload "$1"; } # WORKLOAD

step_unet() { large unet; }

step_resnet50() { large resnet50; }

step_convnext() { large convnext-tiny; }

step_mobilenet() { large mobilenet-v2; }

step_vgg() { large vgg16; }

gpu=0 core=0
for lane in "$@"; do
    cores=$lane_cores
    if [[ $lane == *@* ]]; then cores=${lane#*@}; fi
    (
        export CUDA_VISIBLE_DEVICES=$gpu
        taskset -pc "$core-$((core + cores - 1))" $BASHPID >/dev/null
        steps=${lane%@*}
        for step in ${steps//,/ }; do "step_$step"; done
    ) &
    gpu=$((gpu + 1)) core=$((core + cores))
done
wait
if [[ -n ${ARCHIVE:-} ]]; then tar -czf "$ARCHIVE" "$folder"; fi
