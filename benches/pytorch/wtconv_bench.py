#!/usr/bin/env python3
"""Times wavelet convolutions in PyTorch: rows for `cargo xtask bench peers`.

    python3 wtconv_bench.py --preset wtconvnext-t --dtype f32,f16 --out out/pytorch
    python3 wtconv_bench.py --layer wtconv.wtconv2d:WTConv2d --path CHECKOUT --out out/external

Measured are a plain writing of the reference layer (one Haar analysis, one depthwise convolution and one synthesis a
level), cuDNN's depthwise 7x7 and 5x5, and optionally an external layer, constructed as
`Class(channels, channels, kernel_size=K, wt_levels=L)`. The results have the schema of `benches sweep`, and calls are timed
in the same way: batches of at least 20 ms between two synchronisations, percentiles over 15 batches.

Needs PyTorch with CUDA, or `--device cpu`.
"""

import argparse
import copy
import importlib
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

SCHEMA = 1
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Relative error of y and dx, and of the parameters' gradients.
TOLERANCES = {"f32": (1e-5, 1e-4), "f16": (5e-3, 5e-3), "bf16": (4e-2, 4e-2)}
# Elements that are checked.
MOST_CHECKED = 4_000_000
FLOOR_TENSORS = {"forward": 2, "backward": 3, "train": 5}

STAGES = [(56, 5), (28, 4), (14, 3), (7, 2)]
PAPER = [
    (64, 96, 56, 56),
    (64, 192, 28, 28),
    (64, 384, 14, 14),
    (64, 768, 7, 7),
    (128, 64, 32, 32),
    (32, 128, 64, 64),
    (32, 64, 128, 128),
    (16, 64, 224, 224),
]
CLIFFS = [60, 30, 15, 64, 32, 16, 56, 28, 14, 7, 11, 13, 17, 31, 47, 53, 61]
LARGE = [(4, 64, 512, 512), (2, 64, 1024, 1024), (1, 32, 2048, 2048)]


def stages(width):
    return [((64, width << i, side, side), levels) for i, (side, levels) in enumerate(STAGES)]


# As in benches/src/cases.rs.
PRESETS = {
    "wtconvnext-t": stages(96),
    "wtconvnext-s": stages(96),
    "wtconvnext-b": stages(128),
    "paper": [(shape, levels) for shape in PAPER for levels in range(1, 6)],
    "cliffs": [((64, 64, side, side), 3) for side in CLIFFS],
    "large": [(shape, levels) for shape in LARGE for levels in (3, 5)],
    "smoke": [((2, 8, 16, 16), 2), ((1, 4, 15, 9), 3)],
}


class ReferenceWTConv(nn.Module):
    """y = s0 (w0 * x + b) + sum over levels and subbands of A^T (s (w * A x)); grouped convolutions throughout."""

    def __init__(self, channels, kernel_size, levels):
        super().__init__()
        self.channels = channels
        self.base = nn.Conv2d(channels, channels, kernel_size, padding="same", groups=channels)
        self.base_scale = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.wavelet = nn.ModuleList(
            nn.Conv2d(4 * channels, 4 * channels, kernel_size, padding="same", groups=4 * channels, bias=False)
            for _ in range(levels)
        )
        self.scales = nn.ParameterList(nn.Parameter(torch.full((1, 4 * channels, 1, 1), 0.1)) for _ in range(levels))
        haar = 0.5 * torch.tensor(
            [[[1, 1], [1, 1]], [[1, 1], [-1, -1]], [[1, -1], [1, -1]], [[1, -1], [-1, 1]]], dtype=torch.float64
        )
        # Channel 4 c + s is subband s (LL, LH, HL, HH) of channel c.
        self.register_buffer("haar", haar.unsqueeze(1).repeat(channels, 1, 1, 1).float(), persistent=False)

    def forward(self, x):
        subbands, extents, low = [], [], x
        for convolution, scale in zip(self.wavelet, self.scales):
            height, width = low.shape[2:]
            extents.append((height, width))
            if height % 2 or width % 2:
                low = F.pad(low, (0, width % 2, 0, height % 2))
            bands = F.conv2d(low, self.haar, stride=2, groups=self.channels)
            low = bands[:, 0::4]
            subbands.append(scale * convolution(bands))
        carried = None
        for bands, (height, width) in zip(reversed(subbands), reversed(extents)):
            if carried is not None:
                batch, _, rows, columns = bands.shape
                bands = bands.view(batch, self.channels, 4, rows, columns)
                bands = torch.cat([bands[:, :, :1] + carried.unsqueeze(2), bands[:, :, 1:]], dim=2)
                bands = bands.view(batch, 4 * self.channels, rows, columns)
            carried = F.conv_transpose2d(bands, self.haar, stride=2, groups=self.channels)
            carried = carried[:, :, :height, :width]
        y = self.base_scale * self.base(x)
        return y if carried is None else y + carried


class Timer:
    """Batches of calls between two synchronisations."""

    MOST_CALLS = 200

    def __init__(self, device):
        self.device = device

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def batch(self, call, prepare, calls):
        prepared = [prepare() for _ in range(calls)]
        self.sync()
        start = time.perf_counter()
        while prepared:
            call(prepared.pop())
        self.sync()
        return (time.perf_counter() - start) * 1e3 / calls

    def measure(self, call, prepare=lambda: None, limit=10.0):
        """First call and timing, as the fields of a row."""
        first = self.batch(call, prepare, 1)
        for _ in range(2):
            self.batch(call, prepare, 1)
        calls = 1
        for _ in range(3):
            milliseconds = self.batch(call, prepare, calls)
            calls = min(max(calls, math.ceil(20.0 / milliseconds)), self.MOST_CALLS)
        times, start = [], time.perf_counter()
        while len(times) < 15 and (len(times) < 3 or time.perf_counter() - start < limit):
            times.append(self.batch(call, prepare, calls))
        return first, {
            "median_ms": statistics.median(times),
            "p10_ms": percentile(times, 0.1),
            "p90_ms": percentile(times, 0.9),
            "batches": len(times),
            "calls_per_batch": calls,
        }


def percentile(values, share):
    values = sorted(values)
    position = share * (len(values) - 1)
    below, above = values[math.floor(position)], values[math.ceil(position)]
    return below + (above - below) * (position - math.floor(position))


def trained(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def graphed(module, x, dy, train):
    """A callable that replays a CUDA graph of a forward, or of forward and backward."""
    inputs = [x] + trained(module)

    def work():
        if not train:
            with torch.no_grad():
                return module(x)
        return torch.autograd.grad(module(x), inputs, dy)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = work()
    # The outputs are kept: the graph writes into them.
    return lambda _: (graph.replay(), outputs)[0]


def relative_error(got, expected):
    got, expected = got.double().cpu(), expected.double().cpu()
    size, difference = float(expected.norm()), float((got - expected).norm())
    error = difference / size if size > 0 else difference
    # JSON has no NaN: the largest number is as wrong, and can be read again.
    return error if math.isfinite(error) else sys.float_info.max


def errors(module, x, dy, train):
    """Against the same module in float64 on the CPU, for the first images; of very large images, nothing."""
    image = x[0].numel()
    if image > MOST_CHECKED:
        return {}
    double = copy.deepcopy(module).double().cpu()
    images = max(1, min(x.shape[0], MOST_CHECKED // image))
    part, part_dy = x[:images].detach(), dy[:images]
    if not train:
        with torch.no_grad():
            return {"y": relative_error(module(part), double(part.double().cpu()))}
    part.requires_grad_()
    exact = part.detach().double().cpu().requires_grad_()
    gradients = torch.autograd.grad(module(part), [part] + trained(module), part_dy)
    expected = torch.autograd.grad(double(exact), [exact] + trained(double), part_dy.double().cpu())
    pairs = list(zip(gradients[1:], expected[1:]))
    return {
        "dx": relative_error(gradients[0], expected[0]),
        "parameters": max(relative_error(got, want) for got, want in pairs),
    }


def peak_memory(device, call, prepare):
    if device.type != "cuda":
        return None
    prepared = prepare()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call(prepared)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def blank_row(shape, levels, kernel_size, dtype, layout, pass_, route):
    tensor = math.prod(shape) * (4 if dtype == "f32" else 2)
    analysed = sum(0.25**level for level in range(levels))
    models = pass_ == "forward" and levels > 0
    return {
        "shape": "x".join(map(str, shape)),
        "levels": levels,
        "kernel_size": kernel_size,
        "dtype": dtype,
        "layout": layout,
        "pass": pass_,
        "route": route,
        "status": "skipped",
        "reason": None,
        "first_call_ms": None,
        "timing": None,
        "again": None,
        "over_tensor_ops": None,
        "over_conv2d_7x7": None,
        "over_depthwise_7x7": None,
        "ns_per_pixel": None,
        "copy": None,
        "floor_bytes": float(FLOOR_TENSORS[pass_] * tensor),
        "reference_bytes": (7 + 10.75 * analysed) * tensor if models else None,
        "paper_bytes": (3 + 4 * analysed) * tensor if models else None,
        "plan_bytes": None,
        "launches": None,
        "bandwidth_gb_s": None,
        "copy_share": None,
        "floor_ratio": None,
        "peak_memory_bytes": None,
        "errors": {},
    }


def derive(row, elements, size):
    milliseconds = row["timing"]["median_ms"]
    row["ns_per_pixel"] = milliseconds * 1e6 / elements
    row["bandwidth_gb_s"] = row["floor_bytes"] / milliseconds * 1e-6
    if row["copy"]:
        copied, copy_ms = 2.0 * elements * size, row["copy"]["median_ms"]
        row["copy_share"] = row["bandwidth_gb_s"] / (copied / copy_ms * 1e-6)
        row["floor_ratio"] = milliseconds / (copy_ms * row["floor_bytes"] / copied)


def measure_row(row, make, x, dy, timer, arguments):
    pass_, device = row["pass"], x.device
    module = make().to(device=device, dtype=x.dtype)
    train = pass_ != "forward"
    if train:
        x = x.detach().requires_grad_()
    inputs = [x] + trained(module)

    def forward(_):
        with torch.no_grad():
            module(x)

    def backward(y):
        torch.autograd.grad(y, inputs, dy)

    prepare = (lambda: module(x)) if pass_ == "backward" else (lambda: None)
    call = {"forward": forward, "backward": backward, "train": lambda _: backward(module(x))}[pass_]
    if arguments.cuda_graphs and pass_ == "backward":
        row.update(status="refused", reason="a graph holds forward and backward together")
        return
    if arguments.cuda_graphs:
        call = graphed(module, x, dy, train)
    row["first_call_ms"], row["timing"] = timer.measure(call, prepare)
    if not arguments.cuda_graphs:
        row["peak_memory_bytes"] = peak_memory(device, call, prepare)
    try:
        row["errors"] = errors(module, x, dy, train)
    except Exception as error:
        # An external layer may have no float64 or no CPU implementation; ours has both.
        if row["route"] != arguments.layer:
            raise
        row.update(status="measured", reason=f"not checked: {one_line(error)}")
        return
    planes, parameters = TOLERANCES[row["dtype"]]
    within = all(error <= (parameters if what == "parameters" else planes) for what, error in row["errors"].items())
    row["status"] = "measured" if within else "wrong"
    row["reason"] = None if within else "further from the same layer in float64 than the tolerance"


def sweep(arguments, device):
    timer = Timer(device)
    end = time.monotonic() + arguments.time_budget if arguments.time_budget else math.inf
    cases = PRESETS[arguments.preset] if not arguments.shape else [
        (shape, levels) for shape in arguments.shape for levels in arguments.levels
    ]
    shapes = list(dict.fromkeys(shape for shape, _ in cases))
    rows = []
    for dtype in arguments.dtype:
        for layout in arguments.layout:
            for shape in shapes:
                rows += group(shape, cases, dtype, layout, timer, end, device, arguments)
                write(arguments, rows, device)
    return rows


def group(shape, cases, dtype, layout, timer, end, device, arguments):
    torch.manual_seed(7)
    channels, k = shape[1], arguments.kernel_size

    def depthwise(side):
        return lambda: nn.Conv2d(channels, channels, side, padding=side // 2, groups=channels)

    # Route, levels, kernel size, constructor.
    ways = [(f"cudnn-{side}x{side}", 0, side, depthwise(side)) for side in (7, 5)]
    for levels in (levels for other, levels in cases if other == shape):
        ways.append(("reference", levels, k, lambda levels=levels: ReferenceWTConv(channels, k, levels)))
        if arguments.external:
            make = lambda levels=levels: arguments.external(channels, channels, kernel_size=k, wt_levels=levels)
            ways.append((arguments.layer, levels, k, make))

    rows, copied = [], None
    try:
        x, dy = (torch.rand(shape, device=device) * 2 - 1 for _ in range(2))
        order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        x, dy = (tensor.to(DTYPES[dtype]).contiguous(memory_format=order) for tensor in (x, dy))
        to = torch.empty_like(x)
        _, copied = timer.measure(lambda _: to.copy_(x), limit=2.0)
        failure = None
    except (RuntimeError, MemoryError) as error:
        failure = f"no input: {one_line(error)}"
    for route, levels, kernel_size, make in ways:
        for pass_ in arguments.pass_:
            row = blank_row(shape, levels, kernel_size, dtype, layout, pass_, route)
            row["copy"] = copied
            rows.append(row)
            if failure:
                row.update(status="failed", reason=failure)
            elif time.monotonic() >= end or arguments.interrupted:
                row["reason"] = "interrupted" if arguments.interrupted else "the time budget was spent"
            else:
                print(row["shape"], f"L{levels}", dtype, layout, route, pass_, file=sys.stderr, flush=True)
                try:
                    measure_row(row, make, x, dy, timer, arguments)
                    if row["timing"]:
                        derive(row, math.prod(shape), 4 if dtype == "f32" else 2)
                except KeyboardInterrupt:
                    arguments.interrupted = True
                    row["reason"] = "interrupted"
                except Exception as error:  # A row that fails is a row with its reason, whatever an external layer raises.
                    row.update(status="failed", reason=one_line(error))
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
    return rows


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def machine(device):
    gpu = device.type == "cuda"
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            cpu = re.search(r"model name\s*:\s*(.+)", info.read()).group(1)
    except (OSError, AttributeError):
        pass
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None
    return {
        "backend": "pytorch-" + device.type,
        "device": torch.cuda.get_device_name(device) if gpu else cpu,
        "driver": driver.splitlines()[0] if driver else None,
        "cpu": cpu,
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "os": f"{platform.system().lower()} {platform.machine()}",
    }


def write(arguments, rows, device):
    method = {
        "timing": "calls are timed in batches that last at least 20 ms (at most 200 calls), between two synchronisations; "
        "percentiles are over 15 batches, or fewer (at least 3) once a row has taken 10 s",
        "forward": "the module under no_grad",
        "backward": "torch.autograd.grad of the output with regard to the input and all parameters, for a gradient in memory; "
        "the forwards are done before the clock starts",
        "train": "forward and backward",
        "launching": "replays of a CUDA graph: no time of Python or of the dispatcher is in them"
        if arguments.cuda_graphs
        else "every call through Python and the dispatcher, as in eager training",
        "convolutions": f"cudnn.benchmark on, cudnn.allow_tf32 {torch.backends.cudnn.allow_tf32}",
        "errors": "norm(got - expected) / norm(expected) against the same module in float64 on the CPU: it shows rounding, "
        "not whether an external layer computes what it should",
        "peak_memory_bytes": "torch.cuda.max_memory_allocated during a call, less what was allocated before it",
    }
    results = {
        "schema": SCHEMA,
        "label": "PyTorch with CUDA graphs" if arguments.cuda_graphs else "PyTorch",
        "machine": machine(device),
        "software": {
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "python": platform.python_version(),
        },
        "commit": arguments.commit,
        "command_line": " ".join(["wtconv_bench.py"] + sys.argv[1:]),
        "date": arguments.date,
        "method": method,
        "rows": rows,
        "models": [],
    }
    os.makedirs(arguments.out, exist_ok=True)
    path = os.path.join(arguments.out, "results.json")
    with open(path + ".partial", "w") as file:
        json.dump(results, file, indent=2)
        file.write("\n")
    os.replace(path + ".partial", path)


def parse_shape(text):
    extents = tuple(int(part) for part in text.split("x"))
    if len(extents) != 4 or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"expected BxCxHxW, got {text!r}")
    return extents


def parse_duration(text):
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    if not re.fullmatch(r"[0-9.]+[smh]", text):
        raise argparse.ArgumentTypeError(f"expected a number with s, m or h behind it, got {text!r}")
    return float(text[:-1]) * units[text[-1]]


def parse_commit(text):
    # It goes into tables as it is.
    if not re.fullmatch(r"[A-Za-z0-9_.+/-]+", text):
        raise argparse.ArgumentTypeError(f"expected letters, digits and any of -_.+/, got {text!r}")
    return text


def choices(allowed):
    def parse(text):
        values = text.split(",")
        for value in values:
            if value not in allowed:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(allowed)}, got {value!r}")
        return values

    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="smoke")
    parser.add_argument("--shape", type=parse_shape, action="append", help="BxCxHxW instead of a preset; may be repeated")
    parser.add_argument("--levels", type=lambda text: [int(part) for part in text.split(",")], default=[3])
    parser.add_argument("--kernel-size", type=int, default=5)
    parser.add_argument("--dtype", type=choices(list(DTYPES)), default=["f32"])
    parser.add_argument("--layout", type=choices(["nchw", "nhwc"]), default=["nchw"])
    parser.add_argument(
        "--pass", dest="pass_", type=choices(list(FLOOR_TENSORS)), default=list(FLOOR_TENSORS), help="forward,backward,train"
    )
    parser.add_argument("--layer", help="an external layer, module:Class")
    parser.add_argument("--path", help="directory to import --layer from")
    parser.add_argument("--cuda-graphs", action="store_true", help="replay CUDA graphs of forward and train")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time-budget", type=parse_duration, help="start no row after this long, such as 10m")
    parser.add_argument("--commit", type=parse_commit, help="the commit to record")
    parser.add_argument("--out", default="pytorch-bench")
    arguments = parser.parse_args()
    arguments.interrupted = False
    arguments.date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    arguments.external = None
    if arguments.layer:
        if arguments.path:
            sys.path.insert(0, arguments.path)
        module, _, name = arguments.layer.partition(":")
        if not name:
            parser.error("--layer is module:Class")
        arguments.external = getattr(importlib.import_module(module), name)
    return arguments


def main():
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    torch.backends.cudnn.benchmark = True
    # f32 means f32.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = sweep(arguments, device)
    count = {status: sum(row["status"] == status for row in rows) for status in ("measured", "wrong", "refused", "failed", "skipped")}
    print(f"{len(rows)} rows: {count}; written: {arguments.out}")
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
