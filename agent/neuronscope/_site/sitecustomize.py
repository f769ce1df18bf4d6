"""Put first on PYTHONPATH by ``neuronscope run``: starts observation before the program's own code.

Another `sitecustomize` that this one hides is run first, as if this one were not there.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_hidden() -> None:
    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start() -> None:
    try:
        from neuronscope.auto import start
    except ImportError as error:
        sys.stderr.write(
            f"neuronscope: not observed: {sys.executable} cannot import neuronscope ({error}). "
            "Install it for this interpreter.\n"
        )
        return
    start()


_run_hidden()
_start()
