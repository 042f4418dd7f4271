"""The environment: every variable, its default, and what a wrong value is told."""

from __future__ import annotations

import pytest

from gemma_operator.settings import DEFAULT_ENGINE_IMAGE, BadSetting, read_settings


def test_an_empty_environment_gives_working_settings() -> None:
    settings = read_settings({})
    assert settings.namespaces == ()
    assert settings.prometheus_url == ""
    assert (settings.tick_seconds, settings.resync_seconds) == (15, 300)
    assert settings.metrics_source == "engines"
    assert (settings.metrics_port, settings.health_port) == (8080, 8081)
    assert (settings.log_level, settings.log_json) == ("INFO", True)
    assert settings.defaults.engine_image == DEFAULT_ENGINE_IMAGE


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("GEMMA_WATCH_NAMESPACES", " a, b ,,c", "namespaces", ("a", "b", "c")),
        ("GEMMA_PROMETHEUS_URL", "http://prometheus:9090/", "prometheus_url", "http://prometheus:9090"),
        ("GEMMA_PROMETHEUS_TOKEN_FILE", "/var/token", "prometheus_token_file", "/var/token"),
        ("GEMMA_SCALING_TICK_SECONDS", "2.5", "tick_seconds", 2.5),
        ("GEMMA_PROMETHEUS_URL", "http://prometheus:9090", "metrics_source", "prometheus"),
        ("GEMMA_PROMETHEUS_CA_FILE", "/ca.crt", "prometheus_ca_file", "/ca.crt"),
        ("GEMMA_PROMETHEUS_SKIP_TLS_VERIFY", "True", "prometheus_skip_tls_verify", True),
        ("GEMMA_PROMETHEUS_HEADERS", '{"X-Scope-OrgID": "a"}', "prometheus_headers", {"X-Scope-OrgID": "a"}),
        ("GEMMA_RESYNC_SECONDS", "60", "resync_seconds", 60),
        ("GEMMA_METRICS_PORT", "9000", "metrics_port", 9000),
        ("GEMMA_HEALTH_PORT", "9001", "health_port", 9001),
        ("GEMMA_ROUTING", "true", "routing", True),
        ("GEMMA_LOG_LEVEL", "debug", "log_level", "DEBUG"),
        ("GEMMA_LOG_FORMAT", "plain", "log_json", False),
        ("POD_NAME", "operator-1", "pod_name", "operator-1"),
    ],
)
def test_a_variable_sets_its_field(name: str, value: str, field: str, expected: object) -> None:
    assert getattr(read_settings({name: value}), field) == expected


def test_the_defaults_for_engines_come_from_the_installation() -> None:
    defaults = read_settings(
        {
            "GEMMA_ENGINE_IMAGE": "mirror/vllm:x",
            "GEMMA_ENGINE_VERSION": "0.31.0",
            "GEMMA_ENGINE_COMMAND": '["vllm", "serve"]',
            "GEMMA_PRIORITY_CLASS_INTERACTIVE": "high",
            "GEMMA_PRIORITY_CLASS_BATCH": "",
        }
    ).defaults
    assert (defaults.engine_image, defaults.engine_version) == ("mirror/vllm:x", "0.31.0")
    assert defaults.engine_command == ("vllm", "serve")
    assert defaults.priority_classes == (("interactive", "high"),)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(
            ("GEMMA_SCALING_TICK_SECONDS", value, "a number above 0")
            for value in ("0", "-1", "soon", "nan", "inf", "1s")
        ),
        ("GEMMA_METRICS_SOURCE", "thanos", "one of prometheus, engines"),
        ("GEMMA_PROMETHEUS_SKIP_TLS_VERIFY", "perhaps", "one of true, false"),
        ("GEMMA_RESYNC_SECONDS", "-5", "a number above 0"),
        *(("GEMMA_METRICS_PORT", value, "a port, 1 to 65535") for value in ("0", "65536", "80.5", "http", "inf", "-1")),
        ("GEMMA_HEALTH_PORT", "99999", "a port, 1 to 65535"),
        ("GEMMA_ROUTING", "on", "one of true, false"),
        ("GEMMA_LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
        ("GEMMA_LOG_FORMAT", "xml", "one of json, plain"),
        *(
            ("GEMMA_ENGINE_COMMAND", value, "a JSON list of strings")
            for value in ("vllm serve", '"vllm"', "[1]", "{}", "[")
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_name_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(BadSetting) as refused:
        read_settings({name: value})
    said = str(refused.value)
    assert said.startswith(f"{name} is {value!r}: it must be {allowed}")


@pytest.mark.parametrize(
    "name", ["GEMMA_METRICS_PORT", "GEMMA_RESYNC_SECONDS", "GEMMA_LOG_LEVEL", "GEMMA_ENGINE_COMMAND"]
)
def test_an_empty_variable_is_an_absent_one(name: str) -> None:
    assert read_settings({name: ""}) == read_settings({})


@pytest.mark.parametrize("value", ["[]", "secret", '{"a": 1}', '"secret"'])
def test_wrong_headers_are_told_without_being_shown(value: str) -> None:
    with pytest.raises(BadSetting, match="must be a JSON object of strings") as refused:
        read_settings({"GEMMA_PROMETHEUS_HEADERS": value})
    assert "secret" not in str(refused.value)


def test_the_engines_can_be_read_although_a_prometheus_is_named() -> None:
    """For the queries of users."""
    both = {"GEMMA_PROMETHEUS_URL": "http://p:9090", "GEMMA_METRICS_SOURCE": "engines"}
    assert read_settings(both).metrics_source == "engines"


def test_a_prometheus_that_is_not_named_can_not_be_the_source() -> None:
    with pytest.raises(BadSetting, match="GEMMA_PROMETHEUS_URL"):
        read_settings({"GEMMA_METRICS_SOURCE": "prometheus"})
