{{/* The defined templates take a list: the root, the component's name, and where there is more, its values. */}}

{{- define "geofold.labels" -}}
app.kubernetes.io/name: geofold, app.kubernetes.io/instance: {{ (index . 0).Release.Name }}, app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "geofold.name" -}}
{{ (index . 0).Release.Name | trunc 50 | trimSuffix "-" }}-{{ index . 1 }}
{{- end }}

{{- define "geofold.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "geofold.podMetadata" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 }}{{ $port := index . 3 -}}
labels: {{ printf "{%s}" (include "geofold.labels" (list $root $component)) }}
{{- if or $values.podAnnotations (not $root.Values.monitoring.serviceMonitor) }}
annotations:
  {{- if not $root.Values.monitoring.serviceMonitor }}
  prometheus.io/scrape: "true"
  prometheus.io/port: "{{ $port }}"
  {{- end }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What all pods have in common: who they run as and where. */}}
{{- define "geofold.pod" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
serviceAccountName: {{ include "geofold.serviceAccount" $root }}
automountServiceAccountToken: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ printf "{%s}" (include "geofold.labels" (list $root $component)) }}
volumes:
  - name: config
    configMap: {name: {{ $root.Release.Name }}}
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- range $values.secrets }}
        - secret: {name: {{ . }}, optional: true}
        {{- else }}
        []
        {{- end }}
{{- end }}

{{/* What all containers have in common. */}}
{{- define "geofold.container" -}}
{{- $root := index . 0 }}{{ $values := index . 1 -}}
image: {{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- if or $values.env $root.Values.map }}
env:
  {{- if $root.Values.map }}
  - {name: GEOFOLD_GEOSHARDS__MAP, value: /etc/geofold/map.json}
  {{- end }}
  {{- range $name, $value := $values.env }}
  - {name: {{ $name }}, value: {{ $value | toString | quote }}}
  {{- end }}
{{- end }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: config, mountPath: /etc/geofold, readOnly: true}
  - {name: secrets, mountPath: /etc/geofold-secrets, readOnly: true}
{{- end }}

{{/* Of one component one pod at a time is taken away on purpose. */}}
{{- define "geofold.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "geofold.name" . }}
  labels: {{ printf "{%s}" (include "geofold.labels" .) }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ printf "{%s}" (include "geofold.labels" .) }}
{{- end }}
