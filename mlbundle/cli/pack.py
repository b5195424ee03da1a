"""`mlbundle pack`: make one bundle file of a manifest and its assets."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.image_options import show_pairs
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress
from mlbundle.cli.sign import passphrase_from
from mlbundle.wording import units

if TYPE_CHECKING:
    from mlbundle.bundle.content import BundleContent
    from mlbundle.bundle.document import BundleDocument
    from mlbundle.bundle.pack import Preview
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings

SCHEMA = "mlbundle/pack/v1"


@click.command("pack")
@click.argument("reference", shell_complete=complete_reference)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), help="File to write  [NAME-VERSION.mlb]."
)
@click.option(
    "--framework-manifest",
    "frameworks",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Framework manifest; may be repeated, one for each framework of the variants  [framework.yml and "
    "frameworks/NAME.yml beside the model's, else the built-in one that fits].",
)
@click.option(
    "--with-image", is_flag=True, help="Embed the framework image, so that a run needs no registry."
)
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="ARCH/ACCELERATOR",
    help="Whose image to embed; may be repeated  [this machine's, cpu].",
)
@click.option("--pin", is_flag=True, help="Pin the images that were built here by their digests.")
@click.option("--frozen", is_flag=True, help="Refuse unless every image is pinned by a digest.")
@click.option("--compress-weights", is_flag=True, help="Compress weights too (they can't be mapped then).")
@click.option("--no-compress", is_flag=True, help="Compress nothing: the same bytes with every zstd library.")
@click.option("--sbom", is_flag=True, help="Attach a bill of materials of the image that is embedded.")
@click.option("--provenance", is_flag=True, help="Attach how the bundle was made (in-toto, SLSA).")
@click.option(
    "--key", type=click.Path(path_type=Path), help="Sign the bundle, and what is attached, with this key."
)
@click.option(
    "--passphrase-file", type=click.File("r"), help="Read the passphrase of --key from a file, - for stdin."
)
@click.option("-n", "--dry-run", is_flag=True, help="Read and check everything, write nothing.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing file.")
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    target: Path | None,
    frameworks: tuple[Path, ...],
    with_image: bool,
    platforms: tuple[str, ...],
    pin: bool,
    frozen: bool,
    compress_weights: bool,
    no_compress: bool,
    sbom: bool,
    provenance: bool,
    key: Path | None,
    passphrase_file: IO[str] | None,
    dry_run: bool,
    force: bool,
    output_format: str,
) -> None:
    """Make one bundle file of a manifest and the assets it names.

    REFERENCE is a folder with model.yml (or with an unpacked bundle: edit mlbundle/model.yml in it), a model
    manifest, or the name of a built-in model. The same files
    give the same bytes on every machine. The name of a bundle in the library writes that one as a file.
    """
    from mlbundle.bundle.content import Compression
    from mlbundle.bundle.pack import pack, preview
    from mlbundle.config import load_settings
    from mlbundle.runs.attesting import Attestations, pack_attested
    from mlbundle.runs.packing import collect, left_out
    from mlbundle.runs.references import resolve

    _check_options(
        compress_weights=compress_weights, no_compress=no_compress, platforms=platforms, embed=with_image
    )
    settings = load_settings()
    found = resolve(reference, settings, to_pack=True)
    if found.kind == "library":
        _refuse_changes(
            frameworks, with_image, pin, frozen, compress_weights, no_compress, sbom, provenance, key
        )
        _export(reference, settings, target, force=force, dry_run=dry_run, output_format=output_format)
        return
    if found.kind != "manifest":
        raise click.UsageError(f"{reference} is no folder and no manifest; it may be packed already")
    content = collect(found.path, frameworks)
    content = replace(content, compression=Compression(groups=not no_compress, weights=compress_weights))
    with ExitStack() as stack:
        content = _with_images(
            content, settings, stack, with_image=with_image, platforms=platforms, pin=pin, frozen=frozen
        )
        path = target or Path(default_name(content.model_name, content.model_version))
        skipped = left_out(found.path, content)
        if skipped:
            output.narrate(f"left out, as the manifest does not name them: {', '.join(skipped)}", level=1)
        wanted = Attestations(
            reference, sbom=sbom, provenance=provenance, key=key, passphrase=passphrase_from(passphrase_file)
        )
        result: Preview
        if dry_run:
            wanted.check(content)
            with byte_progress("reading") as progress:
                result = preview(content, progress)
        else:
            with byte_progress("packing") as progress:
                if wanted.any:
                    result = pack_attested(content, path, wanted, settings, progress, overwrite=force)
                else:
                    result = pack(content, path, progress, overwrite=force)
    _print(_document(path, content, result, result.size_bytes, written=not dry_run), output_format)


def default_name(name: str, version: str) -> str:
    """Return `<name>-<version>.mlb` with characters that are at home in a file name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{name}-{version}").lstrip("-.") + ".mlb"


def _check_options(
    *, compress_weights: bool, no_compress: bool, platforms: tuple[str, ...], embed: bool
) -> None:
    if compress_weights and no_compress:
        raise click.UsageError("--compress-weights and --no-compress exclude each other")
    if platforms and not embed:
        raise click.UsageError("--platform says whose image to embed; it needs --with-image")


def _refuse_changes(*asked: object) -> None:
    if any(asked):
        raise click.UsageError(
            "this is a bundle of the library, which is written as it is; the options are for packing a manifest"
        )


def _with_images(
    content: BundleContent,
    settings: Settings,
    stack: ExitStack,
    *,
    with_image: bool,
    platforms: tuple[str, ...],
    pin: bool,
    frozen: bool,
) -> BundleContent:
    from mlbundle.runs.embedded import Platform, check_frozen, with_images, with_pins
    from mlbundle.runs.packing import framework_manifests

    framework = framework_manifests(content)[0]
    if pin:
        content = with_pins(content, framework, settings)
    if with_image:
        chosen = [Platform.parse(text) for text in platforms] or [Platform.here()]
        with byte_progress("embedding") as progress:
            content = with_images(
                content,
                framework,
                chosen,
                settings,
                stack=stack,
                report=output.narrate,
                progress=progress,
            )
    if frozen:
        check_frozen(content, framework)
    return content


def _export(
    reference: str,
    settings: Settings,
    target: Path | None,
    *,
    force: bool,
    dry_run: bool,
    output_format: str,
) -> None:
    """Write a bundle of the library as a file."""
    from mlbundle.bundle.assemble import write_archive
    from mlbundle.runs.opening import open_reference

    with open_reference(reference, settings) as reader:
        document = reader.document
        path = target or Path(default_name(document.model_name, document.model_version))
        if not dry_run:
            with byte_progress("writing") as progress:
                write_archive(reader, path, progress, overwrite=force)
        size_bytes = reader.size_bytes if dry_run else path.stat().st_size
        _print(_document(path, document, reader, size_bytes, written=not dry_run), output_format)


def _document(
    path: Path,
    what: BundleContent | BundleDocument,
    found: Preview | BundleReader,
    size_bytes: int,
    *,
    written: bool,
) -> dict[str, Any]:
    """Return the document that `pack --json` prints."""
    return {
        "schema": SCHEMA,
        "file": str(path),
        "written": written,
        "model": {"name": what.model_name, "version": what.model_version},
        "framework": {"name": what.framework_name, "version": what.framework_version},
        "frameworks": [{"name": name, "version": version} for name, version in what.frameworks],
        "manifest_digest": found.manifest_digest,
        "config_digest": found.config_digest,
        "set_digest": found.set_digest,
        "size": size_bytes,
        "layers": [{"path": x.path, "media_type": x.media_type, "size": x.size_bytes} for x in found.layers],
        "images": [pin.to_document() for pin in what.images],
        "files": [{"path": e.path, "size": e.size_bytes, "sha256": e.sha256} for e in found.files],
    }


def _print(document: dict[str, Any], output_format: str) -> None:
    if output_format == "json":
        output.document(document)
        return
    path, written = document["file"], document["written"]
    model, framework = document["model"], document["framework"]
    rows = [
        ("file", path if written else f"{path} (not written: dry run)"),
        ("model", f"{model['name']} {model['version']}"),
        ("framework", f"{framework['name']} {framework['version']}"),
        *(("", f"{further['name']} {further['version']}") for further in document["frameworks"]),
        ("manifest", document["manifest_digest"]),
        ("set", document["set_digest"]),
        ("size", units.size(document["size"])),
        ("files", str(len(document["files"]))),
    ]
    rows += [
        (
            "image",
            f"{pin.get('framework', framework['name'])}/{pin['architecture']}/{pin['accelerator']} {pin['image']}",
        )
        for pin in document["images"]
    ]
    show_pairs(rows)
    if not written:
        output.data("")
        output.table(
            ("path", "size", "sha256"),
            [(e["path"], units.size(e["size"]), e["sha256"]) for e in document["files"]],
        )
        output.data("")
        kinds = "application/vnd.cncf.model."
        output.table(
            ("layer", "kind", "size"),
            [
                (x["path"], x["media_type"].removeprefix(kinds), units.size(x["size"]))
                for x in document["layers"]
            ],
        )
