package config

import (
	"fmt"
	"strconv"
	"strings"
)

// YAML returns the configuration as a file with every key written out, defaults included. Parse of the result gives an
// equal configuration. Keys of pools stay in their files; the result holds no secret.
func (c *Config) YAML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %s\nadmin: %s\n", scalar(c.Listen), scalar(c.Admin))
	fmt.Fprintf(&b, "limit: %s\nfirst_byte: %s\nidle: %s\n", shortDuration(c.Limit), shortDuration(c.FirstByte), shortDuration(c.Idle))
	fmt.Fprintf(&b, "drain: %s\ndrain_delay: %s\nkeepalive: %s\n", shortDuration(c.Drain), shortDuration(c.DrainDelay), shortDuration(c.KeepAlive))
	fmt.Fprintf(&b, "max_body: %s\ncut_stream: %s\n", shortSize(c.MaxBody), c.CutStream)
	if c.CORS != nil {
		fmt.Fprintf(&b, "cors: {origins: [%s]}\n", scalars(c.CORS.Origins))
	}
	if c.TLS != nil {
		fmt.Fprintf(&b, "tls: {cert_file: %s, key_file: %s}\n", scalar(c.TLS.CertFile), scalar(c.TLS.KeyFile))
	}
	if c.ExtProc != nil {
		c.ExtProc.write(&b)
	}
	if c.Peers != nil {
		c.Peers.write(&b)
	}
	if k := c.Kubernetes; k != nil {
		fmt.Fprintf(&b, "kubernetes: {kubeconfig: %s", scalar(k.Kubeconfig))
		if k.Context != "" {
			fmt.Fprintf(&b, ", context: %s", scalar(k.Context))
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "debug_headers: %t\n", c.DebugHeaders)
	fmt.Fprintf(&b, "log: {format: %s, level: %s, prefix_hashes: %t}\n", c.Log.Format, levelWord(c.Log.Level), c.Log.PrefixHashes)
	b.WriteString("pools:\n")
	for i := range c.Pools {
		c.Pools[i].write(&b)
	}
	if len(c.Models) > 0 {
		b.WriteString("models:\n")
	}
	for i := range c.Models {
		c.Models[i].write(&b)
	}
	return b.String()
}

func (m *Model) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %s\n    serves: %s\n", scalar(m.Name), scalar(m.Serves))
	if len(m.Pools) > 0 { // else it goes where endpoints list it
		pools := make([]string, len(m.Pools))
		for i, p := range m.Pools {
			pools[i] = fmt.Sprintf("{pool: %s, serves: %s}", scalar(p.Pool), scalar(p.Serves))
		}
		fmt.Fprintf(b, "    pools: [%s]\n", strings.Join(pools, ", "))
	}
	fmt.Fprintf(b, "    limit: %s\n    first_byte: %s\n    idle: %s\n", shortDuration(m.Limit), shortDuration(m.FirstByte), shortDuration(m.Idle))
}

// scalars is a flow list without its brackets.
func scalars(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = scalar(s)
	}
	return strings.Join(quoted, ", ")
}

func (p *Pool) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %s\n", scalar(p.Name))
	switch {
	case p.File != "":
		fmt.Fprintf(b, "    file: %s\n", scalar(p.File))
	case p.DNS != "":
		fmt.Fprintf(b, "    dns: %s\n", scalar(p.DNS))
	case p.Kubernetes != nil:
		p.Kubernetes.write(b)
	default:
		b.WriteString("    endpoints:\n")
		for _, u := range p.Endpoints {
			fmt.Fprintf(b, "      - %s\n", scalar(u))
		}
	}
	seqs := "auto"
	if p.Full.MaxNumSeqs > 0 {
		seqs = strconv.Itoa(p.Full.MaxNumSeqs)
	}
	fmt.Fprintf(b, "    policy: %s\n    gates: %s\n", p.Policy, p.Gates)
	fmt.Fprintf(b, "    full: {waiting: %d, max_num_seqs: %s, projected_kv: %s, long_prompt: %d}\n",
		p.Full.Waiting, seqs, strconv.FormatFloat(p.Full.ProjectedKV, 'g', -1, 64), p.Full.LongPrompt)
	fmt.Fprintf(b, "    when_full: %s\n", p.WhenFull)
	fmt.Fprintf(b, "    queue: {max: %d, wait: %s}\n    hold: %s\n    overflow: %t\n", p.Queue.Max, shortDuration(p.Queue.Wait), shortDuration(p.Hold), p.Overflow)
	for i, w := range p.Warm {
		if i == 0 {
			b.WriteString("    warm:\n")
		}
		fmt.Fprintf(b, "      - {prompt: %d, output: %d, at_once: %d}\n", w.Prompt, w.Output, w.AtOnce)
	}
	if p.APIKeyFile != "" {
		fmt.Fprintf(b, "    api_key_file: %s\n", scalar(p.APIKeyFile))
	}
}

// scalar quotes a text unless it is plainly a text without quotes.
func scalar(s string) string {
	plain := s != "" && (s[0] >= 'a' && s[0] <= 'z' || s[0] == '/')
	for _, r := range s {
		plain = plain && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:", r))
	}
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain && !strings.HasSuffix(s, ":") {
		return s
	}
	return strconv.Quote(s)
}

// LimitText is Limit as the file writes it: 1h30m.
func (c *Config) LimitText() string { return shortDuration(c.Limit) }

// MaxBodyText is MaxBody as the file writes it: 64MiB.
func (c *Config) MaxBodyText() string { return shortSize(c.MaxBody) }

// Scalar returns a text as a YAML file writes it: quoted, unless it is plainly a text without quotes.
func Scalar(s string) string { return scalar(s) }
