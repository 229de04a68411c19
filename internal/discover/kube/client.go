package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"
)

// namespaceFile is where the kubelet writes a pod's namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// dial finds the API server. It contacts nobody.
func dial(a Access, log *slog.Logger) (*connection, error) {
	klog.SetSlogLogger(slog.New(demoted{log.Handler()}))
	cfg, namespace, err := a.load()
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "pointsman"
	cfg.QPS = -1 // a handful of lists and watches at the start; the server has its own fairness
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return impatient{rt} })
	wires := connrotation.NewDialer((&net.Dialer{Timeout: connectLimit * 10, KeepAlive: 30 * time.Second}).DialContext)
	cfg.Dial = wires.DialContext
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err = add(scheme); err != nil {
			return nil, err
		}
	}
	// client-go's clientset would bring every group of Kubernetes, with their tables made at the start of each program.
	group := func(path string, gv schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = path, &gv
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		c.ContentType = runtime.ContentTypeProtobuf
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		return rest.RESTClientForConfigAndClient(c, client)
	}
	core, err := group("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	slices, err := group("/apis", discoveryv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	custom, err := dynamic.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	open := func(k kind, namespace string) cache.ListerWatcher {
		switch k {
		case pods:
			// Pods that are over stay until somebody deletes them.
			over := fields.ParseSelectorOrDie("status.phase!=Succeeded,status.phase!=Failed")
			return cache.NewListWatchFromClient(core, "pods", namespace, over)
		case endpointSlices:
			return cache.NewListWatchFromClient(slices, "endpointslices", namespace, fields.Everything())
		}
		resource := custom.Resource(k.inferencePools()).Namespace(namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				return resource.List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				return resource.Watch(ctx, opts)
			},
		}
	}
	return &connection{namespace: namespace, open: open, close: wires.CloseAll}, nil
}

// load returns the client's configuration and the namespace that it is at home in.
func (a Access) load() (*rest.Config, string, error) {
	if a.Kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("reading the pod's service account: %w; outside a cluster name a kubeconfig", err)
		}
		namespace, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, "", fmt.Errorf("reading the pod's namespace: %w", err)
		}
		return cfg, strings.TrimSpace(string(namespace)), nil
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: a.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: a.Context})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading %s: %w", a.Kubeconfig, err)
	}
	namespace, _, err := loader.Namespace()
	return cfg, namespace, err
}

// demoted makes what client-go logs debug messages: its errors are said once, and throttled, by the guard. What client-go
// says only when it is asked to say more is dropped: the bodies of answers are in it, and pods may hold keys.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
