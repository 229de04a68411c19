{{- define "pointsman.labels" -}}
app.kubernetes.io/name: pointsman
{{- end }}
{{- /* pods of a namespace, as one element: both have to match */ -}}
{{- define "pointsman.pods" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .namespace }}
  podSelector:
    matchLabels:
      {{- toYaml .labels | nindent 6 }}
{{- end }}
