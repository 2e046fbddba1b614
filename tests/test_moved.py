"""Modules that have moved still import under their old names."""

import importlib
import subprocess
import sys

import pytest

import leanbayes as lb
from leanbayes.moved import MODULES, NAMES, ROOMS, new_name


def forget(name):
    for known in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
        del sys.modules[known]


@pytest.mark.parametrize("old", [*ROOMS, *MODULES])
def test_an_old_name_warns_and_gives_the_module_itself(old):
    forget(f"leanbayes.{old.partition('.')[0]}" if old.partition(".")[0] in ROOMS else f"leanbayes.{old}")
    with pytest.warns(DeprecationWarning, match=rf"leanbayes\.{old} has moved: import leanbayes\."):
        found = importlib.import_module(f"leanbayes.{old}")
    new = importlib.import_module(new_name(f"leanbayes.{old}"))
    assert (found is new) == (old not in ROOMS)
    assert new.__spec__.name == new.__name__ == new_name(f"leanbayes.{old}")


def test_a_file_that_took_another_s_name_does_not_stand_in_for_it():
    from leanbayes.evaluate import stages as old

    from leanbayes.evaluation import resume, stages

    assert old is resume
    assert stages is not resume


def test_functions_keep_their_names_and_the_warning_points_at_the_import():
    code = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import leanbayes as lb, leanbayes.predict.stacking, leanbayes.evaluate.attack, leanbayes.cost
    from leanbayes.cost import training_bytes
assert callable(lb.predict) and callable(lb.evaluate) and callable(lb.cost), lb.predict
print([w.filename for w in seen if w.category is DeprecationWarning and "has moved" in str(w.message)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["<string>"] * 5)


def test_what_never_was_is_not_found():
    for name in ("leanbayes.predict.nothing", "leanbayes.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    assert lb.predict is importlib.import_module("leanbayes.prediction").predict


@pytest.mark.parametrize("old", NAMES)
def test_a_name_that_left_its_module_warns_and_is_the_same_object(old):
    module, name = old.split(":")
    with pytest.warns(DeprecationWarning, match=rf"leanbayes\.{module}\.{name} has moved"):
        found = getattr(importlib.import_module(f"leanbayes.{module}"), name)
    assert found is vars(importlib.import_module(f"leanbayes.{NAMES[old]}"))[name]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module(f"leanbayes.{module}").nothing
