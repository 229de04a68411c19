package importer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman.dev/pointsman/internal/config"
)

// plan is the configuration that comes out, as far as files say something.
type plan struct {
	listen   string
	extProc  string
	limit    time.Duration
	first    time.Duration
	drain    time.Duration
	maxBody  int
	logLevel string
	cors     []string
	pools    []*pool
	models   []*model
	every    pool // what holds for every pool that does not say it itself
}

// pool is one entry of `pools`. The zero value of a field leaves its key away.
type pool struct {
	name      string
	endpoints []string
	kube      kubeSource
	policy    string
	waiting   int
	seqs      int
	kv        string
	queueMax  int
	queueWait time.Duration
	needsKey  bool
}

// kubeSource is where endpoints are in Kubernetes; the zero value is nowhere.
type kubeSource struct {
	inferencePool, selector, aibrix string
	namespace                       string
	ports                           []string
}

// model is one entry of `models`.
type model struct {
	name  string
	limit time.Duration
	first time.Duration
	pools []modelPool
}

type modelPool struct{ pool, serves string }

// newPool adds a pool whose name is made from a text, and is one of its own.
func (p *plan) newPool(like string) *pool {
	base := poolName(like)
	name := base
	for i := 2; slices.ContainsFunc(p.pools, func(q *pool) bool { return q.name == name }); i++ {
		name = fmt.Sprintf("%.58s-%d", base, i)
	}
	q := &pool{name: name}
	p.pools = append(p.pools, q)
	return q
}

// newModel returns the entry of a name, which is made when there is none.
func (p *plan) newModel(name string) *model {
	for _, m := range p.models {
		if m.name == name {
			return m
		}
	}
	m := &model{name: name}
	p.models = append(p.models, m)
	return m
}

// poolName makes a pool's name of a model's or an object's.
func poolName(s string) string {
	s = s[strings.LastIndex(s, "/")+1:]
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s)
	if s = strings.Trim(s, "-_."); s == "" {
		return "default"
	}
	return strings.TrimRight(s[:min(len(s), 60)], "-_.")
}

// joinPools gives every pool what holds for all, and endpoints of llm-d's files a pool.
func (im *importer) joinPools() {
	p := &im.plan
	if len(im.listed) > 0 {
		q := p.newPool("default")
		q.endpoints = im.listed
	} else if im.watched != nil {
		im.fail(im.watched, "", "the endpoints are in another file", "name that file too: pointsman import CONFIG ENDPOINTS")
	}
	for _, q := range p.pools {
		q.policy = first(q.policy, p.every.policy)
		q.kv = first(q.kv, p.every.kv)
		q.waiting = first(q.waiting, p.every.waiting)
		q.seqs = first(q.seqs, p.every.seqs)
		q.queueMax = first(q.queueMax, p.every.queueMax)
		q.queueWait = first(q.queueWait, p.every.queueWait)
		q.needsKey = q.needsKey || p.every.needsKey
	}
}

// first returns the first value that is not zero.
func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// yaml writes the configuration.
func (p *plan) yaml(notes []Note) string {
	var b strings.Builder
	todo := 0
	for _, n := range notes {
		if n.Fate == Todo {
			todo++
		}
	}
	if todo > 0 {
		fmt.Fprintf(&b, "# Left to do by hand: %d, see the list.\n", todo)
	}
	set := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	set("listen", p.listen)
	set("limit", duration(p.limit))
	if p.first != p.limit {
		set("first_byte", duration(p.first))
	}
	set("drain", duration(p.drain))
	if p.maxBody > 0 {
		set("max_body", strconv.Itoa(p.maxBody))
	}
	if p.logLevel != "" {
		set("log", "{level: "+p.logLevel+"}")
	}
	if len(p.cors) > 0 {
		set("cors", "{origins: ["+scalars(p.cors)+"]}")
	}
	if p.extProc != "" {
		set("extproc", "{listen: \""+p.extProc+"\"}")
	}
	b.WriteString("pools:\n")
	for _, q := range p.pools {
		q.write(&b)
	}
	if len(p.models) > 0 {
		b.WriteString("models:\n")
	}
	for _, m := range p.models {
		m.write(&b)
	}
	return b.String()
}

func (q *pool) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %s\n", config.Scalar(q.name))
	if len(q.endpoints) > 0 {
		b.WriteString("    endpoints:\n")
		for _, u := range q.endpoints {
			fmt.Fprintf(b, "      - %s\n", config.Scalar(u))
		}
	} else {
		q.kube.write(b)
	}
	if q.policy != "" {
		fmt.Fprintf(b, "    policy: %s\n", q.policy)
	}
	var full []string
	if q.waiting > 0 {
		full = append(full, "waiting: "+strconv.Itoa(q.waiting))
	}
	if q.seqs > 0 {
		full = append(full, "max_num_seqs: "+strconv.Itoa(q.seqs))
	}
	if q.kv != "" {
		full = append(full, "projected_kv: "+q.kv)
	}
	if len(full) > 0 {
		fmt.Fprintf(b, "    full: {%s}\n", strings.Join(full, ", "))
	}
	if q.queueMax > 0 {
		wait := ""
		if q.queueWait > 0 {
			wait = ", wait: " + duration(q.queueWait)
		}
		fmt.Fprintf(b, "    queue: {max: %d%s}\n", q.queueMax, wait)
	}
	if q.needsKey {
		fmt.Fprintf(b, "    # api_key_file: secrets/%s\n", q.name)
	}
}

func (k kubeSource) write(b *strings.Builder) {
	b.WriteString("    kubernetes:\n")
	for _, kv := range [][2]string{{"inference_pool", k.inferencePool}, {"selector", k.selector}, {"aibrix", k.aibrix}, {"namespace", k.namespace}} {
		if kv[1] != "" {
			fmt.Fprintf(b, "      %s: %s\n", kv[0], config.Scalar(kv[1]))
		}
	}
	if len(k.ports) > 0 {
		fmt.Fprintf(b, "      ports: [%s]\n", strings.Join(k.ports, ", "))
	}
}

func (m *model) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %s\n", config.Scalar(m.name))
	if m.limit > 0 {
		fmt.Fprintf(b, "    limit: %s\n", duration(m.limit))
	}
	if m.first > 0 && m.first != m.limit {
		fmt.Fprintf(b, "    first_byte: %s\n", duration(m.first))
	}
	if len(m.pools) == 1 && m.pools[0].pool == "" {
		fmt.Fprintf(b, "    serves: %s\n", config.Scalar(m.pools[0].serves))
		return
	}
	var pools []string
	for _, p := range m.pools {
		if p.serves == m.name {
			pools = append(pools, config.Scalar(p.pool))
			continue
		}
		pools = append(pools, fmt.Sprintf("{pool: %s, serves: %s}", config.Scalar(p.pool), config.Scalar(p.serves)))
	}
	if len(pools) > 0 {
		fmt.Fprintf(b, "    pools: [%s]\n", strings.Join(pools, ", "))
	}
}

// duration is a time as the file writes it, "" for none.
func duration(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d%time.Hour == 0:
		return strconv.Itoa(int(d/time.Hour)) + "h"
	case d%time.Minute == 0:
		return strconv.Itoa(int(d/time.Minute)) + "m"
	case d%time.Second == 0:
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	return strconv.Itoa(int(d/time.Millisecond)) + "ms"
}

// scalars is a list in flow style without its brackets.
func scalars(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = config.Scalar(s)
	}
	return strings.Join(quoted, ", ")
}
