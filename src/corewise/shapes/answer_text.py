"""The answer of `corewise shapes` in sentences, and the code to paste."""

from corewise.shapes.shapes_answer import ShapesAnswer
from corewise.text_format import format_count

_CODE = """\
{imports}from torch.utils.data import DataLoader
from corewise.batching import ImageDataset, {collate}, ShapeBatchSampler, read_image_sizes

found = read_image_sizes({folder!r})
dataset = ImageDataset(found{dataset_options})  # or your own dataset, in the order of found.paths
sampler = ShapeBatchSampler(
    dataset.sizes, policy={policy!r}, {limit}, seed={seed}, rank={rank}, world_size={ranks}
)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn={collate}(), num_workers=2)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for images, {fields}, labels in loader:
        ...  # train on images; {note}
"""


def write_code(answer: ShapesAnswer) -> str:
    """Write the lines that use the recommended policy."""
    question = answer.question
    options = answer.policies[answer.recommended].options
    packs = answer.recommended == "pack"
    return _CODE.format(
        imports="import torch.distributed\n" if question.ranks > 1 else "",
        fields="owners, boxes" if packs else "masks, sizes",
        note="owners number the image of each pixel" if packs else "masks mark the pixels that are no padding",
        collate="PackCollate" if packs else "PadCollate",
        folder=answer.found.folder,
        dataset_options=f", short_side={question.short_side}" if question.short_side else "",
        policy=answer.recommended,
        limit=", ".join(f"{name}={value:_}" for name, value in options.items()),
        seed=question.seed,
        rank="torch.distributed.get_rank()" if question.ranks > 1 else "0",
        ranks=question.ranks,
    )


def summarize_shapes(answer: ShapesAnswer) -> list[str]:
    """Return the answer in sentences, the most important first."""
    random, best = answer.policies["random"], answer.policies[answer.recommended]
    limit = describe_limit(answer, answer.recommended)
    gain = 1 / best.time_over_random
    sentences = []
    if answer.recommended == "random":
        sentences.append(f"Use `random` batches, {limit}: {answer.reason}.")
    else:
        sentences.append(
            f"Use `{answer.recommended}` batches, {limit}: {100 * best.figures.padding_share:.1f} % of the computed "
            f"pixels are padding, with `random` batches {100 * random.figures.padding_share:.1f} %. "
            f"An epoch computes {gain:.2f} times fewer pixels."
        )
        sentences.append(f"Why `{answer.recommended}`: {answer.reason}.")
    sentences.append(
        f"The largest batch takes about {best.peak_gb:.1f} GB, at {answer.question.gb_per_megapixel:g} GB per "
        f"megapixel of training; the largest `random` batch {random.peak_gb:.1f} GB."
    )
    if best.figures.num_oversized:
        sentences.append(
            f"{format_count(best.figures.num_oversized, 'image')} larger than the limit of a batch "
            f"{'has its' if best.figures.num_oversized == 1 else 'have their'} own batch, which needs more memory."
        )
    if answer.question.ranks > 1:
        sentences.append(
            f"On {answer.question.ranks} ranks, the slowest rank of a step computes at most "
            f"{100 * best.figures.step_imbalance:.1f} % more than the mean, {100 * best.figures.epoch_imbalance:.2f} % "
            f"over the epoch. All ranks get {best.figures.num_steps:,} batches."
        )
    return sentences


def describe_limit(answer: ShapesAnswer, policy: str) -> str:
    """Return the limit of a batch: 32 images, or 20.0 megapixels."""
    options = answer.policies[policy].options
    if "max_pixels" not in options:
        return f"{format_count(options['batch_size'], 'image')} each"
    if "batch_size" in options:
        images = format_count(options["batch_size"], "image")
        return f"at most {images} and {options['max_pixels'] / 1e6:.1f} megapixels each"
    return f"at most {options['max_pixels'] / 1e6:.1f} megapixels each"


def describe_images(answer: ShapesAnswer) -> list[str]:
    """Return sentences on the collection and on what was left out."""
    heights, widths = answer.sizes[:, 0], answer.sizes[:, 1]
    pixels = heights * widths / 1e6
    scaled = f", scaled to a short side of {answer.question.short_side}" if answer.question.short_side else ""
    lines = [
        f"{format_count(len(pixels), 'image')}{scaled}: {widths.min():,} to {widths.max():,} wide, {heights.min():,} "
        f"to {heights.max():,} high, {pixels.mean():.2f} megapixels on average, the largest {pixels.max():.1f}."
    ]
    found = answer.found
    notes = [
        (int((found.orientations >= 5).sum()), "stored on the side (EXIF)"),
        (int((found.channels < 3).sum()), "grey"),
        (int(((found.channels == 2) | (found.channels == 4)).sum()), "with alpha"),
        (int((found.bits > 8).sum()), "with 16 bits"),
    ]
    shown = [f"{count:,} {text}" for count, text in notes if count]
    if shown:
        lines.append(f"Of these, {', '.join(shown)}.")
    if found.problems:
        lines.append(f"{format_count(len(found.problems), 'file')} left out.")
    return lines
