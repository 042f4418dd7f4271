"""The demo: a cluster, the chart, one GemmaServing, load, a scale-up, and a report of what happened."""
