"""What the help says: what each screen is for, what the signs in the lists mean, and a few words."""

from __future__ import annotations

# Class of a screen -> what it is for.
PURPOSES = {
    "BundlesSection": "Models that can be run: what each needs, and whether it can run on this machine now.",
    "RunSection": "A run is made ready here: bundle, framework, scenario, options. Beside it what would be run.",
    "RunsSection": "All runs, those that go on first. Open one, mark several to compare them.",
    "CompareSection": "Marked runs side by side: first what differed in what was run, then the numbers.",
    "MachineSection": "What works here, what this machine is, its images, and what takes how much space.",
    "LiveRun": "A run while it goes on. It does not need this screen: leave it, the run goes on.",
    "RunPage": "A run that is over: what came out, and everything that leads there, in tabs.",
}
# State of a bundle -> what it means. The sign comes from the list.
BUNDLE_STATES = {
    "ready": "can run here now",
    "environment missing": "its Python packages are not here yet: p makes or pins them",
    "needs --trust": "packages of this machine would do, but nobody has said yet that runs may take them: p",
    "image missing": "its container image is not here yet: p pulls or builds it",
    "not here": "in a registry, or a recipe from which it is made",
    "assets missing": "files that its manifest names are not there",
    "unusable": "the manifest or the bundle is broken, or nothing on this machine can run it",
}
NOT_LOOKED_AT = ("not known yet", "it is being looked at")
# Status of a run -> what it means.
RUN_STATES = {
    "completed": "the rules of its scenario were kept",
    "invalid": "measured, but against the rules of its scenario: the numbers do not count",
    "quick": "shorter than the rules of its scenario, to try something out",
    "failed": "ended with an error",
    "cancelled": "stopped by somebody; what was seen of it is kept",
    "partial": "its process died; what was seen of it is kept",
    "running": "goes on",
    "waiting": "waits until another measurement on this machine has ended",
}
WORDS = {
    "bundle": "a model with a manifest and all its files, so that somebody else runs exactly the same",
    "headline": "the one number that a scenario is about: a mean or percentile of latency, or a rate",
    "here": "whether a bundle can run on this machine now",
    "valid": "enough was measured, under the rules of the scenario: the numbers count",
    "marked": "● before a run: chosen with space, for Compare and for Remove",
}
KEYS = "Every key can be another: [keys] in your mlbundle.toml. The palette says where that is and what can have keys."
