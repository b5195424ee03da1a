"""Embedded images and referrers from strangers: every claim in their documents, swapped, cut, damaged or too large."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_cases import Case, Cases, refuse, run
from bundle_forge import (
    ARTIFACT_TYPE,
    IMAGE_LAYER_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    Edit,
    Forge,
    Referrer,
    compact,
    described,
    image,
    images,
    member,
    report,
    sha256,
)

CASES = Cases()
case, add = CASES.case, CASES.put
BIG = 4 << 20


def forge(**values: Any) -> Forge:
    """A sound bundle with images for two architectures and two accelerators, and two referrers."""
    return Forge(**{"images": images("cpu", "cuda"), "referrers": [report(), report("bad")], **values})


def at(pointer: str, change: Callable[[Any], Any]) -> Edit:
    """Change the value at a place of a document, such as `manifests/0/size`."""
    *parents, last = [int(part) if part.lstrip("-").isdigit() else part for part in pointer.split("/")]

    def edit(document: Any) -> None:
        holder = document
        for part in parents:
            holder = holder[part]
        holder[last] = change(holder[last])

    return edit


def put(pointer: str, value: Any) -> Edit:
    return at(pointer, lambda _: value)


def put_new(pointer: str, key: str, value: Any) -> Edit:
    def edit(document: Any) -> None:
        holder = document
        for part in pointer.split("/") if pointer else ():
            holder = holder[int(part) if part.isdigit() else part]
        holder[key] = value

    return edit


def text(old: bytes, new: bytes) -> Edit:
    """Change the bytes of a document."""

    def edit(document: Any) -> bytes:
        data = compact(document)
        assert old in data, (old, data)
        return data.replace(old, new, 1)

    return edit


def whole(change: Callable[[bytes], bytes]) -> Edit:
    return lambda document: change(compact(document))


Place = Callable[[Edit], Forge]


def in_image_index(edit: Edit) -> Forge:
    return forge(edit_image_index=edit)


def in_image_manifest(edit: Edit) -> Forge:
    made = images("cpu", "cuda")
    made["cpu"]["amd64"].edit_manifest = edit
    return forge(images=made)


def in_pin(edit: Edit) -> Forge:
    made = images("cpu", "cuda")
    made["cpu"]["amd64"].edit_pin = edit
    return forge(images=made)


def in_referrer(edit: Edit) -> Forge:
    return forge(
        referrers=[report(), Referrer("application/vnd.example.x", [("text/plain", b"x")], edit=edit)]
    )


def in_referrer_entry(edit: Edit) -> Forge:
    return forge(
        referrers=[report(), Referrer("application/vnd.example.x", [("text/plain", b"x")], edit_entry=edit)]
    )


def in_index(edit: Edit) -> Forge:
    return forge(edit_index=edit)


DOCUMENTS: dict[str, Place] = {
    "image_index": in_image_index,
    "image_manifest": in_image_manifest,
    "referrer": in_referrer,
    "index_json": in_index,
}
DESCRIPTORS: dict[str, tuple[Place, str]] = {
    "image_entry": (in_index, "manifests/1"),
    "image_manifest": (in_image_index, "manifests/0"),
    "image_config": (in_image_manifest, "config"),
    "image_layer": (in_image_manifest, "layers/1"),
    "referrer_entry": (in_referrer_entry, ""),
    "referrer_config": (in_referrer, "config"),
    "referrer_layer": (in_referrer, "layers/0"),
    "subject": (in_referrer, "subject"),
}


def below(pointer: str, key: str) -> str:
    return f"{pointer}/{key}" if pointer else key


DIGESTS: dict[str, Any] = {
    "as_path": "sha256:../../../../etc/passwd",
    "sha512": "sha512:" + "a" * 128,
    "upper_case": "sha256:" + "A" * 64,
    "newline": "sha256:" + "a" * 64 + "\n",
    "bare": "a" * 64,
    "unicode_digits": "sha256:" + "\u0661" * 64,
    "list": ["sha256:" + "a" * 64],
    "of_another_blob": "sha256:" + sha256(b"weights " * 40),
    "of_no_blob": "sha256:" + "0" * 64,
}
SIZES: dict[str, Callable[[int], Any]] = {
    "larger": lambda size: size + 1,
    "zero": lambda size: 0,
    "negative": lambda size: -size,
    "2_63": lambda size: 1 << 63,
    "true": lambda size: True,
    "text": str,
}
for label, (place, pointer) in DESCRIPTORS.items():
    for kind, digest in DIGESTS.items():
        add(
            f"digest_of_{label}_{kind}",
            9,
            lambda place=place, pointer=pointer, digest=digest: place(
                put(below(pointer, "digest"), digest)
            ).build(),
        )
    for kind, change in SIZES.items():
        add(
            f"size_of_{label}_{kind}",
            8,
            lambda place=place, pointer=pointer, change=change: place(
                at(below(pointer, "size"), change)
            ).build(),
        )
for key in ("index", "manifest", "config"):
    for kind, digest in DIGESTS.items():
        add(
            f"pinned_{key}_{kind}",
            9,
            lambda key=key, digest=digest: in_pin(put(key, digest)).build(),
        )

# JSON, in every document that is new.
for label, place in DOCUMENTS.items():
    for kind, edit in {
        "depth": whole(lambda data: b"[" * 5000 + data),
        "depth_33": text(b'"schemaVersion":', b'"x":' + b"[" * 33 + b"]" * 33 + b',"schemaVersion":'),
        "key_twice": text(b'"schemaVersion":2', b'"schemaVersion":2,"schemaVersion":2'),
        "inner_key_twice": text(b'"size":', b'"size":1,"size":'),
        "unknown_key": text(b'"schemaVersion":2', b'"schemaVersion":2,"mounts":["/:/host"]'),
        "nan": text(b'"schemaVersion":2', b'"schemaVersion":NaN'),
        "float": text(b'"schemaVersion":2', b'"schemaVersion":2.0'),
        "exponent": text(b'"schemaVersion":2', b'"schemaVersion":2e0'),
        "leading_zero": text(b'"schemaVersion":2', b'"schemaVersion":02'),
        "digits": text(b'"schemaVersion":2', b'"schemaVersion":' + b"9" * 5000),
        "text_behind": whole(lambda data: data + b"{}"),
        "byte_order_mark": whole(lambda data: b"\xef\xbb\xbf" + data),
        "not_utf8": text(b'"schemaVersion":2', b'"schemaVersion":2,"\xff":1'),
        "surrogate": text(b'"schemaVersion":2', b'"schemaVersion":2,"\\ud800":1'),
        "a_list": whole(lambda data: b"[" + data + b"]"),
        "null": whole(lambda data: b"null"),
        "empty": whole(lambda data: b""),
        "over_4_mib": whole(lambda data: data + b" " * BIG),
        "schema_version_1": put("schemaVersion", 1),
        "no_media_type": lambda document: document.pop("mediaType") and None,
        "other_media_type": put("mediaType", "application/json"),
    }.items():
        add(
            f"{kind}_in_{label}",
            12 if kind == "over_4_mib" else 16,
            lambda place=place, edit=edit: place(edit).build(),
        )

for number in (b"-0", b"0.0", b"0e3", b"00", b"-1", b"9223372036854775808", b"18446744073709551616", b"null"):
    add(
        f"size_of_an_empty_layer_{number.decode()}",
        16,
        lambda number=number: forge(
            referrers=[
                Referrer("application/x", [("text/plain", b"")], edit=text(b'"size":0', b'"size":' + number))
            ]
        ).build(),
    )
add("config_that_is_a_list", 16, lambda: in_image_manifest(at("config", lambda found: [found])).build())
add("layers_that_are_an_object", 16, lambda: in_image_manifest(put("layers", {})).build())
add("layers_of_a_referrer_are_text", 16, lambda: in_referrer(put("layers", "x")).build())

# Wrong bytes under the right digest.
CPU, CUDA = (image("amd64", name) for name in ("cpu", "cuda"))


def damaged(data: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Change the last byte of the blob that holds `data`."""

    def edit(members: list[bytes]) -> list[bytes]:
        found = [number for number, one in enumerate(members) if one[512 : 512 + len(data)] == data]
        assert len(found) == 1
        broken = bytearray(members[found[0]])
        broken[512 + len(data) - 1] ^= 1
        return [*members[: found[0]], bytes(broken), *members[found[0] + 1 :]]

    return edit


def dropped(data: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda members: [one for one in members if one[512 : 512 + len(data)] != data]


BLOBS: dict[str, tuple[bytes, bool]] = {
    "image_layer": (CPU.layers[1][1], False),
    "image_config": (CPU.config, False),
    "image_manifest": (Forge._image_manifest(CPU), True),
    "referrer_layer": (compact({"says": "fine"}), False),
}
for label, (data, seen) in BLOBS.items():
    add(
        f"damaged_{label}",
        10,
        lambda data=data: forge(edit_members=damaged(data)).build(),
        "digest-mismatch",
        seen_by_inspect=seen,
        in_model=False,
    )
    add(f"missing_{label}", 11, lambda data=data: forge(edit_members=dropped(data)).build())


@case(10, "digest-mismatch", seen_by_inspect=False, in_model=False)
def damaged_config_of_a_referrer() -> bytes:
    return forge(edit_members=damaged(b"{}")).build()


def one_of(kind: str) -> Callable[[list[bytes]], list[bytes]]:
    """Change a byte of the manifest that `kind` stands in."""

    def edit(members: list[bytes]) -> list[bytes]:
        number = next(n for n, one in enumerate(members) if n > 2 and kind.encode() in one)
        return [
            *members[:number],
            members[number].replace(kind.encode(), kind.upper().encode(), 1),
            *members[number + 1 :],
        ]

    return edit


add(
    "damaged_referrer",
    10,
    lambda: forge(edit_members=one_of("vnd.example.report")).build(),
    "digest-mismatch",
)
add("damaged_image_index", 10, lambda: forge(edit_members=one_of("platform")).build(), "digest-mismatch")

# What index.json lists.


def entries(change: Callable[[list[Any]], list[Any]]) -> Callable[[], bytes]:
    return lambda: in_index(at("manifests", change)).build()


ENTRIES: dict[str, tuple[int, Callable[[list[Any]], list[Any]]]] = {
    "image_twice": (5, lambda found: [*found[:2], found[1], *found[2:]]),
    "referrer_twice": (5, lambda found: [*found, found[-1]]),
    "images_out_of_order": (18, lambda found: [found[0], found[2], found[1], *found[3:]]),
    "referrers_out_of_order": (18, lambda found: [*found[:3], found[4], found[3]]),
    "referrer_before_images": (18, lambda found: [found[0], found[3], *found[1:3], found[4]]),
    "model_last": (18, lambda found: [*found[1:], found[0]]),
    "model_as_referrer": (
        20,
        lambda found: [*found, {k: v for k, v in found[0].items() if k != "annotations"}],
    ),
    "image_not_listed": (11, lambda found: [found[0], *found[2:]]),
    "referrer_not_listed": (11, lambda found: found[:-1]),
    "nothing": (11, lambda found: []),
    "image_manifest_instead_of_index": (
        18,
        lambda found: [found[0], {**found[1], "mediaType": MANIFEST_TYPE}, *found[2:]],
    ),
    "urls": (18, lambda found: [found[0], {**found[1], "urls": ["https://example.invalid/"]}, *found[2:]]),
    "data": (18, lambda found: [*found[:-1], {**found[-1], "data": "e30="}]),
    "platform": (18, lambda found: [found[0], {**found[1], "platform": {"os": "linux"}}, *found[2:]]),
    "annotation_of_a_referrer": (18, lambda found: [*found[:-1], {**found[-1], "annotations": {"a": "b"}}]),
}
for label, (attack, change) in ENTRIES.items():
    add(f"entries_{label}", attack, entries(change))

for label, name in {
    "no_prefix": "cpu.1.0.0",
    "other_version": "fw.cpu.2.0.0",
    "latest": "latest",
    "the_model": "1.0.0",
    "option": "fw.--privileged.1.0.0",
    "path": "fw.../x.1.0.0",
    "space": "fw.c pu.1.0.0",
    "upper_case": "fw.CPU.1.0.0",
    "control": "fw.c\x1bpu.1.0.0",
    "nothing": "fw..1.0.0",
    "long": "fw." + "c" * 33 + ".1.0.0",
    "ten_megabytes": "fw." + "c" * (10 << 20) + ".1.0.0",
    "not_pinned": "fw.tpu.1.0.0",
}.items():
    add(
        f"ref_{label}",
        18,
        lambda name=name: in_index(put(f"manifests/1/annotations/{REF_NAME}", name)).build(),
    )

# What the framework table names.
for label, value in {
    "option": "--privileged",
    "short_option": "-v/:/host",
    "space": "example/none:1.0 --privileged",
    "newline": "example/none\nx",
    "control": "example/\x1b[2Jnone",
    "bidi": "example/\u202enone",
    "shell": "example/none;id",
    "dollar": "$(id)",
    "parent": "../../containers/x",
    "inner_parent": "example/../../x",
    "slash": "/etc/passwd",
    "url": "https://example.invalid/x?y",
    "empty": "",
    "long": "x" * 513,
    "three_megabytes": "x" * (3 << 20),
    "ten_megabytes": "x" * (10 << 20),
    "number": 7,
}.items():
    add(f"image_name_{label}", 18, lambda value=value: in_pin(put("image", value)).build())
for label, value in {
    "path": "../x",
    "option": "--privileged",
    "upper_case": "CPU",
    "space": "c pu",
    "empty": "",
    "long": "c" * 33,
    "dot": "cpu.x",
}.items():
    add(f"accelerator_{label}", 18, lambda value=value: Forge(pins=[pin(accelerator=value)]).build())
    add(f"architecture_{label}", 18, lambda value=value: Forge(pins=[pin(architecture=value)]).build())


def pin(**values: str) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "accelerator": "tpu",
        "image": "x",
        "digest": "sha256:" + "a" * 64,
        **values,
    }


@case(5)
def image_pinned_twice() -> bytes:
    return Forge(pins=[pin(), pin()]).build()


@case(12)
def more_pins_than_anybody_needs() -> bytes:
    return Forge(pins=[pin(accelerator=f"a{number:02d}") for number in range(65)]).build()


@case(20)
def image_that_the_table_does_not_pin() -> bytes:
    def edit(document: Any) -> None:
        document["images"] = [one for one in document["images"] if one["accelerator"] != "cuda"]

    return forge(edit_bundle=edit).build()


@case(20)
def platform_that_the_table_does_not_pin() -> bytes:
    def edit(document: Any) -> None:
        document["images"] = document["images"][1:]

    return forge(edit_bundle=edit).build()


@case(20)
def images_of_two_accelerators_swapped() -> bytes:
    def edit(document: Any) -> None:
        one, two = (document["manifests"][n]["annotations"] for n in (1, 2))
        one[REF_NAME], two[REF_NAME] = two[REF_NAME], one[REF_NAME]
        document["manifests"][1:3] = document["manifests"][2:0:-1]

    return forge(edit_index=edit).build()


for key in ("index", "manifest", "config"):
    add(
        f"image_pinned_without_its_{key}",
        20,
        lambda key=key: in_pin(lambda one: one.pop(key) and one).build(),
    )

PLATFORMS: dict[str, tuple[int, Edit]] = {
    "twice": (5, at("manifests", lambda found: [found[0], found[0], found[1]])),
    "out_of_order": (18, at("manifests", lambda found: found[::-1])),
    "none": (11, put("manifests", [])),
    "one_missing_from_index": (11, at("manifests", lambda found: found[:1])),
    "unknown_key": (18, put_new("manifests/0/platform", "variant", "v8")),
    "no_platform": (18, lambda document: document["manifests"][0].pop("platform") and None),
    "architecture_number": (16, put("manifests/0/platform/architecture", 64)),
    "architecture_swapped": (20, put("manifests/0/platform/architecture", "ppc64le")),
    "annotations": (18, put_new("manifests/0", "annotations", {"a": "b"})),
    "nested_index": (18, put("manifests/0/mediaType", "application/vnd.oci.image.index.v1+json")),
    "seventeen": (
        12,
        at(
            "manifests",
            lambda found: [
                {**found[0], "platform": {"architecture": f"a{number:02d}", "os": "linux"}}
                for number in range(17)
            ],
        ),
    ),
}
for label, (attack, edit) in PLATFORMS.items():
    add(f"platform_{label}", attack, lambda edit=edit: in_image_index(edit).build())

for label, kind in {
    "gzip": IMAGE_LAYER_TYPE + "+gzip",
    "foreign": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    "text": "text/plain",
    "upper_case": IMAGE_LAYER_TYPE.upper(),
}.items():
    add(
        f"image_layer_type_{label}",
        18,
        lambda kind=kind: in_image_manifest(put("layers/0/mediaType", kind)).build(),
    )
add(
    "image_config_type",
    18,
    lambda: in_image_manifest(
        put("config/mediaType", "application/vnd.docker.container.image.v1+json")
    ).build(),
)
add("image_layer_urls", 18, lambda: in_image_manifest(put_new("layers/0", "urls", ["http://x/"])).build())
add("image_with_artifact_type", 18, lambda: in_image_manifest(put_new("", "artifactType", "x/y")).build())
add("image_with_subject", 20, lambda: in_image_manifest(put_new("", "subject", {})).build())
add(
    "layers_of_an_image_over_the_cap",
    12,
    lambda: in_image_manifest(at("layers", lambda found: [found[0]] * 1001)).build(),
)


# Referrers.
@case(20)
def referrer_of_another_manifest() -> bytes:
    return in_referrer(put("subject", described(MANIFEST_TYPE, b"another"))).build()


@case(20)
def referrer_of_the_manifest_with_another_size() -> bytes:
    return in_referrer(at("subject/size", lambda size: size - 1)).build()


@case(20)
def referrer_of_another_bundle() -> bytes:
    """The referrer of one bundle is put into another one."""
    other = forge(model_yaml=b"name: other\n")
    other.build()
    stranger = report("of the other")
    stolen = stranger.manifest(other.subject)
    stranger.edit = lambda _: stolen
    return forge(referrers=[stranger]).build()


REFERRERS: dict[str, tuple[int, Edit]] = {
    "without_subject": (20, lambda document: document.pop("subject") and None),
    "subject_of_another_type": (20, put("subject/mediaType", "application/vnd.oci.image.index.v1+json")),
    "subject_with_annotations": (20, put_new("subject", "annotations", {"a": "b"})),
    "another_type_than_the_entry": (20, put("artifactType", "application/vnd.example.y")),
    "without_type": (20, lambda document: document.pop("artifactType") and None),
    "without_config": (20, lambda document: document.pop("config") and None),
    "without_layers": (20, lambda document: document.pop("layers") and None),
    "layer_urls": (18, put_new("layers/0", "urls", ["http://x/"])),
    "sixty_five_layers": (12, at("layers", lambda found: found * 65)),
}
for label, (attack, edit) in REFERRERS.items():
    add(f"referrer_{label}", attack, lambda edit=edit: in_referrer(edit).build())

for label, kind in {
    "model": ARTIFACT_TYPE,
    "empty": "",
    "no_media_type": "signature",
    "control": "application/x\n",
    "space": "application/x y",
    "upper_case": "Application/X",
    "option": "--privileged/x",
    "long": "application/" + "x" * 200,
    "number": 7,
}.items():
    add(
        f"referrer_type_{label}",
        20,
        lambda kind=kind: forge(referrers=[Referrer(kind, [("text/plain", b"x")])]).build(),
    )


@case(12)
def thousand_and_one_referrers() -> bytes:
    return Forge(referrers=[report(str(number)) for number in range(1001)]).build()


@case(12)
def referrer_of_33_mib() -> bytes:
    return Forge(referrers=[Referrer("application/x", [("text/plain", bytes(33 << 20))])]).build()


@case(12)
def config_of_a_referrer_of_33_mib() -> bytes:
    return Forge(referrers=[Referrer("application/x", [], config=("application/y", bytes(33 << 20)))]).build()


# Strays.
for label, data in {
    "image_layer": CUDA.layers[0][1] + b"x",
    "referrer": report("stray").manifest(described(MANIFEST_TYPE, b"x")),
    "empty": b"",
}.items():
    add(
        f"stray_{label}",
        11,
        lambda data=data: forge(
            edit_members=lambda members: [*members, member("blobs/sha256/" + sha256(data), data)]
        ).build(),
    )


@case(11)
def cut_in_an_image_layer() -> bytes:
    return forge(edit_file=lambda data: data[: data.index(b"opt/x") + 100]).build()


@pytest.mark.parametrize("broken", CASES.parameters())
def test_broken_attachment_is_refused(broken: Case, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(broken, box, capsys)


def test_the_bundle_of_the_cases_is_sound(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each case is refused for its fault alone."""
    (box / "good.mlb").write_bytes(forge().build())
    for command in ("inspect", "verify", "unpack", "add"):
        assert run(capsys, command, "good.mlb")[0] == 0
    verified = run(capsys, "verify", "good.mlb")[1]
    assert verified["images"] == ["amd64/cpu", "arm64/cpu", "amd64/cuda", "arm64/cuda"]
    assert len(verified["referrers"]) == 2
    assert json.dumps(verified)


def test_what_others_may_put_into_a_referrer(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Annotations everywhere but in the subject, the bytes of the config, keys in another order."""

    def edit(document: Any) -> Any:
        document["config"].update(data="e30=", annotations={"a": "b"})
        document["layers"][0]["annotations"] = {"c": "d"}
        document["annotations"] = {"e": "f"}
        return dict(sorted(document.items()))

    (box / "good.mlb").write_bytes(in_referrer(edit).build())
    for command in ("verify", "unpack", "add"):
        assert run(capsys, command, "good.mlb")[0] == 0
