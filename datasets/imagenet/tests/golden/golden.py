"""Makes the files beside it: images of many kinds, and what Pillow and torchvision make of them.

    python golden.py      needs torchvision, Pillow and scikit-image, whose photograph by NASA it uses
"""

import csv
import io
import pathlib
import struct

import numpy
import skimage
import torch
from PIL import Image, ImageOps
from torchvision import transforms
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F

HERE = pathlib.Path(__file__).parent
ASTRONAUT = pathlib.Path(skimage.__file__).parent / "data" / "astronaut.png"


def photograph(width, height):
    whole = Image.open(ASTRONAUT).convert("RGB").crop((120, 0, 420, 300 * height // width))
    return whole.resize((width, height), Image.Resampling.LANCZOS)


def jpeg(image, **how):
    file = io.BytesIO()
    image.save(file, "jpeg", **{"quality": 90, **how})
    return file.getvalue()


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def with_segment(file, marker, content):
    return file[:2] + segment(marker, content) + file[2:]


def decoding():
    """Files, and next to each a PNG of what it is as RGB."""
    photo = photograph(45, 37)
    cmyk = jpeg(photo.convert("CMYK"), subsampling=0)
    adobe = cmyk.index(b"Adobe") - 4
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = jpeg(photo, exif=exif.tobytes())
    plain = jpeg(photo)
    png = lambda image: (lambda file: (image.save(file, "png"), file.getvalue())[1])(io.BytesIO())
    files = {
        "photo.jpg": plain,
        "progressive.jpg": jpeg(photo, progressive=True),
        "full_colour.jpg": jpeg(photo, subsampling=0),
        "restarts.jpg": jpeg(photo, restart_marker_blocks=2),
        "gray.jpg": jpeg(photo.convert("L")),
        "cmyk.jpg": cmyk,
        # The same numbers, said to be YCCK, and said to be by none of Adobe's programs.
        "ycck.jpg": cmyk[: adobe + 15] + b"\x02" + cmyk[adobe + 16 :],
        "cmyk_of_nobody.jpg": cmyk[:adobe] + cmyk[adobe + 16 :],
        "turned.jpg": turned,
        "odd_exif.jpg": with_segment(plain, 0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff\1\2\3"),
        "short_exif.jpg": with_segment(plain, 0xE1, b"Exif\0\0"),
        "bytes_between.jpg": plain[:20] + b"odd bytes" + plain[20:],
        "bytes_after.jpg": plain + b"\0\0 more \xff\xda",
        "a_png.JPEG": png(photo),
        "palette.png": png(photo.quantize(32)),
        "transparent.png": png(Image.merge("RGBA", [*photo.split(), photo.convert("L")])),
        "gray_transparent.png": png(photo.convert("LA")),
        "one_bit.png": png(photo.convert("1")),
    }
    for name, format, how in [("photo.webp", "webp", {"lossless": True}), ("photo.bmp", "bmp", {}), ("photo.gif", "gif", {})]:
        file = io.BytesIO()
        (photo if format != "gif" else photo.quantize(32)).save(file, format, **how)
        files[name] = file.getvalue()
    folder = HERE / "decoding"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        Image.open(io.BytesIO(content)).convert("RGB").save(folder / f"{name}.rgb.png", optimize=True)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(turned)))
    turned.convert("RGB").save(folder / "turned.jpg.upright.png", optimize=True)
    # Pillow does not round 16 bits to 8.
    deep = numpy.arange(45 * 37, dtype=numpy.uint16).reshape(37, 45) * 39
    Image.fromarray(deep).save(folder / "deep.png")
    gray = numpy.rint(deep / 257).astype(numpy.uint8)
    Image.fromarray(gray).convert("RGB").save(folder / "deep.png.rgb.png", optimize=True)


def tiles(name, rows, images):
    """A CSV file of what was done, and a PNG of what came out, one below the other."""
    with open(HERE / f"{name}.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    stacked = numpy.concatenate([numpy.asarray(image.convert("RGB")) for image in images])
    Image.fromarray(stacked).save(HERE / f"{name}.png", optimize=True)


def operations(source):
    """Each operation of RandAugment by its table, and changes of hue."""
    table = autoaugment.RandAugment()._augmentation_space(31, (source.height, source.width))
    rows, images = [], []
    for operation, (magnitudes, signed) in table.items():
        bins = [0, 5, 9, 17, 30] if magnitudes.ndim > 0 else [9]
        for bin in bins:
            for sign in [1, -1] if signed else [1]:
                magnitude = float(magnitudes[bin]) if magnitudes.ndim > 0 else 0.0
                shown = autoaugment._apply_op(source, operation, sign * magnitude, InterpolationMode.NEAREST, None)
                rows.append([operation, bin, sign])
                images.append(shown)
    for hundredths in [-50, -10, -3, 7, 33, 50]:
        rows.append(["Hue", hundredths, 1])
        images.append(F.adjust_hue(source, hundredths / 100))
    tiles("operations", rows, images)


def crops(source):
    """Crops at given places, and evaluation crops."""
    rows, images = [], []
    for name, interpolation in [("bilinear", InterpolationMode.BILINEAR), ("bicubic", InterpolationMode.BICUBIC)]:
        for left, top, width, height in [(0, 0, 61, 47), (3, 5, 31, 40), (20, 11, 9, 8), (7, 30, 54, 16), (60, 46, 1, 1)]:
            rows.append(["cut", name, left, top, width, height])
            images.append(F.resized_crop(source, top, left, height, width, [16, 16], interpolation))
        for image, turned in [(source, 0), (source.transpose(Image.Transpose.TRANSPOSE), 1)]:
            for resize in [16, 17, 20, 39, 75]:
                rows.append(["middle", name, turned, resize, 0, 0])
                images.append(F.center_crop(F.resize(image, resize, interpolation), [16, 16]))
    tiles("crops", rows, images)


def crop_means():
    """Means over many random crops of 500×375: left, top, width, height, share of the area."""
    torch.manual_seed(0)
    image = torch.empty(3, 375, 500)
    drawn = transforms.RandomResizedCrop(224)
    parts = [drawn.get_params(image, drawn.scale, drawn.ratio) for _ in range(200_000)]
    top, left, height, width = numpy.array(parts, dtype=float).T
    return [float(values.mean()) for values in (left, top, width, height, width * height / (500 * 375))]


if __name__ == "__main__":
    decoding()
    source = photograph(61, 47)
    source.save(HERE / "source.png", optimize=True)
    small = source.crop((12, 4, 41, 25))
    small.save(HERE / "small.png", optimize=True)
    operations(small)
    crops(source)
    print("golden.rs has CROPS =", crop_means())
