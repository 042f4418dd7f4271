{{- define "gemma-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end }}

{{/* Base of all object names, at most 50 characters so that every suffix fits in 63; a shortened one keeps distinct by its hash. */}}
{{- define "gemma-operator.fullname" -}}
{{- $name := include "gemma-operator.name" . -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- $full := .Values.fullnameOverride | default (contains $name $release | ternary $release (printf "%s-%s" $release $name)) -}}
{{- if gt (len $full) 50 -}}
{{- printf "%s-%s" ($full | trunc 41 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end }}

{{- define "gemma-operator.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{- define "gemma-operator.prometheusName" -}}
{{- include "gemma-operator.fullname" . }}-prometheus
{{- end }}

{{- define "gemma-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "gemma-operator.fullname" .) "default") -}}
{{- end }}

{{/* Selector labels of a component; never to change, as selectors are immutable. Takes (list root component). */}}
{{- define "gemma-operator.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "gemma-operator.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of an object's metadata; not for Pod templates, which would restart on every chart version. Takes (list root component). */}}
{{- define "gemma-operator.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63)
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "gemma-serving" -}}
{{- $selector := include "gemma-operator.selectorLabels" . | fromYaml -}}
{{- toYaml (merge dict $selector $own $root.Values.commonLabels) -}}
{{- end }}

{{/* Image reference repository[:tag][@digest] under its own or the global registry. Takes (list root image defaultTag). */}}
{{- define "gemma-operator.image" -}}
{{- $image := index . 1 -}}
{{- $registry := (index . 0).Values.global.imageRegistry | default $image.registry -}}
{{- $tag := $image.tag | default (empty $image.digest | ternary (index . 2) "") -}}
{{- if not (or $tag $image.digest) -}}
{{- fail (printf "the image %s has neither a tag nor a digest: set one of the two beside its repository." $image.repository) -}}
{{- end -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- with $tag }}:{{ . }}{{ end -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "gemma-operator.prometheusUrl" -}}
{{- if .Values.prometheus.enabled -}}
{{- with .Values.metrics.prometheusUrl -}}
{{- fail (printf "metrics.prometheusUrl is %q although prometheus.enabled is true: the operator reads one Prometheus. Set prometheus.enabled=false to use your own, or leave metrics.prometheusUrl empty to use the embedded one." .) -}}
{{- end -}}
http://{{ include "gemma-operator.prometheusName" . }}.{{ include "gemma-operator.namespace" . }}.svc:9090
{{- else if and (eq .Values.metrics.source "prometheus") (not .Values.metrics.prometheusUrl) -}}
{{- fail "metrics.source is \"prometheus\" and no Prometheus is named: set metrics.prometheusUrl, set prometheus.enabled=true for the embedded one, or leave metrics.source empty." -}}
{{- else -}}
{{- .Values.metrics.prometheusUrl -}}
{{- end -}}
{{- end }}

{{/* Time a scrape may take, in ms: 80 % of the interval, because Prometheus refuses a timeout above it. */}}
{{- define "gemma-operator.scrapeTimeout" -}}
{{- mul (trimSuffix "s" . | int) 800 }}ms
{{- end }}

{{/* Annotations that let an object outlive the release, under Helm and under Argo CD. */}}
{{- define "gemma-operator.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false
argocd.argoproj.io/compare-options: IgnoreExtraneous
{{- end }}

{{/* Role and binding in every watched namespace, or one ClusterRole and its binding.
     Takes a dict: root, component, name, serviceAccount, rules, clusterRules for what only a ClusterRole can hold, and namespaces in place of the watched ones. */}}
{{- define "gemma-operator.rbac" -}}
{{- $args := . -}}
{{- $scope := empty .root.Values.watchNamespaces | ternary "Cluster" "" -}}
{{- range $namespace := .namespaces | default .root.Values.watchNamespaces | default (list "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}Role
metadata:
  name: {{ $args.name }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "gemma-operator.labels" (list $args.root $args.component) | nindent 4 }}
rules:
  {{- $args.rules | nindent 2 }}
  {{- if and $scope $args.clusterRules }}
  {{- $args.clusterRules | nindent 2 }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}RoleBinding
metadata:
  name: {{ $args.name }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "gemma-operator.labels" (list $args.root $args.component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $scope }}Role
  name: {{ $args.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $args.serviceAccount }}
    namespace: {{ include "gemma-operator.namespace" $args.root | quote }}
{{- end }}
{{- end }}

{{/* "true" where an object of the Prometheus Operator is rendered: it is enabled, and `monitoring.renderMode` lets it. Takes (list root enabled what). */}}
{{- define "gemma-operator.rendersMonitoring" -}}
{{- $root := index . 0 -}}
{{- if index . 1 -}}
{{- $served := $root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- $mode := $root.Values.monitoring.renderMode -}}
{{- if and (eq $mode "failIfMissing") (not $served) -}}
{{- fail (printf "%s is enabled, and the cluster doesn't serve monitoring.coreos.com/v1: install the Prometheus Operator's CRDs first, or set monitoring.renderMode to skipIfMissing. Without a cluster, add --api-versions monitoring.coreos.com/v1 or set it to alwaysRender." (index . 2)) -}}
{{- end -}}
{{- if or $served (ne $mode "skipIfMissing") -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* Security contexts of the restricted Pod Security Standard, with the user's merged over them. Take (list root defaults). */}}
{{- define "gemma-operator.podSecurityContext" -}}
{{- $restricted := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $restricted (index . 1) (index . 0).Values.podSecurityContext) -}}
{{- end }}

{{- define "gemma-operator.securityContext" -}}
{{- $restricted := dict
  "allowPrivilegeEscalation" false
  "readOnlyRootFilesystem" true
  "runAsNonRoot" true
  "capabilities" (dict "drop" (list "ALL"))
  "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $restricted .Values.securityContext) -}}
{{- end }}

{{/* Where the chart's Pods may run and how their images are pulled. */}}
{{- define "gemma-operator.podPlacement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
