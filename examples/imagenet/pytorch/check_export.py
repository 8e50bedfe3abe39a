"""Checks an exported model in PyTorch: that it loads strictly, and that its logits are those of `imagenet predict`.

    pip install torch safetensors pillow

    cargo run --release -p imagenet -- export --out model.safetensors
    python check_export.py prepare model.json --out prepared IMAGE...
    cargo run --release -p imagenet -- predict --json --logits prepared > predictions.jsonl
    python check_export.py compare model.safetensors predictions.jsonl

`prepare` writes the images in the size to which the model's preprocessing would bring them, so that neither side resamples
them again: Pillow's rounding and that of `predict` may differ by one in 255, which is more than the arithmetic differs by.
`compare` exits with 1 if a parameter is missing, left over or of another shape, if an image had an error, or if a logit is off by
more than the tolerance relative to the largest one.

The network below is a small writing of WTConvNeXt and ConvNeXt of its own, under the parameter names of the official code and
of timm: nothing else is needed to use an exported model.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import nn


class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x):
        return x * self.weight


def haar(channels):
    """The filters of LL, LH, HL and HH for every channel: `[4 * channels, 1, 2, 2]`."""
    signs = torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
    return (signs / 2).reshape(4, 1, 2, 2).repeat(channels, 1, 1, 1)


class WTConv2d(nn.Module):
    """A wavelet convolution of stride 1, with its parameters in modules or plain."""

    def __init__(self, channels, kernel_size, levels, scheme):
        super().__init__()
        self.channels, self.levels, self.scheme = channels, levels, scheme
        if scheme == "modules":
            conv = dict(kernel_size=kernel_size, padding="same")
            self.base_conv = nn.Conv2d(channels, channels, groups=channels, **conv)
            self.base_scale = Scale(channels)
            wide = 4 * channels
            self.wavelet_convs = nn.ModuleList(
                nn.Conv2d(wide, wide, groups=wide, bias=False, **conv) for _ in range(levels)
            )
            self.wavelet_scale = nn.ModuleList(Scale(wide) for _ in range(levels))
            self.wt_filter = nn.Parameter(torch.zeros(wide, 1, 2, 2), requires_grad=False)
            self.iwt_filter = nn.Parameter(torch.zeros(wide, 1, 2, 2), requires_grad=False)
        else:
            filters = (1, kernel_size, kernel_size)
            self.base_weight = nn.Parameter(torch.zeros(channels, *filters))
            self.base_bias = nn.Parameter(torch.zeros(channels))
            self.base_scale = nn.Parameter(torch.ones(1, channels, 1, 1))
            self.wt_weights = nn.ParameterList(torch.zeros(4 * channels, *filters) for _ in range(levels))
            self.wt_scales = nn.ParameterList(torch.ones(1, 4 * channels, 1, 1) for _ in range(levels))

    def base(self, x):
        if self.scheme == "modules":
            return self.base_scale(self.base_conv(x))
        y = F.conv2d(x, self.base_weight, self.base_bias, padding="same", groups=self.channels)
        return y * self.base_scale

    def filtered(self, level, subbands):
        if self.scheme == "modules":
            return self.wavelet_scale[level](self.wavelet_convs[level](subbands))
        y = F.conv2d(subbands, self.wt_weights[level], padding="same", groups=4 * self.channels)
        return y * self.wt_scales[level]

    def forward(self, x):
        if self.scheme == "modules":
            analysis, synthesis = self.wt_filter, self.iwt_filter
        else:
            analysis = synthesis = haar(self.channels).to(x)
        low, sizes, returned = x, [], []
        for level in range(self.levels):
            height, width = low.shape[2:]
            sizes.append((height, width))
            low = F.pad(low, (0, width % 2, 0, height % 2))
            subbands = F.conv2d(low, analysis, stride=2, groups=self.channels)
            low = subbands[:, 0::4]
            returned.append(self.filtered(level, subbands))
        carried = 0
        for (height, width), subbands in zip(reversed(sizes), reversed(returned)):
            subbands = subbands.clone()
            subbands[:, 0::4] += carried
            carried = F.conv_transpose2d(subbands, synthesis, stride=2, groups=self.channels)
            carried = carried[:, :, :height, :width]
        return self.base(x) + carried


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mlp(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, channels, mixing):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.conv_dw = mixing
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = Mlp(channels)

    def forward(self, x):
        branch = self.conv_dw(x).permute(0, 2, 3, 1)
        branch = self.mlp(self.norm(branch)) * self.gamma
        return x + branch.permute(0, 3, 1, 2)


class Stage(nn.Module):
    def __init__(self, downsample, blocks):
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(self.norm(x.mean((2, 3))))


class ConvNeXt(nn.Module):
    """What the model card beside an exported file describes."""

    def __init__(self, card):
        super().__init__()
        args = card["model_args"]
        dims = args["dims"]

        def mixing(stage):
            channels, kernel_size = dims[stage], args["kernel_sizes"][stage]
            if card["architecture"] == "wtconvnext":
                return WTConv2d(channels, kernel_size, args["wt_levels"][stage], args["scheme"])
            return nn.Conv2d(channels, channels, kernel_size, padding="same", groups=channels)

        def downsample(stage):
            if stage == 0:
                return nn.Identity()
            return nn.Sequential(
                LayerNorm2d(dims[stage - 1], eps=1e-6), nn.Conv2d(dims[stage - 1], dims[stage], 2, stride=2)
            )

        self.stem = nn.Sequential(nn.Conv2d(3, dims[0], 4, stride=4), LayerNorm2d(dims[0], eps=1e-6))
        self.stages = nn.Sequential(
            *(
                Stage(downsample(stage), [Block(dims[stage], mixing(stage)) for _ in range(depth)])
                for stage, depth in enumerate(args["depths"])
            )
        )
        self.head = Head(dims[-1], card["num_classes"])

    def forward(self, x):
        return self.head(self.stages(self.stem(x)))


def resized(image, preprocessing):
    """The shorter side to `floor(input_size / crop_pct)`, the longer one in proportion, rounded down."""
    shorter = math.floor(preprocessing["input_size"][1] / preprocessing["crop_pct"])
    width, height = image.size
    if width <= height:
        size = (shorter, int(shorter * height / width))
    else:
        size = (int(shorter * width / height), shorter)
    return image.resize(size, Image.Resampling.BICUBIC)


def tensor(image, preprocessing):
    """The centre of a resized image, normalised: `[3, side, side]`."""
    side = preprocessing["input_size"][1]
    left = int(round((image.width - side) / 2.0))
    top = int(round((image.height - side) / 2.0))
    image = image.crop((left, top, left + side, top + side))
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    pixels = pixels.reshape(side, side, 3).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(preprocessing[name]).reshape(3, 1, 1) for name in ("mean", "std"))
    return (pixels - mean) / std


def prepare(args):
    preprocessing = json.loads(args.card.read_text())["pretrained_cfg"]
    args.out.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(args.images):
        with Image.open(path) as image:
            resized(image.convert("RGB"), preprocessing).save(args.out / f"{number:04}-{path.stem}.png")
    print(f"{len(args.images)} images written to {args.out}")


def compare(args):
    card = json.loads(args.model.with_suffix(".json").read_text())
    preprocessing = card["pretrained_cfg"]
    model = ConvNeXt(card).eval()
    # Raises an error that names every missing, unexpected or misshapen parameter.
    model.load_state_dict(load_file(args.model), strict=True)
    print(f"{args.model}: {sum(p.numel() for p in model.parameters() if p.requires_grad)} parameters")

    lines = [json.loads(line) for line in args.predictions.read_text().splitlines()]
    if not lines:
        sys.exit(f"{args.predictions}: no predictions")
    worst = 0.0
    for line in lines:
        path = line["path"]
        if "logits" not in line:
            sys.exit(f"{path}: {line.get('error', 'no logits: run predict with --json --logits')}")
        with Image.open(path) as image:
            image = image.convert("RGB")
        if resized(image, preprocessing).size != image.size:
            sys.exit(f"{path}: {image.width} x {image.height} would be resampled; prepare it first")
        with torch.no_grad():
            logits = model(tensor(image, preprocessing).unsqueeze(0))[0]
        ours = torch.tensor(line["logits"])
        difference = ((logits - ours).abs().max() / logits.abs().max()).item()
        worst = max(worst, difference)
        best = card["label_names"][int(logits.argmax())]
        print(f"{path}: {best}, {difference:.1e} of the largest logit")
        if not difference <= args.tolerance:
            print(f"  PyTorch {logits.tolist()}\n  predict {ours.tolist()}")
    print(f"largest difference {worst:.1e} over {len(lines)} images, allowed {args.tolerance:.1e}")
    if not worst <= args.tolerance:
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare", help="write images that are not resampled again")
    command.add_argument("card", type=pathlib.Path, help="the .json beside the exported model")
    command.add_argument("images", type=pathlib.Path, nargs="+")
    command.add_argument("--out", type=pathlib.Path, default=pathlib.Path("prepared"))
    command.set_defaults(run=prepare)
    command = commands.add_parser("compare", help="load the model and compare its logits")
    command.add_argument("model", type=pathlib.Path, help="the exported .safetensors")
    command.add_argument("predictions", type=pathlib.Path, help="what `predict --json --logits` printed")
    command.add_argument("--tolerance", type=float, default=1e-4, help="relative to the largest logit")
    command.set_defaults(run=compare)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
