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
{{- /* drain, which follows the longest limit, drain_delay and 10 seconds */ -}}
{{- define "pointsman.grace" -}}
{{- $zero := toDate "2006" "2000" -}}
{{- $limit := mustDateModify (.Values.config.limit | default "60m") $zero -}}
{{- range .Values.config.models -}}
{{- with .limit -}}
{{- $other := mustDateModify . $zero -}}
{{- if $other.After $limit -}}{{- $limit = $other -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $end := $limit -}}
{{- if hasKey .Values.config "drain" -}}{{- $end = mustDateModify (toString .Values.config.drain) $zero -}}{{- end -}}
{{- $delay := "5s" -}}
{{- if hasKey .Values.config "drain_delay" -}}{{- $delay = toString .Values.config.drain_delay -}}{{- end -}}
{{- $end = mustDateModify $delay $end -}}
{{- $need := add 10 (sub (unixEpoch $end) (unixEpoch $zero)) -}}
{{- $set := int64 .Values.terminationGracePeriodSeconds -}}
{{- if and $set (lt $set $need) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d would cut answers that the configuration allows to end: it needs %d; leave it 0, or shorten config.limit or config.drain" $set $need) -}}
{{- end -}}
{{- $set | default $need -}}
{{- end }}
