{{- define "gemma-serving.name" -}}
{{- .Values.name | default .Release.Name -}}
{{- end }}

{{- define "gemma-serving.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63)
  "app.kubernetes.io/name" .Chart.Name
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "gemma-serving" -}}
{{- toYaml (merge $own .Values.labels) -}}
{{- end }}
