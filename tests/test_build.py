"""Objects from descriptions, which may come from a stranger's checkpoint."""

import pytest
import torch

from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.data.masks import CenterMask
from viscos.flows import Series
from viscos.posteriors import Householder


def test_a_description_inside_another():
    series = {"_target_": "viscos.flows.Series", "terms": 3}
    flow = build({"_target_": "viscos.flows.iresnet", "blocks": [1], "channels": 4, "series": series}, (2,))
    assert flow.shape == (2,)
    assert next(layer.series for layer in flow.layers if hasattr(layer, "series")) == Series(terms=3)


def test_arguments_from_the_caller():
    posterior = build({"_target_": "viscos.posteriors.Householder", "reflections": 3}, torch.zeros(2, 4))
    assert isinstance(posterior, Householder) and posterior.vectors.shape == (2, 3, 4)
    assert build({"_target_": "viscos.data.masks.CenterMask"}, size=3) == CenterMask(3)


REFUSED = {
    "os.system": "must name something in",
    "builtins.eval": "must name something in",
    "torch.load": "must name something in",
    "viscosity.flows.iresnet": "must name something in",
    "viscos.flowsy.iresnet": "must name something in",
    "viscos.runs.discard_if_empty": "must name something in",
    "viscos.cli.main": "must name something in",
    "viscos.core.build.build": "must name something in",
    "": "must name something in",
    "iresnet": "must name something in",
    "viscos.flows.nothing": "does not have",
    "viscos.flows.nothing.more": "does not have",
    "viscos.flows.composed.torch": "can be made",  # what a module imports is not its own
    "viscos.data.masks.np": "can be made",
    "viscos.data.masks.Path": "can be made",
    "viscos.data.masks.SIDES": "can be made",
    "viscos.flows.layers.residual": "can be made",
}


@pytest.mark.parametrize("target", REFUSED)
def test_only_parts_of_viscos_are_made(target):
    with pytest.raises(InputError, match=REFUSED[target]) as caught:
        build({"_target_": target})
    assert "\n" not in str(caught.value)


def test_no_target():
    with pytest.raises(InputError, match="must name something in"):
        build({"size": 3})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"_target_": "viscos.data.masks.CenterMask", "sise": 3}, "unexpected keyword argument 'sise'"),
        ({"_target_": "viscos.data.masks.RandomMask"}, "missing a required argument: 'missing'"),
        ({"_target_": "viscos.data.masks.RandomMask", "missing": None}, "missing is None"),
    ],
)
def test_wrong_arguments_are_one_line(spec, says):
    with pytest.raises(InputError, match=says) as caught:
        build(spec)
    assert "\n" not in str(caught.value)


def test_a_bug_inside_is_not_bad_input():
    with pytest.raises(TypeError):
        build({"_target_": "viscos.flows.iresnet", "blocks": 3}, (2,))
