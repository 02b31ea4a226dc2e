"""The commands that the parent sends to a worker: name, arguments, reply and deadline of each stand here once.

A command's fields are its arguments. `compare.worker.worker.Worker` has a method of the same name for each command.
Both take the same arguments, and the method returns the command's reply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

from compare.base import strict_json
from compare.base.communication import Communication
from compare.base.interface import Memory, RunSpec
from compare.base.profiles import ProfileReply
from compare.base.protocol import Message, ProtocolError
from compare.base.records import Perturbation
from compare.base.trace import Trace

Reply = TypeVar("Reply")

START_SECONDS = 300.0
"""Seconds that a worker may take from its start to its greeting."""

# A command that compiles or trains may take long, since one without progress ends early.
_SHORT, _LONG, _COMPILING = 600.0, 1800.0, 21_600.0

COMMANDS: dict[str, "type[Command[Any]]"] = {}
"""Every command by name."""


class Command(Generic[Reply]):
    """One command to a worker.

    Attributes:
        name: the name of the command and of the worker's method.
        reply: the type of the reply.
        deadline: the seconds that the worker may take, unless the user sets another deadline.
    """

    name: ClassVar[str]
    reply: ClassVar[Any]
    deadline: ClassVar[float]

    def __init_subclass__(cls, name: str = "", reply: Any = None, deadline: float | None = None) -> None:
        super().__init_subclass__()
        if name:
            cls.name, cls.reply = name, reply
            COMMANDS[name] = cls
        if deadline is not None:
            cls.deadline = deadline

    def seconds(self, override: float | None) -> float:
        """Return the seconds that the worker may take. `override` replaces the deadline of the command."""
        return self.deadline if override is None else override

    def message(self) -> Message:
        """Return the command as a message of the protocol."""
        return {"command": self.name, **strict_json.encode(self)}

    def read_reply(self, value: Any) -> Reply:
        """Return the reply of a worker.

        Raises:
            ProtocolError: the value is not a reply to this command.
        """
        return read_typed(self.reply, value)


def read_command(message: Message) -> Command[Any]:
    """Return the command in a message of the parent.

    Raises:
        ProtocolError: the message is not a command.
    """
    values = dict(message)
    kind = COMMANDS.get(values.pop("command", ""))
    if kind is None:
        raise ProtocolError(f"unknown command {message.get('command')!r}")
    return read_typed(kind, values)


def read_typed(kind: Any, value: Any) -> Any:
    """Return a JSON value as an object of the type `kind`.

    Raises:
        ProtocolError: the value does not have that type.
    """
    try:
        return strict_json.decode(kind, value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(str(error)) from None


def list_arguments(command: Command[Any]) -> dict[str, Any]:
    """Return the arguments of a command by name."""
    return {field.name: getattr(command, field.name) for field in fields(command)}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Greeting:
    """The first message of a worker: the version of the protocol, its backend and the versions of its packages."""

    protocol: int
    backend: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class ModelInfo:
    """An open session: the digest of its initial weights, its number of parameters and its steps per dispatch."""

    weights_sha256: str
    parameter_count: int
    steps_per_dispatch: int


@dataclass(frozen=True)
class WarmUpTimes:
    """The times of a warm-up.

    Attributes:
        first_step_seconds: the time of the first dispatch, and of loading programs before it.
        compile_seconds: the time that the first dispatch took more than a later one.
        warmup_seconds: the time until step times had settled.
        steady: whether step times had settled at the end.
        steps_per_block: the number of steps in a timed block.
        first_losses: the losses of the first steps; None for a loss that is not finite.
        program: where the program of a request came from, in words. None for training.
    """

    first_step_seconds: float
    compile_seconds: float
    warmup_seconds: float
    steady: bool
    steps_per_block: int
    first_losses: Sequence[float | None]
    program: str | None = None

    def plus(self, other: "WarmUpTimes") -> "WarmUpTimes":
        """Return the times of this warm-up and another one of the same process, as those of one."""
        return replace(
            self,
            compile_seconds=self.compile_seconds + other.compile_seconds,
            warmup_seconds=self.warmup_seconds + other.warmup_seconds,
            steady=self.steady and other.steady,
        )


@dataclass(frozen=True)
class RequestTimes:
    """The times of requests that the caller waits for.

    Attributes:
        seconds: of each request.
        enqueued: the median time until a call returned, before the wait.
    """

    seconds: Sequence[float]
    enqueued: float


@dataclass(frozen=True)
class DeviceTime:
    """The seconds per step in which a device was busy, or None with the `reason`."""

    seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class TrainingStart:
    """The first `steps` of training.

    Attributes:
        losses: the losses of the first few steps; None for a loss that is not finite.
        moved: how far the steps moved each parameter, relative to its initial value, as norms; None if not finite.
    """

    steps: int
    losses: Sequence[float | None]
    moved: Mapping[str, float | None]


@dataclass(frozen=True)
class Restarted:
    """The first steps of training, before the timed blocks and after them.

    Raises:
        ValueError: the two starts do not have the same number of losses or the same parameters.
    """

    before: TrainingStart
    after: TrainingStart

    def __post_init__(self) -> None:
        if len(self.before.losses) != len(self.after.losses) or self.before.moved.keys() != self.after.moved.keys():
            raise ValueError("the two starts describe different steps")


@dataclass(frozen=True)
class WorkProof:
    """Evidence that the timed work was done.

    Attributes:
        dispatched: the number of steps that were dispatched.
        exported: the number of steps that the exported state counts.
        not_finite: the first step whose loss was not finite, or None.
        block_seconds: the time of one more block.
        unwaited_seconds: the time that the export of its state took because the block's work was unfinished.
    """

    dispatched: int
    exported: int
    not_finite: int | None
    block_seconds: float
    unwaited_seconds: float

    @property
    def unwaited_share(self) -> float:
        """The part of the block that was unfinished when `wait` returned."""
        return self.unwaited_seconds / self.block_seconds


@dataclass(frozen=True)
class TrainingResult:
    """A whole training run: the mean `loss` of each epoch, None if not finite, and the accuracies at the end.

    Accuracies are None for outputs that are no classes. The training accuracy is also None if `Train` leaves it out.
    `step_losses` are the losses of all steps.
    """

    loss: Sequence[float | None]
    train_accuracy: float | None
    test_accuracy: float | None
    step_losses: Sequence[float | None] = ()


@dataclass(frozen=True)
class Traces:
    """A user's model in one pass, at its own image size and at others. A refused size is None."""

    own: Trace
    resized: Sequence[Trace | None]


@dataclass(frozen=True)
class MemoryUse:
    """Memory after a few steps: the framework's figures, and the bytes of the process without its imports.

    `process` is None if its bytes are unknown.
    """

    framework: Memory
    process: int | None


@dataclass(frozen=True)
class Open(Command[ModelInfo], name="open", reply=ModelInfo, deadline=_SHORT):
    """Build the session of `spec`, with its initial weights and the first epoch's batches on the device."""

    spec: RunSpec


@dataclass(frozen=True)
class WarmUp(Command[WarmUpTimes], name="warm_up", reply=WarmUpTimes, deadline=_COMPILING):
    """Compile the step, and train until step times have settled.

    `steps` is the length of a block. None lets the worker choose a length that takes `block_seconds`. Without `settles`
    the worker only takes the first steps, as the compile time is not asked for.
    """

    block_seconds: float
    steps: int | None
    settles: bool = True


@dataclass(frozen=True)
class Block(Command[float], name="block", reply=float, deadline=_SHORT):
    """Time one block of steps and return its seconds."""

    steps: int


@dataclass(frozen=True)
class ChooseBatch(Command[None], name="choose_batch", deadline=_SHORT):
    """Answer requests of another batch size from now on."""

    batch_size: int


@dataclass(frozen=True)
class Requests(Command[RequestTimes], name="requests", reply=RequestTimes, deadline=_SHORT):
    """Answer requests one after the other, wait for each, and return their times."""

    count: int


@dataclass(frozen=True)
class MeasureDeviceTime(Command[DeviceTime], name="device_time", reply=DeviceTime, deadline=_LONG):
    """Profile `steps` and return how long the device was busy in each."""

    steps: int


@dataclass(frozen=True)
class CompilingBlock(Block, deadline=_COMPILING):
    """Train the first block of a session, which compiles its step."""


@dataclass(frozen=True)
class Spin(Command[int], name="spin", reply=int, deadline=_SHORT):
    """Train blocks of `steps` for at least `duration` seconds and return the number of steps."""

    duration: float
    steps: int

    def seconds(self, override: float | None) -> float:
        """Return the time for the window and for the block that ends it."""
        return self.duration + super().seconds(override)


@dataclass(frozen=True)
class ProveWork(Command[WorkProof], name="proof", reply=WorkProof, deadline=_SHORT):
    """Return evidence that the timed work was done, which takes another block of `steps`."""

    steps: int


@dataclass(frozen=True)
class Restart(Command[Restarted], name="restart", reply=Restarted, deadline=_SHORT):
    """Take the first steps again, from the initial weights and batches."""


@dataclass(frozen=True)
class Plant(Command[None], name="plant", deadline=_SHORT):
    """Delay every dispatch from now on. Without `waits`, also leave out the synchronisation."""

    delay_seconds: float
    waits: bool = True


@dataclass(frozen=True)
class Ballast(Command[None], name="ballast", deadline=_LONG):
    """Hold `size` bytes of device memory until the worker ends."""

    size: int
    device: str


@dataclass(frozen=True)
class Train(Command[TrainingResult], name="train", reply=TrainingResult, deadline=_COMPILING):
    """Train for all epochs. A `generation` other than 0 makes the run a twin (see `Losses`).

    If `only_test`, the training accuracy is left out, which may take a third of the time.
    """

    roundoff: float = 0.0
    generation: int = 0
    only_test: bool = False


@dataclass(frozen=True)
class TrainModel(Command[TrainingResult], name="train_model", reply=TrainingResult, deadline=_COMPILING):
    """Train the model of `spec` for all epochs, and write its weights to a safetensors file."""

    spec: RunSpec
    path: str


@dataclass(frozen=True)
class Losses(Command[list[float | None]], name="losses", reply=list[float | None], deadline=_COMPILING):
    """Train for all epochs and return the loss of every step.

    A `generation` other than 0 makes the run a twin: a relative `roundoff` moves its initial weights, and its batches
    have another order.
    """

    roundoff: float
    generation: int


@dataclass(frozen=True)
class Update(Command[dict[str, float | None]], name="update", reply=dict[str, float | None], deadline=_COMPILING):
    """Write the change of every tensor in `steps` steps to `path` and return its noise over `runs` twins.

    None stands for infinite noise.
    """

    steps: int
    path: str
    roundoff: float
    runs: int


@dataclass(frozen=True)
class Record(Command[list[str]], name="record", reply=list[str], deadline=_COMPILING):
    """Record the arrays of a certificate in the folder `path` and return their names in execution order.

    If `evenly`, every dispatch of the timed path takes all batches equally often. For requests, `batch_sizes` are those
    that are timed.
    """

    spec: RunSpec
    steps: int
    path: str
    evenly: bool = False
    batch_sizes: Sequence[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class CompileTimedPath(Command[None], name="compile_timed_path", deadline=_COMPILING):
    """Compile the program of the timed path as `Record` does, so that its process finds this in the cache."""

    spec: RunSpec
    steps: int
    evenly: bool


@dataclass(frozen=True)
class MeasureNoise(
    Command[list[dict[str, float | None]]], name="noise", reply=list[dict[str, float | None]], deadline=_COMPILING
):
    """Return for each perturbation how far it moves every tensor. None is infinitely far."""

    spec: RunSpec
    steps: int
    perturbations: Sequence[Perturbation]
    batch_sizes: Sequence[int] = field(default_factory=list[int])

    def read_reply(self, value: Any) -> list[dict[str, float | None]]:
        """Return the noise, which has an entry for every perturbation."""
        floors = super().read_reply(value)
        if len(floors) != len(self.perturbations):
            raise ProtocolError(f"{len(floors)} floors for {len(self.perturbations)} perturbations")
        return floors


@dataclass(frozen=True)
class PruningCheck:
    """The largest relative error between a pruned and a masked model, None if not finite, and the array that has it."""

    error: float | None
    array: str


@dataclass(frozen=True)
class CheckPruning(Command[PruningCheck], name="check_pruning", reply=PruningCheck, deadline=_LONG):
    """Compare a pruned model with its full model, in which all removed channels are zero."""

    spec: RunSpec


@dataclass(frozen=True)
class TraceModel(Command[Traces], name="trace", reply=Traces, deadline=_LONG):
    """Trace a user's `model`, given as JSON, at its own image size and at each of `sizes`."""

    model: dict[str, Any]
    batch_size: int
    sizes: Sequence[int]


@dataclass(frozen=True)
class UserFiles:
    """The user's files behind a model.

    Attributes:
        sha256: the digest of every module and every file that Python opened, by path.
        unknown: why the model may depend on more than these, or None.
    """

    sha256: Mapping[str, str]
    unknown: str | None


@dataclass(frozen=True)
class ListUserFiles(Command[UserFiles], name="list_user_files", reply=UserFiles, deadline=_SHORT):
    """Return the files of the user's that this process has loaded or opened since it traced a model."""


@dataclass(frozen=True)
class OwnWeights(Command[None], name="own_weights", deadline=_LONG):
    """Write the weights that a user's factory gave its model to the file `path`."""

    spec: RunSpec
    path: str


@dataclass(frozen=True)
class RunLayer(Command[None], name="run_layer", deadline=_LONG):
    """Write the outputs of single layers on random inputs of the given shapes to the file `path`."""

    spec: RunSpec
    path: str
    inputs: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class MeasureMemory(Command[MemoryUse], name="memory", reply=MemoryUse, deadline=_COMPILING):
    """Train `steps` and return the memory that was used."""

    steps: int


@dataclass(frozen=True)
class MeasureCommunication(Command[Communication], name="communication", reply=Communication, deadline=_COMPILING):
    """Profile `steps` and return the communication that computation does not hide."""

    steps: int


@dataclass(frozen=True)
class ProfileSteps(Command[ProfileReply], name="profile", reply=ProfileReply, deadline=_LONG):
    """Write the profile of at least `steps` steps of a session that has not run to the file `path`.

    With `peaks`, also measure the device's peaks. Workers with the same file `lock` profile one at a time.
    """

    steps: int
    path: str
    peaks: bool
    lock: str


@dataclass(frozen=True)
class IdleMemory(Command[int | None], name="idle_memory", reply=int | None, deadline=_LONG):
    """Return the bytes of a worker that has only imported its framework, or None if they are unknown."""

    device: str


@dataclass(frozen=True)
class HeldMemory(Command[int], name="held", reply=int, deadline=_SHORT):
    """Return the bytes that the worker holds on its device, or 0 if they are unknown."""


@dataclass(frozen=True)
class Settings(Command[dict[str, Any]], name="settings", reply=dict[str, Any], deadline=_SHORT):
    """Return the effective settings, as the framework reports them."""
