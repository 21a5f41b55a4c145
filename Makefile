# SPDX-License-Identifier: Apache-2.0
# From a fresh clone, `make train` or `make test` is all there is to do. The work is done by tools/setup and tools/test.
#   PYTHON=python3.12 make setup      the Python that .venv is made from
#   make train ARGS="--steps 200"     what `octavo train` takes
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help train setup test lint format tidy clean
ARGS ?=

help: ## say what there is
	@awk -F ': ## ' '/^[a-z]+: ## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

train: ## set up what training needs, then train a small LLaMA with 1-bit gradients on two processes
	@tools/setup run
	@.venv/bin/octavo train $(ARGS)

setup: ## set up for development: .venv/bin has octavo, pytest, ruff, clang-format, cmake
	@tools/setup dev

test: ## the same set-up, then every test
	@tools/test

lint: ## style of Python and C++: ruff, clang-format
	@tools/setup dev
	@tools/test lint

format: ## make the style so
	@tools/setup dev
	@tools/format

tidy: ## clang-tidy over all C++, some minutes
	@tools/setup dev
	@tools/tidy

clean: ## remove what was built; .venv stays
	rm -rf build
