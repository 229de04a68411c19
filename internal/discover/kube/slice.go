package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// slice is one EndpointSlice of a Service. It never changes.
type slice struct {
	service string
	ports   []slicePort
	places  []place
}

type slicePort struct {
	name   string
	number int    // 0: the slice leaves it open
	speaks string // appProtocol
}

// place is one address of a slice, with the pod that has it.
type place struct {
	addr netip.Addr
	uid  string // "": no pod that we know of
}

// reduceSlice returns nil for a slice of no Service, and leaves out the addresses that are not to be used.
func reduceSlice(s *discoveryv1.EndpointSlice) any {
	r := &slice{service: s.Labels[discoveryv1.LabelServiceName]}
	if r.service == "" {
		return nil
	}
	for _, p := range s.Ports {
		var port slicePort
		if p.Name != nil {
			port.name = *p.Name
		}
		if p.Port != nil {
			port.number = int(*p.Port)
		}
		if p.AppProtocol != nil {
			port.speaks = *p.AppProtocol
		}
		r.ports = append(r.ports, port)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !serves(e.Conditions) || len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0]) // consumers take the first; of a pod there is no other
		if err != nil {
			continue
		}
		p := place{addr: addr.Unmap()}
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			p.uid = string(e.TargetRef.UID)
		}
		r.places = append(r.places, p)
	}
	return r
}

// serves follows the API: nil means ready, and serving is ready without regard to termination. A Service that publishes
// addresses that are not ready says ready of every one of them: serving is then what tells.
func serves(c discoveryv1.EndpointConditions) bool {
	is := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	ready := is(c.Ready, true)
	return ready && is(c.Serving, ready) && !is(c.Terminating, false)
}

// served returns the endpoints of a Service. A pod that has an address of each family stands in two slices and is one
// model server: it is spoken to by IPv4.
func served(list []*slice, known []*pod, s Source) ([]endpoint, error) {
	byUID := make(map[string]*pod, len(known))
	for _, p := range known {
		byUID[p.uid] = p
	}
	first := map[string]netip.Addr{} // of a pod
	var places []*slice
	for _, sl := range list {
		if sl.service != s.Service {
			continue
		}
		places = append(places, sl)
		for _, p := range sl.places {
			if have, ok := first[p.uid]; p.uid != "" && (!ok || p.addr.Compare(have) < 0) {
				first[p.uid] = p.addr
			}
		}
	}
	var found []endpoint
	for _, sl := range places {
		if len(sl.places) == 0 {
			continue
		}
		port, err := sl.port(s.Port)
		if err != nil {
			return nil, err
		}
		for _, p := range sl.places {
			if p.uid != "" && first[p.uid] != p.addr {
				continue
			}
			e := endpoint{addr: netip.AddrPortFrom(p.addr, uint16(port)), id: p.uid}
			if known := byUID[p.uid]; known != nil {
				e.born, e.settings = known.born, known.at(port)
			}
			found = append(found, e)
		}
	}
	return found, nil
}

// protocolOf returns what the port of a Service is said to speak, "" when nothing is said.
func protocolOf(list []*slice, s Source) string {
	for _, sl := range list {
		number, err := sl.port(s.Port)
		if sl.service != s.Service || err != nil {
			continue
		}
		for _, p := range sl.ports {
			if p.number == number && p.speaks != "" {
				return p.speaks
			}
		}
	}
	return ""
}

// port finds the port that is meant by a name or a number, "" being the only one there is.
func (s *slice) port(want string) (int, error) {
	number, err := strconv.Atoi(want)
	if err != nil {
		number = 0
	}
	open := len(s.ports) == 0 || slices.ContainsFunc(s.ports, func(p slicePort) bool { return p.number == 0 })
	if open && number > 0 {
		return number, nil
	}
	names := make([]string, len(s.ports))
	for i, p := range s.ports {
		if p.number > 0 && (p.number == number || want != "" && p.name == want || want == "" && len(s.ports) == 1) {
			return p.number, nil
		}
		names[i] = strings.TrimSpace(fmt.Sprintf("%d %s", p.number, p.name))
	}
	if want == "" {
		return 0, fmt.Errorf("the Service has the ports %q: say which one with port", names)
	}
	return 0, fmt.Errorf("the Service's pods have no port %s, there are %q", want, names)
}
