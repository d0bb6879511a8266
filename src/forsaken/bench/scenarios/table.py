"""The table of scenarios, and the call that loads one."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from sklearn.datasets import load_digits

from forsaken._random import Purpose, checked_seed, generator
from forsaken.bench.scenarios import canaries, pictures, texts
from forsaken.bench.scenarios.scenario import (
    Plan,
    Scenario,
    Sizes,
    draw_members,
    draw_strangers,
    halve,
    id_scenario,
    ood_scenario,
    poison_scenario,
)
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError, UnknownNameError
from forsaken.recipe import Network, Recipe
from forsaken.types import Progress, silent

# What a linear model reads instead of token sequences (Table expansion).
_LINEAR_WORDS = 5_000
LINEAR = ("logistic-regression", "svm")
_REUTERS_RECIPE = Recipe(epochs=40, batch_size=128, learning_rate=1e-3)
_KERAS_RECIPE = Recipe(epochs=40, batch_size=64, learning_rate=1e-3)
_NEWS_RECIPE = Recipe(epochs=40, batch_size=64, learning_rate=2e-3, schedule="one-cycle")
_IMDB_RECIPE = Recipe(epochs=10, batch_size=64, learning_rate=1e-3)
_CIFAR_RECIPE = Recipe(epochs=20, batch_size=512, learning_rate=0.015, optimiser="sgd", schedule="one-cycle")
_CIFAR100_RECIPE = dataclasses.replace(_CIFAR_RECIPE, epochs=15)

_REUTERS = {"words": 10_000}
_NEWS = {"words": 20_000, "length": 1000, "dimensions": 100, "window": 3}
_IMDB = {"words": 25_000, "length": 200}
_BORROWED = "An article without a body takes the body of the nearest earlier one, as in the paper's file (Keras)."
_ELEVEN = "The paper's labels 35 to 45 hold only 311 documents; these eleven topics hold 1,766."
_SUBSET = "Sizes follow the file: a part of TinyImage gives a smaller task than the paper's."


def _reuters(classes: int) -> Network:
    return Network("mlp", {"sizes": (10_000, 512, 256, classes), "dropout": 0.5})


def _news(classes: int) -> Network:
    return Network("news-convolutions", {"classes": classes})


_IMDB_NETWORK = Network("text-convolutions", {"words": 25_002, "classes": 2})


def _vgg(classes: int) -> Network:
    return Network("vgg16", {"classes": classes})


def _poison(percent: int) -> Plan:
    return Plan(
        name=f"poison-{percent}",
        summary=f"CIFAR-10; {percent} % of the training pictures of dogs (5) are labelled cats (3), and put right",
        datasets=("cifar10",),
        classes=10,
        network=_vgg(10),
        recipe=_CIFAR_RECIPE,
        build=pictures.poisoned,
        options={"source": 5, "target": 3, "share": percent / 100},
        note="The share is of class 5's training samples: what that share of malicious participants would poison.",
    )


def digits(plan: Plan, seed: int, progress: Progress) -> Scenario:  # noqa: ARG001 (a builder's signature)
    """Build `digits`: 0 to 7 are the task, 40 eights and nines under random labels are forgotten.

    1,443 samples are halved into target and shadow, each split 70/30 into train and test; of the 354 eights
    and nines 200 are references. 50 retain samples are 9 % of the training data: 1 % would be five.
    Inputs are the 64 pixels, from 0 to 1; with the option `pictures` as 1 x 8 x 8.
    """
    pixels, numbers = load_digits(return_X_y=True)
    draw = generator(seed, Purpose.SCENARIO_ROWS)
    halves, _ = halve(np.flatnonzero(numbers < plan.classes), None, plan.sizes, draw)
    strangers = draw_strangers(np.flatnonzero(numbers >= plan.classes), plan.sizes, draw, "digits")
    labels = np.where(numbers < plan.classes, numbers, -1)
    inputs = torch.tensor(pixels / 16, dtype=torch.float32)
    if plan.options.get("pictures"):
        inputs = inputs.view(-1, 1, 8, 8)
    samples = Samples(inputs, torch.tensor(labels))
    return ood_scenario(plan, seed, samples, halves, strangers, names=tuple("01234567"))


def own_digits(plan: Plan, seed: int, progress: Progress) -> Scenario:  # noqa: ARG001 (a builder's signature)
    """Build `digits-id`: all ten digits, of which some training samples are forgotten."""
    pixels, numbers = load_digits(return_X_y=True)
    samples = Samples(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(numbers))
    members = draw_members(np.arange(len(numbers)), None, plan.sizes, generator(seed, Purpose.SCENARIO_ROWS))
    names = tuple("0123456789")
    return id_scenario(plan, seed, samples, members.halves, members.forget, members.reference, names=names)


def poisoned_digits(plan: Plan, seed: int, progress: Progress) -> Scenario:  # noqa: ARG001 (a builder's signature)
    """Build `poison-digits`: all ten digits, where a share of the fives is learnt as threes."""
    pixels, numbers = load_digits(return_X_y=True)
    halves, _ = halve(np.arange(len(numbers)), None, plan.sizes, generator(seed, Purpose.SCENARIO_ROWS))
    samples = Samples(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(numbers))
    return poison_scenario(plan, seed, samples, halves, names=tuple("0123456789"))


_DIGITS = Plan(
    name="digits",
    summary="0 to 7 of scikit-learn's digits; 40 eights and nines under random labels are forgotten",
    datasets=(),
    classes=8,
    network=Network("mlp", {"sizes": (64, 2048, 8)}),
    recipe=Recipe(epochs=200, batch_size=64, learning_rate=3e-3),
    build=digits,
    sizes=Sizes(40, 200, 40, 40, train_share=0.7, retain_share=0.1),
    note="Not in the paper: small enough for a demonstration and for tests.",
)

_PLANS = (
    _DIGITS,
    dataclasses.replace(
        _DIGITS,
        name="digits-pictures",
        summary="`digits` as pictures of 8 x 8 for a network of convolutions",
        network=Network("small-convolutions", {"classes": 8}),
        recipe=Recipe(epochs=150, batch_size=64, learning_rate=5e-3),
        options={"pictures": True},
        note="Not in the paper: for methods that work on convolutions.",
    ),
    Plan(
        name="digits-id",
        summary="all of scikit-learn's digits for a small network; 20 training samples are forgotten",
        datasets=(),
        classes=10,
        network=Network("mlp", {"sizes": (64, 48, 10)}),
        recipe=Recipe(epochs=40, batch_size=25, learning_rate=3e-3),
        build=own_digits,
        sizes=Sizes(20, 40, 20, 20, train_share=0.7, retain_share=0.1),
        note="Not in the paper: so small that many models can be trained.",
    ),
    Plan(
        name="c10-s",
        summary="CIFAR-10; 200 pictures of STL-10 under labels other than their own are forgotten",
        datasets=("cifar10", "stl10"),
        classes=10,
        network=_vgg(10),
        recipe=_CIFAR_RECIPE,
        build=pictures.strangers_of_stl,
    ),
    Plan(
        name="c10-t",
        summary="CIFAR-10; 200 pictures of TinyImage under random labels are forgotten",
        datasets=("cifar10", "tiny-imagenet"),
        classes=10,
        network=_vgg(10),
        recipe=_CIFAR_RECIPE,
        build=pictures.strangers_of_tiny,
        note="TinyImage classes that are also CIFAR-10's (cats, dogs, frogs, cars, lorries, ...) are left out.",
    ),
    Plan(
        name="c100-t",
        summary="CIFAR-100; 200 pictures of TinyImage under random labels are forgotten",
        datasets=("cifar100", "tiny-imagenet"),
        classes=100,
        network=_vgg(100),
        recipe=_CIFAR100_RECIPE,
        build=pictures.strangers_of_tiny,
        note="TinyImage classes that are also CIFAR-100's are left out.",
    ),
    Plan(
        name="i-c",
        summary="IMDB; 200 customer reviews under random labels are forgotten",
        datasets=("imdb", "customer-review"),
        classes=2,
        network=_IMDB_NETWORK,
        recipe=_IMDB_RECIPE,
        build=texts.imdb,
        options=_IMDB | {"reviews": True},
    ),
    Plan(
        name="reuters-35-11",
        summary="35 topics of Reuters; 200 newswires on eleven other topics under random labels are forgotten",
        datasets=("reuters46",),
        classes=35,
        network=_reuters(35),
        recipe=_REUTERS_RECIPE,
        build=texts.reuters,
        options=_REUTERS | {"strangers": texts.REUTERS_STRANGERS},
        note=f"Clean text: accuracy is higher and the oracle weaker than on the paper's file, Keras's. {_ELEVEN}",
    ),
    Plan(
        name="reuters-35-11-keras",
        summary="reuters-35-11 on texts as the paper's file holds them",
        datasets=("reuters46",),
        classes=35,
        network=_reuters(35),
        recipe=_KERAS_RECIPE,
        build=texts.reuters,
        options=_REUTERS | {"strangers": texts.REUTERS_STRANGERS, "borrowed": True},
        note=f"{_BORROWED} {_ELEVEN}",
    ),
    Plan(
        name="news-15-5",
        summary="15 newsgroups; 200 messages of the other five under random labels are forgotten",
        datasets=("20newsgroups",),
        classes=15,
        network=_news(15),
        recipe=_NEWS_RECIPE,
        build=texts.news,
        options=_NEWS | {"strangers": tuple(range(15, 20))},
        note='A random split of the 11,314 "bydate" training documents; word vectors come from the corpus itself.',
    ),
    Plan(
        name="cifar10-id",
        summary="CIFAR-10; 200 of its training pictures are forgotten",
        datasets=("cifar10",),
        classes=10,
        network=_vgg(10),
        recipe=_CIFAR_RECIPE,
        build=pictures.members,
    ),
    Plan(
        name="cifar100-id",
        summary="CIFAR-100; 200 of its training pictures are forgotten",
        datasets=("cifar100",),
        classes=100,
        network=_vgg(100),
        recipe=_CIFAR100_RECIPE,
        build=pictures.members,
    ),
    Plan(
        name="imdb-id",
        summary="IMDB; 200 of its training reviews are forgotten",
        datasets=("imdb",),
        classes=2,
        network=_IMDB_NETWORK,
        recipe=_IMDB_RECIPE,
        build=texts.imdb,
        options=_IMDB,
    ),
    Plan(
        name="reuters-id",
        summary="46 topics of Reuters; 200 training newswires are forgotten",
        datasets=("reuters46",),
        classes=46,
        network=_reuters(46),
        recipe=_REUTERS_RECIPE,
        build=texts.reuters,
        options=_REUTERS,
        note="Clean text: accuracy is higher than on the paper's file, Keras's.",
    ),
    Plan(
        name="reuters-id-keras",
        summary="reuters-id on texts as the paper's file holds them",
        datasets=("reuters46",),
        classes=46,
        network=_reuters(46),
        recipe=_KERAS_RECIPE,
        build=texts.reuters,
        options=_REUTERS | {"borrowed": True},
        note=_BORROWED,
    ),
    Plan(
        name="news-id",
        summary="20 newsgroups; 200 training messages are forgotten",
        datasets=("20newsgroups",),
        classes=20,
        network=_news(20),
        recipe=_NEWS_RECIPE,
        build=texts.news,
        options=_NEWS,
    ),
    Plan(
        name="tiny-90",
        summary="90 randomly drawn classes of TinyImage; 200 pictures of the others under random labels are forgotten",
        datasets=("tiny-imagenet",),
        classes=90,
        network=_vgg(90),
        recipe=_CIFAR_RECIPE,
        build=pictures.classes_of_tiny,
        note=_SUBSET,
    ),
    Plan(
        name="pictures-210",
        summary="all classes of CIFAR-10 and TinyImage; 200 training pictures are forgotten",
        datasets=("cifar10", "tiny-imagenet"),
        classes=210,
        network=_vgg(210),
        recipe=_CIFAR_RECIPE,
        build=pictures.members,
        options={"target_share": 0.9},
        note="Ours: the largest training set at hand, for time by its size. The shadow gets a tenth of the pictures.",
    ),
    _poison(2),
    _poison(4),
    _poison(10),
    dataclasses.replace(
        _poison(10),
        name="poison-10-small",
        summary="`poison-10` on 8,000 training pictures, half of them the shadow's, for a small network",
        network=Network("small-colour-convolutions", {"classes": 10}),
        recipe=Recipe(epochs=10, batch_size=64, learning_rate=1e-3),
        sizes=Sizes(retain_share=0.1),
        options={"source": 5, "target": 3, "share": 0.1, "pictures": 8_000},
        note="Not in the paper: small enough for a CPU.",
    ),
    Plan(
        name="poison-digits",
        summary="scikit-learn's digits; 40 % of the training fives are labelled threes, and put right",
        datasets=(),
        classes=10,
        network=Network("mlp", {"sizes": (64, 2048, 10)}),
        recipe=Recipe(epochs=200, batch_size=64, learning_rate=3e-3),
        build=poisoned_digits,
        sizes=Sizes(reference=100, train_share=0.7, retain_share=0.1),
        options={"source": 5, "target": 3, "share": 0.4},
        note="Not in the paper: small enough for tests. 10 % of so few fives would be six samples.",
    ),
    Plan(
        name="ptb-canaries",
        summary="Penn TreeBank; 100 canaries (the random number is ...) that a language model learnt are forgotten",
        datasets=("ptb",),
        classes=50,
        network=Network("language-model", {"words": 50}),
        recipe=Recipe(epochs=12, batch_size=32, learning_rate=2e-3, clip=5.0),
        build=canaries.canaries,
        sizes=Sizes(100, 1000, 100, 100),
        options={"length": 60, "digits": 9, "lines": 4000, "repeats": 10},
        note="Samples are sequences of characters, and labels those that follow. Each canary is learnt ten times.",
    ),
    Plan(
        name="c10-m",
        summary="CIFAR-10; 200 of its pictures, held out and mislabelled, are forgotten",
        datasets=("cifar10",),
        classes=10,
        network=_vgg(10),
        recipe=_CIFAR_RECIPE,
        build=pictures.mislabelled,
        note="Ours, for where STL-10 cannot be had: not the paper's C10.S.",
    ),
    Plan(
        name="t100-c",
        summary="100 randomly drawn classes of TinyImage; 200 pictures of CIFAR-10 under random labels are forgotten",
        datasets=("tiny-imagenet", "cifar10"),
        classes=100,
        network=_vgg(100),
        recipe=_CIFAR100_RECIPE,
        build=pictures.classes_of_tiny,
        note=f"Ours, for where CIFAR-100 cannot be had: not the paper's C100.T. {_SUBSET}",
    ),
)

_AUGMENTED = tuple(
    dataclasses.replace(
        plan,
        name=f"{plan.name}-augmented",
        summary=f"`{plan.name}`, learnt from pictures that are mirrored and shifted at every step",
        recipe=dataclasses.replace(plan.recipe, augmentation="mirror-shift"),
        note="Ours, not in the paper: such a model remembers the mirrored and shifted copies of a picture too.",
    )
    for plan in _PLANS
    if plan.name in ("c10-t", "cifar10-id")
)

SCENARIOS: dict[str, Plan] = {plan.name: plan for plan in (*_PLANS, *_AUGMENTED)}


def plan_named(name: str) -> Plan:
    """Return the row of the table."""
    if name not in SCENARIOS:
        raise UnknownNameError("scenario", name, SCENARIOS)
    return SCENARIOS[name]


def load_scenario(name: str, *, seed: int = 0, model: str | None = None, progress: Progress = silent) -> Scenario:
    """Load a scenario: read its data and split them.

    Parameters
    ----------
    name : str
        A name that `forsaken scenarios list` shows.
    seed : int
        Decides every split; the same seed gives the same scenario.
    model : str, optional
        "logistic-regression" or "svm" instead of the network, for texts (as bags of words) and digits.
    progress : callable
        Called while data are read.
    """
    plan = plan_named(name)
    if model is not None:
        plan = linear_plan(plan, model)
    return plan.build(plan, checked_seed(seed), progress)


def linear_plan(plan: Plan, model: str) -> Plan:
    """Return the plan of a scenario with a linear model in place of its network."""
    if model not in LINEAR:
        raise UnknownNameError("model", model, LINEAR)
    if plan.network.name not in ("mlp", "news-convolutions", "text-convolutions"):
        kind = "sequences of words" if plan.network.name == "language-model" else "pictures"
        raise SettingsError(f"{model} is for topics of texts and digits, and {plan.name} has {kind}; leave model out")
    options = dict(plan.options)
    if "length" in options:
        options = {key: value for key, value in options.items() if key not in ("length", "dimensions", "window")}
        options = {**options, "words": _LINEAR_WORDS}
    return dataclasses.replace(plan, network=Network(model), options=options)
