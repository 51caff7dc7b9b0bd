"""Make a `Config` of all sources, or say in one line what is wrong.

Later sources override earlier ones: Stateline's defaults, `App(..., config={...})`, a TOML file (`stateline.toml` in
the working directory, or ``--config FILE``), the environment (``STATELINE_COMMIT_INTERVAL_MS=100``), and ``--set
commit.interval.ms=100``. `load_config` is pure; `read_config` reads file and environment.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from stateline.config.embedded import embedded_path
from stateline.config.secrets import HIDDEN, is_secret
from stateline.config.settings import ALIASES, PASSED_ON, Config, allowed_values, as_text, dotted_name
from stateline_store.errors import ConfigurationError

DEFAULT_FILE = "stateline.toml"
_PREFIXES = {f"{dotted_name(field)}.": field for field in PASSED_ON}
_FIELDS = {dotted_name(field): field for field in Config.model_fields if field not in PASSED_ON}


_KNOWN = {*_FIELDS, *ALIASES}

PREFIX = "STATELINE_"

# STATELINE_ variables that are no settings: those of the command line, tests and benchmarks, and those that Kubernetes
# sets for a Service whose name begins with "stateline".
_NO_SETTING = re.compile(
    r"(TRACEBACK|(TEST|BENCH|CRASH)_.*)=.*"
    r"|((.*_)?SERVICE_(HOST|PORT.*)|(.*_)?PORT_\d+_.*)=.*"
    r"|(.*_)?PORT=\w+://.*",
    re.DOTALL,
)


class SourcedValue(NamedTuple):
    """A value and its origin."""

    value: object
    origin: str


Source = Iterator[tuple[str, SourcedValue]]


def from_tree(tree: Mapping[str, object], origin: str, above: str = "") -> Source:
    """Parsed TOML. Tables nest; a quoted key such as ``"commit.interval.ms"`` is a dotted name already."""
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from from_tree(value, origin, f"{name}.")
        else:
            yield name, SourcedValue(value, origin)


def from_environment(environment: Mapping[str, str], known: Container[str]) -> Source:
    """``STATELINE_COMMIT_INTERVAL_MS`` is commit.interval.ms. Unknown names are yielded too, as likely typos."""
    for variable, value in environment.items():
        rest = variable.removeprefix(PREFIX)
        name = rest.lower().replace("_", ".")
        if rest != variable and (name in known or not _NO_SETTING.fullmatch(f"{rest}={value}")):
            yield name, SourcedValue(value, f"environment, {variable}")


def from_overrides(overrides: Sequence[str]) -> Source:
    """``name=value`` texts. Raises `ConfigurationError` for one without ``=``."""
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {text}: write it as NAME=VALUE, as in commit.interval.ms=100.")
        yield name.strip(), SourcedValue(value.strip(), "--set")


def load_config(
    application_id: str,
    *,
    file: Mapping[str, object] | None = None,
    file_name: str = DEFAULT_FILE,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> Config:
    """The settings of these sources, in the order of this module's docstring. Pure.

    `file` is parsed TOML, flat or nested. `overrides` are ``name=value`` texts. `defaults` are the App's, with dotted
    names. Raises `ConfigurationError` in one line: setting, value, origin, allowed values.
    """
    given = {"application.id": SourcedValue(application_id, "App")}
    sources = (
        from_tree(defaults or {}, "App(config=…)"),
        from_tree(file or {}, file_name),
        from_environment(environment or {}, known=_KNOWN),
        from_overrides(overrides),
    )
    for source in sources:
        for name, setting in source:
            _check_known(name, setting)
            given[name] = setting
    _resolve_aliases(given)
    if given["application.id"].value != application_id:
        raise _refused("application.id", given["application.id"], f"what the App says, {application_id!r}")
    config = _validated(given)
    config._origins.update({name: setting.origin for name, setting in given.items()})
    _check_together(config, given)
    return config


def read_config(
    application_id: str,
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> Config:
    """`load_config` with the environment and a file: `path`, or `stateline.toml` here if it exists."""
    chosen = path or Path(DEFAULT_FILE)
    tree = read_settings_file(chosen)
    if tree is None and path is not None:
        raise ConfigurationError(f"--config: there is no file {path}.")
    return load_config(
        application_id, file=tree, file_name=str(chosen), environment=os.environ, overrides=overrides, defaults=defaults
    )


def read_settings_file(path: Path) -> dict[str, object] | None:
    """Return the parsed TOML, None if there is no such file. Raises `ConfigurationError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read as TOML: {error}") from error


def check_settings(settings: Mapping[str, object], origin: str) -> Config:
    """Return the settings with their types. Raises `ConfigurationError` for an unknown name, with the nearest known
    one, and for an invalid value. Rules over several settings are checked once all sources are known."""
    given = {"application.id": SourcedValue("unnamed", origin)}
    for name, setting in from_tree(settings, origin):
        _check_known(name, setting)
        given[name] = setting
    _resolve_aliases(given)
    return _validated(given)


def _check_known(name: str, given: SourcedValue) -> None:
    if name in _KNOWN or name.startswith(tuple(_PREFIXES)):
        return
    near = difflib.get_close_matches(name.replace("_", ".").lower(), sorted(_KNOWN), n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else "`stateline config` lists all settings."
    raise ConfigurationError(f"Unknown setting {_told(name, given)}. {hint}")


def _resolve_aliases(given: dict[str, SourcedValue]) -> None:
    """Replace other names by the settings' own. Raises `ConfigurationError` if both are set and differ."""
    for alias, name in ALIASES.items():
        if (setting := given.pop(alias, None)) is None:
            continue
        meant = SourcedValue(setting.value, f"{setting.origin}, {alias}")
        other = given.setdefault(name, meant)
        if str(other.value).lower() != str(setting.value).lower():
            raise ConfigurationError(
                f"{_told(name, other)} differs from {_told(alias, setting)}. Both names mean the same setting: "
                f"leave {alias} out."
            )


def _validated(given: Mapping[str, SourcedValue]) -> Config:
    values: dict[str, Any] = {}
    for name, setting in given.items():
        if field := _FIELDS.get(name):
            values[field] = setting.value
            continue
        prefix, field = next((prefix, field) for prefix, field in _PREFIXES.items() if name.startswith(prefix))
        if not isinstance(setting.value, str | int | float):
            raise _refused(name, setting, allowed_values(field))
        # Empty means none, in place of another source's.
        if name == "schema.registry.url" and setting.value != "" and "://" not in str(setting.value):
            raise _refused(name, setting, "a URL, as http://localhost:8081")
        key = name if field == "spark" else name.removeprefix(prefix)
        values.setdefault(field, {})[key] = as_text(setting.value)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise _refused(dotted_name(field), given[dotted_name(field)], allowed_values(field)) from error


def _check_together(config: Config, given: Mapping[str, SourcedValue]) -> None:
    """Rules over two settings; the message shows the one that has to change."""
    default = SourcedValue("", "the defaults")
    for field in ("deserialization_exception_handler", "processing_exception_handler"):
        if getattr(config, field) == "dead-letter" and config.dead_letter_topic is None:
            name = dotted_name(field)
            need = f"needs a topic in {dotted_name('dead_letter_topic')}, or choose fail or skip"
            raise ConfigurationError(f"{name} = 'dead-letter' (from {given[name].origin}) {need}.")
    if config.exactly_once and config.transaction_timeout_ms < config.commit_interval_ms:
        name = "transaction.timeout.ms"
        setting = SourcedValue(config.transaction_timeout_ms, given.get(name, default).origin)
        raise _refused(name, setting, f"at least commit.interval.ms, {config.commit_interval_ms}")
    _check_stores(config, given)
    if config.upgrade_from is not None and config.upgrade_mode is None:
        raise ConfigurationError(
            f"upgrade.from = {config.upgrade_from!r} (from {given['upgrade.from'].origin}) needs upgrade.mode: "
            f"{allowed_values('upgrade_mode')}."
        )
    _check_all_or_none(given, "server.tls.certificate.file", "server.tls.key.file")
    _check_node(config, given)
    if config.server_limit_default > config.server_limit_max:
        name = "server.limit.default"
        setting = SourcedValue(config.server_limit_default, given.get(name, default).origin)
        raise _refused(name, setting, f"at most server.limit.max, {config.server_limit_max}")


def _check_stores(config: Config, given: Mapping[str, SourcedValue]) -> None:
    if not config.enable_transactional_statestores:
        raise ConfigurationError(
            f"{_shown('enable.transactional.statestores', given)} is refused: Stateline's stores are always "
            "transactional, because READ_COMMITTED queries and crash recovery need it. Leave the setting out."
        )


def _check_node(config: Config, given: Mapping[str, SourcedValue]) -> None:
    peer = [name for name in given if name.startswith("node.peer.")]
    if peer and embedded_path(config.bootstrap_servers, config.state_dir) is not None:
        raise ConfigurationError(
            f"{_shown(peer[0], given)} has no use on the embedded log, which is one machine's: leave it out, or name "
            "Kafka brokers in bootstrap.servers."
        )
    files = [f"node.peer.tls.{which}.file" for which in ("certificate", "key", "ca")]
    _check_all_or_none(given, *files)
    if "node.peer.secret.file" in given and files[0] in given:
        raise ConfigurationError(
            f"{_shown('node.peer.secret.file', given)} stands beside {files[0]}: nodes know each other by certificates "
            "or, on one machine, by a secret. Leave one of the two out."
        )
    listen = config.node_peer_listen
    if config.node_peer_advertised is not None and (listen is None or listen.endswith(":0")):
        raise ConfigurationError(
            f"{_shown('node.peer.advertised', given)} needs node.peer.listen with a port of its own: nobody can be led "
            "to one that is another at each start."
        )


def _check_all_or_none(given: Mapping[str, SourcedValue], *names: str) -> None:
    there = [name for name in names if name in given]
    missing = [name for name in names if name not in given]
    if there and missing:
        which = "both, or neither" if len(names) == 2 else "all, or none"
        raise ConfigurationError(f"{_shown(there[0], given)} needs {' and '.join(missing)}: set {which}.")


def _shown(name: str, given: Mapping[str, SourcedValue]) -> str:
    return _told(name, given[name])


def _refused(name: str, given: SourcedValue, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{_told(name, given)} is not allowed: use {allowed}.")


def _told(name: str, given: SourcedValue) -> str:
    value = HIDDEN if is_secret(name, str(given.value)) else repr(given.value)
    return f"{name} = {value} (from {given.origin})"
