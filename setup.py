"""The one setting that depends on the interpreter; all others are in pyproject.toml.

A free-threaded Python has no stable ABI, so its wheel is for this Python only.
"""

import sysconfig

from setuptools import setup

setup(options={} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp311"}})
