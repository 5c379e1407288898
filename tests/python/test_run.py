"""``python -m torchamp``: unmodified scripts on torchamp, and the doctor."""

from __future__ import annotations

import os
import py_compile
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
import torchamp

SCRIPTS = Path(__file__).parent / "scripts"
# As printed in the article.
FIRST_ARTICLE = """\
inputs dtype:torch.float32
outputs dtype:torch.float16
loss dtype:torch.float32
Epoch 1, Loss: 2.2972
"""


def python(*words: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


def run(*words: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return python("-m", "torchamp", "run", *words, **options)


@pytest.fixture
def script(tmp_path):
    """Writes a script into a folder of its own."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def assert_as_python(path: str | Path, *arguments: str, **options) -> None:
    """The same output and exit code as from Python itself, which has no torchamp in its lines."""
    expected = python(path, *arguments, **options)
    ours = run(path, *arguments, **options)
    assert ours.stdout == expected.stdout
    assert ours.stderr == expected.stderr
    assert ours.returncode == expected.returncode


# --- scripts for a GPU on the CPU ---
def test_the_first_article_prints_what_it_says():
    done = run("--device", "cpu", SCRIPTS / "first_article.py")
    assert done.stdout == FIRST_ARTICLE
    assert done.stderr == ""
    assert done.returncode == 0


ON_THE_CPU = """
    import warnings

    import torch
    import torch.nn as nn

    warnings.filterwarnings("ignore", message="Sparse ")  # of torch, on any device
    device = torch.device("cuda")
    assert device.type == "cuda"
    assert str(device) == "cuda"
    places = {}


    def check(name, *tensors):
        places[name] = {tensor.device.type for tensor in tensors}


    x = torch.ones(2, 2)
    check("cuda()", x.cuda(), x.cuda(0), x.cuda(non_blocking=True), x.cuda(device="cuda:0"))
    check("to", x.to("cuda"), x.to("cuda:0", torch.float16), x.to(device), x.to(device=device))
    check("to, like", x.to(x.cuda()))
    half = x.to(device, torch.float16, non_blocking=True)
    assert half.dtype is torch.float16
    factories = [torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn]
    for place in ("cuda", "cuda:0", device, torch.device("cuda", 0)):
        check("factories", *(make(2, 2, device=place) for make in factories))
        check("full", torch.full((2,), 1.5, device=place), torch.arange(3, device=place))
        check("integers", torch.randint(0, 9, (3,), device=place), torch.randperm(5, device=place))
        check("spaces", torch.linspace(0, 1, 3, device=place), torch.eye(3, device=place))
        check("lower", torch.tril_indices(3, 3, device=place))
        check("upper", torch.triu_indices(3, 3, device=place))
        check("data", torch.tensor([1.0], device=place), torch.as_tensor([1], device=place))
        check("strided", torch.empty_strided((2, 2), (1, 2), device=place))
        check("like", torch.zeros_like(x, device=place), torch.rand_like(x, device=place))
        check("new", x.new_zeros(2, device=place), x.new_tensor([1], device=place))
        check("windows", torch.hann_window(4, device=place), torch.fft.fftfreq(4, device=place))
        check("modules", *nn.Linear(2, 2, device=place).parameters())
        check("moved modules", *nn.BatchNorm1d(2).to(place).state_dict().values())
    with device:
        check("context", torch.ones(2), torch.tensor([1.0]), *nn.Linear(2, 2).parameters())
    torch.set_default_device("cuda")
    check("default", torch.ones(2), torch.tensor([1.0]))
    torch.set_default_device("cpu")
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    check("modules' cuda()", *model.state_dict().values())
    check("empty", *nn.Linear(2, 2, device="meta").to_empty(device="cuda").parameters())
    check("pinned", x.pin_memory())
    zero = torch.tensor([[0]])
    check("sparse", torch.sparse_coo_tensor(zero, [1.0], (2,), device="cuda"))
    check("in a context", torch.sparse_coo_tensor(zero, [1.0], (2,), device=device).cuda())
    check("rows", torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), device="cuda:0"))
    check("types", torch.cuda.FloatTensor(2), torch.cuda.HalfTensor([1.0]))
    check("a type", x.type(torch.cuda.LongTensor))
    assert x.type("torch.cuda.HalfTensor").dtype is torch.float16
    assert x.type(dtype="torch.cuda.LongTensor").dtype is torch.int64
    assert x.type(torch.float64).type() == "torch.DoubleTensor"
    assert isinstance(x.cuda(), torch.cuda.FloatTensor)
    assert x.untyped_storage().cuda().device.type == "cpu"
    for index in (0, "cuda", "cuda:0", device, None):
        with torch.cuda.device(index):
            check("current", torch.ones(2, device="cuda"))
    with torch.cuda.device_of(x):
        pass
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop):
        for foreach in (False, True):
            weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
            optimizer = kind([weight], lr=0.5, capturable=True, foreach=foreach)
            weight.sum().backward()
            optimizer.step()
            assert weight[0] < 1
    torch.cuda.manual_seed_all(0)
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert x.cuda() is x.to("cuda") is x.cpu() is x
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
    if torch.cuda.device_count() == 0:
        for ask in (torch.cuda.get_device_name, torch.cuda.get_device_capability):
            for place in ((), (0,), ("cuda",)):
                try:
                    ask(*place)
                except (AssertionError, RuntimeError) as error:  # as without a GPU
                    assert "NVIDIA" in str(error) or "CUDA" in str(error), error
    torch.save(model.state_dict(), "model.pt")
    check("loaded", *torch.load("model.pt", map_location="cuda").values())
    check("loaded there", *torch.load("model.pt", map_location=device, weights_only=True).values())
    assert all(place == {"cpu"} for place in places.values()), places

    before = x.clone().requires_grad_()
    (before.to("cuda") * 2).sum().backward()
    assert before.grad is not None


    def product():
        return str((x @ x).dtype).removeprefix("torch.")


    seen = []
    for region in (
        torch.autocast("cuda"),
        torch.amp.autocast(device_type="cuda:0"),
        torch.autocast(device.type, dtype=torch.bfloat16),
        torch.autocast("cuda", enabled=False),
        torch.cuda.amp.autocast(),
        torch.cuda.amp.autocast(dtype=torch.bfloat16),
        torch.autocast("cpu"),
    ):
        with region:
            seen.append((product(), torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")))
    print(*seen, sep="\\n")
    for scaler in (
        torch.amp.GradScaler(),
        torch.amp.GradScaler("cuda", init_scale=8.0),
        torch.cuda.amp.GradScaler(8.0),
        torch.GradScaler(device="cuda"),
    ):
        assert scaler.is_enabled()
        assert scaler.scale(x.sum()).device.type == "cpu"
        assert isinstance(scaler, torch.amp.GradScaler)


    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, y):
            print("custom", y.dtype, torch.is_autocast_enabled("cuda"))
            ctx.save_for_backward(y)
            return y @ y

        @staticmethod
        @torch.cuda.amp.custom_bwd
        def backward(ctx, grad):
            print("custom", grad.dtype, torch.is_autocast_enabled("cuda"))
            return grad


    with torch.autocast("cuda"):
        y = (x @ x).requires_grad_()
        out = Square.apply(y)
    out.sum().backward()
"""


def test_every_way_to_cuda_leads_to_the_cpu(script, tmp_path):
    done = run("--device", "cpu", script(ON_THE_CPU), cwd=tmp_path)
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "('float16', True, True)",
        "('float16', True, True)",
        "('bfloat16', True, True)",
        "('float32', False, False)",
        "('float16', True, True)",
        "('bfloat16', True, True)",
        "('bfloat16', True, True)",
        "custom torch.float32 False",
        "custom torch.float32 False",
    ]


LOADING = """
    import pickle

    import torch

    x = torch.ones(2)
    torch.save(x, "x.pt")
    torch.serialization.location_tag = lambda storage: "cuda:0"
    torch.save(x, "tagged.pt")
    torch.save(x, "legacy.pt", _use_new_zipfile_serialization=False)
    asked = []


    def to_second(storage, location):
        asked.append(location)
        return storage.cuda(1)


    for load in (torch.load, torch.serialization.load):
        loaded = [
            load(f="x.pt"),
            load("x.pt", None, pickle, weights_only=False),
            load(f="x.pt", map_location="cuda", mmap=True),
            load("x.pt", pickle_module=pickle, weights_only=False),
        ]
        for name in ("tagged.pt", "legacy.pt"):
            for place in (
                None,
                "cuda",
                torch.device("cuda", 1),
                {"cuda:0": "cuda:1"},
                {"cuda:1": "cuda:0"},
                {"cuda:0": "cpu"},
                to_second,
                lambda storage, location: None,
            ):
                loaded.append(load(name, map_location=place))
        assert all(tensor.device.type == "cpu" for tensor in loaded)
        assert all(tensor.equal(x) for tensor in loaded)
        assert load("tagged.pt", {"cuda:0": "meta"}).device.type == "meta"
    assert asked == ["cuda:0"] * 4
    with open("cuda", "wb") as file:
        torch.save(x, file)
    assert torch.load("cuda").device.type == "cpu"
"""


def test_files_are_loaded_on_the_cpu(script, tmp_path):
    done = run("--device", "cpu", script(LOADING), cwd=tmp_path)
    assert done.stderr == ""
    assert done.returncode == 0


AUTOCAST_STATE = """
    import threading

    import torch

    x = torch.ones(2, 2)
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32


    def check(enabled, dtype, product, cpu=None):
        states = [torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda")]
        states.append(torch.is_autocast_enabled(device_type="cuda:0"))
        assert states == [enabled] * 3, states
        dtypes = [torch.get_autocast_dtype("cuda"), torch.get_autocast_gpu_dtype()]
        dtypes.append(torch.get_autocast_dtype(device_type="cuda:0"))
        assert dtypes == [dtype] * 3, dtypes
        assert (x @ x).dtype is product, product
        if cpu is not None:
            assert torch.get_autocast_dtype("cpu") is cpu
            assert torch.get_autocast_dtype(device_type="cpu") is cpu
            assert torch.is_autocast_enabled("cpu") is False
            with torch.autocast("cpu"):
                assert (x @ x).dtype is cpu


    def check_defaults():
        check(False, f16, f32, cpu=bf16)


    check_defaults()
    for dtype in (f16, bf16):
        with torch.autocast("cuda", dtype=dtype):
            check(True, dtype, dtype)
            torch.set_autocast_enabled(False)  # and on again, as some libraries do
            check(False, dtype, f32)
            torch.set_autocast_enabled(True)
            check(True, dtype, dtype)
            with torch.autocast("cuda", enabled=False):
                check(False, dtype, f32)
                with torch.autocast("cuda"):  # in the dtype around it
                    check(True, dtype, dtype)
            torch.set_autocast_dtype("cuda", bf16)
            check(True, bf16, bf16)
            torch.set_autocast_enabled("cuda", False)
        check_defaults()
    with torch.autocast("cuda", dtype=bf16, enabled=False):
        check(False, bf16, f32)
    torch.autocast("cuda", dtype=bf16)(check)(True, bf16, bf16)
    check_defaults()

    torch.set_autocast_enabled("cuda", True)
    check(True, f16, f16)
    torch.set_autocast_gpu_dtype(bf16)
    check(True, bf16, bf16)
    with torch.autocast("cuda", dtype=f16):
        check(True, f16, f16)
    check(True, bf16, bf16)
    torch.set_autocast_dtype(device_type="cuda", dtype=f16)
    torch.set_autocast_enabled(enabled=False)
    check_defaults()

    torch.set_autocast_dtype("cuda", bf16)
    torch.set_autocast_dtype("cpu", f16)
    check(False, bf16, f32, cpu=f16)
    torch.set_autocast_enabled(device_type="cuda:0", enabled=True)
    check(True, bf16, bf16)
    torch.set_autocast_enabled(True)
    thread = threading.Thread(target=check_defaults)
    thread.start()
    thread.join()
    torch.set_autocast_enabled("cuda", False)
    check(False, bf16, f32, cpu=bf16)
    with torch.autocast("cuda"):
        check(True, bf16, bf16)
    torch.set_autocast_enabled("cpu", True)
    assert (x @ x).dtype is bf16
    for wrong in (lambda: torch.get_autocast_dtype(), lambda: torch.set_autocast_enabled("cuda")):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError
    print("done")
"""


def test_autocast_has_the_state_that_it_has_on_cuda(script):
    done = run("--device", "cpu", script(AUTOCAST_STATE))
    assert done.stderr == ""
    assert done.stdout == "done\n"


def test_a_migrated_script_is_mapped_too(script):
    path = script("""
        import torch
        import torchamp
        from torchamp.cuda.amp import GradScaler, autocast

        x = torch.ones(2, 2).cuda()
        for region in (autocast(), torchamp.autocast("cuda"), torchamp.amp.autocast("cuda")):
            with region:
                print((x @ x).dtype)
        print(GradScaler().is_enabled(), torchamp.GradScaler().is_enabled())
    """)
    done = run("--device", "cpu", path)
    assert done.stdout == "torch.float16\n" * 3 + "True True\n"
    assert done.stderr == ""


def test_compiled_functions_of_a_script_for_a_gpu(script):
    path = script("""
        import torch
        import torchamp

        for region in (
            lambda: torch.autocast("cuda"),
            lambda: torch.amp.autocast(device_type="cuda", dtype=torch.float16),
            torch.cuda.amp.autocast,
            torchamp.cuda.amp.autocast,
        ):

            @torch.compile(backend="aot_eager", fullgraph=True)
            def product(x, region=region):
                with region():
                    return x @ x

            print(product(torch.ones(2, 2).to("cuda")).dtype)

        x = torch.ones(2, 2)
        outside = torch.autocast("cuda", dtype=torch.bfloat16)


        def state():
            return torch.is_autocast_enabled(device_type="cuda"), torch.get_autocast_dtype("cuda")


        @torch.compile(backend="aot_eager", fullgraph=True)
        def states(x):
            seen = [state(), (x @ x).dtype]
            with torch.autocast("cuda"):
                seen += [state(), (x @ x).dtype]
            with outside:
                seen += [state(), (x @ x).dtype]
            return seen + [state()]


        def switched(x):
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_enabled("cuda", True)
            seen = [state(), (x @ x).dtype]
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", torch.float16)
            return seen + [state()]


        f16, bf16 = torch.float16, torch.bfloat16
        off, half, brain = (False, f16), (True, f16), (True, bf16)
        assert states(x) == [off, torch.float32, half, f16, brain, bf16, off]
        if not torch.__version__.startswith("2.11."):  # cannot compile them
            switched = torch.compile(switched, backend="aot_eager", fullgraph=True)
        assert switched(x) == [brain, bf16, off]
        with outside:
            assert torch.compile(state, backend="aot_eager")() == brain


        @torch.compile(backend="aot_eager")
        def two_graphs(x, region):
            with region:
                y = x @ x
                torch._dynamo.graph_break()
                return state(), (y @ x).dtype


        assert two_graphs(x, outside) == (brain, bf16)
        assert two_graphs(x, torch.autocast("cuda")) == (half, f16)
        assert state() == off
        assert torch.get_autocast_dtype("cpu") is bf16
    """)
    done = run("--device", "cpu", path)
    assert done.stdout == "torch.float16\n" * 4
    assert done.stderr == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_without_the_option_cuda_is_what_it_is(script):
    path = script("import torch\ntorch.ones(2).cuda()\n")
    done = run(path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search(r"NVIDIA|CUDA", done.stderr)


# --- as Python itself ---
def test_it_runs_on_torchamp(script):
    path = script("""
        import torch

        print(torch.amp.GradScaler.__module__, torch.cuda.amp.autocast.__module__)
    """)
    assert run(path).stdout == "torchamp.amp.grad_scaler torchamp.cuda.amp.autocast_mode\n"


def test_the_surroundings_of_a_script(script, tmp_path):
    path = script("""
        import builtins
        import inspect
        import pickle
        import sys

        import neighbour


        class Thing:
            pass


        print(sys.argv, sys.path[0], neighbour.__file__)
        print(__name__, __file__, __package__, __spec__, __doc__, __builtins__ is builtins)
        print(type(__loader__).__name__, __annotations__, sorted(globals()))
        print(sys.modules["__main__"].Thing is Thing, type(pickle.loads(pickle.dumps(Thing()))))
        print(inspect.getsource(Thing))
    """)
    script("", "neighbour.py")
    assert_as_python(path, "one", "--device", "cuda", "-h", "--", "two words")
    assert_as_python(path, "--", "one", "--", "-x")
    assert_as_python(path.name, "-x", cwd=tmp_path)
    link = tmp_path / "elsewhere" / "link.py"
    link.parent.mkdir()
    link.symlink_to(path)
    assert_as_python(link)


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.exit(3)\n",
        "import sys\nsys.exit('a message')\n",
        "raise SystemExit\n",
        "def f():\n    1 / 0\n\n\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('text') from e\n",
        "class Own(Exception):\n    pass\n\n\nraise Own('text')\n",
        "print('before'\n",
        "raise KeyboardInterrupt\n",
        "import os\nprint('flushed?')\nos._exit(5)\n",
        "import sys\nsys.excepthook = lambda *parts: print(parts[0], parts[2].tb_lineno)\n1 / 0\n",
        "import atexit\natexit.register(print, 'at exit')\nraise ValueError\n",
        "import threading\nthreading.Timer(0.1, print, ('later',)).start()\nraise ValueError\n",
        "# -*- coding: latin-1 -*-\nprint(len('\u00e4'))\n",
    ],
)
def test_exits_and_tracebacks_are_those_of_python(script, text):
    assert_as_python(script(text))


def test_interrupts_end_it_as_python(script):
    path = script("""
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
        os.kill(os.getpid(), signal.SIGINT)
    """)
    assert_as_python(path)
    assert run(path).returncode == -signal.SIGINT


SHOW = """
    import sys

    import torch

    print(sys.argv, sys.path[0], __name__, globals().get("__file__"), __package__)
    print(getattr(__spec__, "name", None), getattr(__loader__, "__name__", type(__loader__)))
    print(sorted(globals()), sys.modules["__main__"].__dict__ is globals())
    if "raise" in sys.argv:
        raise ValueError
"""


@pytest.fixture
def program(tmp_path):
    """A folder with a module, a package, a folder that is a program, and what is made of them."""
    for name in ("module.py", "package/__init__.py", "package/__main__.py", "folder/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name.endswith("__init__.py") else textwrap.dedent(SHOW))
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(tmp_path / "folder" / "__main__.py", "__main__.py")
    (tmp_path / "empty").mkdir()
    for name in ("compiled.pyc", "compiled"):
        py_compile.compile(str(tmp_path / "module.py"), str(tmp_path / name), doraise=True)
    (tmp_path / "source.pyc").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("folder", "one", "--", "-m", "raise"),
        ("./folder", "raise"),
        ("archive.zip", "one"),
        ("empty",),
        ("-m", "package", "--", "one"),
        ("-m", "package.__main__", "raise"),
        ("-mmodule", "-m"),
        ("-m", "missing"),
        ("-", "--", "raise"),
        ("compiled.pyc", "one"),
        ("compiled", "raise"),
        ("source.pyc",),
    ],
    ids=" ".join,
)
def test_all_that_python_runs(program, words):
    source = textwrap.dedent(SHOW) if words[0] == "-" else None
    assert_as_python(*words, cwd=program, input=source)


def test_a_folder_and_a_module_with_the_option_of_python_for_safe_paths(program):
    if sys.version_info < (3, 11):
        pytest.skip("there is no -P")
    for words in (("folder",), ("-m", "package")):
        ours = python("-P", "-m", "torchamp", "run", *words, cwd=program)
        assert ours.stdout == python("-P", *words, cwd=program).stdout


def test_a_module_runs_on_torchamp_and_on_the_cpu(script, tmp_path):
    script("""
        import torch

        print(torch.amp.GradScaler.__mro__[1].__module__, torch.ones(1).cuda().device)
    """)
    done = run("--device", "cpu", "-m", "script", cwd=tmp_path)
    assert done.stdout == "torchamp.amp.grad_scaler cpu\n"
    assert run("--device=cpu", "-mscript", cwd=tmp_path).stdout == done.stdout


@pytest.mark.parametrize("words", [(), ("--device", "cpu"), ("-m",)], ids=" ".join)
def test_nothing_to_run(words):
    done = run(*words)
    assert done.returncode == 2
    assert "usage: python -m torchamp run" in done.stderr


def test_a_script_that_is_not_there(tmp_path):
    done = run(tmp_path / "missing.py")
    assert done.returncode == python(tmp_path / "missing.py").returncode == 2
    assert "missing.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_input_and_future_imports(script):
    path = script("""
        import sys


        def f(x: undefined): ...


        print(sys.stdin.read())
    """)
    assert_as_python(path, input="from outside")
    assert_as_python(script("from __future__ import annotations\n\n\ndef f(x: undefined): ...\n"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_children_run_on_torchamp(script):
    path = script("""
        import multiprocessing

        import torch


        def show():
            print(torch.amp.GradScaler.__module__)


        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            child = context.Process(target=show)
            child.start()
            child.join()
    """)
    assert run(path).stdout == "torchamp.amp.grad_scaler\n"


# --- the rest of the command line ---
def test_doctor():
    done = python("-m", "torchamp", "doctor")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"torchamp {torchamp.__version__}, built for torch ")
    assert torch.__version__ in lines[1]
    assert any(
        re.match(
            r"kernels compiled in: CPU(, CUDA)?; for the CPU, (AVX-512|AVX2|baseline) here$", line
        )
        for line in lines
    )
    assert any(torch.backends.cpu.get_cpu_capability() in line for line in lines)
    assert "  autocast casts to bfloat16 unless told otherwise" in lines
    for dtype in ("float32", "float16", "bfloat16"):
        assert f"  GradScaler, {dtype} gradients: works" in lines
    assert any(
        re.match(r"  float16 matrix product: [\d.]+x (faster|slower) than", x) for x in lines
    )


def test_help_and_version():
    done = python("-m", "torchamp", "--help")
    assert done.returncode == 0
    for word in ("run", "doctor", "bench"):
        assert word in done.stdout
    assert python("-m", "torchamp", "--version").stdout == f"{torchamp.__version__}\n"
    assert python("-m", "torchamp").returncode == 2
    assert "--device" in python("-m", "torchamp", "run", "--help").stdout
