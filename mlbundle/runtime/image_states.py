"""What can be said of an image that a manifest or the images lock names, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mlbundle.runtime.images import build_hint, hint_of_gone, platform_arguments

if TYPE_CHECKING:
    from mlbundle.runtime.lock import ImageKey, LockedImage

State = Literal["ready", "outdated", "moved", "new", "differs", "gone", "not built", "not pulled", "unknown"]
"""Of an image that is here under its digest: `ready`; `outdated`, its requirements have changed since; `moved`, its
name is another image's now, which does no harm; `new`, it is not pinned yet. Of one that is not here: `differs`,
another image has its name; `gone`, it was here; `not built` and `not pulled`, it never was. `unknown`: no engine."""

HERE: frozenset[State] = frozenset({"ready", "outdated", "moved", "new"})
"""The states of images that are in the engine."""

FAILING: frozenset[State] = frozenset({"gone", "differs"})
"""The states of pins that can't be kept: what is pinned can't be run here."""


def advice(state: State, key: ImageKey, ref: str, entry: LockedImage | None, found: str | None) -> str | None:
    """Return in words what a state means and what to do, None for `ready`.

    `ref` is the name of the image, `entry` its pin, `found` the id of the image that has the name instead.
    """
    other = f"another image ({found})" if found else "another image"
    back = (
        hint_of_gone(key, entry) if entry is not None else f"mlbundle images pull {platform_arguments(key)}"
    )
    return {
        "ready": None,
        "outdated": f"its requirements have changed since it was built: {build_hint(key)}",
        "moved": f"the name {ref} is that of {other} now; runs still take the pinned one, by its digest. To pin the "
        f"other one: mlbundle images rm {platform_arguments(key)} --forget, then mlbundle images lock",
        "new": "it has the right name and labels and is not pinned yet: mlbundle images lock",
        "differs": f"what is pinned is not here, and {other} has its name {ref}: {back}",
        "gone": f"it is no longer in the engine: {back}",
        "not built": build_hint(key),
        "not pulled": f"mlbundle images pull {platform_arguments(key)}",
        "unknown": "no container engine answers: see `mlbundle doctor`",
    }[state]
