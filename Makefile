# `make demo` and `make test` make the environment they need (.venv) from the lock in requirements.txt.
PYTHON := .venv/bin/python
.PHONY: demo test check lint format lock clean

demo: .venv/.installed
	$(PYTHON) train.py --config configs/demo.py

test: .venv/.installed lint
	$(PYTHON) -m pytest

# Slower checks; all of them stay under 40 minutes on two cores.
check: .venv/.installed
	$(PYTHON) -m pytest -m slow

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

.venv/.installed: requirements.txt
	.ci/environment
	touch $@

clean:
	rm -rf .venv
