package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"pointsman.dev/pointsman/internal/command"
	"pointsman.dev/pointsman/internal/manifests"
)

// Manifests writes Kubernetes manifests for the labels that its flags name to stdout. It returns 2 when it was called wrongly.
func Manifests(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	set := command.Set{Program: "pointsman manifests", About: "Writes Kubernetes manifests for your labels.", Commands: []command.Command{
		{Name: "network-policy", Args: "[flags]", Help: "the network policies of model servers and gateway", Run: networkPolicy},
	}}
	return set.Main(ctx, args, stdout, stderr)
}

func networkPolicy(_ context.Context, args []string, stdout, stderr io.Writer) int {
	p := policyFlags{
		namespace: "models", pods: manifests.Labels{"app.kubernetes.io/name": "pointsman"}, home: "models",
	}
	flags := p.flagSet(stderr)
	if code, done := command.Parse(flags, args, stdout); done {
		return code
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "pointsman manifests network-policy: %q is no flag\n", flags.Arg(0))
		flags.Usage()
		return 2
	}
	for _, port := range []int{p.extProc, p.peers} {
		if port < 0 || port > 65535 {
			fmt.Fprintf(stderr, "pointsman manifests network-policy: %d is no port\n", port)
			return 2
		}
	}
	fmt.Fprint(stdout, p.yaml())
	return 0
}

// policyFlags is what the flags of network-policy say.
type policyFlags struct {
	models    []manifests.ModelPolicy // labels and ports of each pool's pods
	namespace string                  // of the model servers
	ports     []int                   // of those pools that name none
	home      string                  // namespace of the gateway
	pods      manifests.Labels
	monitors  []manifests.Peer
	proxies   []manifests.Peer
	extProc   int
	peers     int
}

func (p *policyFlags) flagSet(stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("pointsman manifests network-policy", flag.ContinueOnError)
	fs.SetOutput(stderr)
	labels := func(dst *manifests.Labels) func(string) error {
		return func(s string) (err error) { *dst, err = manifests.ParseLabels(s); return err }
	}
	namespace := func(dst *string) func(string) error {
		return func(s string) error { *dst = s; return manifests.CheckNamespace(s) }
	}
	peer := func(dst *[]manifests.Peer) func(string) error {
		return func(s string) error {
			one, err := manifests.ParsePeer(s)
			*dst = append(*dst, one)
			return err
		}
	}
	fs.Func("models", "`labels` of the model servers' pods, with ports of their own as app=vllm:8000:8001; repeated for each pool (default app=vllm)", p.addModels)
	fs.Func("namespace", "`namespace` of the model servers (default models)", namespace(&p.namespace))
	fs.Func("port", "`port` of the model servers; repeated for data-parallel ranks (default 8000)", func(s string) error {
		return addPort(&p.ports, s)
	})
	fs.Func("gateway", "`labels` of the gateway's pods (default app.kubernetes.io/name=pointsman)", labels(&p.pods))
	fs.Func("gateway-namespace", "`namespace` of the gateway (default models)", namespace(&p.home))
	fs.Func("prometheus", "`NAMESPACE/labels` of Prometheus; repeated (default monitoring/app.kubernetes.io/name=prometheus)", peer(&p.monitors))
	fs.Func("envoy", "`NAMESPACE/labels` of an Envoy that asks the gateway and connects to the model servers itself; repeated", peer(&p.proxies))
	fs.IntVar(&p.extProc, "extproc-port", 9002, "`port` of the gateway that Envoy asks; only with --envoy")
	fs.IntVar(&p.peers, "peers-port", 9091, "`port` on which replicas of the gateway tell each other their picks; 0: none")
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), `Usage: pointsman manifests network-policy [flags] | kubectl apply -f -

Network policies: one per pool lets the gateway and Prometheus, and nobody else, connect to the model servers; one lets everybody connect
to the gateway's API, Prometheus to its metrics, and its replicas to each other. Labels are name=value,name=value.

Flags:
`)
		fs.PrintDefaults()
	}
	return fs
}

// yaml returns both policies.
func (p *policyFlags) yaml() string {
	if len(p.ports) == 0 {
		p.ports = []int{8000}
	}
	if len(p.models) == 0 {
		p.models = []manifests.ModelPolicy{{Pods: manifests.Labels{"app": "vllm"}}}
	}
	if len(p.monitors) == 0 {
		p.monitors = []manifests.Peer{{Namespace: "monitoring", Pods: manifests.Labels{"app.kubernetes.io/name": "prometheus"}}}
	}
	gateway := manifests.Peer{Pods: p.pods}
	if p.home != p.namespace {
		gateway.Namespace = p.home
	}
	var all []string
	for i, m := range p.models {
		if i > 0 {
			m.Name = fmt.Sprintf("pointsman-model-servers-%d", i+1)
		}
		if len(m.Ports) == 0 {
			m.Ports = p.ports
		}
		m.Namespace, m.From = p.namespace, slices.Concat([]manifests.Peer{gateway}, p.proxies, p.monitors)
		all = append(all, m.YAML())
	}
	own := manifests.GatewayPolicy{Namespace: p.home, Pods: p.pods, API: 8080, Admin: 9090, Monitors: p.monitors, Peers: p.peers}
	if len(p.proxies) > 0 {
		own.ExtProc, own.Proxies = p.extProc, p.proxies
	}
	return strings.Join(append(all, own.YAML()), "---\n")
}

// addModels reads the labels of one pool's pods, and its ports behind them if it has ports of its own.
func (p *policyFlags) addModels(s string) error {
	text, ports, some := strings.Cut(s, ":")
	labels, err := manifests.ParseLabels(text)
	m := manifests.ModelPolicy{Pods: labels}
	if some {
		for port := range strings.SplitSeq(ports, ":") {
			err = errors.Join(err, addPort(&m.Ports, port))
		}
	}
	p.models = append(p.models, m)
	return err
}

func addPort(ports *[]int, s string) error {
	var n int
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || n < 1 || n > 65535 || fmt.Sprint(n) != s {
		return errors.New("want a port, 1 to 65535")
	}
	if slices.Contains(*ports, n) {
		return fmt.Errorf("port %d is there twice", n)
	}
	*ports = append(*ports, n)
	return nil
}
