"""Where the API server is, and who we are there."""

from __future__ import annotations

import yaml
from kubernetes import client, config

from gemma_operator import __version__

# What the client raises for a kubeconfig that names no cluster, is no YAML, or is YAML of another form.
UNUSABLE = (config.ConfigException, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError, OSError)


class NoCluster(Exception):
    """Nothing says where the API server is."""


def connect(who: str) -> client.ApiClient:
    """A client from the Pod's service account, else from the kubeconfig; the audit log tells `who` it is.

    Raises NoCluster.
    """
    try:
        config.load_incluster_config()
    except config.ConfigException:
        try:
            config.load_kube_config()
        except UNUSABLE as error:
            raise NoCluster(f"no cluster to work for: not in a Pod, and KUBECONFIG names none ({error})") from error
    api = client.ApiClient()
    api.user_agent = f"gemma-operator/{__version__} ({who})"
    return api
