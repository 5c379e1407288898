"""Packages what CMake builds; everything else is said in pyproject.toml and CMakeLists.txt."""

from setuptools import setup

setup(cmake_source_dir=".")
