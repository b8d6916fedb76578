"""``dissensus export``: a run's ensemble for use elsewhere."""

from __future__ import annotations

from dissensus.cli.console import command, note, say
from dissensus.cli.options import RunFolder, with_options
from dissensus.export import Export, export_run

__all__ = ["export"]


@with_options
def export(run: RunFolder, options: Export) -> None:
    """
    Write a run's ensemble for use elsewhere: one file for a runtime, or a folder to share.

    onnx and pt2 are one graph that needs no Dissensus. It takes inputs x in the units of the source
    (what training standardised is standardised inside) and gives what `predict` writes: probs, or
    mean for a regression, members [members, batch, outputs], a score_NAME for each --score, and
    is_ood with a --detector. The batch may have any size. The file also holds its classes, columns,
    scores and versions. To load a pt2 is to load a program: take it from people whose programs you
    would run.

    hub is a folder with model.safetensors, config.json and README.md, a model card made from the
    run's records; ds.load brings it back, and no file in it can run code. Choose a license and add
    it.

    Examples

      dissensus export runs/ldr --out ldr.onnx

      dissensus export runs/ldr --out ldr.pt2 --score pds --detector detector.json

      dissensus export runs/photos --out photos.onnx --bytes   pixels from 0 to 255

      dissensus export runs/ldr --format hub --out ldr-ensemble/ --license apache-2.0
    """
    exported = export_run(run, options, progress=True)
    for text in exported.notes:
        note(text)
    exported.show()
    if options.kind == "hub":
        words = ["dissensus", "predict", options.out, "--input", "x.npz", "--output", "p.npz"]
        trust = ["--trust"] if exported.code else []
        say(f"Use it with {command(*words, *trust)}")
