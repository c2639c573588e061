"""What pyproject.toml cannot say: the example documents are put into the package, as kvz/examples."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """An editable install, as a checkout, has them beside the package, where `kvz.bench.documents` looks next."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._examples().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self._examples().values())]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._examples()]

    def _examples(self) -> dict[str, str]:
        target = Path(self.build_lib) / "kvz" / "examples"
        return {str(path): str(target / path.name) for path in sorted(Path("examples").iterdir()) if path.is_file()}


setup(cmdclass={"build_py": BuildWithExamples})
