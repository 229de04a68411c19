package route

// Gate numbers, the order of Pick.Full and of Explanation gates.
const (
	GateWaiting = iota
	GateMaxNumSeqs
	GateProjectedKV
	NumGates
)

// GateName returns the metric label of a gate: waiting, max_num_seqs or projected_kv.
func GateName(gate int) string {
	switch gate {
	case GateWaiting:
		return "waiting"
	case GateMaxNumSeqs:
		return "max_num_seqs"
	case GateProjectedKV:
		return "projected_kv"
	}
	return "unknown"
}
