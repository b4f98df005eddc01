# `make demo` and `make test` make the environment they need (.venv) from the lock in requirements.txt.
PYTHON := .venv/bin/python
# Else every command begins once more to ask for that and more (focus_jax/step_memory.py): tests are not to wait for it.
test check: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
.PHONY: demo test check check-h200 lint format lock clean

demo: .venv/.installed
	$(PYTHON) train.py --config configs/demo.py

# Most of its time goes into compiling small programs once: without LLVM's optimisation it takes a quarter less.
test: .venv/.installed lint
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" $(PYTHON) -m pytest -n 2 --dist loadfile

# Slower checks; all of them stay under 40 minutes on two cores.
check: .venv/.installed check-h200
	.ci/browser
	$(PYTHON) -m pytest -n 2 --dist loadfile -m slow

# The attention kernels as an H200 would get them: no spills, wgmma everywhere. No GPU needed; the main environment stays for CPUs.
check-h200: .h200/.installed
	JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=2 PYTHONPATH=.h200 $(PYTHON) -m focus_jax.bench.h200

lint: .venv/.installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format: .venv/.installed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# Needs uv on the PATH.
lock:
	uv pip compile pyproject.toml --extra dev --python-version 3.12 --no-header --no-emit-index-url --no-emit-find-links -o requirements.txt
	uv pip compile pyproject.toml --extra h200 --python-version 3.12 --no-header --no-annotate --no-emit-index-url --no-emit-find-links | grep -E "^(jax-cuda|nvidia)" > requirements-h200.txt

.h200/.installed: requirements-h200.txt .venv/.installed
	rm -rf .h200
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target .h200 -r requirements-h200.txt
	touch $@

.venv/.installed: requirements.txt
	.ci/environment
	touch $@

clean:
	rm -rf .venv .h200
