"""Makes `import verl.tools`, `skyrl_gym` and `openenv.core` find the packages of PyPI, which scripts/bootstrap.sh --tests
installs without what they depend on.

Of these three nothing is replaced. Packages that they import and that are absent, such as ray, are
placeholders with empty classes, which the code that is tested never calls. The files verl/__init__.py and
verl/utils/__init__.py are not run, as they import all of verl, with torch; its modules for tools are.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

# By package, what it imports at once and what nothing here needs.
_ABSENT = {
    "verl": {"ray"},
    "skyrl_gym": {"pandas"},  # of SQL tools
    "openenv": {"fastmcp", "mcp"},  # of environments that speak MCP
}


class _Placeholder(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a placeholder for each module of these packages. It is asked last: what is installed is found before."""

    def __init__(self, packages):
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Placeholder(spec.name)

    def exec_module(self, module):
        pass

    def forget(self):
        """Takes them away: other code looks for such packages, too, and must not find them."""
        for name in [one for one, module in sys.modules.items() if isinstance(module, _Placeholder)]:
            del sys.modules[name]


def load():
    """Imports the modules whose classes are tested. ImportError says what installs a package that is not there."""
    for package, absent in _ABSENT.items():
        if package in sys.modules:
            continue
        found = importlib.util.find_spec(package)
        if found is None:
            raise ImportError(f"no package {package}; scripts/bootstrap.sh --tests installs it")
        finder = _Placeholders(absent)
        sys.meta_path.append(finder)
        try:
            _LOADERS[package](found.submodule_search_locations[0])
        finally:
            sys.meta_path.remove(finder)
            finder.forget()


def _load_verl(folder):
    for name, inside in (("verl", ""), ("verl.utils", "/utils")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [folder + inside]
    importlib.import_module("verl.tools.base_tool")


def _load_skyrl_gym(folder):
    importlib.import_module("skyrl_gym.envs.base_text_env")


def _load_openenv(folder):
    importlib.import_module("openenv.core.generic_client")
    importlib.import_module("openenv.core.env_server")


_LOADERS = {"verl": _load_verl, "skyrl_gym": _load_skyrl_gym, "openenv": _load_openenv}
