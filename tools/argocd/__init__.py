"""A real Argo CD beside a cluster, without containers; tests/argocd uses it."""
