"""PettingZoo's own tests, on the environments that the tests of several agents use.

They show that these environments keep PettingZoo's contracts; `test_environments.py` tests levada with them.
"""

import warnings

import pytest
from support.envs.multi import CartPoles, Comers, Relay

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo's tests import its modules as it advises against
    from pettingzoo.test import api_test, parallel_api_test


@pytest.mark.parametrize("make", [CartPoles, Comers])
def test_the_parallel_api(make):
    parallel_api_test(make(), num_cycles=200)


@pytest.mark.filterwarnings("ignore:Environment has not defined a render")
def test_the_aec_api():
    api_test(Relay(), num_cycles=200)
