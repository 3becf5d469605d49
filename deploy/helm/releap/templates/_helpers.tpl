{{/* Names. */}}
{{- define "releap.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "releap.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "releap.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "releap.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "releap.selector" -}}
app.kubernetes.io/name: {{ include "releap.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Of the release, without a component. */}}
{{- define "releap.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "releap.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "releap.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository is needed: the image of Releap in your registry" $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The host of a URL, without its port. */}}
{{- define "releap.host" -}}
{{- (urlParse .).hostname -}}
{{- end -}}

{{/* Entries of env, sorted by name. Numbers of values are floats: 1000000 must not become 1e+06. */}}
{{- define "releap.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ int64 $value | quote }}{{ else }}{{ toString $value | quote }}{{ end }}
{{- end }}
{{- end -}}

{{/* What both roles are told. */}}
{{- define "releap.commonEnv" -}}
{{- $previewUrl := "" -}}
{{- with .Values.previews.domain -}}
{{- $previewUrl = default (printf "https://%s" .) $.Values.previews.url -}}
{{- end -}}
{{- $env := dict
  "RELEAP_HOME" "/var/lib/releap"
  "RELEAP_HOST" .Values.listenAddress
  "RELEAP_PORT" 7070
  "RELEAP_PUBLIC_URL" .Values.publicUrl
  "RELEAP_TOOLBOX_URL" .Values.gatewayUrl
  "RELEAP_REGION" .Values.region.id
-}}
{{- if .Values.plainHttp }}{{ $_ := set $env "RELEAP_PLAIN_HTTP" 1 }}{{ end -}}
{{- with .Values.region.name }}{{ $_ := set $env "RELEAP_REGION_NAME" . }}{{ end -}}
{{- with .Values.trustedProxies }}{{ $_ := set $env "RELEAP_TRUSTED_PROXIES" (join "," .) }}{{ end -}}
{{- with $previewUrl }}{{ $_ := set $env "RELEAP_PREVIEW_URL" . }}{{ end -}}
{{- toYaml (merge $env .Values.settings) -}}
{{- end -}}

{{/* The database, for control servers and the migration. */}}
{{- define "releap.databaseEnv" -}}
{{- $database := .Values.database -}}
- name: {{ if $database.parameters }}DATABASE_BASE_URL{{ else }}DATABASE_URL{{ end }}
  valueFrom:
    secretKeyRef:
      name: {{ $database.urlSecret.name }}
      key: {{ $database.urlSecret.key }}
{{- with $database.parameters }}
- name: DATABASE_URL
  value: {{ printf "$(DATABASE_BASE_URL)?%s" . | quote }}
{{- end }}
{{- end -}}

{{- define "releap.databaseVolume" -}}
{{- with .Values.database.caSecret }}
{{- if .name }}
- name: database
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items: [{ key: {{ .key | quote }}, path: ca.crt }]
{{- end }}
{{- end }}
{{- end -}}

{{- define "releap.databaseMount" -}}
{{- if .Values.database.caSecret.name }}
- name: database
  mountPath: /etc/releap/database
  readOnly: true
{{- end }}
{{- end -}}

{{- define "releap.secretEnv" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end -}}

{{/* What the pod security standard "restricted" asks for. */}}
{{- define "releap.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.securityContext.runAsUser }}
runAsGroup: {{ .Values.securityContext.runAsGroup }}
fsGroup: {{ .Values.securityContext.runAsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "releap.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "releap.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where pods of a role run. */}}
{{- define "releap.placement" -}}
{{- $role := .values -}}
{{- with $role.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if kindIs "invalid" $role.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "releap.selector" $ | nindent 8 }}
    # Pods of the version before do not count in a rollout.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- else if $role.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml $role.topologySpreadConstraints | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Until Services have noticed that a pod ends, it serves; then it drains (docs/gateway.md), and 15 seconds remain for its own end. */}}
{{- define "releap.preStopSeconds" -}}10{{- end -}}
{{- define "releap.gracePeriod" -}}
{{- add .drainSeconds (include "releap.preStopSeconds" . | int) 20 -}}
{{- end -}}

{{/* Name of the Secret with the certificate of previews; empty without one. */}}
{{- define "releap.previewTlsSecret" -}}
{{- if .Values.previews.domain -}}
{{- if .Values.previews.tls.secretName -}}
{{- .Values.previews.tls.secretName -}}
{{- else if .Values.certManager.enabled -}}
{{- printf "%s-previews-tls" (include "releap.fullname" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "releap.ingressTlsSecret" -}}
{{- default (printf "%s-public-tls" (include "releap.fullname" .)) .Values.ingress.tlsSecretName -}}
{{- end -}}

{{/* A Service whose port has the name of the container's. Its label tells the listeners of a role apart, for monitors. */}}
{{- define "releap.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .scope.root.Release.Namespace }}
  labels:
    {{- include "releap.labels" .scope | nindent 4 }}
    releap.internal/listener: {{ .target }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  {{- if and .service.externalTrafficPolicy (ne .service.type "ClusterIP") }}
  externalTrafficPolicy: {{ .service.externalTrafficPolicy }}
  {{- end }}
  {{- if and .service.loadBalancerSourceRanges (eq .service.type "LoadBalancer") }}
  loadBalancerSourceRanges:
    {{- toYaml .service.loadBalancerSourceRanges | nindent 4 }}
  {{- end }}
  selector:
    {{- include "releap.selector" .scope | nindent 4 }}
  ports:
    - { name: {{ .target }}, port: {{ .port }}, targetPort: {{ .target }}, protocol: TCP }
{{- end -}}
