{{- define "autolabel.fullname" -}}
{{- if contains "autolabel" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-autolabel{{ end -}}
{{- end }}

{{/* Labels that select pods of a component: (dict "root" $ "component" "worker"). */}}
{{- define "autolabel.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "autolabel.labels" -}}
{{ include "autolabel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "autolabel.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels: {{- include "autolabel.labels" . | nindent 2 }}
{{- end }}

{{/* (dict "root" $ "image" "gpu") */}}
{{- define "autolabel.image" -}}
{{- $image := index .root.Values.images .image -}}
{{- $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Account of those who read and write the bucket. */}}
{{- define "autolabel.account" -}}
{{- .Values.serviceAccount.name | default (include "autolabel.fullname" .) }}
{{- end }}

{{/* What every pod has: (dict "root" $ "uid" 10001); with "storage" true the account that has the bucket's role. */}}
{{- define "autolabel.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
serviceAccountName: {{ if .storage }}{{ include "autolabel.account" .root }}{{ else }}{{ include "autolabel.fullname" .root }}-no-role{{ end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .uid }}
  runAsGroup: {{ .uid }}
  fsGroup: {{ .uid }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "autolabel.container" -}}
imagePullPolicy: {{ .Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* A variable from the Secret: (dict "root" $ "name" NAME "key" KEY); the key is the name if left out. */}}
{{- define "autolabel.secret" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.global.existingSecret }}, key: {{ .key | default .name }}}}
{{- end }}

{{/* Prefect's chart asks for the same name, and cannot make one of the release's. */}}
{{- define "autolabel.jobTemplate" -}}
{{ index .Values "prefect-worker" "worker" "config" "baseJobTemplate" "existingConfigMapName" }}
{{- end }}

{{/* Variables of whatever runs our code beside Prefect, storage and FiftyOne's database. */}}
{{- define "autolabel.env" -}}
- {name: PREFECT_API_URL, value: {{ .Values.prefectApiUrl | quote }}}
{{ include "autolabel.secret" (dict "root" . "name" "PREFECT_API_AUTH_STRING") }}
{{ include "autolabel.secret" (dict "root" . "name" "FIFTYONE_DATABASE_URI") }}
{{- with .Values.objectStorage }}
- {name: AWS_DEFAULT_REGION, value: {{ .region | quote }}}
{{- if .endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ .endpoint | quote }}}
{{- end }}
{{- if eq .credentials "secret" }}
{{ include "autolabel.secret" (dict "root" $ "name" "AWS_ACCESS_KEY_ID") }}
{{ include "autolabel.secret" (dict "root" $ "name" "AWS_SECRET_ACCESS_KEY") }}
{{- end }}
{{- end }}
{{- end }}

{{- define "autolabel.claim" -}}
{{- $claim := index .root.Values.claims .claim -}}
{{- $claim.existingClaim | default (printf "%s-%s" (include "autolabel.fullname" .root) .claim) -}}
{{- end }}

{{/* Below the cache folder: (dict "root" $ "gpu" "h100" "frames" true); gpu "" for no engines, which fit one kind of GPU
and one version. The claim's name has no version: an upgrade would delete the old one, which a rollback needs. */}}
{{- define "autolabel.mounts" -}}
- {name: scratch, mountPath: /tmp, subPath: tmp}
- {name: scratch, mountPath: /home/autolabel, subPath: home}
- {name: scratch, mountPath: /var/cache/autolabel, subPath: cache}
{{- range list "models" "checkpoints" "detectors" }}
- {name: models, mountPath: /var/cache/autolabel/{{ . }}, subPath: {{ . }}}
{{- end }}
{{- if .gpu }}
{{- range list "engines" "torch" "certificates" }}
- {name: engines, mountPath: /var/cache/autolabel/{{ . }}, subPath: {{ $.gpu }}/{{ $.root.Chart.AppVersion }}/{{ . }}}
{{- end }}
{{- end }}
{{- if and .frames .root.Values.app.enabled }}
{{- range list "frames" "videos" }}
- {name: frames, mountPath: /var/cache/autolabel/{{ . }}, subPath: {{ . }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "autolabel.volumes" -}}
- {name: scratch, emptyDir: {sizeLimit: {{ .scratch }}}}
- {name: models, persistentVolumeClaim: {claimName: {{ include "autolabel.claim" (dict "root" .root "claim" "models") }}}}
{{- if .gpu }}
- {name: engines, persistentVolumeClaim: {claimName: {{ include "autolabel.claim" (dict "root" .root "claim" "engines") }}}}
{{- end }}
{{- if and .frames .root.Values.app.enabled }}
- {name: frames, persistentVolumeClaim: {claimName: {{ include "autolabel.claim" (dict "root" .root "claim" "frames") }}}}
{{- end }}
{{- end }}

{{/* Requests and limits with the device, which is a limit, and the scratch, which is the node's disk. */}}
{{- define "autolabel.resources" -}}
{{- $disk := dict "ephemeral-storage" .scratch }}
{{- $device := dict }}
{{- with .device }}{{ $_ := set $device . 1 }}{{ end }}
{{- toYaml (mergeOverwrite (dict "requests" $disk) (deepCopy .resources) (dict "limits" $device)) }}
{{- end }}

{{- define "autolabel.placement" -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" }}
{{- with index $.values $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
