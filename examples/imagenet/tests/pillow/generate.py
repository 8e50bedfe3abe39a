"""Writes pictures of awkward sizes and kinds, and what timm's validation transform makes of each.

    pip install pillow==12.2.0 && python generate.py

Beside each picture, `PICTURE.S.expected.png` its S x S pixels before normalisation: `convert("RGB")`, then the
shorter side to `floor(S / 0.875)` with Pillow's bicubic filter and the longer one in proportion, rounded down, then the centre
with torchvision's rounding. That is what `timm.data.create_transform(S, interpolation="bicubic", crop_pct=0.875)` does to a
picture, written out so that neither timm nor torch is needed. Pillow to 12 filters rows before columns; 13 begins with the
columns of some portraits, which shows where a sharp edge is clipped between the two.

Beside each JPEG, `PICTURE.decoded.png` its pixels as Pillow decodes them.
"""

import math
import pathlib

import PIL
from PIL import Image, ImageDraw

HERE = pathlib.Path(__file__).parent
CROP_FRACTION = 0.875


def scene(width, height):
    """Slopes, sharp edges, thin lines and a fine texture: all that a filter can get wrong."""
    pixels = [
        (
            x * 255 // max(width - 1, 1),
            y * 255 // max(height - 1, 1),
            255 if (x // 3 + y // 5) % 2 else 40 * (x * y % 5),
        )
        for y in range(height)
        for x in range(width)
    ]
    image = Image.new("RGB", (width, height))
    image.putdata(pixels)
    draw = ImageDraw.Draw(image)
    draw.rectangle((width // 8, height // 6, width // 3, height // 2), fill=(255, 255, 255))
    draw.ellipse((width // 2, height // 3, max(width - 3, width // 2), max(height - 2, height // 3)), fill=(0, 0, 0), outline=(255, 0, 0))
    draw.line((0, height - 1, width - 1, 0), fill=(0, 255, 0))
    return image


def eval_transform(image, side):
    image = image.convert("RGB")
    width, height = image.size
    shorter = math.floor(side / CROP_FRACTION)
    if width <= height:
        size = (shorter, int(shorter * height / width))
    else:
        size = (int(shorter * width / height), shorter)
    image = image.resize(size, Image.Resampling.BICUBIC)
    top = int(round((size[1] - side) / 2.0))
    left = int(round((size[0] - side) / 2.0))
    return image.crop((left, top, left + side, top + side))


def write(name, image, sides, **options):
    image.save(HERE / name, **options)
    with Image.open(HERE / name) as stored:
        for side in sides:
            expected = eval_transform(stored, side)
            expected.save(HERE / f"{name}.{side}.expected.png", optimize=True)


def write_decoded(name):
    with Image.open(HERE / name) as stored:
        stored.convert("RGB").save(HERE / f"{name}.decoded.png", optimize=True)


def main():
    print(f"Pillow {PIL.__version__}")
    png = {"optimize": True}
    write("odd.png", scene(97, 61), [32, 45], **png)
    write("portrait.png", scene(83, 210), [64], **png)
    write("landscape.png", scene(257, 131), [64, 49], **png)
    write("small.png", scene(29, 23), [64], **png)
    write("tiny.png", scene(3, 2), [32], **png)
    write("strip.png", scene(301, 7), [32], **png)
    write("grey.png", scene(75, 50).convert("L"), [48], **png)
    write("palette.png", scene(75, 50).quantize(16), [48], **png)
    transparent = scene(64, 91)
    transparent.putalpha(Image.linear_gradient("L").resize((64, 91)))
    write("transparent.png", transparent, [48], **png)
    write("same.png", scene(64, 64), [56], **png)
    write("large.png", scene(341, 256), [224], **png)
    write("baseline.jpg", scene(119, 87), [64], quality=90, subsampling=0)
    write("subsampled.jpg", scene(119, 87), [64], quality=90, subsampling=2)
    write("progressive.jpg", scene(87, 119), [64], quality=85, subsampling=2, progressive=True)
    write("grey.jpg", scene(61, 77).convert("L"), [48], quality=90)
    # Only decoded: colours at half width or half size in pictures of odd and of tiny width, restart markers, four inks.
    write("narrow.jpg", scene(3, 9), [], quality=85, subsampling=2)
    write("wide.jpg", scene(101, 31), [], quality=75, subsampling=1)
    write("restarts.jpg", scene(67, 45), [], quality=80, subsampling=2, progressive=True, restart_marker_blocks=3)
    write("single.jpg", scene(1, 1), [], quality=90, subsampling=2)
    write("cmyk.jpg", scene(45, 34).convert("CMYK"), [], quality=90)
    for name in sorted(path.name for path in HERE.glob("*.jpg")):
        write_decoded(name)


if __name__ == "__main__":
    main()
