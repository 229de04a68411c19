package route

// DefaultParams returns the settings of a pool of which nothing is configured or learned.
func DefaultParams() Params {
	return Params{
		FullWaiting: 1, ProjectedKV: 0.95, LongPrompt: 16384,
		Coeff: profiles[0].c, StallShare: 0.3, BytesPerToken: 4, MeanOutput: 200, Residence: 5,
	}
}

var profiles = [...]struct {
	name string
	c    Coefficients
}{
	{"qwen3-32b-h100-tp2", ms(14.33, 0.0583, 0.0489, 49.8, 1.6e-6)},
	{"qwen3-32b-h100-tp4", ms(9.45, 0.0585, 0.0248, 29.2, 0.8e-6)},
	{"qwen3-32b-h100-tp8", ms(7.44, 0.0700, 0, 19.0, 0.4e-6)},
	{"llama-3.1-8b-h100", ms(6.55, 0, 0.0483, 20.2, 0.8e-6)},
	{"llama-3.1-70b-fp8-h100-tp4", ms(11.12, 0.0514, 0.0279, 46.5, 1.0e-6)},
	{"llama-3.1-70b-fp8-h100-tp8", ms(8.90, 0.0607, 0.0115, 30.9, 0.5e-6)},
	{"llama-3.1-70b-fp8-h200", ms(20.57, 0.0619, 0.0727, 128.0, 4.6e-6)},
	{"llama-3.1-70b-fp8-h200-tp4", ms(9.28, 0.0423, 0.0209, 44.3, 1.0e-6)},
}

// ms takes a in ms, b in ms per request, c in us per context token, p in us per token, q in ms per token squared: the
// units in which they are published.
func ms(a, b, c, p, q float64) Coefficients {
	return Coefficients{A: a * 1e-3, B: b * 1e-3, C: c * 1e-6, P: p * 1e-6, Q: q * 1e-3}
}

// Profile returns the coefficients of a named model on named hardware; false when the name is unknown.
func Profile(name string) (Coefficients, bool) {
	for i := range profiles {
		if profiles[i].name == name {
			return profiles[i].c, true
		}
	}
	return Coefficients{}, false
}
