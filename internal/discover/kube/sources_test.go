package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"pointsman.dev/pointsman/internal/discover"
)

// once returns the set that a source has from a fixed state, "" for none, and the log.
func once(t *testing.T, s Source, k kind, objects ...runtime.Object) (set, log string) {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		delete(a.denied, k)
		for _, o := range objects {
			of := k
			if _, ok := o.(*corev1.Pod); ok {
				of = pods
			}
			a.put(of, o)
		}
		r := start(t, a.cluster(slog.New(slog.NewTextHandler(&out, nil))), s)
		select {
		case got := <-r.up:
			set = fmt.Sprint(texts(got))
		case <-time.After(time.Minute):
		}
	})
	return set, out.String()
}

func TestPodSources(t *testing.T) {
	index := func(n string) func(*corev1.Pod) {
		return labelled("stormservice.orchestration.aibrix.ai/pod-group-index", n)
	}
	model, port := labelled(aibrixName, "llama"), labelled(aibrixPort, "8008")
	hostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	for _, c := range []struct {
		name string
		s    Source
		pods []runtime.Object
		want string
	}{
		{"set-based selector", Source{Selector: "app in (vllm),tier!=test"}, []runtime.Object{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", labelled("tier", "test"))}, "[10.0.0.1:8000]"},
		{"a port per rank", Source{Selector: "app=vllm", Ports: []int{8001, 8000}}, []runtime.Object{aPod("b", "10.0.0.10"), aPod("a", "10.0.0.2")},
			"[10.0.0.2:8000 10.0.0.2:8001 10.0.0.10:8000 10.0.0.10:8001]"},
		{"ranks that are active", Source{Selector: "app=vllm", Ports: []int{8000, 8001, 8002}}, []runtime.Object{aPod("a", "10.0.0.1", annotated("llm-d.ai/active-ports", "8000, 8002,9"))},
			"[10.0.0.1:8000 10.0.0.1:8002]"},
		{"families in order", Source{Selector: "app"}, []runtime.Object{aPod("a", "fd00::2"), aPod("b", "::ffff:10.0.0.1")}, "[10.0.0.1:8000 [fd00::2]:8000]"},
		{"nobody", Source{Selector: "app=absent"}, []runtime.Object{aPod("a", "10.0.0.1")}, "[]"},
		{"aibrix port label", Source{AIBrix: "llama"}, []runtime.Object{aPod("a", "10.0.0.1", model, port), aPod("b", "10.0.0.2", model), aPod("c", "10.0.0.3")},
			"[10.0.0.1:8008 10.0.0.2:8000]"},
		{"aibrix metrics port", Source{AIBrix: "llama"}, []runtime.Object{aPod("a", "10.0.0.1", model, port, labelled(aibrixMetrics, "8080")), aPod("b", "10.0.0.2", model, port, labelled(aibrixMetrics, "8008"))},
			"[10.0.0.1:8008 (metrics at 8080) 10.0.0.2:8008]"},
		{"aibrix pods of one node", Source{AIBrix: "llama"}, []runtime.Object{aPod("a", "10.1.0.1", model, port, hostNetwork), aPod("b", "10.1.0.1", model, labelled(aibrixPort, "8009"), hostNetwork)},
			"[10.1.0.1:8008 10.1.0.1:8009]"},
		{"aibrix draining and unready", Source{AIBrix: "llama"}, []runtime.Object{aPod("a", "10.0.0.1", model, annotated("aibrix.ai/draining", "true")), aPod("b", "10.0.0.2", model, notReady)}, "[]"},
		{"aibrix group", Source{AIBrix: "llama"}, []runtime.Object{aPod("a", "10.0.0.1", model, index("0")), aPod("b", "10.0.0.2", model, index("1"))}, "[10.0.0.1:8000]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, log := once(t, c.s, pods, c.pods...); got != c.want {
				t.Errorf("got %s, want %s\n%s", got, c.want, log)
			}
		})
	}
}

func TestServices(t *testing.T) {
	place := func(ip string, ready, serving, terminating *bool) discoveryv1.Endpoint {
		e := aPlace(ip, "")
		e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
		return e
	}
	yes, no := new(true), new(false)
	ports := func(s *discoveryv1.EndpointSlice, list ...discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
		s.Ports = list
		return s
	}
	http, grpc := discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(8000))}, discoveryv1.EndpointPort{Name: new("grpc"), Port: new(int32(8033))}
	h2c := grpc
	h2c.AppProtocol = new("kubernetes.io/h2c")
	other := aSlice("other", aPlace("10.9.9.9", ""))
	other.Labels[discoveryv1.LabelServiceName] = "another"
	for _, c := range []struct {
		name   string
		port   string
		slices []runtime.Object
		want   string
		log    string
	}{
		{"conditions", "", []runtime.Object{aSlice("a",
			place("10.0.0.1", nil, nil, nil), place("10.0.0.2", yes, yes, no), place("10.0.0.3", no, yes, yes), place("10.0.0.4", no, no, no),
			place("10.0.0.5", yes, no, no),   // published although it is not ready
			place("10.0.0.6", yes, yes, yes), // and although it ends
			place("10.0.0.7", nil, no, nil), place("10.0.0.8", no, nil, nil)), other}, "[10.0.0.1:8000 10.0.0.2:8000]", ""},
		{"in two slices", "", []runtime.Object{aSlice("a", aPlace("10.0.0.2", "u2")), aSlice("b", aPlace("10.0.0.1", "u1"), aPlace("10.0.0.2", "u2"))}, "[10.0.0.1:8000 10.0.0.2:8000]", ""},
		{"of two families", "", []runtime.Object{aSlice("a", aPlace("fd00::1", "u1"), aPlace("fd00::2", "u2")), aSlice("b", aPlace("10.0.0.1", "u1"))}, "[10.0.0.1:8000 [fd00::2]:8000]", ""},
		{"a port by name", "grpc", []runtime.Object{ports(aSlice("a", aPlace("10.0.0.1", "")), http, grpc)}, "[10.0.0.1:8033]", ""},
		{"a port by number", "8033", []runtime.Object{ports(aSlice("a", aPlace("10.0.0.1", "")), http, grpc)}, "[10.0.0.1:8033]", ""},
		{"ports left open", "9000", []runtime.Object{ports(aSlice("a", aPlace("10.0.0.1", "")))}, "[10.0.0.1:9000]", ""},
		{"h2c", "grpc", []runtime.Object{ports(aSlice("a", aPlace("10.0.0.1", "")), http, h2c)}, "[10.0.0.1:8033]", "appProtocol=kubernetes.io/h2c"},
		{"which port", "", []runtime.Object{ports(aSlice("a", aPlace("10.0.0.1", "")), http, grpc)}, "", "say which one with port"},
		{"no such port", "80", []runtime.Object{aSlice("a", aPlace("10.0.0.1", ""))}, "", "have no port 80"},
		{"none ready, ports unknown", "", []runtime.Object{ports(aSlice("a"))}, "[]", ""},
		{"no slice", "", nil, "[]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, log := once(t, Source{Service: "vllm", Port: c.port}, endpointSlices, c.slices...)
			if got != c.want || !strings.Contains(log, c.log) {
				t.Errorf("got %s, want %s and %q in the log\n%s", got, c.want, c.log, log)
			}
		})
	}
}

func TestInferencePools(t *testing.T) {
	alpha := map[string]any{"selector": map[string]any{"app": "vllm"}, "targetPortNumber": int64(8000)}
	h2c := v1Spec("vllm", 8000)
	h2c["appProtocol"] = "kubernetes.io/h2c"
	for _, c := range []struct {
		name string
		k    kind
		pool runtime.Object
		want string
		log  string
	}{
		{"v1", poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8000, 8001)), "[10.0.0.1:8000 10.0.0.1:8001]", ""},
		{"v1alpha2", poolsV1Alpha2, poolObject(poolsV1Alpha2, "chat", alpha), "[10.0.0.1:8000]", ""},
		{"without labels", poolsV1, poolObject(poolsV1, "chat", map[string]any{"targetPorts": []any{map[string]any{"number": int64(1)}}}), "", "its selector has no labels"},
		{"without a port", poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm")), "", "no target port"},
		{"with an odd port", poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 70000)), "", "70000 is no port"},
		{"of another shape", poolsV1, poolObject(poolsV1, "chat", map[string]any{"selector": "app=vllm"}), "", "reading InferencePool models/chat"},
		{"of another protocol", poolsV1, poolObject(poolsV1, "chat", h2c), "[10.0.0.1:8000]", "appProtocol is not followed"},
		{"of another name", poolsV1, poolObject(poolsV1, "other", v1Spec("vllm", 8000)), "", "there is no InferencePool models/chat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, log := once(t, Source{InferencePool: "chat"}, c.k, c.pool, aPod("a", "10.0.0.1"))
			if got != c.want || !strings.Contains(log, c.log) {
				t.Errorf("got %s, want %s and %q in the log\n%s", got, c.want, c.log, log)
			}
		})
	}
}

// An InferencePool changes its ports and its selector, is broken, deleted and made again; the pods are followed all along.
func TestInferencePoolLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newFakeAPI()
		a.put(pods, aPod("a", "10.0.0.1"))
		r := start(t, a.cluster(slog.New(slog.NewTextHandler(&out, nil))), Source{InferencePool: "chat"})
		r.quiet(time.Minute)
		a.with(func() { delete(a.denied, poolsV1) }) // the definition is installed
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8000, 8001)))
		r.want(absentPause+10*time.Second, "10.0.0.1:8000", "10.0.0.1:8001")
		const soon = 100 * time.Millisecond
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8001)))
		r.want(soon, "10.0.0.1:8001")
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("none", 8001)))
		r.want(soon)
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8001)))
		r.want(soon, "10.0.0.1:8001")
		a.put(poolsV1, poolObject(poolsV1, "chat", map[string]any{}))
		r.quiet(time.Second)
		a.remove(poolsV1, "chat")
		r.quiet(time.Second)
		a.put(pods, aPod("b", "10.0.0.2"))
		a.put(pods, aPod("a", "10.0.0.1", terminating))
		r.want(soon, "10.0.0.2:8001")
		a.put(poolsV1, poolObject(poolsV1, "chat", v1Spec("vllm", 8002)))
		r.want(soon, "10.0.0.2:8002")
		r.stop()
		if n := strings.Count(out.String(), "whole again"); n != 2 {
			t.Errorf("%d recoveries, want 2:\n%s", n, out.String())
		}
	})
}

func TestSettings(t *testing.T) {
	container := func(command, args []string, env ...corev1.EnvVar) corev1.Container {
		return corev1.Container{Command: command, Args: args, Env: env}
	}
	sh := func(script string, env ...corev1.EnvVar) corev1.Container {
		return container([]string{"/bin/sh", "-c", script}, nil, env...)
	}
	secret := corev1.EnvVar{Name: "SEQS", ValueFrom: &corev1.EnvVarSource{}}
	for _, c := range []struct {
		name string
		c    corev1.Container
		want discover.Settings
	}{
		{"vllm", container([]string{"vllm", "serve", "m"}, []string{"--max-num-seqs", "64", "--max-num-batched-tokens=8192", "--max-model-len", "32K", "--api-key", "sk-1"}),
			discover.Settings{MaxNumSeqs: 64, MaxBatchedTokens: 8192, MaxModelLen: 32768}},
		{"underscores, k and the last one counts", container(nil, []string{"--max_num_seqs=8", "--max_num_seqs=16", "--max-model-len=1.5k", "--enable-prefix-caching"}),
			discover.Settings{MaxNumSeqs: 16, MaxModelLen: 1500, PrefixCaching: discover.On}},
		{"caching off", container(nil, []string{"--no-enable-prefix-caching", "--max-model-len", "auto"}), discover.Settings{PrefixCaching: discover.Off}},
		{"sglang", container(nil, []string{"--max-running-requests", "48", "--context-length", "8192", "--chunked-prefill-size", "-1", "--disable-radix-cache"}),
			discover.Settings{MaxNumSeqs: 48, MaxModelLen: 8192, PrefixCaching: discover.Off}},
		{"trtllm", container([]string{"trtllm-serve"}, []string{"--max_batch_size", "32", "--max_num_tokens", "4096", "--max_seq_len", "16384"}),
			discover.Settings{MaxNumSeqs: 32, MaxBatchedTokens: 4096, MaxModelLen: 16384}},
		{"tgi's environment", container(nil, nil, corev1.EnvVar{Name: "MAX_TOTAL_TOKENS", Value: "4096"}, corev1.EnvVar{Name: "MAX_BATCH_PREFILL_TOKENS", Value: "2048"}),
			discover.Settings{MaxModelLen: 4096, MaxBatchedTokens: 2048}},
		{"a script", container([]string{"/bin/sh", "-c"}, []string{"set -e\nexec vllm serve $MODEL \\\n  --max-num-seqs ${SEQS} --max-model-len '4096';"}, corev1.EnvVar{Name: "SEQS", Value: "12"}),
			discover.Settings{MaxNumSeqs: 12, MaxModelLen: 4096}},
		{"variables of variables", container(nil, []string{"--max-num-seqs=$(N)"}, corev1.EnvVar{Name: "A", Value: "7"}, corev1.EnvVar{Name: "N", Value: "$(A)2"}), discover.Settings{MaxNumSeqs: 72}},
		{"a secret's value", container(nil, []string{"--max-num-seqs=$(SEQS)", "--max-model-len=9"}, secret), discover.Settings{MaxModelLen: 9}},
		{"quoted values", sh(`exec vllm serve "$MODEL" --max-num-seqs="$N" --max-model-len='4096' --max-num-batched-tokens "8192"`, corev1.EnvVar{Name: "N", Value: "8"}),
			discover.Settings{MaxNumSeqs: 8, MaxModelLen: 4096, MaxBatchedTokens: 8192}},
		{"commented out", sh("# --max-num-seqs 1\nvllm serve m --max-model-len 4096 # --max-num-seqs 2\n"), discover.Settings{MaxModelLen: 4096}},
		{"between commands", sh("ulimit -n 9;(vllm serve m --max-num-seqs 8)|tee log&wait;exit"), discover.Settings{MaxNumSeqs: 8}},
		{"defaults of variables", sh("vllm serve m --max-num-seqs ${N:-64} --max-model-len=${LEN:-${X}} --max-num-batched-tokens ${TOKENS-2k} ${UNSET:?}", corev1.EnvVar{Name: "TOKENS", Value: "1024"}),
			discover.Settings{MaxNumSeqs: 64, MaxBatchedTokens: 1024}},
		{"variables of the script", sh("export N=${N:-48}\nARGS=\"--max-num-seqs $N --no-enable-prefix-caching\"\nFOO=1 vllm serve m $ARGS"), discover.Settings{MaxNumSeqs: 48, PrefixCaching: discover.Off}},
		{"a script in a script", container([]string{"bash", "-c"}, []string{`sh -ec "exec vllm serve m --max-num-seqs '8'"`}), discover.Settings{MaxNumSeqs: 8}},
		{"flags in a variable", sh(`eval "vllm serve m ${VLLM_ADDITIONAL_ARGS}"`, corev1.EnvVar{Name: "VLLM_ADDITIONAL_ARGS", Value: "--max-num-seqs 8\n--max-model-len=8k"}), discover.Settings{MaxNumSeqs: 8, MaxModelLen: 8000}},
		{"flags in the kubelet's variable", container([]string{"/bin/sh", "-c", "vllm serve m $(ARGS)"}, nil, corev1.EnvVar{Name: "ARGS", Value: "--max-num-seqs 8"}), discover.Settings{MaxNumSeqs: 8}},
		{"escaped", container(nil, []string{"--max-num-seqs=$$(N)", "--max-model-len=9"}, corev1.EnvVar{Name: "N", Value: "8"}), discover.Settings{MaxModelLen: 9}},
		{"split over command and args", container([]string{"python3", "-m", "vllm.entrypoints.openai.api_server", "--max-num-seqs"}, []string{"8"}), discover.Settings{MaxNumSeqs: 8}},
		{"the leader of a group", sh("bash /vllm-workspace/examples/online_serving/multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);\n python3 -m vllm.entrypoints.openai.api_server --port 8080 --model m " +
			"--tensor-parallel-size 8 --pipeline_parallel_size 2 --max-num-seqs 256;"), discover.Settings{MaxNumSeqs: 256}},
		{"a worker of a group", sh("bash /vllm-workspace/examples/online_serving/multi-node-serving.sh worker --ray_address=$(LWS_LEADER_ADDRESS)"), discover.Settings{}},
		{"json", container(nil, []string{`--compilation-config={"max_num_seqs": 7, "x": "--max-num-seqs=7"}`, "--max-num-seqs=8"}), discover.Settings{MaxNumSeqs: 8}},
		{"a quote that does not end", sh("echo 'don't'; vllm serve m --max-num-seqs 8"), discover.Settings{MaxNumSeqs: 8}},
		{"nothing", container([]string{"sleep"}, []string{"--max-num-seqs"}), discover.Settings{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container(nil, []string{"--verbose"}), c.c}}}
			if got := settingsOf(p)[0]; got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// Of several containers each speaks for the ports that it declares, and the first that says something for the others.
func TestSettingsOfSeveralContainers(t *testing.T) {
	container := func(args string, ports ...int32) corev1.Container {
		c := corev1.Container{Args: strings.Fields(args)}
		for _, p := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: p})
		}
		return c
	}
	p := aPod("a", "10.0.0.1", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{container("--verbose", 8003), container("--max-num-seqs 64", 8000), container("--max-num-seqs 16", 8001, 8002), container("--max-num-seqs 4")}
	})
	want := map[int]int{8000: 64, 8001: 16, 8002: 16, 8003: 64, 9000: 64}
	got := map[int]int{}
	for _, e := range reducePod(p).(*pod).endpoints([]int{8000, 8001, 8002, 8003, 9000}) {
		got[int(e.addr.Port())] = e.settings.MaxNumSeqs
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Variables that are each twice the one before take neither memory nor time, in the environment and in a script.
func TestSettingsAreBounded(t *testing.T) {
	var c corev1.Container
	script := "A=0123456789\n"
	c.Env = []corev1.EnvVar{{Name: "V0", Value: "0123456789"}}
	for i := range 60 {
		script += "A=$A$A\n"
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i+1), Value: fmt.Sprintf("$(V%d)$(V%d)", i, i)})
	}
	c.Args = []string{"--max-num-seqs=8", "$(V60)", script + strings.Repeat("$A ", 1000)}
	allocated := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if s := containerSettings(&c); s.MaxNumSeqs != 8 {
				b.Errorf("%+v", s)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 64*maxExpansion {
		t.Errorf("%d bytes were allocated", allocated)
	}
}

// Settings reach the targets only where they were asked for, of a Service's pods too, and there only if pods may be read.
func TestReadArgs(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Source
		want int
	}{
		{"not asked for", Source{Selector: "app=vllm"}, 0},
		{"pods", Source{Selector: "app=vllm", ReadArgs: true}, 64},
		{"service", Source{Service: "vllm", ReadArgs: true}, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newFakeAPI()
				a.put(pods, aPod("a", "10.0.0.1", func(p *corev1.Pod) {
					p.Spec.Containers = []corev1.Container{{Args: []string{"--max-num-seqs=64"}}}
				}))
				a.put(endpointSlices, aSlice("s", aPlace("10.0.0.1", "uid-a")))
				r := start(t, a.cluster(quietLog()), c.s)
				last := <-r.up
				select { // the pods may come after the slices
				case last = <-r.up:
				case <-time.After(time.Minute):
				}
				if len(last) != 1 || last[0].Settings.MaxNumSeqs != c.want || last[0].ID != "uid-a" {
					t.Errorf("got %+v, want %d sequences", last, c.want)
				}
			})
		})
	}
}
