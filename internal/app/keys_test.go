package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pointsman.dev/pointsman/internal/config"
)

// TestEveryKeyIsHandedOn: what a key says reaches the part of the program that it is for. A key that is read, checked and then
// forgotten would be without effect in silence.
func TestEveryKeyIsHandedOn(t *testing.T) {
	values := map[string]string{ // another value than the default
		"limit": "30m", "first_byte": "30m", "idle": "30m", "keepalive": "5s", "max_body": "1MiB", "cut_stream": "abort",
		"cors.origins": "[https://app.example]", "debug_headers": "true",
		"pools[].policy": "prefix", "pools[].gates": "strict", "pools[].when_full": "requests", "pools[].overflow": "true",
		"pools[].full.waiting": "7", "pools[].full.max_num_seqs": "7", "pools[].full.projected_kv": "0.7", "pools[].full.long_prompt": "7",
		"pools[].queue.max": "7", "pools[].queue.wait": "7s", "pools[].hold": "7s", "pools[].warm": "[{prompt: 7}]",
		"models[].name": "other", "models[].serves": "other", "models[].pools": "[b]", "models[].pools[].serves": "other",
		"models[].limit": "30m", "models[].first_byte": "30m", "models[].idle": "30m",
	}
	elsewhere := map[string]string{ // who has it otherwise
		"listen": "Start", "admin": "Start", "tls": "Start", "tls.cert_file": "TestTLS", "tls.key_file": "TestTLS",
		"drain": "drain, by its tests", "drain_delay": "drain, by its tests",
		"peers": "meetPeers", "peers.listen": "meetPeers", "peers.dns": "meetPeers", "peers.list": "TestReplicas", "peers.tls": "TestReplicas",
		"peers.tls.cert_file": "TestReplicas", "peers.tls.key_file": "TestReplicas", "peers.tls.ca_file": "TestReplicas", "peers.tls.name": "TestReplicas",
		"extproc": "meetEnvoy", "extproc.listen": "meetEnvoy", "extproc.tls": "meetEnvoy", "extproc.tls.cert_file": "newTLS", "extproc.tls.key_file": "newTLS",
		"extproc.other_paths": "extprocConfig", "extproc.conformance": "extprocConfig",
		"log": "newLog", "log.format": "newLog", "log.level": "newLog", "log.prefix_hashes": "TestDemoAccessLog",
		"cors": "its keys", "pools": "its keys", "models": "its keys", "pools[].full": "its keys", "pools[].queue": "its keys",
		"pools[].name": "apply", "pools[].endpoints": "discover", "pools[].file": "discover", "pools[].dns": "discover",
		"pools[].api_key_file":  "the script of keys",
		"models[].pools[].pool": "models[].pools",
		"pools[].warm[].prompt": "pools[].warm", "pools[].warm[].output": "pools[].warm", "pools[].warm[].at_once": "pools[].warm",
	}
	for _, key := range config.Keys() { // structs that kube has too: converted whole, so the compiler sees to it
		if strings.HasPrefix(strings.TrimPrefix(key, "pools[]."), "kubernetes") {
			elsewhere[key] = "discover"
		}
	}
	if all := slices.Sorted(func(yield func(string) bool) {
		maps.Keys(values)(yield)
		maps.Keys(elsewhere)(yield)
	}); !slices.Equal(all, config.Keys()) {
		t.Errorf("keys that this test does not know, or that are none:\n%s", cmp.Diff(config.Keys(), all))
	}
	before := handedOn(t, withKey("", ""))
	for key, value := range values {
		if after := handedOn(t, withKey(key, value)); cmp.Equal(before, after) {
			t.Errorf("%s: %s changes nothing", key, value)
		}
	}
}

// handedOn is what the proxy, the pools and the directory get of a configuration.
func handedOn(t *testing.T, text string) []string {
	t.Helper()
	cfg, err := config.Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	c := dataPlane(cfg)
	parts := []string{fmt.Sprintf("%+v %+v", c.CORS, aliases(cfg))}
	c.CORS = nil // a pointer
	parts = append(parts, fmt.Sprintf("%+v", c))
	for _, p := range cfg.Pools {
		parts = append(parts, fmt.Sprintf("%+v", poolConfig(p)))
	}
	return parts
}

// withKey is a configuration of two pools and a model in which one key has that value.
func withKey(key, value string) string {
	set := func(under, rest string) string {
		name, inside := strings.CutPrefix(key, under)
		switch outer, inner, nested := strings.Cut(name, "."); {
		case key == "" || !inside || strings.Contains(name, "["):
			return rest
		case nested:
			return outer + ": {" + inner + ": " + value + "}, " + rest
		default:
			return name + ": " + value + ", " + rest
		}
	}
	model := "name: m, serves: s, pools: [{" + set("models[].pools[].", "pool: a") + "}, b]"
	for _, own := range []string{"name", "serves", "pools"} { // once each
		if key == "models[]."+own {
			model = map[string]string{"name": "serves: s, pools: [a, b]", "serves": "name: m, pools: [a, b]", "pools": "name: m, serves: s"}[own]
		}
	}
	return "{" + set("", "pools: [{"+set("pools[].", "name: a, endpoints: [http://h:1]")+"}, {name: b, endpoints: [http://h:2]}], models: [{"+set("models[].", model)+"}]") + "}\n"
}
