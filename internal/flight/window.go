package flight

import (
	"pointsman.dev/pointsman/internal/llmapi"
	"pointsman.dev/pointsman/internal/pool"
	"pointsman.dev/pointsman/internal/telemetry"
)

// Choice is the pool that is asked.
func (f *Flight) Choice() *pool.Choice { return &f.Target[f.At] }

// first returns the choice to begin with: the first that the request does not certainly exceed, or the last of all.
func (f *Flight) first() int {
	if len(f.Target) == 1 || f.Req == nil {
		return 0
	}
	if f.Picked.MediaBytes == 0 && f.Req.Prompts == 1 { // else there is nothing to compare it with
		f.Rec.Estimate, _ = f.Target[0].Pool.Tokens(&f.Picked)
	}
	if at := f.keeperAt(); at >= 0 {
		return at
	}
	largest := 0
	for i := range f.Target {
		if !f.exceeds(&f.Target[i]) {
			largest = i
			break
		}
		if f.Target[i].Window > f.Target[largest].Window {
			largest = i
		}
	}
	if largest > 0 {
		f.Rec.Window = telemetry.WindowDirect
	}
	return largest
}

// keeperAt finds the choice whose pool keeps what the request continues, -1 for none.
func (f *Flight) keeperAt() int {
	if f.Picked.Sticky == "" {
		return -1
	}
	at := f.Desk.Memory.sticky.find(f.Req.PreviousResponse)
	for i := range f.Target {
		if f.Target[i].Pool == at.pool {
			return i
		}
	}
	return -1
}

// exceeds reports whether the request certainly does not fit c's window.
func (f *Flight) exceeds(c *pool.Choice) bool {
	if c.Window <= 0 || f.Req.Prompts > 1 || f.Req.Truncates || !f.fillsWindow() {
		return false
	}
	_, least := c.Pool.Tokens(&f.Picked)
	return least >= c.Window || f.Req.MaxTokens > c.Window || c.Pool.CountsOutput() && least+f.Req.MaxTokens > c.Window
}

// fillsWindow reports whether the request is of an API that runs the prompt through the model.
func (f *Flight) fillsWindow() bool {
	switch f.API.Kind {
	case llmapi.Embeddings, llmapi.Pooling, llmapi.Classify, llmapi.Score, llmapi.Rerank:
		return true
	}
	return f.API.Generates
}

// teach tells the other pools of the model what one's engine counted.
func (f *Flight) teach() {
	if len(f.Target) < 2 || f.Req == nil || !f.Result.HasUsage || f.Outcome != telemetry.OutcomeOK {
		return
	}
	for i := range f.Target {
		if i != f.At {
			f.Target[i].Pool.Counted(&f.Picked, f.Result.Usage.Prompt)
		}
	}
}
