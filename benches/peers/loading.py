"""Loads folders of photographs with torchvision, and makes such folders.

With `--make`, writes photographs that scikit-image and scikit-learn ship, cropped at many places, as JPEGs of 500×375 in
class folders, prints one line of JSON and ends. Otherwise it first prints one line of JSON: the number of images and the
versions, or what is missing. After that it loads all images for each line that it reads, and prints the seconds. It
ends with its input.
"""

import argparse
import json
import pathlib
import random
import sys
import time

WIDTH, HEIGHT, QUALITY = 500, 375, 90
SKIMAGE = ["astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png",
           "motorcycle_right.png", "retina.jpg", "rocket.jpg"]
SKLEARN = ["china.jpg", "flower.jpg"]


def flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="a folder of class folders")
    parser.add_argument("--make", type=int, metavar="N", help="makes the folder, with N photographs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--decode", action="store_true", help="only decodes, in this process")
    return parser.parse_args()


def say(**what):
    print(json.dumps(what), flush=True)


def photographs():
    import skimage
    import sklearn

    in_package = lambda package, *folders: pathlib.Path(package.__file__).parent.joinpath(*folders)
    yield from (in_package(skimage, "data") / name for name in SKIMAGE)
    yield from (in_package(sklearn, "datasets", "images") / name for name in SKLEARN)


def make(folder, count):
    """Each has another place and size, so that no two files are the same."""
    from PIL import Image

    draws = random.Random(0)
    sources = [(path.stem, Image.open(path).convert("RGB")) for path in photographs()]
    for index in range(count):
        name, photograph = sources[index % len(sources)]
        most = min(photograph.width / WIDTH, photograph.height / HEIGHT)
        scale = draws.uniform(0.6, 1.0) * most
        width, height = scale * WIDTH, scale * HEIGHT
        left, top = draws.uniform(0, photograph.width - width), draws.uniform(0, photograph.height - height)
        cropped = photograph.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        (folder / name).mkdir(parents=True, exist_ok=True)
        cropped.save(folder / name / f"{index:06}.jpg", quality=QUALITY)
    say(images=count, sources=[name for name, _ in sources])


def decoder(folder):
    """Decodes the images in the same way as `ImageFolder`, and drops them."""
    import PIL
    from torchvision.datasets import ImageFolder

    images = ImageFolder(folder)

    def turn():
        for path, _ in images.samples:
            images.loader(path)

    return turn, len(images), PIL.__version__


def loader(folder, workers, batch):
    import torch
    import torchvision
    from torchvision import transforms

    shown = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    images = torchvision.datasets.ImageFolder(folder, shown)
    batches = torch.utils.data.DataLoader(
        images, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )

    def turn():
        seen = sum(len(labels) for _, labels in batches)
        assert seen == len(images)

    return turn, len(images), f"{torchvision.__version__}, torch {torch.__version__}"


def main():
    args = flags()
    try:
        if args.make:
            return make(args.folder, args.make)
        made = decoder(args.folder) if args.decode else loader(args.folder, args.workers, args.batch)
    except ImportError as error:
        return say(missing=str(error))
    turn, images, version = made
    turn()
    say(images=images, version=version)
    for _ in sys.stdin:
        began = time.perf_counter()
        turn()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
