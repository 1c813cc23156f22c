"""What levada.math exports."""

import importlib

import pytest

import levada.math

EXPORTED = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Gaussian",
    "DtypeError",
    "MultiCategorical",
    "RangeError",
    "ShapeError",
    "SquashedGaussian",
    "VTrace",
    "categorical_projection",
    "categorical_td_loss",
    "clipped_surrogate",
    "discounted_returns",
    "explained_variance",
    "gae",
    "gae_numpy",
    "lambda_returns",
    "n_step_returns",
    "normalized_advantage",
    "quantile_huber_loss",
    "quantile_td_loss",
    "retrace",
    "signed_hyperbolic",
    "signed_parabolic",
    "td_loss",
    "td_target",
    "vtrace",
]


def test_exported_names():
    assert levada.math.__all__ == EXPORTED
    assert set(EXPORTED) <= set(dir(levada.math))


@pytest.mark.parametrize("name", EXPORTED)
def test_each_name_is_found_and_documented(name):
    value = getattr(levada.math, name)
    assert value.__name__ == name
    assert value.__doc__
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'levada\.math' has no attribute 'gea'"):
        _ = levada.math.gea


def test_errors_are_those_that_python_users_catch():
    assert issubclass(levada.math.ShapeError, ValueError)
    assert issubclass(levada.math.RangeError, ValueError)
    assert issubclass(levada.math.DtypeError, TypeError)
