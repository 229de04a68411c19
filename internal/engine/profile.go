package engine

import (
	"slices"
	"time"
)

// Profile prices a step: A + B*decodes + C*context of decodes + P*prefill tokens + Q*sum(new*(context + new/2)).
// All coefficients are in seconds and >= 0.
type Profile struct {
	A float64 // per step
	B float64 // per decoding sequence
	C float64 // per context token of the decoding sequences
	P float64 // per prefill token
	Q float64 // per prefill token and token that it attends to
}

// Duration is the price of a step with the given totals; attention = sum(new*(context + new/2)).
func (p Profile) Duration(decodes int, context int64, prefill int, attention float64) time.Duration {
	s := p.A + p.B*float64(decodes) + p.C*float64(context) + p.P*float64(prefill) + p.Q*attention
	return time.Duration(s * float64(time.Second))
}

const (
	ms = 1e-3
	us = 1e-6
)

type namedProfile struct {
	name string
	Profile
}

// profiles: the first group are fits to measured points (aiconfigurator silicon samples; make fidelity plays the load tests of those
// points against them, TestFidelity holds them to 10 % of the median point and 25 % of the 95th percentile). Their attention term is
// 4*layers*heads*head size operations per pair of tokens at 65 % of the peak of the GPUs, which is what the measured points of
// Qwen3-32B show. Then fits that others published (BLIS beta coefficients, Vidur profiles; attention and context terms derived from
// peak compute and bandwidth). tiny-cpu is the two-layer model of the recordings in testdata: steps of 3 to 4 ms, a 256-token
// chunk in about 10 ms.
func profiles() []namedProfile {
	return []namedProfile{
		{"qwen3-32b-h100-tp2", Profile{14.33 * ms, 0.0583 * ms, 0.0489 * us, 49.8 * us, 1.6e-6 * ms}},
		{"qwen3-32b-h100-tp4", Profile{9.45 * ms, 0.0585 * ms, 0.0248 * us, 29.2 * us, 0.8e-6 * ms}},
		{"qwen3-32b-h100-tp8", Profile{7.44 * ms, 0.0700 * ms, 0, 19.0 * us, 0.4e-6 * ms}},
		{"llama-3.1-8b-h100", Profile{6.55 * ms, 0, 0.0483 * us, 20.2 * us, 0.8e-6 * ms}},
		{"llama-3.1-70b-fp8-h100-tp4", Profile{11.12 * ms, 0.0514 * ms, 0.0279 * us, 46.5 * us, 1.0e-6 * ms}},
		{"llama-3.1-70b-fp8-h100-tp8", Profile{8.90 * ms, 0.0607 * ms, 0.0115 * us, 30.9 * us, 0.5e-6 * ms}},
		{"llama-3.1-70b-fp8-h200", Profile{20.57 * ms, 0.0619 * ms, 0.0727 * us, 128.0 * us, 4.6e-6 * ms}},
		{"llama-3.1-70b-fp8-h200-tp4", Profile{9.28 * ms, 0.0423 * ms, 0.0209 * us, 44.3 * us, 1.0e-6 * ms}},
		{"llama-3.1-8b-h100-blis", Profile{5.75 * ms, 6.0 * us, 0.065 * us, 17.25 * us, 1.2e-6 * ms}},
		{"granite-3.1-8b-h100-tp2", Profile{2.40 * ms, 8.9 * us, 0.033 * us, 11.77 * us, 0.6e-6 * ms}},
		{"qwen2.5-7b-h100-tp4", Profile{2.21 * ms, 10 * us, 0.007 * us, 16.8 * us, 0.3e-6 * ms}},
		{"codellama-34b-h100", Profile{26.6 * ms, 56.6 * us, 0.098 * us, 96.3 * us, 3e-6 * ms}},
		{"llama-3-8b-a100", Profile{9.8 * ms, 25 * us, 0.107 * us, 67 * us, 4.4e-6 * ms}},
		{"llama-3-70b-a100-tp4", Profile{25.0 * ms, 33 * us, 0.067 * us, 160 * us, 5.5e-6 * ms}},
		{"llama-3-70b-a100-tp8", Profile{14.4 * ms, 22 * us, 0.034 * us, 88 * us, 2.8e-6 * ms}},
		{"llama-2-70b-h100-tp4", Profile{14.5 * ms, 14 * us, 0.041 * us, 52 * us, 1.5e-6 * ms}},
		{"llama-2-70b-h100-tp8", Profile{8.4 * ms, 11 * us, 0.020 * us, 30 * us, 0.75e-6 * ms}},
		{"tiny-cpu", Profile{3 * ms, 0.1 * ms, 0, 30 * us, 0}},
		{"instant", Profile{}},
	}
}

// ProfileByName returns a built-in profile; false for an unknown name.
func ProfileByName(name string) (Profile, bool) {
	for _, p := range profiles() {
		if p.name == name {
			return p.Profile, true
		}
	}
	return Profile{}, false
}

// ProfileNames lists the built-in profiles in alphabetical order.
func ProfileNames() []string {
	var names []string
	for _, p := range profiles() {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}
