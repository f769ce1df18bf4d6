"""The compiled kernel: current, right with every instruction set, and not needed."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from building import ROOT, build_script
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import Moments, arrays, kernel, merge_summaries
from neuronscope.summaries import details as by_array
from neuronscope.summaries.arrays import by_numpy

VARIANTS = ("baseline", "avx2", "avx512")
Array = NDArray[Any]


@pytest.fixture
def compiled() -> Iterator[kernel.Kernel]:
    """The kernel; the variant in use is put back."""
    found, why_not = kernel.load()
    assert found is not None, f"{why_not}; `python hatch_build.py` compiles it"
    variant = found.variant
    yield found
    found.use(variant)


def assert_close(got: TensorSummary, wanted: TensorSummary) -> None:
    """Counts and extremes exact; the rest to 1e-5, the mean at least to 1e-6 of the root mean square."""
    for name in ("count", "zero_count", "nan_count", "inf_count"):
        assert getattr(got, name) == getattr(wanted, name), name
    for name in ("min", "max", "abs_max"):  # a modulus is computed, so its last digit may differ
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), rel=1e-15, abs=0, nan_ok=True), name
    assert got.std == pytest.approx(wanted.std, rel=1e-5, nan_ok=True)
    assert got.l2 == pytest.approx(wanted.l2, rel=1e-5, nan_ok=True)
    rms = 0.0 if math.isnan(wanted.l2) else wanted.l2 / math.sqrt(max(1, wanted.count))
    assert got.mean == pytest.approx(wanted.mean, rel=1e-5, abs=1e-6 * rms, nan_ok=True)


def normal(*shape: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=shape)


def planted() -> Array:
    values = normal(5000)
    values[[0, 1023, 1024, 4999]] = math.nan, math.inf, -math.inf, 0.0
    return values


ARRAYS: dict[str, Array] = {
    "normal": normal(100_003).astype(np.float32),
    "beyond the caches": normal(2_200_001).astype(np.float32),
    "mean far from zero": (normal(30_000) + 1e4).astype(np.float32),
    "constant": np.full(30_000, 0.1, np.float32),
    "overflow of squares": (normal(5000) * 1e30).astype(np.float32),
    "squares vanish": (normal(5000) * 1e-25).astype(np.float32),
    "denormal": np.full(3, 1e-42, np.float32),
    "planted": planted().astype(np.float32),
    "all NaN": np.full(5, math.nan, np.float32),
    "zeros": np.zeros(5000, np.float32),
    "float64": normal(5001),
    "float64 planted": planted(),
    "float64, far mean": normal(5001) + 1e9,
    "float16": (normal(70_001) * 100).astype(np.float16),
    "float16 denormal": np.arange(65536, dtype=np.uint16).view(np.float16),
    **{
        kind: (normal(5001) * 20).clip(0 if kind[0] in "bu" else -99, 99).astype(kind)
        for kind in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    },
    "complex64": (normal(3001) + 1j * normal(3001)).astype(np.complex64),
    "complex128": np.array([complex(math.inf, math.nan), complex(math.nan, 1), complex(3, -4), 0j]),
    "empty": np.zeros((0, 3), np.float32),
    "one": np.array(2.5, np.float32),
    "transposed": normal(30, 40, 50).astype(np.float32).transpose(2, 0, 1),
    "every third": normal(9000)[::3],
    "reversed": normal(9000)[::-1],
    "columns": normal(100, 200).astype(np.float16)[:, 5:50:3],
    "padded rows": normal(20, 3000).astype(np.float32)[:, :2500],
    "broadcast": np.broadcast_to(normal(1, 700).astype(np.float32), (900, 700)),
    "many dimensions": normal(2, 3, 2, 3, 2, 3, 2, 3)[:, ::2, :, ::2, :, ::2].astype(np.int8),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_instruction_set_agrees_with_float64(compiled: kernel.Kernel, name: str, variant: str) -> None:
    """Statistics of every type and layout, adversarial data included."""
    if not compiled.use(variant):
        pytest.skip(f"this machine has no {variant}")
    with np.errstate(all="ignore"):
        assert_close(TensorSummary.of(ARRAYS[name]), by_numpy(ARRAYS[name]))


def test_the_library_is_compiled_from_this_source(compiled: kernel.Kernel) -> None:
    """Else `python hatch_build.py` is due."""
    assert compiled.digest == build_script().KERNEL.digest()


def test_threads_do_not_disturb_each_other(compiled: kernel.Kernel) -> None:
    """Long calls let the GIL go and run side by side."""
    arrays = [np.full(200_000, number, np.float32) for number in range(4)]
    means: dict[int, set[float]] = {}

    def run(number: int) -> None:
        found = {TensorSummary.of(arrays[number]).mean for _ in range(20)}
        means[number] = found

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert means == {number: {float(number)} for number in range(4)}


def test_a_library_of_another_version_or_machine_is_refused(tmp_path: Path) -> None:
    """With the reason; adapters then compute with their framework."""
    damaged = tmp_path / "kernel.native"
    damaged.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(OSError, match=r"kernel\.native"):
        kernel.Kernel(damaged)
    assert kernel.describe().startswith("compiled (")


def test_summaries_of_parts_merge_to_that_of_the_whole() -> None:
    """Steps, ranks and files: exactly, but for rounding."""
    whole = np.concatenate([normal(10), normal(100_000) * 3 + 50, np.zeros(0), [math.nan, 0.0]])
    parts = np.split(whole, [10, 5000, 5000, 90_000])
    assert_close(merge_summaries(map(TensorSummary.of, parts)), by_numpy(whole))
    assert merge_summaries([]).count == 0
    halves = [TensorSummary.of(whole[:100]), TensorSummary.of(whole[:300])]
    one = TensorSummary.of(whole[:100])
    sampled = TensorSummary(
        one.count, one.mean, one.std, one.l2, one.min, one.max, one.abs_max, 0, 0, 0, sampled_fraction=0.5
    )
    assert merge_summaries([sampled, halves[1]]).sampled_fraction == pytest.approx(350 / 400)
    assert_close(Moments.of(one).summary(), one)


@pytest.mark.integration
def test_without_a_compiler_the_package_is_built_without_the_kernel(tmp_path: Path) -> None:
    """A wheel for any platform; a warning says why, and the package still summarises."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("agent", "instrumentation", "exporters"):
        shutil.copytree(
            ROOT / name,
            tree / name,
            ignore=shutil.ignore_patterns("__pycache__", "kernel.native*", "_native.abi3.so*"),
        )
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=250, check=False, env={"CC": "no-such-cc"}
    )
    assert done.returncode == 0, done.stderr
    assert "without its compiled summary kernel: no C compiler" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np\n"
        "from neuronscope.summaries import kernel\n"
        "from neuronscope.signals.tensors import TensorSummary\n"
        "print(TensorSummary.of(np.array([3.0, -4.0])).l2, kernel.describe())"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path / "site")],
        capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "5.0 framework (this package was built without a C compiler)"


@pytest.mark.parametrize("name", ARRAYS)
def test_histogram_and_sketch_agree_with_numpy(compiled: kernel.Kernel, name: str) -> None:
    """Every type and layout; the sketch is of the elements in C order, as numpy shows them."""
    values = ARRAYS[name]
    with np.errstate(all="ignore"):
        histogram, sketch = arrays.details(values)
        expected = by_array.by_numpy(values)
    assert histogram == expected[0]
    assert sketch == pytest.approx(expected[1], rel=1e-12, abs=1e-12 * max(1.0, *map(abs, expected[1])))


def test_buckets_are_powers_of_two() -> None:
    """A value at a bound belongs above it; zeros and non-finite values to none."""
    bounds = by_array.bounds()
    values = np.array(
        [bounds[10], np.nextafter(bounds[10], 0), -bounds[10], 0.0, math.nan, math.inf, 1e-300, 1e300]
    )
    histogram, _ = arrays.details(values)
    assert {bucket: n for bucket, n in enumerate(histogram) if n} == {0: 1, 10: 1, 11: 2, 63: 1}


def test_sketches_tell_angles_and_distances() -> None:
    """Also of data with a few large channels; equal tensors have equal sketches."""
    for scale in (np.ones(512), np.array([50.0] * 3 + [1.0] * 509)):
        one = normal(200, 512) * scale
        noise = np.random.default_rng(1).normal(size=(200, 512)) * scale
        other = one + 0.3 * noise
        a, b = (arrays.details(values)[1] for values in (one, other))
        true_distance = float(np.linalg.norm(one - other))
        assert by_array.distance(a, b) == pytest.approx(true_distance, rel=0.45)
        true_cosine = float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))
        assert by_array.cosine(a, b) == pytest.approx(true_cosine, abs=0.1)
        assert abs(by_array.cosine(a, arrays.details(noise)[1])) < 0.5
        assert by_array.distance(a, arrays.details(one.copy())[1]) == 0.0
    assert math.isnan(by_array.cosine([0.0] * 64, [1.0] * 64))
