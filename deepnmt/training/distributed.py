"""Several processes that train as one: how they add up gradients, agree, and fail together.

Data parallel: each rank computes the gradient of its part of an update; they are added up as the last micro-batch
completes them. The sum is explicit, instead of torch's DistributedDataParallel: a rank may split and retry a batch that
does not fit, and may compute its gradients with any engine (a replayed CUDA graph runs no hooks).
Sharded (FSDP2): parameters, gradients and optimiser state are spread over the ranks, layer by layer.
"""

import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import torch
import torch.distributed as dist

# Imported before there is a process group: its functions keep the group of that moment as a default argument. FSDP
# and torch's compiler import it later, and then the threads of a destroyed group abort the interpreter's shutdown.
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.utils.hooks import RemovableHandle

from deepnmt.devices import torchrun_ranks
from deepnmt.errors import InputError, RunError
from deepnmt.progress import say

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")
R = TypeVar("R")
BUCKET_BYTES = 32 * 2**20
ALIGNMENT = 32  # elements: every gradient starts where a kernel can load a vector
FAILURE_KEY = "deepnmt/failure"


class World:
    """The ranks of a run. With one rank every method is the identity, and no process group exists."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.asked: tuple[Tensor, dist.Work] | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Add up a tensor over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def any_before(self, flag: bool) -> bool:
        """Whether the flag of any rank was true at the previous call: the hosts exchange the flags in the meantime.

        Among hundreds of hosts the exchange takes as long as a step, and no rank should wait for it.
        """
        if self.size == 1:
            return flag
        answer = False
        if self.asked is not None:
            box, work = self.asked
            work.wait()
            answer = bool(box)
        box = torch.tensor(int(flag))
        self.asked = box, cast(dist.Work, dist.all_reduce(box, dist.ReduceOp.MAX, async_op=True))
        return answer

    def max(self, number: int) -> int:
        """The largest of all ranks. Hosts exchange it, not devices: nothing waits for the GPU's queue."""
        if self.size == 1:
            return number
        box = torch.tensor(number)
        dist.all_reduce(box, dist.ReduceOp.MAX)
        return int(box)

    def agree(self, value: T) -> T:
        """The main rank's value, on every rank."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return cast(T, box[0])

    def spread(self, work: Callable[[list[T]], list[R]], items: list[T]) -> list[R]:
        """`work(items)`, with the items divided among the ranks; every rank gets all results, in order."""
        if self.size == 1:
            return work(items)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, work(items[self.rank :: self.size]))
        results: list[Any] = [None] * len(items)
        for rank, part in enumerate(parts):
            results[rank :: self.size] = part
        return results

    def spread_rows(self, work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """`work(rows)`, which treats each row alone, with the rows divided among the ranks; every rank gets all."""
        if self.size == 1:
            return work(rows)
        share = -(-len(rows) // self.size)
        mine = rows[self.rank * share :][:share]
        done = torch.zeros(share, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        if len(mine):
            done[: len(mine)] = work(mine)
        parts = [torch.empty_like(done) for _ in range(self.size)]
        dist.all_gather(parts, done)
        return torch.cat(parts)[: len(rows)]


class GradientSum:
    """Sums the gradients over the ranks in buckets: each is one buffer, and its gradients are views of it.

    Buckets are in the order in which a backward pass completes them, the last layer first and shared parameters last,
    so that the exchange of the first bucket begins long before the pass ends.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        """Sharded gradients are left out: the backward pass has already summed them."""
        mine = {n: p for n, p in model.named_parameters() if p.requires_grad and not hasattr(p, "full_tensor")}
        layers = [p for name, p in mine.items() if ".layers." in name][::-1]
        others = [p for name, p in mine.items() if ".layers." not in name]
        kinds = [layers, others] if world.size > 1 else []
        self.buckets = [Bucket(parameters) for kind in kinds for parameters in _divide(kind)]
        self.stream = torch.cuda.Stream(world.device) if self.buckets and world.device.type == "cuda" else None

    def prepare(self) -> None:
        """Move the gradients into the buffers."""
        for bucket in self.buckets:
            bucket.flatten()

    @contextmanager
    def marking(self, leaf_of: Callable[[Tensor], Tensor], add: Callable[[int], None]) -> Iterator[None]:
        """Inside, a backward pass (and each replay of a recorded one) marks when a bucket is complete.

        The pass computes with `leaf_of(parameter)`; `add(i)` adds the gradients of bucket i to the parameters' own.
        """
        if self.stream is None:
            yield
            return
        hooks = [hook for i, bucket in enumerate(self.buckets) for hook in bucket.hooks(leaf_of, partial(add, i))]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def start(self) -> None:
        """Begin the exchange of each bucket as soon as the pass just launched has completed it."""
        if self.stream is None:
            return
        end = torch.cuda.current_stream().record_event()
        with torch.cuda.stream(self.stream):
            for bucket in self.buckets:
                self.stream.wait_event(bucket.mark or end)
                bucket.start()

    def finish(self) -> None:
        """Wait until the gradients are the sums."""
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.start()
        for bucket in self.buckets:
            bucket.finish()


class Bucket:
    """Gradients that are exchanged together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.flat: Tensor | None = None
        self.work: dist.Work | None = None
        self.mark: torch.cuda.Event | None = None  # None also if the last pass left out one of the parameters

    def flatten(self) -> Tensor:
        if self.flat is None:
            sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in self.parameters]
            self.flat = torch.zeros(sum(sizes), dtype=self.parameters[0].dtype, device=self.parameters[0].device)
            for parameter, part in zip(self.parameters, self.flat.split(sizes), strict=True):
                view = part[: parameter.numel()].view_as(parameter)
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
                parameter.grad = view
        return self.flat

    def hooks(self, leaf_of: Callable[[Tensor], Tensor], add: Callable[[], None]) -> list[RemovableHandle]:
        leaves = [leaf_of(parameter) for parameter in self.parameters]
        missing = {id(leaf) for leaf in leaves}
        # External: a replay records it again, and streams outside the recording can wait for it.
        event, self.mark = torch.cuda.Event(external=True), None

        def note(leaf: Tensor) -> None:
            missing.discard(id(leaf))
            if not missing:
                add()
                event.record()
                self.mark = event

        return [leaf.register_post_accumulate_grad_hook(note) for leaf in leaves]

    def start(self) -> None:
        self.work = cast(dist.Work, dist.all_reduce(self.flatten(), async_op=True))

    def finish(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


def _divide(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.nbytes > BUCKET_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket


@contextmanager
def join_world(device: str, timeout_seconds: int) -> Iterator[World]:
    """The world described by torchrun's environment, or a world of one; an error on one rank ends them all."""
    rank, size, local_rank = torchrun_ranks()
    place = _device(device, local_rank)
    world = World(rank, size, place)
    if size == 1:
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = _fresh_store(next(rendezvous("env://", timeout=timeout))[0], rank, size, timeout_seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"rank {rank} of {size} could not join the others: {_sentence(error)}") from error
    with _one_voice(world):
        yield world
    # Only after success: after a failure this could wait for a dead rank, and the process ends anyway.
    dist.destroy_process_group()


def _fresh_store(store: Store, rank: int, size: int, timeout_seconds: int) -> Store:
    """A part of the store that nobody has written to before.

    After a restart torchrun passes on the store of the previous ranks, with their addresses still in it; a rank that
    reads one of those waits for a dead process. So the main rank picks a name for a new part and sends it to each of
    the others under a key that only a living rank can have made; they confirm.
    """
    mine = secrets.token_hex(8)
    store.set(f"hello/{rank}", mine)
    if rank > 0:
        name = store.get(f"welcome/{mine}").decode()
        store.set(f"joined/{name}/{rank}", "")
        return PrefixStore(name, store)
    missing, deadline = set(range(1, size)), time.monotonic() + timeout_seconds
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for rank {', '.join(map(str, sorted(missing)))}")
        for other in missing:
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", mine)
        time.sleep(0.01)
        missing = {other for other in missing if not store.check([f"joined/{mine}/{other}"])}
    return PrefixStore(mine, store)


@contextmanager
def _one_voice(world: World) -> Iterator[None]:
    """The main rank alone reports an error, whether every rank has it or just one."""
    store = dist.distributed_c10d._get_default_store()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The first to fail records why; ranks that fail as a consequence (their peer is gone) read it.
        mine = f"{world.rank} {_sentence(error)}"
        with suppress(RuntimeError):  # the store may be gone too
            mine = store.compare_set(FAILURE_KEY, "", mine).decode()
        first, _, sentence = mine.partition(" ")
        if isinstance(error, InputError) and world.is_main:
            raise
        if world.is_main:
            raise RunError(sentence if first == "0" else f"rank {first} failed: {sentence}") from error
        if int(first) == world.rank and _is_lost(error):
            say(f"rank {first}: {sentence}")  # it may be the main rank that is gone
        elif int(first) == world.rank and not isinstance(error, InputError | RunError):
            sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(2 if isinstance(error, InputError) else 1) from error


def _is_lost(error: BaseException) -> bool:
    return "gloo/transport" in str(error)  # the source file in which gloo raises a RuntimeError


def _sentence(error: BaseException) -> str:
    if isinstance(error, InputError | RunError):
        return str(error)
    if _is_lost(error):
        if "timed out" in str(error).lower():
            return "timed out waiting for another rank (training.distributed_timeout_seconds)"
        return "lost another rank, which was killed or has crashed; the run can be resumed from its last checkpoint"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _device(name: str, local_rank: int) -> torch.device:
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise InputError(
            f"torchrun started rank {local_rank} on this host, which has {torch.cuda.device_count()} CUDA devices; "
            "lower --nproc-per-node"
        )
    device = torch.device("cuda", device.index if device.index is not None else local_rank)
    torch.cuda.set_device(device)
    return device


def shard(module: nn.Module, dtype: torch.dtype) -> None:
    """FSDP2: shard a module over the ranks in place, layer by layer, then the rest."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    # Keys and values are views of one product; nothing writes into them.
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor", UserWarning)
    policy = MixedPrecisionPolicy(param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32)
    for part in module.modules():
        # Called on its own, outside its layer's forward pass: keys and values are projected once per source.
        if hasattr(part, "project") and hasattr(part, "key_value"):
            fully_shard(part, mp_policy=policy)
            register_fsdp_forward_method(part, "project")
    layers = [layer for part in module.modules() if isinstance(part, nn.ModuleList) for layer in part]
    for layer in layers:
        if list(layer.parameters()):
            fully_shard(layer, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo supports only the plain sum


def await_gradients(module: nn.Module, wanted: bool) -> None:
    """Set whether the next backward pass of a sharded module ends with the exchange of gradients."""
    if is_sharded(module):
        module.set_requires_gradient_sync(wanted)


def is_sharded(module: nn.Module) -> "TypeGuard[FSDPModule]":
    return hasattr(module, "reshard")  # its class takes most of a second to import


@contextmanager
def in_one_piece(module: nn.Module) -> Iterator[None]:
    """Inside, all methods of a sharded module work, not just its forward pass; every rank must call the same ones."""
    if is_sharded(module):
        module.unshard()
    try:
        yield
    finally:
        if is_sharded(module):
            module.reshard()
