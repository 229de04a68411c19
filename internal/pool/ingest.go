package pool

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"pointsman.dev/pointsman/internal/books"
	"pointsman.dev/pointsman/internal/route"
)

// watched calls f for every slot at an address: the endpoint, and earlier lives of it that still have requests.
// The mutex is held.
func (p *Pool) watched(url string, f func(i int, s *slot)) {
	if i, ok := p.byURL[url]; ok {
		f(i, p.slots[i])
	}
	for _, i := range p.leavers {
		if s := p.slots[i]; s.key == url {
			f(i, s)
		}
	}
}

// Report takes what the endpoint at url said of itself. Numbers that are NaN, infinite or below zero count as
// unknown, and so do sizes above 1e12. An address that is not watched is ignored.
func (p *Pool) Report(url string, r Report) {
	r.sanitize()
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		s.machine.Report(now, true)
		s.machine.Asleep(now, r.Asleep)
		p.answered(s, &s.proof.report, pageShown)
		if s.leaving {
			p.touch(i, now)
			return
		}
		p.take(i, s, &r, now)
	})
}

// take makes r the report of a slot. The mutex is held.
func (p *Pool) take(i int, s *slot, r *Report, now time.Duration) {
	old, had := s.rep, s.hasRep
	if had && restarted(&old, r) {
		p.restart(i, s, now)
		had = false
	}
	if r.Asleep && !old.Asleep {
		p.index.Clear(i) // sleeping discards the cache
	}
	if !had || moved(&old, r) {
		s.stirred = false
	}
	if had && (rose(old.GenerationTokens, r.GenerationTokens) || rose(old.PromptTokens, r.PromptTokens)) {
		s.machine.Progress(now)
	}
	slow := had && now-s.repAt > 500*time.Millisecond
	s.rep, s.hasRep, s.repAt, s.repErr = *r, true, now, ""
	s.foreignLoad(p.books.Load(i).Decoding, slow || !had)
	p.assumePrefilled(i, s, now)
	s.seqsSeen.Observe(r.Running, waiting(r), r.KVUsage, now)
	p.books.Mark(i, now)
	p.queue.freed = true
	p.setCapacity(i, s)
	if !had || !sameBool(old.PrefixCaching, r.PrefixCaching) || old.Engine != r.Engine {
		p.choosePolicy()
	}
	p.touch(i, now)
	p.cutSilent(s, now)
	p.due = min(p.due, now+p.cfg.StaleAfter+1)
}

// assumePrefilled books requests whose first token cannot be seen as decoding, once an engine in which nothing waits
// has had twice the time that their prefill should take. Otherwise their prompts would count as work to come until the
// answer is whole. The mutex is held.
func (p *Pool) assumePrefilled(i int, s *slot, now time.Duration) {
	if waiting(&s.rep) != 0 {
		return
	}
	for o := range s.promises.All {
		b := o.Data.(*Booking)
		if b.req.Whole && now-b.at > books.Expected(&b.pick, &p.snap.Endpoints[i], &p.snap.Params, 2)+p.cfg.ReportInterval {
			if p.books.Assumed(b.ticket, now) {
				p.tellPrefilled(b, now)
			}
		}
	}
}

// largestSize is more than any engine has of anything.
const largestSize = 1e12

// sanitize turns what cannot be into Unknown.
func (r *Report) sanitize() {
	believe := func(most float64, values ...*float64) {
		for _, v := range values {
			if !(*v >= 0 && *v <= most) {
				*v = Unknown
			}
		}
	}
	believe(largestSize, &r.Running, &r.Waiting, &r.WaitingCapacity, &r.WaitingDeferred, &r.KVUsage, &r.BlockSize, &r.NumBlocks,
		&r.CapacityTokens, &r.MaxModelLen, &r.MaxNumSeqs)
	believe(math.MaxFloat64, &r.ProcessStart, &r.Queries, &r.Hits, &r.PromptTokens, &r.ComputedPromptTokens, &r.GenerationTokens, &r.Preemptions)
	if r.KVUsage > 1 {
		r.KVUsage = 1
	}
	r.Ranks = max(1, r.Ranks)
}

// restarted compares two reports of one address: another start time, or a counter that went down.
func restarted(old, r *Report) bool {
	if old.ProcessStart > 0 && r.ProcessStart > 0 && math.Abs(old.ProcessStart-r.ProcessStart) > 1 {
		return true
	}
	return fell(old.PromptTokens, r.PromptTokens) || fell(old.GenerationTokens, r.GenerationTokens) ||
		fell(old.Queries, r.Queries)
}

func fell(old, now float64) bool { return old >= 0 && now >= 0 && now < old }
func rose(old, now float64) bool { return old >= 0 && now > old }

// moved says whether anything that an engine's step changes is different.
func moved(old, r *Report) bool {
	return old.Running != r.Running || old.Waiting != r.Waiting || old.KVUsage != r.KVUsage ||
		old.Queries != r.Queries || old.PromptTokens != r.PromptTokens || old.GenerationTokens != r.GenerationTokens ||
		old.ProcessStart != r.ProcessStart
}

// restart forgets what belonged to the process that was: its cache is empty, its speed may differ. The mutex is held.
func (p *Pool) restart(i int, s *slot, now time.Duration) {
	s.restarts++
	s.machine.Restarted(now)
	s.learn.Reset()
	s.seqsSeen, s.fit, s.maxSeqs = route.LimitLearner{}, route.CapacityLearner{}, 0
	s.foreign.Unreported()
	p.index.Clear(i)
	p.event(slog.LevelInfo, "endpoint restarted", "endpoint", s.ep.Name)
}

// foreignLoad finds the load that came past this gateway and its peers.
func (s *slot) foreignLoad(decoding int, alone bool) {
	r := &s.rep
	if r.Running < 0 && r.Waiting < 0 {
		s.foreign.Unreported()
		return
	}
	s.foreign.Reported(int64(count32(r.Running))+int64(count32(r.Waiting)), count32(waiting(r)), decoding, alone)
}

// setCapacity tells the index how much the endpoint can hold. The mutex is held.
func (p *Pool) setCapacity(i int, s *slot) {
	if s.rep.CapacityTokens <= 0 {
		return
	}
	s.capacity = books.Resize(p.index, i, s.capacity, int64(s.rep.CapacityTokens*p.snap.Params.BytesPerToken*s.fit.Share()))
}

// ReportFailed records that the metrics page of url could not be read; an AnswerError that it was answered.
func (p *Pool) ReportFailed(url string, err error) {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		s.machine.Report(now, false)
		s.repErr = err.Error()
		if !Starved(err) {
			s.why = s.repErr
		}
		p.failed(s, &s.proof.report, err, now)
		p.touch(i, now)
	})
}

// HealthMute records that the health page of url took the connection and did not answer in time.
func (p *Pool) HealthMute(url string) {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		s.machine.Mute(now)
		s.why = "/health takes connections and does not answer"
		p.touch(i, now)
		p.cutSilent(s, now)
	})
	p.schedule(now)
}

// HealthProbe records the answer of the health page of url; err means that there was none.
func (p *Pool) HealthProbe(url string, code int, err error) {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		if s.heard && Starved(err) {
			return // it was not asked
		}
		s.machine.Health(now, code, err != nil)
		switch {
		case err != nil:
			s.why = err.Error()
			p.unanswered(s, err, now)
		case code >= 200 && code < 300:
			p.answered(s, &s.proof.health, pageShown)
		case code >= 500:
			s.heard = true
			s.why = fmt.Sprintf("/health answers %d", code)
		default:
			p.failed(s, &s.proof.health, &AnswerError{Status: code}, now)
		}
		p.touch(i, now)
		p.cutSilent(s, now)
	})
	p.schedule(now)
}

// NeedsHealth says whether the health page of url should be asked now: it is not known to be usable, or it is silent
// while requests are open.
func (p *Pool) NeedsHealth(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	need := false
	p.watched(url, func(_ int, s *slot) {
		at := s.machine.ProbeAt(now)
		need = need || at >= 0 && at <= now
	})
	return need
}

// Learned takes what the endpoint at url says about itself now and then. A nil model list means that it has none
// to show, and leaves what is known.
func (p *Pool) Learned(url string, f Facts) {
	p.mu.Lock()
	defer p.unlock()
	now := p.now()
	p.watched(url, func(i int, s *slot) {
		if s.leaving {
			return
		}
		s.machine.Connected(now)
		s.heard = true
		if f.Models != nil {
			p.answered(s, &s.proof.models, pageShown)
			s.modelsErr, s.modelsFails, s.modelsSaid, s.wantsKey = "", 0, false, false
		}
		if f.Version != "" && f.Version != s.version {
			p.countsOutput.Store(false) // another release may have other habits
		}
		if f.Version != "" {
			s.version = f.Version
		}
		if f.MaxNumSeqs > 0 {
			s.maxSeqs = f.MaxNumSeqs
		}
		if f.Models != nil && (!s.listed || !slices.Equal(s.models, f.Models)) {
			s.models, s.listed = slices.Clone(f.Models), true
			p.indexModels()
		}
		p.touch(i, now)
	})
}

func sameBool(a, b *bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
