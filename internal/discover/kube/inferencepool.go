package kube

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// inferencePool is what an InferencePool of either version says of its endpoints. It never changes.
type inferencePool struct {
	selector map[string]string
	ports    []int
	protocol string // appProtocol
	err      error  // it cannot be read
}

// reducePool reads an InferencePool. What cannot be read is kept as its error: the pool goes on with what it was.
func reducePool(u *unstructured.Unstructured) any {
	var p inferencePool
	gv := u.GroupVersionKind().GroupVersion()
	if gv == poolsV1.inferencePools().GroupVersion() {
		var v1 struct {
			Spec struct {
				Selector struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"selector"`
				TargetPorts []struct {
					Number int `json:"number"`
				} `json:"targetPorts"`
				AppProtocol string `json:"appProtocol"`
			} `json:"spec"`
		}
		p.err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v1)
		p.selector, p.protocol = v1.Spec.Selector.MatchLabels, v1.Spec.AppProtocol
		for _, port := range v1.Spec.TargetPorts {
			p.ports = append(p.ports, port.Number)
		}
	} else {
		var alpha struct {
			Spec struct {
				Selector         map[string]string `json:"selector"`
				TargetPortNumber int               `json:"targetPortNumber"`
			} `json:"spec"`
		}
		p.err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &alpha)
		p.selector, p.ports = alpha.Spec.Selector, []int{alpha.Spec.TargetPortNumber}
	}
	if p.err == nil {
		p.err = p.check()
	}
	return &p
}

// check refuses what a definition of another hand may let through. A selector without labels would take every pod of
// the namespace, this one too.
func (p *inferencePool) check() error {
	if len(p.selector) == 0 {
		return errors.New("its selector has no labels")
	}
	if len(p.ports) == 0 {
		return errors.New("it has no target port")
	}
	for _, port := range p.ports {
		if port < 1 || port > 65535 {
			return fmt.Errorf("its target port %d is no port", port)
		}
	}
	_, err := labels.ValidatedSelectorFromSet(p.selector)
	return err
}
