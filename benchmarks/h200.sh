#!/usr/bin/env bash
# Makes the evidence under benchmarks/h200, in samestep-out/h200: a checkout with a new file in its place calls itself
# `dirty` in the results that follow, so what is kept is copied when all is done.
# One argument a lane, GPU:STEPS@CORES: steps that are carried out one after the other on that GPU and so many cores (an
# equal part without @), side by side with the other lanes'. What is timed has a
# GPU to itself; certificates may share one, but keep the host's memory and disk so busy that nothing should be timed beside
# many. PYTHON names the interpreter, ARCHIVE a file to pack all of it into. Steps are the functions step_NAME below,
# WORKLOAD/PRECISION, one certificate, WORKLOAD/PRECISION/tunings, both frameworks in every tuning,
# WORKLOAD/PRECISION/screen and /pointwise, step times alone, in a few minutes, and WORKLOAD/torch/beside and
# WORKLOAD/jax/beside, its plain loops in turn with samestep's. GPU may be several, for a step that scales. A lane that has
# carried out its steps takes the next of QUEUE, which all lanes share, until that is empty. After LIMIT
# seconds no step begins, and those under way are interrupted: samestep keeps what it has.
#   bash benchmarks/h200.sh 0:selftest,equal-torch,cifar-cnn/tf32/tunings@8 1:resnet50/tf32,unet/bfloat16@12 1:vgg16@12
#   bash benchmarks/h200.sh 0,1,2,3:scale-cifar-cnn,scale-resnet50
#   LIMIT=1600 QUEUE="resnet50/tf32/tunings unet/torch/beside small" bash benchmarks/h200.sh 0:headline 1:
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=samestep-out/h200
: "${*:?name steps, one list a lane}"
lane_cores=$(($(nproc) / $#))
mkdir -p "$folder"
rm -f "$folder/done.txt"
"$python" -c "import compare.cli.app" || exit # a package that is missing is named before anything takes its time
# Certificates of the large models write tens of gigabytes at a time, and wait where there is less room: into memory or
# on the disk, whichever has more, and lanes in turn where both have much.
room() { "$python" -c "from pathlib import Path; from compare import tensors; print(tensors.room(Path('$1')))"; }
scratch=("${TMPDIR:-/tmp}" /dev/shm) rooms=("$(room "${TMPDIR:-/tmp}")" "$(room /dev/shm)")
if ((rooms[1] > 2 * rooms[0])); then scratch=(/dev/shm); elif ((rooms[0] > 2 * rooms[1])); then unset "scratch[1]"; fi
echo "scratch folders: ${scratch[*]}, bytes free: ${rooms[*]}"

over=$(mktemp -u) # is there when the time is
is_over() { [[ -e $over ]]; }

run() { # NAME COMMAND...: run it, keep the command and what it prints
    local name=$1
    if is_over; then return; fi
    shift
    mkdir -p "$(dirname "$folder/$name")"
    echo "\$ $*" >"$folder/$name.txt"
    "$@" >>"$folder/$name.txt" 2>&1
    echo "$name: exit code $? after $SECONDS s"
}

gpus() { tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l; } # how many the lane has

samestep() { # NAME ARGUMENTS...: run samestep, its result and what it prints in a folder of that name
    local name=$1
    shift
    run "$name/report" "$python" -m "${module:-compare}" "$@" --device cuda --out "$folder/$name"
}

equal() { # BACKEND WORKLOAD: a contender against itself, as tuned
    local anew=() # cuDNN searches in every round anyway
    if [[ $1 == jax ]]; then anew=(--search-anew); fi
    samestep "equal-$1-$2" compare "$1:tuned" "$1:tuned" --workload "$2" --precision bfloat16 "${anew[@]}"
}

bare() { # BACKEND: samestep's step time against a loop by hand
    run "bare-$1" "$python" -m benchmarks.bare_loop --backend "$1" --tuning tuned --workload cifar-cnn \
        --precision bfloat16 --device cuda
}

step_headline() { # the largest workload, both frameworks as tuned, in one run
    samestep "resnet50-bfloat16" compare torch:tuned jax:tuned --workload resnet50 --precision bfloat16 --search-anew
}

step_small() { # the smaller headline
    samestep "cifar-cnn-bfloat16" compare torch:tuned jax:tuned --workload cifar-cnn --precision bfloat16 --search-anew
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

fit() { # BACKEND: some 25 tries, each of which compiles afresh
    samestep "fit-$1" fit "$1" --workload cifar-cnn --precision bfloat16 --memory 8192
}

step_fit-torch() { fit torch; }

step_fit-jax() { fit jax; }

step_bare() {
    bare torch
    bare jax
}

step_gradient() {
    run compiled-gradient "$python" -m benchmarks.compiled_gradient --device cuda --precision float64
}

lever() { # BACKEND WORKLOAD TUNING LEVER [--kernels] [--precision P]
    if is_over; then return; fi
    echo "== $1:$3 $2 ${*:4} ${XLA_FLAGS:-}"
    timeout --foreground 400 "$python" -m benchmarks.step_time --backend "$1" --workload "$2" --tuning "$3" --lever "${@:4}" 2>&1 |
        grep -vE "Delay kernel|site-packages|warnings.warn" | tail -40
}

all_levers() {
    timeout --foreground 200 "$python" benchmarks/plain_torch.py --workload resnet50 --mode graph
    lever torch resnet50 tuned none --kernels
    timeout --foreground 200 "$python" benchmarks/plain_jax.py --workload resnet50
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

beside() { # WORKLOAD BACKEND: samestep's loop beside the plain ones of its framework
    run "beside-plain-$1-$2" "$python" -m benchmarks.beside_plain --backend "$2" --workload "$1" --rounds 2
}

all_profiles() { # where single steps go, for profilers miss kernels of a replayed loop: of the largest workload and of
    # those in which the frameworks differ most
    local workload alone="+steps-per-dispatch=1"
    for workload in resnet50 unet convnext-tiny mobilenet-v2; do
        lever torch "$workload" "tuned$alone" none --kernels
        lever jax "$workload" "tuned$alone+graph-capture=off" none --kernels
    done
    for workload in resnet50 unet convnext-tiny; do
        lever jax "$workload" tuned none
        lever jax "$workload" tuned jax-library-gradients
    done
    lever jax unet tuned jax-transposed-as-matmul
}

step_profiles() { run profiles all_profiles; }

step_beside-devices() { # all GPUs of the lane together
    run "beside-plain-resnet50-$(gpus)-devices" "$python" -m benchmarks.beside_plain --workload resnet50 --rounds 2 \
        --devices "$(gpus)"
}

step_levers() { run levers all_levers; }

all_stems() { # stems without a stride, as products of windows and as they are
    local workload lever
    for workload in cifar-cnn vgg16 cifar-resnet18 unet; do
        for lever in none jax-stem-of-patches jax-stem-of-added-patches jax-stem-without-patches; do
            lever jax "$workload" tuned "$lever"
        done
        lever torch "$workload" tuned none
        lever torch "$workload" tuned torch-stem-without-patches
    done
}

step_stems() { run levers-windows all_stems; }

photographs="--batch-size 64" # several certificates share a GPU's memory, and so do their training runs
declare -A certified=(
    [digits-cnn]=""
    [mnist-cnn]=""
    [cifar-cnn]="--epochs 12"
    [cifar-resnet18]="--epochs 30"
    [unet]=""
    [resnet50]=$photographs [convnext-tiny]=$photographs [mobilenet-v2]=$photographs [vgg16]=$photographs
)

data_of() { # WORKLOAD: set `data` to the options of its data, and make it: MNIST in its own format, for the real loader
    data=()
    if [[ $1 == mnist-cnn ]]; then
        "$python" -m benchmarks.synthetic_mnist samestep-out/mnist
        data=(--data samestep-out/mnist)
    fi
}

certificate() { # WORKLOAD PRECISION
    local arguments data
    read -ra arguments <<<"${certified[$1]}"
    data_of "$1"
    samestep "agree-$1-$2" agree torch:stock jax:stock --workload "$1" "${data[@]}" "${arguments[@]}" --precision "$2"
}

tunings() { # WORKLOAD PRECISION: every tuning of both frameworks, as the table in docs/h200.md has them, and where its
    # minutes went
    local data module=benchmarks.timeline
    data_of "$1"
    samestep "tunings-$1-$2" compare torch:stock torch:compiled torch:tuned jax:stock jax:compiled jax:tuned \
        --workload "$1" "${data[@]}" --precision "$2" --rounds 3 --skip-energy --skip-cold-compile
}

pair() { # NAME FACTORY SIDE: somebody else's ResNet-50 against ours, as a user's own pair (SIDE gives the weights)
    samestep "agree-pair-$1" agree --jax examples/pairs/resnet50_nnx.py:model --torch "$2" --input 64x64x3 \
        --classes 10 --model-args jax.classes=10 --model-args torch.num_classes=10 --weights-from "$3"
}

step_pairs() {
    pair torchvision torchvision.models:resnet50 torch
    pair timm timm.models.resnet:resnet50 jax
}

scale() { # NAME BATCH_NORM WORKLOAD BATCH CONTENDER...: on one GPU, two, and so on up to all of the lane's (COUNTS=1,4:
    # on those), and where its minutes went
    local count=1 all=1 name=$1 batch_norm=$2 workload=$3 batch=$4 module=benchmarks.timeline
    shift 4
    while ((2 * count <= $(gpus))); do all+=,$((count *= 2)); done
    samestep "scale-$name" scale "$@" --devices "${COUNTS:-$all}" --workload "$workload" --batch-size "$batch" \
        --batch-norm "$batch_norm" --precision bfloat16 --rounds 4 --skip-cold-compile
}

step_scale-cifar-cnn() { scale cifar-cnn sync cifar-cnn 512 torch:tuned+ddp jax:tuned+sharded jax:tuned+pmap; }

step_scale-resnet50() { # as the public loops have it: each device's own batch norm
    scale resnet50 local resnet50 256 torch:tuned+ddp jax:tuned+pmap
}

step_scale-resnet50-sync() { # one compiled program in torch, whose parts each of some twenty processes would make anew.
    # KNOBS=+overlap-exchanges: with that knob in torch
    scale resnet50-sync sync resnet50 256 "torch:tuned+ddp+overlap-reduction=off${KNOBS:-}" jax:tuned+sharded \
        jax:tuned+pmap
}

step_scale-resnet50-torch() { # torch's part of it, reduced within the backward pass or after it: nine minutes on one GPU
    # alone
    scale resnet50-torch sync resnet50 256 torch:tuned+ddp \
        torch:tuned+ddp+overlap-reduction=off+overlap-exchanges
}

step_scale-resnet50-jax() { # JAX's part of it: some thirteen minutes on one GPU and two
    scale resnet50-jax sync resnet50 256 jax:tuned+sharded jax:tuned+pmap
}

in_turn() { # NAME, and arguments of a contender a line, behind its variables: all compile side by side, then each is
    # timed alone
    local turn line
    turn=$(mktemp)
    while read -r line; do
        one_in_turn "$turn" "$line" &
    done >"$folder/$1.txt"
    wait
    rm "$turn"
    echo "$1: after $SECONDS s"
}

one_in_turn() { # FILE LINE: what was run and the figure, or how it failed: what a framework says first and last
    if is_over; then return; fi
    local arguments own=() complaints status printed
    read -ra arguments <<<"$2"
    while [[ ${arguments[0]} == [A-Z]*=* ]]; do
        own+=("${arguments[0]//\~/ }") # a ~ in a variable is a space
        arguments=("${arguments[@]:1}")
    done
    complaints=$(mktemp)
    printed=$(env "${own[@]}" timeout --foreground 500 "$python" -m benchmarks.step_time --turn "$1" \
        "${arguments[@]}" 2>"$complaints")
    status=$?
    if ((status)); then
        printed+=${printed:+$'\n'}"exit code $status"$'\n'$(head -c 3000 "$complaints")$'\n...\n'$(tail -c +3001 "$complaints" | tail -c 3000)
    fi
    rm "$complaints"
    echo "\$ ${own[*]} python -m benchmarks.step_time --turn FILE ${arguments[*]}"$'\n'"$printed"
}

step_devices() { # resnet50 on one GPU, on the other, and on both, in every way to use them; a GPU's memory holds four of
    # them at once, with their searches. Where both draw all the power that they may, the slower one decides what two can do.
    in_turn devices-torch <<END
--backend torch --tuning tuned
CUDA_VISIBLE_DEVICES=1 --backend torch --tuning tuned
--backend torch --tuning tuned+ddp --devices 2
--backend torch --tuning tuned+ddp+overlap-reduction=off --devices 2
--backend torch --tuning tuned+ddp --devices 2 --batch-norm local
END
    in_turn devices-jax <<END
--backend jax --tuning tuned
CUDA_VISIBLE_DEVICES=1 --backend jax --tuning tuned
--backend jax --tuning tuned+pmap --devices 2
--backend jax --tuning tuned+pmap --devices 2 --batch-norm local
END
    in_turn devices-jax-2 <<END
--backend jax --tuning tuned+sharded --devices 2
--backend jax --tuning tuned+pmap+concurrent-kernels --devices 2 --batch-norm local
--backend jax --tuning tuned+sharded+concurrent-kernels --devices 2
END
}

step_devices-profiles() { # where a step of resnet50 goes on one GPU and on all of the lane, batch norm sync, in single steps, of
    # which a profiler misses nothing
    local count way one="+steps-per-dispatch=1"
    for count in 1 "$(gpus)"; do
        echo "--backend torch --tuning tuned+ddp+overlap-reduction=off$one --devices $count --kernels 40"
        for way in pmap sharded; do
            echo "--backend jax --tuning tuned+$way$one+graph-capture=off --devices $count --kernels 40"
        done
    done | in_turn "profiles-$(gpus)-devices"
}

step_agree-devices() { # the certificate over all GPUs of the lane, in every way; minutes, where `scale` takes many
    samestep "agree-digits-cnn-$(gpus)-devices" agree torch:stock+ddp jax:stock+sharded jax:stock+pmap \
        --devices "$(gpus)" --workload digits-cnn --precision float32
}

plain_torch_ways() { # resnet50 on all GPUs of the lane, in the framework's public way
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$(gpus)" benchmarks/plain_torch.py \
        --workload resnet50 --mode compile
}

plain_jax_ways() { # and in both of JAX's
    local way
    for way in pmap sharded; do
        "$python" benchmarks/plain_jax.py --workload resnet50 --devices "$(gpus)" --parallel "$way"
    done
}

step_plain-torch-ways() { run "plain-torch-ways-$(gpus)-devices" plain_torch_ways; }

step_plain-jax-ways() { run "plain-jax-ways-$(gpus)-devices" plain_jax_ways; }

step_torch-ways() { # resnet50 on all GPUs of the lane in every way of torch's: minutes, where a comparison takes many
    sed "s/\$/ --devices $(gpus)/" <<END | in_turn "ways-torch-$(gpus)-devices"
--backend torch --tuning tuned+ddp --batch-norm local
--backend torch --tuning tuned+ddp
END
}

step_jax-ways() { # and of JAX's
    sed "s/\$/ --devices $(gpus)/" <<END | in_turn "ways-jax-$(gpus)-devices"
--backend jax --tuning tuned+pmap --batch-norm local
--backend jax --tuning tuned+pmap
--backend jax --tuning tuned+sharded
END
}

step_ways() { # both frameworks', then the plain loops
    step_torch-ways
    step_jax-ways
    step_plain-torch-ways
    step_plain-jax-ways
}

step_each() { # resnet50 alone on each of the lane's GPUs: several go at the pace of the slowest
    local gpu
    for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
        echo "CUDA_VISIBLE_DEVICES=$gpu --backend torch --tuning tuned+ddp --turns 2"
        echo "CUDA_VISIBLE_DEVICES=$gpu --backend jax --tuning tuned+pmap --turns 2"
    done | in_turn "each-of-$(gpus)-devices"
}

step_reducers() { # resnet50 on each of the lane's first two GPUs and on all: reductions of torch's within the backward pass
    local step="--backend torch --tuning tuned+ddp"
    sed "s/\$/ --turns 2/" <<END | in_turn "reducers-$(gpus)-devices"
$step --devices 1
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES#*,} $step --devices 1
$step --devices $(gpus)
END
}

step_overlap-jax() { # JAX's gradients of weights beside batch norm's exchanges, which are then not captured; a GPU's memory
    # holds five of them at once
    local step="--backend jax --tuning tuned+pmap"
    sed "s/\$/ --turns 2/" <<END | in_turn "overlap-jax-$(gpus)-devices"
$step --devices 1
$step+overlap-exchanges=off --devices $(gpus)
$step+overlap-exchanges --devices $(gpus)
$step --devices $(gpus)
END
}

step_ddp() { # which parts torch's program over all GPUs of the lane should have
    samestep "ddp-resnet50" compare torch:tuned+ddp torch:tuned+ddp+overlap-reduction=off \
        torch:tuned+ddp+overlap-reduction=off+overlap-exchanges --workload resnet50 --batch-size $((256 * $(gpus))) \
        --precision bfloat16 --devices "$(gpus)" --batch-norm sync --rounds 3 --skip-energy --skip-cold-compile
}

step_sides() { # resnet50 over all GPUs of the lane on both sides, batch norm sync: it has its certificate after eleven
    # minutes on two and ten on four, and a round takes two
    module=benchmarks.timeline samestep "sides-resnet50-$(gpus)-devices" compare torch:tuned+ddp jax:tuned+pmap \
        --workload resnet50 --batch-size $((256 * $(gpus))) --precision bfloat16 --devices "$(gpus)" --batch-norm sync \
        --rounds 3 --skip-energy --skip-cold-compile
}

step_synchronised() { # what batch norm's exchanges cost cifar-cnn on two GPUs, and what may make them cheaper
    sed "s/\$/ --workload cifar-cnn --devices 2/" <<END | in_turn synchronised-torch
--backend torch --tuning tuned+ddp --batch-norm local
--backend torch --tuning tuned+ddp
--backend torch --tuning tuned+ddp+overlap-reduction=off
--backend torch --tuning tuned+ddp+concurrent-kernels
END
    sed "s/\$/ --workload cifar-cnn --devices 2/" <<END | in_turn synchronised-jax
--backend jax --tuning tuned+pmap --batch-norm local
--backend jax --tuning tuned+pmap
--backend jax --tuning tuned+sharded
END
}

captured() { # WAY: exchanges within captured parts of a step, between them, and in a captured loop
    local step="--backend jax --workload cifar-cnn --devices 2 --tuning tuned+$1"
    local flag=XLA_FLAGS=--xla_gpu_enable_command_buffer
    echo "${step/devices 2/devices 1}"
    echo "$step"
    echo "NCCL_MIN_CTAS=32 $step" # more of NCCL's channels
    echo "$flag=-COLLECTIVES,+WHILE $step"
    echo "XLA_FLAGS=--xla_gpu_enable_analytical_sol_latency_estimator=false $step+graph-capture=off+overlap-reduction"
    echo "NCCL_GRAPH_MIXING_SUPPORT=0 $flag=+WHILE $step"
    echo "$flag=+WHILE~--xla_gpu_command_buffer_unroll_loops=true $step" # a loop without a conditional node, which NCCL bars
    echo "$step+concurrent-kernels"
}

step_captured-cifar-cnn() { # in JAX on two GPUs, batch norm sync
    for way in pmap sharded; do captured "$way" | in_turn "captured-cifar-cnn-$way"; done
}

screen() { # WORKLOAD PRECISION: what `tuned` might be, before it is compared
    local tuning
    {
        for tuning in compiled tuned tuned+pointwise-matmul tuned+concurrent-kernels; do
            echo "--backend torch --tuning $tuning"
        done
        for tuning in compiled compiled+graph-capture compiled+graph-capture+concurrent-kernels tuned; do
            echo "--backend jax --tuning $tuning"
        done
    } | sed "s|$| --workload $1 --precision $2|" | in_turn "screen-$1-$2"
}

pointwise() { # WORKLOAD PRECISION: 1x1 convolutions as matrix products and as they are, on both sides
    {
        for switch in on off; do echo "--backend torch --tuning tuned+pointwise-matmul=$switch"; done
        echo "--backend jax --tuning tuned"
        echo "XLA_FLAGS=--xla_gpu_force_conv_nchw=true --backend jax --tuning tuned"
        echo "XLA_FLAGS=--xla_gpu_enable_triton_gemm=false --backend jax --tuning tuned --lever jax-pointwise-as-matmul"
    } | sed "s|$| --workload $1 --precision $2|" | in_turn "pointwise-$1-$2"
}

all_searches() { # what fewer algorithms to choose from cost a step in float32, where torch's search takes minutes of a process
    local workload lever
    for workload in vgg16 resnet50 unet; do
        for lever in none torch-four-algorithms torch-two-algorithms; do
            lever torch "$workload" tuned "$lever" --precision float32
        done
    done
}

step_searches() { run searches-float32 all_searches; }

step_rematerialisation() { # memory and step time with and without, in one run
    samestep "rematerialisation-resnet50" compare torch:compiled torch:compiled+rematerialisation \
        jax:compiled jax:compiled+rematerialisation --workload resnet50 --precision bfloat16 --quick
}

carried_out() { # STEP, a WORKLOAD, WORKLOAD/PRECISION or that and /tunings, /screen or /pointwise, WORKLOAD/BACKEND/beside
    local precision workload=${1%%/*} rest=${1#*/}
    if [[ $1 == */*/* ]]; then
        "${rest#*/}" "$workload" "${rest%/*}"
    elif [[ $1 == */* ]]; then
        certificate "$workload" "$rest"
    elif [[ -v certified[$1] ]]; then
        for precision in float32 tf32 bfloat16 float16; do certificate "$1" "$precision"; done
    else
        "step_$1"
    fi
}

queue=$(mktemp)
tr -s ' \n' '\n' <<<"${QUEUE:-}" | sed '/^$/d' >"$queue"

next() { # the step at the head of the queue, which it leaves
    flock "$queue.lock" bash -c 'head -n 1 "$0"; sed -i 1d "$0"' "$queue"
}

if [[ -n ${LIMIT:-} ]]; then
    {
        sleep "$LIMIT" && : >"$over" && echo "interrupted after $SECONDS s" &&
            pkill -TERM -g 0 -f -- "python.* (-m (compare|benchmarks\.|pytest)|benchmarks/plain_)"
    } &
    guard=$!
fi

core=0 number=0 lanes=()
for lane in "$@"; do
    gpu=${lane%%:*} steps=${lane#*:} cores=$lane_cores
    if [[ $lane == *@* ]]; then cores=${lane#*@}; fi
    (
        export CUDA_VISIBLE_DEVICES=$gpu TMPDIR=${scratch[number % ${#scratch[@]}]}
        taskset -pc "$core-$((core + cores - 1))" $BASHPID >/dev/null
        steps=${steps%@*}
        for step in ${steps//,/ }; do is_over || carried_out "$step"; done
        while ! is_over && step=$(next) && [[ -n $step ]]; do carried_out "$step"; done
    ) &
    lanes+=($!)
    core=$((core + cores)) number=$((number + 1))
done
wait "${lanes[@]}"
if [[ -n ${LIMIT:-} ]]; then pkill -P "$guard"; fi
rm -f "$queue" "$queue.lock" "$over"
echo "after $SECONDS s" >"$folder/done.txt" # for what waits: a search for this script's name would find itself
if [[ -n ${ARCHIVE:-} ]]; then tar -czf "$ARCHIVE" "$folder"; fi
