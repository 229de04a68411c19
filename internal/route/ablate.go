package route

// Terms is a set of cost terms, and of two parts of them: for finding out what each is good for.
type Terms uint16

// The terms, in the order of Explain.
const (
	TermWait Terms = 1 << iota
	TermWork
	TermBusy
	TermStall
	TermStep
	TermReturn
	TermKappa // the endpoint's own factor on wait and work
	TermTies  // costs that are nearly equal count as equal
)

// AllTerms returns each term with its name.
func AllTerms() []NamedTerm {
	return []NamedTerm{
		{"wait", TermWait}, {"work", TermWork}, {"busy", TermBusy}, {"stall", TermStall}, {"step", TermStep},
		{"return", TermReturn}, {"kappa", TermKappa}, {"ties", TermTies},
	}
}

// NamedTerm is one term and the word that Explain uses for it.
type NamedTerm struct {
	Name string
	Term Terms
}

// drop takes terms out of a cost.
func (c *cost) drop(t Terms) {
	for _, x := range [...]struct {
		term Terms
		v    *float64
	}{
		{TermWait, &c.wait}, {TermWork, &c.work}, {TermBusy, &c.busy}, {TermStall, &c.stall}, {TermStep, &c.step},
		{TermReturn, &c.credit},
	} {
		if t&x.term != 0 {
			*x.v = 0
		}
	}
}
